package store

import (
	"errors"
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"sync"
)

// JournalOptions are the options of [OpenJournal]. The zero value is fit for use.
type JournalOptions struct {
	// MaxBytes bounds the files together, default 4 GiB. The oldest sealed segments go first; the segment being
	// written, which reaches back to the last snapshot, is never cut.
	MaxBytes int64
	// BootID replaces the machine's boot id; for tests.
	BootID string
	// Log receives what was set aside and why. Default slog.Default.
	Log *slog.Logger
}

func (o JournalOptions) withDefaults() JournalOptions {
	if o.MaxBytes == 0 {
		o.MaxBytes = 4 << 30
	}
	if o.BootID == "" {
		o.BootID = BootID()
	}
	if o.Log == nil {
		o.Log = slog.Default()
	}
	return o
}

// Journal keeps events in the order of the log. Append and Close belong to one goroutine at a time; Seal and TrimBefore may run beside it, one at a time; reading is safe from anywhere at any time.
type Journal struct {
	path string
	opts JournalOptions

	// Taken in this order. Only mu is taken by readers, and never held during I/O on events.
	sealing sync.Mutex   // one Seal, TrimBefore or Close at a time
	writing sync.Mutex   // held by Append, and by Seal for the moment it takes the segment away
	mu      sync.RWMutex // guards the fields below

	segs    []*segment // in order; all but the last few are sealed
	active  *segment   // the last of segs, or nil
	last    uint64
	trimmed uint64
	closed  bool

	replayAfter uint64
	replay      bool
}

// OpenJournal opens the journal. Sealed segments were flushed and are kept. Segments that were not sealed are
// trusted on the same terms as [OpenState] trusts the state, otherwise they are set aside: see NeedsReplay.
func OpenJournal(dir *Dir, opts JournalOptions) (*Journal, error) {
	j := &Journal{path: dir.file(journalName), opts: opts.withDefaults()}
	entries, err := os.ReadDir(j.path)
	if err != nil {
		return nil, fmt.Errorf("open journal: %w", err)
	}
	if err := j.load(entries); err != nil {
		return nil, errors.Join(err, j.retireAll())
	}
	if err := j.saveMark(false); err != nil {
		return nil, errors.Join(err, j.retireAll())
	}
	j.trimmed = j.loadTrim()
	return j, nil
}

func (j *Journal) markPath() string { return filepath.Join(j.path, "run") }
func (j *Journal) trimPath() string { return filepath.Join(j.path, "trim") }

// load opens segments in order of their names, sealed before active of the same index.
func (j *Journal) load(entries []os.DirEntry) error {
	distrusted := distrust(j.markPath(), j.opts.BootID)
	j.miss(entries)
	older := damagedIn(j.path)
	for _, e := range entries {
		_, active, ok := parseSegment(e.Name())
		if !ok {
			continue
		}
		path := filepath.Join(j.path, e.Name())
		if err := j.loadSegment(path, active, distrusted, older); err != nil {
			return err
		}
	}
	if j.replay {
		j.replayAfter = j.last
	}
	return nil
}

// miss looks for segments that somebody deleted although only the log can bring their events back.
func (j *Journal) miss(entries []os.DirEntry) {
	mark, err := loadMark(j.markPath())
	if err != nil {
		return // a new journal, or one that is distrusted anyway
	}
	there := map[uint64]bool{}
	for _, e := range entries {
		if first, _, ok := parseSegment(e.Name()); ok {
			there[first] = true
		}
	}
	for _, first := range mark.Unsealed {
		if !there[first] {
			j.replay = true
			j.opts.Log.Error("a segment of the journal is missing, its events are brought back from snapshot and log",
				"segment", filepath.Join(j.path, segmentName(first, activeSuffix)))
		}
	}
}

