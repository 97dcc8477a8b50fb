package store

import (
	"crypto/sha256"
	"encoding/binary"
	"encoding/hex"
	"errors"
	"fmt"
	"hash"
	"io"
	"sync"

	"go.etcd.io/bbolt"
)

// ForEach calls fn for each row of a bucket in key order, as of one moment. The slices are valid during the call
// only. It stops at fn's first error and returns it.
func (s *State) ForEach(bucket Bucket, fn func(k, v []byte) error) error {
	return s.read(func(tx *bbolt.Tx) error { return forEach(tx, bucket, fn) })
}

func forEach(tx *bbolt.Tx, bucket Bucket, fn func(k, v []byte) error) error {
	b := tx.Bucket([]byte(bucket.String()))
	if b == nil {
		return fmt.Errorf("%w: no bucket %v", ErrDamaged, bucket)
	}
	return b.ForEach(fn)
}

// Hash returns the SHA-256 of all buckets, keys and values in order, and the index they belong to. It reads
// everything; what differs between nodes by nature (applied index, format) is left out.
func (s *State) Hash() (hexSum string, index uint64, err error) {
	err = s.read(func(tx *bbolt.Tx) error {
		i, err := readInfo(tx)
		if err != nil {
			return err
		}
		index = i.Index
		hexSum, err = hashRows(tx)
		return err
	})
	return hexSum, index, err
}

func hashRows(tx *bbolt.Tx) (string, error) {
	sum := sha256.New()
	for _, b := range Buckets() {
		hashField(sum, []byte(b.String()))
		err := forEach(tx, b, func(k, v []byte) error {
			hashField(sum, k)
			hashField(sum, v)
			return nil
		})
		if err != nil {
			return "", err
		}
		hashField(sum, nil)
	}
	return hex.EncodeToString(sum.Sum(nil)), nil
}

func hashField(sum hash.Hash, b []byte) {
	var n [4]byte
	binary.BigEndian.PutUint32(n[:], uint32(len(b)))
	sum.Write(n[:])
	sum.Write(b)
}

// StateSnapshot is the state at one index. Pages it needs are kept until Release, so the file grows meanwhile.
type StateSnapshot struct {
	path string
	h    *handle
	tx   *bbolt.Tx
	info info
	once sync.Once
}

// Snapshot takes the state as it is now, at once and without copying. Apply goes on meanwhile.
func (s *State) Snapshot() (*StateSnapshot, error) {
	h, err := s.acquire()
	if err != nil {
		return nil, err
	}
	ss := &StateSnapshot{path: s.path(), h: h}
	err = guard(ss.path, func() error {
		if ss.tx, err = h.db.Begin(false); err != nil {
			return err
		}
		ss.info, err = readInfo(ss.tx)
		return err
	})
	if err != nil {
		ss.Release()
		return nil, fmt.Errorf("begin snapshot: %w", err)
	}
	return ss, nil
}

// Applied returns the index and term of the snapshot.
func (ss *StateSnapshot) Applied() (index, term uint64) { return ss.info.Index, ss.info.Term }

// ForEach calls fn for each row of a bucket in key order; see [State.ForEach].
func (ss *StateSnapshot) ForEach(bucket Bucket, fn func(k, v []byte) error) error {
	return guard(ss.path, func() error { return forEach(ss.tx, bucket, fn) })
}

// Save writes the snapshot as an archive. Format version, index and term of the header are filled in.
func (ss *StateSnapshot) Save(w io.Writer, header Header) error {
	header.Index, header.Term = ss.Applied()
	aw, err := NewArchiveWriter(w, header)
	if err != nil {
		return err
	}
	return errors.Join(ss.SaveTo(aw), aw.Close())
}

// SaveTo adds one section for each bucket to an archive that holds more than the state.
func (ss *StateSnapshot) SaveTo(aw *ArchiveWriter) error {
	return guard(ss.path, func() error {
		for _, b := range Buckets() {
			if err := aw.Section(b.String()); err != nil {
				return err
			}
			if err := forEach(ss.tx, b, aw.Row); err != nil {
				return fmt.Errorf("save bucket %v: %w", b, err)
			}
		}
		return nil
	})
}

// Release ends the snapshot. A second call does nothing.
func (ss *StateSnapshot) Release() {
	ss.once.Do(func() {
		if ss.tx != nil {
			_ = ss.tx.Rollback() // a read transaction fails to roll back only when rolled back already
		}
		_ = ss.h.release()
	})
}
