package store

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"syscall"

	"golang.org/x/sys/unix"
)

// Scratch is a directory below the temporary directory that lives as long as its process. A process that is killed
// leaves it behind; [SweepScratch] knows that by the lock, which the kernel gives back however a process ends. The
// lock file stands beside the directory and is there first, so that no directory in use is ever without it.
type Scratch struct {
	path string
	lock *os.File
}

const scratchLock = ".lock"

// NewScratch makes an empty directory whose name begins with prefix.
func NewScratch(prefix string) (*Scratch, error) {
	for {
		lock, err := os.CreateTemp("", prefix+"*"+scratchLock)
		if err != nil {
			return nil, fmt.Errorf("make room for a copy: %w", err)
		}
		// A sweep that came between may have taken the file for one left behind.
		if err := unix.Flock(int(lock.Fd()), unix.LOCK_EX|unix.LOCK_NB); err != nil || !same(lock) {
			_ = lock.Close()
			if err != nil && !errors.Is(err, unix.EWOULDBLOCK) {
				return nil, errors.Join(fmt.Errorf("lock %s: %w", lock.Name(), err), os.Remove(lock.Name()))
			}
			continue
		}
		s := &Scratch{path: strings.TrimSuffix(lock.Name(), scratchLock), lock: lock}
		if err := os.Mkdir(s.path, 0o700); err != nil {
			return nil, errors.Join(fmt.Errorf("make room for a copy: %w", err), os.Remove(lock.Name()), lock.Close())
		}
		return s, nil
	}
}

// same reports that a file still has its name.
func same(f *os.File) bool {
	open, err := f.Stat()
	if err != nil {
		return false
	}
	named, err := os.Lstat(f.Name())
	return err == nil && os.SameFile(open, named)
}

// Path returns the directory's path.
func (s *Scratch) Path() string { return s.path }

// Close removes the directory with all that is in it.
func (s *Scratch) Close() error {
	err := os.RemoveAll(s.path)
	return errors.Join(err, os.Remove(s.lock.Name()), s.lock.Close())
}

// SweepScratch removes directories of this user that [NewScratch] made with the prefix in processes that are gone,
// and returns their paths. What is in use stays, and so does what it cannot tell.
func SweepScratch(prefix string) (removed []string, err error) {
	locks, err := filepath.Glob(filepath.Join(os.TempDir(), prefix+"*"+scratchLock))
	if err != nil {
		return nil, fmt.Errorf("look for copies left behind: %w", err)
	}
	for _, name := range locks {
		path, one := sweepOne(name)
		if err = errors.Join(err, one); path != "" {
			removed = append(removed, path)
		}
	}
	return removed, err
}

// sweepOne removes the directory of a lock file that nobody holds; its path is empty when it stays.
func sweepOne(name string) (path string, err error) {
	lock, _ := os.OpenFile(name, os.O_RDONLY|unix.O_NOFOLLOW|unix.O_NONBLOCK, 0)
	if lock == nil {
		return "", nil // gone meanwhile, or somebody else's
	}
	defer lock.Close()
	if unix.Flock(int(lock.Fd()), unix.LOCK_EX|unix.LOCK_NB) != nil || !same(lock) || !mine(lock) {
		return "", nil
	}
	path = strings.TrimSuffix(name, scratchLock)
	if _, err := os.Lstat(path); errors.Is(err, fs.ErrNotExist) {
		path = "" // it was killed before it made one
	} else if err := os.RemoveAll(path); err != nil {
		return "", fmt.Errorf("remove a copy left behind: %w", err)
	}
	if err := os.Remove(name); err != nil {
		return path, fmt.Errorf("remove a copy left behind: %w", err)
	}
	return path, nil
}

// mine reports that a file is a regular one of this user: the temporary directory is everybody's.
func mine(f *os.File) bool {
	info, err := f.Stat()
	if err != nil || !info.Mode().IsRegular() {
		return false
	}
	sys, ok := info.Sys().(*syscall.Stat_t)
	return ok && int(sys.Uid) == os.Getuid()
}
