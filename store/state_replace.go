package store

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"os"

	"go.etcd.io/bbolt"
)

// replaceRows bounds one transaction of Replace, and with it the memory it takes.
const replaceRows = 20_000

// Replace makes the archive in r the state. A fresh file is built beside the old one, checked to the trailer,
// flushed, and swapped in by a rename; on any error the old state stays as it was. Snapshots of the old state
// stay usable.
//
// accept functions see the header first. They may refuse the archive, or change Index and Term: raft gives a
// snapshot restored by a user a new index, so the archive's own must not be believed then.
// Sections that are no buckets, such as the journal's, are checked and passed over.
func (s *State) Replace(r io.Reader, accept ...func(*Header) error) (Header, error) {
	if err := s.checkOpen(); err != nil {
		return Header{}, err
	}
	path := s.path() + ".new"
	if err := os.RemoveAll(path); err != nil {
		return Header{}, fmt.Errorf("remove a restore cut short: %w", err)
	}
	db, err := openUnflushed(path, s.opts.MapBytes)
	if err != nil {
		return Header{}, err
	}
	b := &builder{db: db}
	header, err := b.build(r, accept)
	if err == nil {
		err = s.swap(path, db, b.info)
	}
	if err != nil {
		return Header{}, errors.Join(fmt.Errorf("restore: %w", err), db.Close(), os.Remove(path))
	}
	return header, nil
}

func (s *State) checkOpen() error {
	s.mu.RLock()
	defer s.mu.RUnlock()
	if s.closed {
		return ErrClosed
	}
	return nil
}

// swap puts the new file in place of the old one. After the rename nothing can fail but the directory's flush.
func (s *State) swap(path string, db *bbolt.DB, i info) error {
	if err := db.Sync(); err != nil {
		return fmt.Errorf("flush restored state: %w", err)
	}
	if err := os.Rename(path, s.path()); err != nil {
		return fmt.Errorf("swap in restored state: %w", err)
	}
	s.mu.Lock()
	old := s.h
	s.h, s.info = newHandle(db), i
	s.mu.Unlock()
	if err := errors.Join(old.retire(), syncDir(s.dir.path)); err != nil {
		s.opts.Log.Warn("restored state is in place, cleaning up was not complete", "error", err)
	}
	return nil
}

// builder fills an empty file from an archive.
type builder struct {
	db      *bbolt.DB
	d       digester
	info    info
	pending []row
	bucket  string
	last    []byte
}

type row struct{ key, value []byte }

func (b *builder) build(r io.Reader, accept []func(*Header) error) (Header, error) {
	ar, err := NewArchiveReader(r)
	if err != nil {
		return Header{}, err
	}
	header := ar.Header()
	for _, fn := range accept {
		if err := fn(&header); err != nil {
			return Header{}, err
		}
	}
	if err := createBuckets(b.db, info{Format: fileFormat}); err != nil {
		return Header{}, err
	}
	if err := b.rows(ar); err != nil {
		return Header{}, err
	}
	b.info = info{Format: fileFormat, Index: header.Index, Term: header.Term, Digest: b.d.Digest}
	return header, b.db.Update(func(tx *bbolt.Tx) error { return putInfo(tx, b.info) })
}

func (b *builder) rows(ar *ArchiveReader) error {
	for {
		section, key, value, err := ar.Next()
		if errors.Is(err, io.EOF) {
			return b.flush()
		}
		if err != nil {
			return err
		}
		if _, ok := ParseBucket(section); !ok {
			continue
		}
		if err := b.row(ar, section, key, value); err != nil {
			return err
		}
	}
}

func (b *builder) row(ar *ArchiveReader, section string, key, value []byte) error {
	if section != b.bucket {
		if err := b.flush(); err != nil {
			return err
		}
		b.bucket, b.last = section, b.last[:0]
	}
	if len(key) == 0 || len(key) > MaxKey || bytes.Compare(b.last, key) >= 0 {
		return ar.corrupt("key is empty, too long or out of order")
	}
	b.last = append(b.last[:0], key...)
	b.d.add(section, key, value)
	b.pending = append(b.pending, row{bytes.Clone(key), append([]byte{}, value...)})
	if len(b.pending) >= replaceRows || len(value) > MaxValue/8 {
		return b.flush()
	}
	return nil
}

func (b *builder) flush() error {
	if len(b.pending) == 0 {
		return nil
	}
	err := b.db.Update(func(tx *bbolt.Tx) error {
		bucket := tx.Bucket([]byte(b.bucket))
		bucket.FillPercent = fillPercent
		for _, r := range b.pending {
			if err := bucket.Put(r.key, r.value); err != nil {
				return err
			}
		}
		return nil
	})
	b.pending = b.pending[:0]
	if err != nil {
		return fmt.Errorf("write restored rows of %s: %w", b.bucket, err)
	}
	return nil
}
