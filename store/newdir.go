package store

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
)

// restoringName is where a data directory is built before it takes its place. While it is there, the directory
// around it is not whole.
const restoringName = "restoring"

// NewDir builds a data directory at path, which must be missing or empty, or left over from a call that was cut
// short: build gets a directory to fill and must have closed everything when it returns. A crash leaves
// a directory that [OpenDir] refuses with [ErrUnfinished]. Errors: [ErrNotEmpty], [ErrLocked].
func NewDir(path string, build func(dir string) error) error {
	if err := clearForNewDir(path); err != nil {
		return err
	}
	inner := filepath.Join(path, restoringName)
	if err := os.MkdirAll(inner, 0o700); err != nil {
		return fmt.Errorf("make data directory: %w", err)
	}
	err := errors.Join(syncDir(path), syncDir(filepath.Dir(filepath.Clean(path))))
	if err == nil {
		err = build(inner)
	}
	if err != nil {
		return errors.Join(err, os.RemoveAll(inner))
	}
	return moveUp(inner, path)
}

func clearForNewDir(path string) error {
	entries, err := os.ReadDir(path)
	if errors.Is(err, fs.ErrNotExist) || err == nil && len(entries) == 0 {
		return nil
	}
	if err != nil {
		return fmt.Errorf("look into data directory: %w", err)
	}
	inner := filepath.Join(path, restoringName)
	if !exists(inner) {
		return fmt.Errorf("%w: %s holds %s: give an empty directory", ErrNotEmpty, path, entries[0].Name())
	}
	lock, err := lockFile(filepath.Join(inner, lockName))
	if err != nil {
		return err
	}
	if err := lock.Close(); err != nil {
		return err
	}
	// The directory was empty before, so everything in it is from the call that was cut short. What says so goes
	// last.
	for _, e := range entries {
		if e.Name() == restoringName {
			continue
		}
		if err := os.RemoveAll(filepath.Join(path, e.Name())); err != nil {
			return fmt.Errorf("remove a restore cut short: %w", err)
		}
	}
	return os.RemoveAll(inner)
}

// moveUp moves what was built to its place, the identity last.
func moveUp(inner, path string) error {
	entries, err := os.ReadDir(inner)
	if err != nil {
		return fmt.Errorf("finish data directory: %w", err)
	}
	move := func(name string) error { return os.Rename(filepath.Join(inner, name), filepath.Join(path, name)) }
	for _, e := range entries {
		if e.Name() != nodeName && err == nil {
			err = move(e.Name())
		}
	}
	if err == nil {
		err = errors.Join(move(nodeName), syncDir(path))
	}
	if err == nil {
		err = errors.Join(os.Remove(inner), syncDir(path))
	}
	if err != nil {
		return fmt.Errorf("finish data directory: %w", err)
	}
	return nil
}
