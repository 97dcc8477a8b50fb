package store

import (
	"errors"
	"fmt"
	"os"

	"golang.org/x/sys/unix"
)

// FreeBytes returns how many bytes an unprivileged process may still write to the file system of path.
func FreeBytes(path string) (uint64, error) {
	var st unix.Statfs_t
	if err := unix.Statfs(path, &st); err != nil {
		return 0, fmt.Errorf("free space of %s: %w", path, err)
	}
	return st.Bavail * uint64(st.Bsize), nil
}

// Guard tells whether a node may take writes. Refusing below a floor leaves room for what must go on: applying
// what is committed, and snapshots, which let the log shrink (hashicorp/raft 614).
type Guard struct {
	Path  string
	Floor uint64                            // bytes
	Free  func(path string) (uint64, error) // default FreeBytes
}

// Check returns nil, [ErrNoSpace] or [ErrReadOnly]. It writes and removes a small file, so call it every few
// seconds, not for each command.
func (g Guard) Check() error {
	free := g.Free
	if free == nil {
		free = FreeBytes
	}
	n, err := free(g.Path)
	if err != nil {
		return err
	}
	if n < g.Floor {
		return fmt.Errorf("%w: %s has %d bytes free, the floor is %d: free space or lower the floor", ErrNoSpace, g.Path, n, g.Floor)
	}
	return probe(g.Path)
}

func probe(dir string) error {
	f, err := os.CreateTemp(dir, ".probe-*")
	if err == nil {
		_, err = f.WriteString("kvgate")
		err = errors.Join(err, f.Close(), os.Remove(f.Name()))
	}
	switch {
	case err == nil:
		return nil
	case errors.Is(err, unix.ENOSPC), errors.Is(err, unix.EDQUOT):
		return fmt.Errorf("%w: %s: %w: free space", ErrNoSpace, dir, err)
	}
	return fmt.Errorf("%w: %s: %w: check mount options and permissions", ErrReadOnly, dir, err)
}
