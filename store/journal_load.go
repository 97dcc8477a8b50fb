package store

import (
	"bytes"
	"errors"
	"fmt"
	"io"
)

const (
	// loadRows and loadBytes bound one transaction of Load, and with it the memory it takes.
	loadRows  = 20_000
	loadBytes = 8 << 20
	// loadSegment is the size at which Load begins a new segment.
	loadSegment = 256 << 20
)

// Load fills an empty journal with the events that the archive in r holds, and returns how many. The archive
// is read to its trailer; sections that are not the journal's are passed over. first is the index from which
// the archive claims to be complete.
func (j *Journal) Load(r io.Reader, first uint64) (events uint64, err error) {
	if j.Last() != 0 {
		return 0, fmt.Errorf("%w: the journal already holds events", ErrStaleIndex)
	}
	ar, err := NewArchiveReader(r)
	if err != nil {
		return 0, err
	}
	ld := &journalLoader{journal: j, archive: ar}
	if err := ld.run(); err != nil {
		return ld.events, fmt.Errorf("load journal: %w", err)
	}
	return ld.events, errors.Join(j.Seal(), j.TrimBefore(first))
}

// journalLoader collects events until a transaction is worth it. Events of one entry stay together.
type journalLoader struct {
	journal *Journal
	archive *ArchiveReader
	pending []JournalRecord
	bytes   int
	last    []byte
	events  uint64
}

func (ld *journalLoader) run() error {
	for {
		section, key, value, err := ld.archive.Next()
		if errors.Is(err, io.EOF) {
			return ld.flush()
		}
		if err != nil {
			return err
		}
		if section != JournalSection {
			continue
		}
		if err := ld.add(key, value); err != nil {
			return err
		}
	}
}

func (ld *journalLoader) add(key, value []byte) error {
	index, n, ok := ParseJournalKey(key)
	if !ok || index == 0 || bytes.Compare(ld.last, key) >= 0 {
		return ld.archive.corrupt("key of an event is malformed or out of order")
	}
	ld.last = append(ld.last[:0], key...)
	if k := len(ld.pending); k > 0 && index != ld.pending[k-1].Index && (k >= loadRows || ld.bytes >= loadBytes) {
		if err := ld.flush(); err != nil {
			return err
		}
	}
	ld.pending = append(ld.pending, JournalRecord{index, n, append([]byte{}, value...)})
	ld.bytes += len(value)
	return nil
}

func (ld *journalLoader) flush() error {
	if len(ld.pending) == 0 {
		return nil
	}
	ld.journal.writing.Lock()
	size, err := ld.journal.write(ld.pending)
	ld.journal.writing.Unlock()
	ld.events += uint64(len(ld.pending))
	ld.pending, ld.bytes = ld.pending[:0], 0
	if err != nil || size < loadSegment {
		return err
	}
	return ld.journal.Seal()
}
