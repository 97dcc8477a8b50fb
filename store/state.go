package store

import (
	"errors"
	"fmt"
	"log/slog"
	"os"
	"sync"

	"go.etcd.io/bbolt"
)

// StateOptions are the options of [OpenState]. The zero value is fit for use.
type StateOptions struct {
	// MapBytes is the address space reserved for the file, default 8 GiB. A file that outgrows it makes Apply
	// wait for a running snapshot.
	MapBytes int
	// BootID replaces the machine's boot id; for tests.
	BootID string
	// Log receives what was set aside and why. Default slog.Default.
	Log *slog.Logger
}

func (o StateOptions) withDefaults() StateOptions {
	if o.MapBytes == 0 {
		o.MapBytes = 8 << 30
	}
	if o.BootID == "" {
		o.BootID = BootID()
	}
	if o.Log == nil {
		o.Log = slog.Default()
	}
	return o
}

// State is the image of the replicated state at one applied index. Apply, Replace, Rebase, Discard and Close
// belong to one goroutine at a time; everything else is safe from any goroutine at any time.
type State struct {
	dir  *Dir
	opts StateOptions

	mu     sync.RWMutex // guards the fields below; never held during I/O on rows
	h      *handle
	info   info
	closed bool

	batch batch
}

// OpenState opens state.db, or creates an empty one when it is missing or cannot be trusted. It is trusted
// after a clean Close, or when the machine has not been restarted since, and when its pages and the digest of
// its rows hold. A rejected file is set aside as state.db.damaged-<n>, of which only the latest is kept.
//
// After anything but Trusted, Applied is zero and the owner restores the newest snapshot and replays the log.
func OpenState(dir *Dir, opts StateOptions) (*State, Verdict, error) {
	s := &State{dir: dir, opts: opts.withDefaults()}
	verdict, err := s.judge()
	if err != nil {
		return nil, verdict, err
	}
	if err := s.open(); err != nil {
		return nil, verdict, err
	}
	return s, verdict, nil
}

func (s *State) path() string     { return s.dir.file(stateName) }
func (s *State) markPath() string { return s.dir.file(stateName + ".run") }

// judge decides on what is on disk and moves it away when it must not be used.
func (s *State) judge() (Verdict, error) {
	if err := os.RemoveAll(s.path() + ".new"); err != nil {
		return Verdict{}, fmt.Errorf("remove a restore cut short: %w", err)
	}
	if !exists(s.path()) {
		return Verdict{Outcome: Fresh}, nil
	}
	reason := distrust(s.markPath(), s.opts.BootID)
	if reason == "" {
		found, err := checkFile(s.path())
		switch {
		case err == nil:
			s.info = found
			return Verdict{Outcome: Trusted}, nil
		case !errors.Is(err, ErrDamaged) && !errors.Is(err, ErrNewerFormat):
			return Verdict{}, err
		}
		reason = err.Error()
	}
	aside, err := setAside(s.path(), damagedIn(s.dir.path), s.opts.Log, reason)
	return Verdict{Outcome: Rejected, Reason: reason, Aside: aside}, err
}

// checkFile walks a file and compares its rows with the digest it keeps. Reads the file once.
func checkFile(path string) (info, error) {
	var kept []byte
	var d digester
	err := walkFile(path, func(bucket string, key, value []byte) error {
		if bucket == infoBucket {
			kept = append(kept[:0], value...)
		} else {
			d.add(bucket, key, value)
		}
		return nil
	})
	if err != nil {
		return info{}, err
	}
	i, err := decodeInfo(kept)
	if err != nil {
		return info{}, fmt.Errorf("%s: %w", path, err)
	}
	if i.Digest != d.Digest {
		return info{}, fmt.Errorf("%w: %s: rows do not match their digest", ErrDamaged, path)
	}
	return i, nil
}

// open marks the run as not clean, durably and before anything is written, then opens the file.
func (s *State) open() error {
	if err := writeJSON(s.markPath(), runMark{BootID: s.opts.BootID}); err != nil {
		return err
	}
	db, err := openUnflushed(s.path(), s.opts.MapBytes)
	if err != nil {
		return err
	}
	if s.info.Format == 0 {
		s.info = info{Format: fileFormat}
	}
	// A file of an older release lacks the buckets that came since.
	if err := createBuckets(db, s.info); err != nil {
		return errors.Join(err, db.Close())
	}
	s.h = newHandle(db)
	return nil
}

func createBuckets(db *bbolt.DB, i info) error {
	return db.Update(func(tx *bbolt.Tx) error {
		for _, b := range Buckets() {
			if _, err := tx.CreateBucketIfNotExists([]byte(b.String())); err != nil {
				return fmt.Errorf("create bucket %v: %w", b, err)
			}
		}
		return putInfo(tx, i)
	})
}

func putInfo(tx *bbolt.Tx, i info) error {
	b, err := tx.CreateBucketIfNotExists([]byte(infoBucket))
	if err != nil {
		return fmt.Errorf("create info bucket: %w", err)
	}
	return b.Put([]byte(infoKey), i.encode())
}

func readInfo(tx *bbolt.Tx) (info, error) {
	b := tx.Bucket([]byte(infoBucket))
	if b == nil {
		return info{}, fmt.Errorf("%w: no info bucket", ErrDamaged)
	}
	return decodeInfo(b.Get([]byte(infoKey)))
}

// Applied returns the index and term of the last Apply, Replace or Rebase; zero when empty.
func (s *State) Applied() (index, term uint64) {
	i := s.current()
	return i.Index, i.Term
}

// Digest returns the digest of all rows and the index it belongs to, at no cost. Equal states have equal
// digests, so nodes can compare it at every index.
func (s *State) Digest() (Digest, uint64) {
	i := s.current()
	return i.Digest, i.Index
}

func (s *State) current() info {
	s.mu.RLock()
	defer s.mu.RUnlock()
	return s.info
}

// Discard sets the state aside, when its owner finds that it cannot use it, and goes on with an empty one.
// Needed too when the journal was rejected: its events come back only by replaying the log on the snapshot.
func (s *State) Discard(reason string) (Verdict, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.closed {
		return Verdict{}, ErrClosed
	}
	aside, err := setAside(s.path(), damagedIn(s.dir.path), s.opts.Log, reason)
	if err != nil {
		return Verdict{}, err
	}
	if err := s.h.retire(); err != nil {
		s.opts.Log.Warn("closing a discarded state", "error", err)
	}
	s.info = info{}
	s.h, s.closed = nil, true
	if err := s.open(); err != nil {
		return Verdict{}, err
	}
	s.closed = false
	return Verdict{Outcome: Rejected, Reason: reason, Aside: aside}, nil
}

// Close flushes the file and marks it clean. Open snapshots stay usable until released. A second call does nothing.
func (s *State) Close() error {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.closed {
		return nil
	}
	s.closed = true
	if err := s.h.db.Sync(); err != nil {
		return errors.Join(fmt.Errorf("flush state: %w", err), s.h.retire())
	}
	if err := s.h.retire(); err != nil {
		return fmt.Errorf("close state: %w", err)
	}
	return writeJSON(s.markPath(), runMark{BootID: s.opts.BootID, Clean: true})
}

// read runs fn in a read transaction.
func (s *State) read(fn func(tx *bbolt.Tx) error) error {
	h, err := s.acquire()
	if err != nil {
		return err
	}
	return errors.Join(h.db.View(fn), h.release())
}

func (s *State) acquire() (*handle, error) {
	s.mu.RLock()
	defer s.mu.RUnlock()
	if s.closed || !s.h.acquire() {
		return nil, ErrClosed
	}
	return s.h, nil
}
