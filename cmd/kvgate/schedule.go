package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"time"

	"kvgate/fsm"
	"kvgate/store"
)

// snapshotFloor is the free space in bytes below which no snapshot is saved: what is left is for the log.
const snapshotFloor = 256 << 20

// snapshotTime is how a file's name tells when it was saved; names sort by it.
const snapshotTime = "20060102T150405Z"

// saver saves snapshots of this node on a schedule. Every node that is told to does so, leader or not: a copy
// is worth having wherever a disk survives, and reading it costs the node that saves only.
type saver struct {
	replica *fsm.Replica
	node    string
	dir     string
	keep    int
	log     *slog.Logger
	now     func() time.Time
	// free returns the free space of a file system; store.FreeBytes but in tests.
	free func(path string) (uint64, error)
	// saved is the index of the newest snapshot of this run.
	saved uint64
}

// run saves one at every tick until ctx ends.
func (s *saver) run(ctx context.Context, ticks <-chan time.Time) {
	s.sweep()
	for {
		select {
		case <-ctx.Done():
			return
		case <-ticks:
		}
		if err := s.save(ctx); err != nil && ctx.Err() == nil {
			s.log.Error("no snapshot was saved", slog.String("dir", s.dir), slog.Any("error", err))
		}
	}
}

// save saves a snapshot and removes those of this node that are too many. Nothing is saved when nothing was
// decided since, or while the disk is short of room.
func (s *saver) save(ctx context.Context) error {
	status := s.replica.Status()
	if status.AppliedIndex == s.saved {
		return nil
	}
	if !status.Writable {
		return fmt.Errorf("%w: %s", store.ErrNoSpace, status.Health)
	}
	if err := os.MkdirAll(s.dir, 0o700); err != nil {
		return err
	}
	guard := store.Guard{Path: s.dir, Floor: snapshotFloor, Free: s.free}
	if err := guard.Check(); err != nil {
		return err
	}
	path := filepath.Join(s.dir, fmt.Sprintf("%s-%s-%d.kvgate", s.fileNode(), s.now().UTC().Format(snapshotTime), status.AppliedIndex))
	header, err := saveFile(path, func(w io.Writer) (store.Header, error) { return s.replica.Save(ctx, w) })
	if err != nil {
		return err
	}
	s.saved = header.Index
	s.log.Info("snapshot saved", slog.String("file", path), slog.Uint64("index", header.Index))
	return s.prune()
}

// fileNode is the node's id as it may be in the name of a file.
func (s *saver) fileNode() string {
	return strings.Map(func(r rune) rune {
		if r == os.PathSeparator || r == 0 {
			return '_'
		}
		return r
	}, s.node)
}

// mine matches the names of this node's snapshots; other nodes may save into the same directory.
func (s *saver) mine() *regexp.Regexp {
	return regexp.MustCompile(`^` + regexp.QuoteMeta(s.fileNode()) + `-\d{8}T\d{6}Z-\d+\.kvgate$`)
}

// prune removes this node's oldest snapshots beyond keep.
func (s *saver) prune() error {
	names, err := s.list(s.mine())
	if err != nil {
		return err
	}
	slices.Sort(names)
	for len(names) > s.keep {
		err = errors.Join(err, os.Remove(filepath.Join(s.dir, names[0])))
		names = names[1:]
	}
	return err
}

// sweep removes what a save that was cut short by a crash left behind.
func (s *saver) sweep() {
	left := regexp.MustCompile(`^\.` + regexp.QuoteMeta(s.fileNode()) + `-\d{8}T\d{6}Z-\d+\.kvgate\..*\.part$`)
	names, err := s.list(left)
	for _, name := range names {
		err = errors.Join(err, os.Remove(filepath.Join(s.dir, name)))
	}
	if err != nil && !errors.Is(err, os.ErrNotExist) {
		s.log.Warn("half a snapshot was not removed", slog.String("dir", s.dir), slog.Any("error", err))
	}
}

func (s *saver) list(names *regexp.Regexp) (out []string, err error) {
	entries, err := os.ReadDir(s.dir)
	for _, e := range entries {
		if names.MatchString(e.Name()) {
			out = append(out, e.Name())
		}
	}
	return out, err
}
