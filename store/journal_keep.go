package store

import (
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"slices"
)

// Seal makes everything appended so far durable; the next Append begins a new segment. It is called while a
// raft snapshot is being written, and must return without error before that snapshot counts: afterwards the log
// may no longer reach back to these events. Append goes on meanwhile.
func (j *Journal) Seal() error {
	j.sealing.Lock()
	defer j.sealing.Unlock()
	if err := j.detach(); err != nil {
		return err
	}
	for _, s := range j.unsealed() {
		if err := j.seal(s); err != nil {
			return err
		}
	}
	return nil
}

// detach ends the active segment; it stays readable until seal has replaced it.
func (j *Journal) detach() error {
	j.writing.Lock()
	defer j.writing.Unlock()
	j.mu.Lock()
	defer j.mu.Unlock()
	if j.closed {
		return ErrClosed
	}
	j.active = nil
	return nil
}

// unsealed lists detached segments, among them those whose sealing failed before.
func (j *Journal) unsealed() []*segment {
	j.mu.RLock()
	defer j.mu.RUnlock()
	var out []*segment
	for _, s := range j.segs {
		if s.h != nil && s != j.active {
			out = append(out, s)
		}
	}
	return out
}

func (j *Journal) seal(s *segment) error {
	sealed, err := s.flush()
	if sealed == nil {
		return err
	}
	j.mu.Lock()
	j.segs[slices.Index(j.segs, s)] = sealed
	err = errors.Join(err, j.saveMark(false))
	j.mu.Unlock()
	return errors.Join(err, s.h.retire())
}

// TrimBefore hides events of indexes below index, and removes the segments that hold no other.
func (j *Journal) TrimBefore(index uint64) error {
	j.sealing.Lock()
	defer j.sealing.Unlock()
	j.mu.Lock()
	if j.closed {
		j.mu.Unlock()
		return ErrClosed
	}
	if index <= j.trimmed {
		j.mu.Unlock()
		return nil
	}
	j.trimmed = index
	gone := j.dropWhile(func(s *segment) bool { return s.info.Index < index })
	j.mu.Unlock()
	if err := j.saveTrim(index); err != nil {
		return err
	}
	return removeSegments(gone)
}

// enforceBound removes the oldest sealed segments until the rest fits.
func (j *Journal) enforceBound() error {
	j.mu.Lock()
	total := j.bytes()
	gone := j.dropWhile(func(s *segment) bool {
		over := total > j.opts.MaxBytes
		total -= s.size
		return over
	})
	j.mu.Unlock()
	for _, s := range gone {
		j.opts.Log.Warn("journal is over its byte bound, oldest events removed",
			"first", s.info.First, "last", s.info.Index, "events", s.info.Rows, "max_bytes", j.opts.MaxBytes)
	}
	return removeSegments(gone)
}

// dropWhile takes sealed segments off the old end; mu is held.
func (j *Journal) dropWhile(drop func(*segment) bool) []*segment {
	n := 0
	for n < len(j.segs) && j.segs[n].h == nil && drop(j.segs[n]) {
		n++
	}
	gone := j.segs[:n:n]
	j.segs = slices.Clone(j.segs[n:])
	return gone
}

func removeSegments(gone []*segment) error {
	var errs []error
	for _, s := range gone {
		if err := os.Remove(s.path); err != nil && !os.IsNotExist(err) {
			errs = append(errs, fmt.Errorf("remove trimmed segment: %w", err))
		}
	}
	return errors.Join(errs...)
}

// saveTrim keeps the trim index without flushing: when it is lost, trimmed events of one segment show again
// until the next trim.
func (j *Journal) saveTrim(index uint64) error {
	data, err := json.Marshal(index)
	if err != nil {
		return fmt.Errorf("encode trim index: %w", err)
	}
	tmp := j.trimPath() + ".tmp"
	if err := os.WriteFile(tmp, data, 0o600); err != nil {
		return fmt.Errorf("save trim index: %w", err)
	}
	if err := os.Rename(tmp, j.trimPath()); err != nil {
		return fmt.Errorf("save trim index: %w", err)
	}
	return nil
}

func (j *Journal) loadTrim() uint64 {
	var index uint64
	data, err := os.ReadFile(j.trimPath())
	if err == nil {
		err = json.Unmarshal(data, &index)
	}
	if err != nil && !os.IsNotExist(err) {
		j.opts.Log.Warn("trim index of the journal is unreadable, trimmed events may show again", "error", err)
	}
	return index
}

// Close flushes what is not sealed and marks the journal clean. A second call does nothing.
func (j *Journal) Close() error {
	j.sealing.Lock()
	defer j.sealing.Unlock()
	j.writing.Lock()
	defer j.writing.Unlock()
	j.mu.Lock()
	defer j.mu.Unlock()
	if j.closed {
		return nil
	}
	j.closed = true
	var errs []error
	for _, s := range j.segs {
		if s.h != nil {
			errs = append(errs, s.h.db.Sync())
		}
	}
	if err := errors.Join(append(errs, j.retireAll())...); err != nil {
		return fmt.Errorf("close journal: %w", err)
	}
	return j.saveMark(true)
}

// retireAll gives up the handles of segments that are not sealed; readers finish first.
func (j *Journal) retireAll() error {
	var errs []error
	for _, s := range j.segs {
		if s.h != nil {
			errs = append(errs, s.h.retire())
		}
	}
	return errors.Join(errs...)
}
