package store

import (
	"fmt"
	"runtime/debug"
	"sync"
	"time"

	"go.etcd.io/bbolt"
)

// guard turns a panic of bbolt, or a fault on its memory map, into [ErrDamaged]. It covers this goroutine only.
func guard(path string, fn func() error) (err error) {
	defer debug.SetPanicOnFault(debug.SetPanicOnFault(true))
	defer func() {
		if r := recover(); r != nil {
			err = fmt.Errorf("%w: %s: %v", ErrDamaged, path, r)
		}
	}()
	return fn()
}

// openUnflushed opens a bbolt file for writing without flushing and without storing the free list, which
// costs more than the rows once a file has grown (hashicorp/consul 15890). mapSize is address space, not memory:
// within it a long read never stops a writer.
func openUnflushed(path string, mapSize int) (*bbolt.DB, error) {
	return openBolt(path, &bbolt.Options{
		NoSync: true, NoGrowSync: true, NoFreelistSync: true, FreelistType: bbolt.FreelistMapType,
		InitialMmapSize: mapSize, Timeout: time.Second, NoStatistics: true,
	})
}

func openReadOnly(path string) (*bbolt.DB, error) {
	return openBolt(path, &bbolt.Options{ReadOnly: true, Timeout: time.Second, NoStatistics: true})
}

func openBolt(path string, opts *bbolt.Options) (db *bbolt.DB, err error) {
	err = guard(path, func() error {
		db, err = bbolt.Open(path, 0o600, opts)
		return err
	})
	if err != nil {
		return nil, fmt.Errorf("open %s: %w", path, err)
	}
	return db, nil
}

// handle shares an open database between readers and its owner, and closes it after the last of them.
// bbolt's own Close would wait for readers, and so let a slow snapshot hold up a restore.
type handle struct {
	db *bbolt.DB

	mu      sync.Mutex
	refs    int
	retired bool
}

func newHandle(db *bbolt.DB) *handle { return &handle{db: db, refs: 1} }

// acquire adds a user; it is false when the owner has gone.
func (h *handle) acquire() bool {
	h.mu.Lock()
	defer h.mu.Unlock()
	if h.retired {
		return false
	}
	h.refs++
	return true
}

func (h *handle) release() error {
	h.mu.Lock()
	h.refs--
	last := h.refs == 0
	h.mu.Unlock()
	if !last {
		return nil
	}
	return h.db.Close()
}

// retire ends the owner's use.
func (h *handle) retire() error {
	h.mu.Lock()
	h.retired = true
	h.mu.Unlock()
	return h.release()
}
