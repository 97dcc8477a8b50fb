package store

import (
	"bytes"
	"cmp"
	"fmt"
	"slices"

	"go.etcd.io/bbolt"
)

// fillPercent packs pages tightly: most keys are numbers that grow, so new rows go to the right edge and a page
// left behind is not written again.
const fillPercent = 0.9

// batch is the scratch space of Apply, kept between calls.
type batch struct {
	order []int
	d     digester
}

// Apply writes the changes of one log entry and its index in one transaction. When a key occurs more than once
// the last change wins. On error nothing is changed. Errors: [ErrStaleIndex] unless index is above the applied
// one, [ErrBadChange], [ErrClosed], or what the disk says.
func (s *State) Apply(index, term uint64, changes []Change) error {
	now := s.current()
	if index <= now.Index {
		return fmt.Errorf("%w: %d was given, %d is applied", ErrStaleIndex, index, now.Index)
	}
	for i := range changes {
		if err := changes[i].validate(); err != nil {
			return err
		}
	}
	now.Index, now.Term = index, term
	return s.commit(now, changes)
}

// Rebase sets the applied index and term without touching rows. Raft gives a snapshot restored by a user an
// index of its own, which the archive does not know.
func (s *State) Rebase(index, term uint64) error {
	now := s.current()
	now.Index, now.Term = index, term
	return s.commit(now, nil)
}

func (s *State) commit(next info, changes []Change) error {
	h, err := s.acquire()
	if err != nil {
		return err
	}
	defer func() { _ = h.release() }() // closes only a file that was replaced meanwhile
	s.batch.d.Digest = next.Digest
	err = h.db.Update(func(tx *bbolt.Tx) error {
		if err := s.batch.write(tx, changes); err != nil {
			return err
		}
		next.Digest = s.batch.d.Digest
		return putInfo(tx, next)
	})
	if err != nil {
		return fmt.Errorf("apply index %d: %w", next.Index, err)
	}
	s.mu.Lock()
	s.info = next
	s.mu.Unlock()
	return nil
}

// write visits the changes sorted by bucket and key, so that neighbours share the pages they touch.
func (w *batch) write(tx *bbolt.Tx, changes []Change) error {
	w.sort(changes)
	var bucket *bbolt.Bucket
	var opened Bucket
	for n, i := range w.order {
		c := &changes[i]
		if n+1 < len(w.order) && c.sameRow(&changes[w.order[n+1]]) {
			continue
		}
		if c.Bucket != opened {
			if bucket = tx.Bucket([]byte(c.Bucket.String())); bucket == nil {
				return fmt.Errorf("%w: no bucket %v", ErrDamaged, c.Bucket)
			}
			bucket.FillPercent = fillPercent
			opened = c.Bucket
		}
		if err := w.row(bucket, c); err != nil {
			return fmt.Errorf("write row of %v: %w", c.Bucket, err)
		}
	}
	return nil
}

func (w *batch) sort(changes []Change) {
	w.order = w.order[:0]
	for i := range changes {
		w.order = append(w.order, i)
	}
	slices.SortFunc(w.order, func(i, j int) int {
		a, b := &changes[i], &changes[j]
		return cmp.Or(cmp.Compare(a.Bucket, b.Bucket), bytes.Compare(a.Key, b.Key), cmp.Compare(i, j))
	})
}

func (c *Change) sameRow(o *Change) bool { return c.Bucket == o.Bucket && bytes.Equal(c.Key, o.Key) }

func (w *batch) row(bucket *bbolt.Bucket, c *Change) error {
	name := c.Bucket.String()
	old := bucket.Get(c.Key)
	if old != nil && c.Value != nil && bytes.Equal(old, c.Value) {
		return nil
	}
	if old != nil {
		w.d.remove(name, c.Key, old)
	}
	if c.Value == nil {
		if old == nil {
			return nil
		}
		return bucket.Delete(c.Key)
	}
	w.d.add(name, c.Key, c.Value)
	return bucket.Put(c.Key, c.Value)
}
