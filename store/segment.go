package store

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"

	"go.etcd.io/bbolt"
)

const (
	sealedSuffix = ".db"
	activeSuffix = ".db.active"
	eventsBucket = "events"
	// segmentMap is the address space of an active segment; see openUnflushed.
	segmentMap = 2 << 30
)

// SegmentInfo describes one file of the journal.
type SegmentInfo struct {
	First  uint64 // index of its first event
	Last   uint64
	Count  uint64
	Bytes  int64
	Sealed bool
}

// segment is one file of the journal. A sealed one is flushed, never written again and opened for each read; any
// other has a handle.
type segment struct {
	path string
	info info
	size int64
	h    *handle  // nil when sealed
	d    digester // scratch of append
}

func segmentName(first uint64, suffix string) string { return fmt.Sprintf("%020d%s", first, suffix) }

// parseSegment returns the first index in a file's name; ok is false for files that are no segments.
func parseSegment(name string) (first uint64, active, ok bool) {
	digits, ok := strings.CutSuffix(name, sealedSuffix)
	if !ok {
		digits, ok = strings.CutSuffix(name, activeSuffix)
		active = ok
	}
	first, err := strconv.ParseUint(digits, 10, 64)
	return first, active, ok && err == nil && len(digits) == 20
}

// createSegment makes an empty segment complete before it gets its name: a kill in between leaves no half segment.
func createSegment(dir string, first uint64) (*segment, error) {
	s := &segment{
		path: filepath.Join(dir, segmentName(first, activeSuffix)),
		info: info{Format: fileFormat, First: first},
	}
	tmp := s.path + ".new"
	if err := os.RemoveAll(tmp); err != nil {
		return nil, fmt.Errorf("create segment: %w", err)
	}
	db, err := openUnflushed(tmp, segmentMap)
	if err != nil {
		return nil, err
	}
	err = db.Update(func(tx *bbolt.Tx) error { return putInfo(tx, s.info) })
	if err == nil {
		err = os.Rename(tmp, s.path)
	}
	if err != nil {
		return nil, errors.Join(fmt.Errorf("create segment: %w", err), db.Close())
	}
	s.h = newHandle(db)
	return s, nil
}

// reopenSegment opens a segment that was active, after checking all of it.
func reopenSegment(path string) (*segment, error) {
	i, err := checkFile(path)
	if err != nil {
		return nil, err
	}
	db, err := openUnflushed(path, segmentMap)
	if err != nil {
		return nil, err
	}
	return &segment{path: path, info: i, h: newHandle(db)}, nil
}

// openSealed reads what a sealed segment says of itself. Its rows are checked when they are read.
func openSealed(path string) (*segment, error) {
	s := &segment{path: path}
	st, err := os.Stat(path)
	if err != nil {
		return nil, fmt.Errorf("open segment: %w", err)
	}
	s.size = st.Size()
	return s, s.view(func(tx *bbolt.Tx) error {
		s.info, err = readInfo(tx)
		return err
	})
}

func (s *segment) describe() SegmentInfo {
	return SegmentInfo{s.info.First, s.info.Index, s.info.Rows, s.size, s.h == nil}
}

// append writes records, at least one, and returns what the segment then holds.
func (s *segment) append(records []JournalRecord) (next info, size int64, err error) {
	next = s.info
	s.d.Digest = next.Digest
	err = s.h.db.Update(func(tx *bbolt.Tx) error {
		b, err := tx.CreateBucketIfNotExists([]byte(eventsBucket))
		if err != nil {
			return err
		}
		b.FillPercent = 1
		for _, r := range records {
			key := JournalKey(r.Index, r.N)
			if err := b.Put(key, r.Data); err != nil {
				return err
			}
			s.d.add(eventsBucket, key, r.Data)
		}
		next.Index, next.Digest = records[len(records)-1].Index, s.d.Digest
		size = tx.Size()
		return putInfo(tx, next)
	})
	if err != nil {
		return next, 0, fmt.Errorf("append events of index %d on: %w", records[0].Index, err)
	}
	return next, size, nil
}

// flush makes the segment durable under the name of a sealed one. The handle stays until close.
func (s *segment) flush() (sealed *segment, err error) {
	if err := s.h.db.Sync(); err != nil {
		return nil, fmt.Errorf("flush segment: %w", err)
	}
	path := strings.TrimSuffix(s.path, activeSuffix) + sealedSuffix
	if err := os.Rename(s.path, path); err != nil {
		return nil, fmt.Errorf("seal segment: %w", err)
	}
	return &segment{path: path, info: s.info, size: s.size}, syncDir(filepath.Dir(path))
}

// view runs fn on the segment's rows. A sealed file that was trimmed meanwhile gives [os.ErrNotExist].
func (s *segment) view(fn func(tx *bbolt.Tx) error) error {
	if s.h != nil {
		return guard(s.path, func() error { return s.h.db.View(fn) })
	}
	db, err := openReadOnly(s.path)
	if err != nil {
		return err
	}
	err = guard(s.path, func() error { return db.View(fn) })
	return errors.Join(err, db.Close())
}

// chunk bounds of one read transaction.
const (
	chunkRecords = 512
	chunkBytes   = 1 << 20
)

// chunk copies events from the key on; done is true when the segment has no more of them.
func (s *segment) chunk(from []byte, limit int) (out []JournalRecord, done bool, err error) {
	limit = min(limit, chunkRecords)
	err = s.view(func(tx *bbolt.Tx) error {
		b := tx.Bucket([]byte(eventsBucket))
		if b == nil {
			done = true
			return nil
		}
		c := b.Cursor()
		size := 0
		k, v := c.Seek(from)
		for ; k != nil && len(out) < limit && size < chunkBytes; k, v = c.Next() {
			index, n, ok := ParseJournalKey(k)
			if !ok {
				return fmt.Errorf("%w: %s: key of %d bytes", ErrDamaged, s.path, len(k))
			}
			out = append(out, JournalRecord{index, n, append([]byte{}, v...)})
			size += len(v)
		}
		done = k == nil
		return nil
	})
	return out, done, err
}
