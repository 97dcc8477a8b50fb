package store

import (
	"errors"
	"fmt"
	"io"
	"io/fs"
	"log/slog"
	"os"
	"time"

	"github.com/hashicorp/go-hclog"
	"github.com/hashicorp/raft"
	raftboltdb "github.com/hashicorp/raft-boltdb/v2"
	"go.etcd.io/bbolt"
)

// RaftOptions are the options of [OpenRaft].
type RaftOptions struct {
	// Fatal ends the process after the stable store could not be written. Raft panics on such an error, because
	// a vote or term that is not on disk may be given twice; this says why instead. If Fatal returns, raft gets
	// the error. Default: log and exit with status 1.
	Fatal func(op string, err error)
	// Retry is asked after the stable store could not be written, before Fatal: true tries again. It may
	// block. Nil means no.
	Retry func(error) bool
	// BeforeWrite runs before each write with its operation; its error fails the write. It may block to play a
	// stalled disk. For fault injection; nil does nothing.
	BeforeWrite func(op string) error
	// Observe gets each operation's duration and error, for the disk watchdog and for metrics. It is called from
	// raft's goroutines and must not block. Missing keys are not errors. Nil does nothing.
	Observe func(op string, d time.Duration, err error)
	// NoSync leaves writes unflushed; for tests and benchmarks only.
	NoSync bool
	// Log is used by the default Fatal. Default slog.Default.
	Log *slog.Logger
}

// Operations named to the hooks of [RaftOptions].
const (
	OpStoreLogs   = "store_logs"
	OpDeleteRange = "delete_range"
	OpGetLog      = "get_log"
	OpSet         = "set"
	OpGet         = "get"
)

// RaftStore is raft's log and stable store over raft.db. It is safe for concurrent use.
type RaftStore struct {
	bolt *raftboltdb.BoltStore
	opts RaftOptions
	path string
}

var (
	_ raft.LogStore          = (*RaftStore)(nil)
	_ raft.StableStore       = (*RaftStore)(nil)
	_ raft.MonotonicLogStore = (*RaftStore)(nil)
)

// OpenRaft opens raft.db. A damaged file is [ErrDamaged] and stays where it is: a voter that forgets its votes
// and its log must not come back under its old id by itself.
func OpenRaft(dir *Dir, opts RaftOptions) (*RaftStore, error) {
	if opts.Log == nil {
		opts.Log = slog.Default()
	}
	if opts.Fatal == nil {
		opts.Fatal = exitOn(opts.Log)
	}
	s := &RaftStore{opts: opts, path: dir.file(raftName)}
	err := walkFile(s.path, nil)
	if err == nil || errors.Is(err, fs.ErrNotExist) {
		err = guard(s.path, s.open)
	}
	if errors.Is(err, ErrDamaged) {
		return nil, fmt.Errorf("open raft log: %w: remove this node from the cluster, move its data directory away and join it anew", err)
	}
	if err != nil {
		return nil, fmt.Errorf("open raft log: %w", err)
	}
	return s, nil
}

func (s *RaftStore) open() (err error) {
	s.bolt, err = raftboltdb.New(raftboltdb.Options{
		Path: s.path, NoSync: s.opts.NoSync,
		BoltOptions: &bbolt.Options{
			NoFreelistSync: true, FreelistType: bbolt.FreelistMapType, Timeout: time.Second,
		},
	})
	return err
}

func exitOn(log *slog.Logger) func(string, error) {
	return func(op string, err error) {
		log.Error("raft's term and vote cannot be written, stopping: check free space and health of the disk, then start again",
			"operation", op, "error", err)
		os.Exit(1)
	}
}

// Close closes the file. Raft must be shut down before.
func (s *RaftStore) Close() error { return s.bolt.Close() }

// cachedEntries is two of raft's largest appends: followers that keep up are served from memory. An entry
// may have 2 MiB, so many more would hold gigabytes after a flood of large operations.
const cachedEntries = 128

// Logs returns the log with a cache of recent entries over it, as raft should get it.
func (s *RaftStore) Logs() (raft.LogStore, error) { return raft.NewLogCache(cachedEntries, s) }

