package store

import (
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"strings"

	"golang.org/x/sys/unix"
)

// Mirror makes dst, an empty directory, a copy of the data directory src that can be opened and changed, and
// leaves src as it is. Files that are never written again (sealed journal segments, raft's snapshots) are
// linked, so dst is good only while src stays. Errors: [ErrLocked] while a node runs on src.
func Mirror(src, dst string) error {
	src, err := filepath.Abs(src)
	if err != nil {
		return fmt.Errorf("copy data directory: %w", err)
	}
	lock, err := lockShared(src)
	if err != nil {
		return err
	}
	err = filepath.WalkDir(src, func(path string, d fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		rel, err := filepath.Rel(src, path)
		if err != nil || rel == "." {
			return err
		}
		return mirrorEntry(path, filepath.Join(dst, rel), d)
	})
	if err != nil {
		err = fmt.Errorf("copy data directory: %w", err)
	}
	return errors.Join(err, lock.Close())
}

func mirrorEntry(from, to string, d fs.DirEntry) error {
	name := d.Name()
	switch {
	case d.IsDir():
		return os.Mkdir(to, 0o700)
	case name == lockName, strings.HasPrefix(name, ".probe-"), damagedName.MatchString(name), !d.Type().IsRegular():
		return nil
	case neverRewritten(from):
		return os.Symlink(from, to)
	}
	return copyFile(from, to)
}

// neverRewritten reports whether a file of a data directory only ever appears whole and disappears.
func neverRewritten(path string) bool {
	if _, active, ok := parseSegment(filepath.Base(path)); ok {
		return !active
	}
	return filepath.Base(filepath.Dir(filepath.Dir(path))) == snapshotsName
}

func copyFile(from, to string) error {
	in, err := os.Open(from)
	if err != nil {
		return err
	}
	defer in.Close()
	out, err := os.OpenFile(to, os.O_WRONLY|os.O_CREATE|os.O_EXCL, 0o600)
	if err != nil {
		return err
	}
	_, err = io.Copy(out, in)
	return errors.Join(err, out.Close())
}

// lockShared keeps a node from starting on the directory, without writing to it.
func lockShared(dir string) (io.Closer, error) {
	path := filepath.Join(dir, lockName)
	f, err := os.Open(path)
	if errors.Is(err, fs.ErrNotExist) {
		return io.NopCloser(nil), nil // a copy of a directory need not have one
	}
	if err != nil {
		return nil, fmt.Errorf("open lock file: %w", err)
	}
	err = unix.Flock(int(f.Fd()), unix.LOCK_SH|unix.LOCK_NB)
	if err == nil {
		return f, nil
	}
	defer f.Close()
	if errors.Is(err, unix.EWOULDBLOCK) {
		return nil, fmt.Errorf("%w: a node runs on %s: stop it, or ask the node itself", ErrLocked, dir)
	}
	return nil, fmt.Errorf("lock %s: %w", path, err)
}
