package store

import (
	"errors"
	"fmt"
	"io/fs"
	"math"
)

// First returns the index from which events are kept: older ones were trimmed or pushed out by the byte bound.
// It is zero for a journal that never held anything.
func (j *Journal) First() uint64 {
	j.mu.RLock()
	defer j.mu.RUnlock()
	if len(j.segs) == 0 {
		return j.trimmed
	}
	return max(j.trimmed, j.segs[0].info.First)
}

// Last returns the index of the newest event, zero when none was ever appended.
func (j *Journal) Last() uint64 {
	j.mu.RLock()
	defer j.mu.RUnlock()
	return j.last
}

// Count returns how many events the files hold, those of a segment that is trimmed in part included.
func (j *Journal) Count() uint64 {
	var n uint64
	for _, s := range j.Segments() {
		n += s.Count
	}
	return n
}

// Segments describes the files, oldest first; retention by count or age picks its cut from them.
func (j *Journal) Segments() []SegmentInfo {
	j.mu.RLock()
	defer j.mu.RUnlock()
	out := make([]SegmentInfo, len(j.segs))
	for i, s := range j.segs {
		out[i] = s.describe()
	}
	return out
}

// bytes returns the size of all files; mu is held.
func (j *Journal) bytes() int64 {
	var n int64
	for _, s := range j.segs {
		n += s.size
	}
	return n
}

// Read calls fn for events in order, from the fromN-th of index from on, or from the first kept one, up to limit
// events (zero or less: no limit) and not beyond Last as it is now. fn returns false to stop; it runs outside of
// any lock or transaction and owns data.
func (j *Journal) Read(from uint64, fromN uint32, limit int, fn func(index uint64, n uint32, data []byte) (more bool, err error)) error {
	if limit <= 0 {
		limit = math.MaxInt
	}
	last := j.Last()
	for limit > 0 {
		if first := j.First(); from < first {
			from, fromN = first, 0
		}
		page, done, err := j.page(&from, &fromN, limit)
		if err != nil {
			return err
		}
		for _, r := range page {
			if r.Index > last {
				return nil
			}
			if more, err := fn(r.Index, r.N, r.Data); err != nil || !more {
				return err
			}
		}
		if done {
			return nil
		}
		limit -= len(page)
	}
	return nil
}

// page reads a chunk at the position and moves the position behind it. done means that nothing comes after.
func (j *Journal) page(from *uint64, fromN *uint32, limit int) (out []JournalRecord, done bool, err error) {
	s, release, err := j.find(*from)
	if s == nil || err != nil {
		return nil, true, err
	}
	out, exhausted, err := s.chunk(JournalKey(*from, *fromN), limit)
	last := s.info.Index
	if err := errors.Join(err, release()); err != nil {
		if errors.Is(err, fs.ErrNotExist) && j.First() > *from {
			return nil, false, nil // trimmed meanwhile: go on at the new first
		}
		return nil, true, fmt.Errorf("read journal from index %d: %w", *from, err)
	}
	if exhausted {
		*from, *fromN = last+1, 0
	} else if n := len(out); n > 0 {
		*from, *fromN = out[n-1].Index, out[n-1].N+1
	}
	return out, false, nil
}

// find returns a copy of the oldest segment that reaches the index, held open until release.
func (j *Journal) find(index uint64) (s *segment, release func() error, err error) {
	j.mu.RLock()
	defer j.mu.RUnlock()
	if j.closed {
		return nil, nil, ErrClosed
	}
	for _, s := range j.segs {
		if s.info.Index < index {
			continue
		}
		held := &segment{path: s.path, info: s.info, h: s.h}
		if s.h == nil {
			return held, func() error { return nil }, nil
		}
		if !s.h.acquire() {
			return nil, nil, ErrClosed
		}
		return held, s.h.release, nil
	}
	return nil, nil, nil
}

// SaveTo adds the kept events of entries up to an index to an archive, as section [JournalSection]. When events
// are trimmed before they were read the archive would have a hole, so it fails with [ErrTrimmed].
func (j *Journal) SaveTo(aw *ArchiveWriter, upTo uint64) error {
	if err := aw.Section(JournalSection); err != nil {
		return err
	}
	at := j.First()
	err := j.Read(at, 0, 0, func(index uint64, n uint32, data []byte) (bool, error) {
		if index > upTo {
			return false, nil
		}
		if first := j.First(); first > at && index >= first && at != index {
			return false, fmt.Errorf("%w: what follows entry %d is gone, the journal now begins at %d: save again", ErrTrimmed, at, first)
		}
		at = index
		return true, aw.Row(JournalKey(index, n), data)
	})
	return err
}