// IsMonotonic makes raft drop its whole log after installing a snapshot. bbolt could live with gaps, but raft
// then keeps old entries, and one that conflicts at the snapshot's index makes a follower fetch snapshots for
// ever (hashicorp/raft 697). Deleting is cheap because few trailing entries are kept.
func (s *RaftStore) IsMonotonic() bool { return true }

// FirstIndex returns the first index of the log, zero when empty.
func (s *RaftStore) FirstIndex() (uint64, error) { return s.bolt.FirstIndex() }

// LastIndex returns the last index of the log, zero when empty.
func (s *RaftStore) LastIndex() (uint64, error) { return s.bolt.LastIndex() }

// GetLog reads one entry; a missing one is [raft.ErrLogNotFound].
func (s *RaftStore) GetLog(index uint64, log *raft.Log) error {
	return s.observed(OpGetLog, func() error { return s.bolt.GetLog(index, log) })
}

// StoreLog writes one entry and flushes it.
func (s *RaftStore) StoreLog(log *raft.Log) error { return s.StoreLogs([]*raft.Log{log}) }

// StoreLogs writes entries and flushes them once.
func (s *RaftStore) StoreLogs(logs []*raft.Log) error {
	return s.write(OpStoreLogs, func() error { return s.bolt.StoreLogs(logs) })
}

// DeleteRange deletes entries from min to max, both included.
func (s *RaftStore) DeleteRange(min, max uint64) error {
	return s.write(OpDeleteRange, func() error { return s.bolt.DeleteRange(min, max) })
}

// Set writes a key and flushes it. A failure is fatal.
func (s *RaftStore) Set(key, val []byte) error {
	return s.mustWrite(func() error { return s.bolt.Set(key, val) })
}

// SetUint64 writes a key and flushes it. A failure is fatal.
func (s *RaftStore) SetUint64(key []byte, val uint64) error {
	return s.mustWrite(func() error { return s.bolt.SetUint64(key, val) })
}

// Get reads a key; raft knows a missing one by the text of the error, which is passed on as it is.
func (s *RaftStore) Get(key []byte) (val []byte, err error) {
	err = s.observed(OpGet, func() error {
		val, err = s.bolt.Get(key)
		return err
	})
	return val, err
}

// GetUint64 reads a key; see Get.
func (s *RaftStore) GetUint64(key []byte) (val uint64, err error) {
	err = s.observed(OpGet, func() error {
		val, err = s.bolt.GetUint64(key)
		return err
	})
	return val, err
}

func (s *RaftStore) mustWrite(fn func() error) error {
	err := s.write(OpSet, fn)
	for err != nil && s.opts.Retry != nil && s.opts.Retry(err) {
		err = s.write(OpSet, fn)
	}
	if err != nil {
		s.opts.Fatal(OpSet, fmt.Errorf("%s: %w", s.path, err))
	}
	return err
}

func (s *RaftStore) write(op string, fn func() error) error {
	return s.observed(op, func() error {
		if s.opts.BeforeWrite != nil {
			if err := s.opts.BeforeWrite(op); err != nil {
				return err
			}
		}
		return fn()
	})
}

func (s *RaftStore) observed(op string, fn func() error) error {
	if s.opts.Observe == nil {
		return fn()
	}
	begin := time.Now()
	err := fn()
	shown := err
	if errors.Is(err, raft.ErrLogNotFound) || errors.Is(err, raftboltdb.ErrKeyNotFound) {
		shown = nil
	}
	s.opts.Observe(op, time.Since(begin), shown)
	return err
}

// SnapshotStore returns raft's store of snapshots in files, which keeps the newest two. log may be nil.
func SnapshotStore(dir *Dir, log hclog.Logger) (raft.SnapshotStore, error) {
	if log == nil {
		log = hclog.New(&hclog.LoggerOptions{Output: io.Discard})
	}
	// raft appends the directory "snapshots" itself.
	store, err := raft.NewFileSnapshotStoreWithLogger(dir.path, 2, log)
	if err != nil {
		return nil, fmt.Errorf("open snapshot store: %w", err)
	}
	return store, nil
}