// saveMark says which segments only the log can bring back. mu is held, or nobody else knows the journal yet.
func (j *Journal) saveMark(clean bool) error {
	m := runMark{BootID: j.opts.BootID, Clean: clean}
	for _, s := range j.segs {
		if s.h != nil {
			m.Unsealed = append(m.Unsealed, s.info.First)
		}
	}
	return writeJSON(j.markPath(), m)
}

func (j *Journal) loadSegment(path string, active bool, distrusted string, older []string) error {
	s, err := openEither(path, active, distrusted)
	switch {
	case err == nil && active && s.info.Rows == 0:
		return errors.Join(s.h.retire(), os.Remove(path))
	case err == nil:
		j.segs = append(j.segs, s)
		j.last = max(j.last, s.info.Index)
		if active {
			j.active = s
		}
		return nil
	case !errors.Is(err, ErrDamaged) && !errors.Is(err, ErrNewerFormat):
		return err
	}
	j.replay = j.replay || active
	_, err = setAside(path, older, j.opts.Log, err.Error())
	return err
}

func openEither(path string, active bool, distrusted string) (*segment, error) {
	if !active {
		return openSealed(path)
	}
	if distrusted != "" {
		return nil, fmt.Errorf("%w: %s", ErrDamaged, distrusted)
	}
	return reopenSegment(path)
}

// NeedsReplay reports whether events were set aside that only the log can bring back, and the index after which
// they are missing. The owner then discards its state, restores the newest snapshot and replays the log: a
// segment is sealed before a snapshot is complete, so the log reaches back far enough.
func (j *Journal) NeedsReplay() (after uint64, needed bool) { return j.replayAfter, j.replay }

// JournalEntry is the events of one log entry.
type JournalEntry struct {
	Index  uint64
	Events [][]byte
}

// Append writes the events of log entries, which are in order, in one transaction. Entries that are not above
// Last are passed over, so replaying the log is harmless. An entry without events leaves no trace.
func (j *Journal) Append(entries ...JournalEntry) error {
	j.writing.Lock()
	defer j.writing.Unlock()
	records, err := j.fresh(entries)
	if len(records) == 0 || err != nil {
		return err
	}
	if _, err := j.write(records); err != nil {
		return err
	}
	j.mu.RLock()
	over := j.bytes() > j.opts.MaxBytes && j.segs[0].h == nil
	j.mu.RUnlock()
	if over {
		return j.enforceBound()
	}
	return nil
}

// fresh returns what is to be written of entries.
func (j *Journal) fresh(entries []JournalEntry) (out []JournalRecord, err error) {
	j.mu.RLock()
	defer j.mu.RUnlock()
	if j.closed {
		return nil, ErrClosed // also when nothing is left to write
	}
	for _, e := range entries {
		for n, data := range e.Events {
			if len(data) > MaxValue {
				return nil, fmt.Errorf("%w: event %d of index %d has %d bytes, allowed are up to %d", ErrBadChange, n, e.Index, len(data), MaxValue)
			}
			if e.Index > j.last {
				out = append(out, JournalRecord{e.Index, uint32(n), data})
			}
		}
	}
	return out, nil
}

// write writes records, at least one, in one transaction and returns the size of their segment; writing is held.
func (j *Journal) write(records []JournalRecord) (size int64, err error) {
	s, err := j.activeFor(records[0].Index)
	if err != nil {
		return 0, err
	}
	next, size, err := s.append(records)
	if err != nil {
		return 0, err
	}
	j.mu.Lock()
	defer j.mu.Unlock()
	s.info, s.size, j.last = next, size, next.Index
	return size, nil
}

// activeFor returns the segment to write an entry to.
func (j *Journal) activeFor(index uint64) (*segment, error) {
	j.mu.Lock()
	defer j.mu.Unlock()
	if j.closed {
		return nil, ErrClosed
	}
	if j.active == nil {
		s, err := createSegment(j.path, index)
		if err != nil {
			return nil, err
		}
		j.active = s
		j.segs = append(j.segs, s)
		if err := j.saveMark(false); err != nil {
			return nil, err
		}
	}
	return j.active, nil
}
