package whatif

import (
	"cmp"
	"errors"
	"slices"
	"time"

	"kvgate/ledger"
	kvgatev1 "kvgate/rpc/kvgate/v1"
	"kvgate/rpc/story"
)

// survey is what a first reading of the recording learns: what was before it, how long leases were held, and what
// became of each ticket. That is needed when a ticket arrives, long before it is told, so it is put on disk and found
// again by its first event.
type survey struct {
	pool   string
	reader *story.Reader
	lives  *story.Spool
	refs   []lifeRef
	failed error

	// skip counts the events before the newest replacement of the state, of which nothing is told.
	skip, seen int
	restored   bool
	some       bool // there is a life
	first      *kvgatev1.JournalEvent
	settings   *kvgatev1.Settings // before the first change of them
	measured   *kvgatev1.Measured // the first
	ceiling    told
	reserved   told
	holds      []time.Duration
	column     sum
}

// told is a figure and whether an event told it.
type told struct {
	tokens ledger.Tokens
	known  bool
}

// lifeRef says where a life is on disk. It takes as little as possible: there is one for each ticket.
type lifeRef struct {
	at    int64
	index uint64
	n     uint32
	steps int32
	// waiting, granted and ended are places among the steps, -1 for none; ended may be behind them.
	waiting, granted, ended int32
	// adopt: it was there before the recording.
	adopt bool
}

func (f *lifeRef) place() place { return place{f.index, f.n} }

func newSurvey(pool string, keep bool) (*survey, error) {
	lives, err := story.NewSpool()
	if err != nil {
		return nil, err
	}
	s := &survey{pool: pool, lives: lives}
	s.forget(keep)
	return s, nil
}

// forget begins anew.
func (s *survey) forget(keep bool) {
	*s = survey{pool: s.pool, lives: s.lives, failed: s.failed, skip: s.seen, seen: s.seen, column: newSum(keep)}
	s.reader = &story.Reader{Done: s.over}
}

func (s *survey) read(journal story.Journal) error {
	err := journal(func(e *kvgatev1.JournalEvent) {
		if e.Kind == "restored" {
			s.forget(s.column.keep) // what was before belongs to another state
			s.restored = true
		}
		s.seen++
		if e.Pool == "" || e.Pool == s.pool {
			s.take(e)
		}
	})
	s.reader.Open(s.over)
	slices.SortFunc(s.refs, func(a, b lifeRef) int { return cmp.Or(cmp.Compare(a.index, b.index), cmp.Compare(a.n, b.n)) })
	slices.Sort(s.holds)
	return errors.Join(err, s.failed, s.lives.Flush())
}

func (s *survey) take(e *kvgatev1.JournalEvent) {
	if s.first == nil {
		s.first = e
	}
	if s.settings == nil && e.Kind == "settings" && e.Pool == s.pool {
		s.settings = e.SettingsBefore
	}
	if s.measured == nil {
		s.measured = e.Measured
	}
	s.ceiling.tell(ceilingBefore(e))
	s.reserved.tell(reservedBefore(e))
	s.reader.Read(e)
	if e.Pool == s.pool {
		s.column.add(fromJournal(e))
	}
}

func (t *told) tell(tokens ledger.Tokens, known bool) {
	if !t.known && known {
		*t = told{tokens, true}
	}
}

// over puts a life on disk. Changes of leader are told anew with the events.
func (s *survey) over(l *story.Life) {
	if l.Pool != s.pool {
		return
	}
	s.some = true
	if d, ok := l.Held(0); ok && l.Ended != nil && l.Ended.Kind == "released" {
		s.holds = append(s.holds, d)
	}
	if l.First.Arrival == nil && unknown(l.First) {
		return // a mark that somebody will not come: nothing follows from it
	}
	ref := lifeRef{index: l.First.Index, n: l.First.N, waiting: -1, granted: -1, ended: -1, adopt: l.First.Arrival == nil}
	steps := make([]*kvgatev1.JournalEvent, 0, len(l.Steps)+1)
	for _, e := range l.Steps {
		if e.Kind == "leader" {
			continue
		}
		for _, is := range []struct {
			e  *kvgatev1.JournalEvent
			at *int32
		}{{l.Waiting, &ref.waiting}, {l.Granted, &ref.granted}, {l.Ended, &ref.ended}} {
			if is.e == e {
				*is.at = int32(len(steps)) // #nosec G115 -- far fewer
			}
		}
		steps = append(steps, e)
	}
	ref.steps = int32(len(steps)) // #nosec G115 -- far fewer
	if l.Ended != nil && ref.ended < 0 {
		ref.ended = ref.steps
		steps = append(steps, l.Ended)
	}
	var err error
	ref.at, err = s.lives.Append(steps...)
	s.failed = errors.Join(s.failed, err)
	s.refs = append(s.refs, ref)
}

// unknown reports that an event cancelled a ticket that was not there.
func unknown(e *kvgatev1.JournalEvent) bool { return e.Kind == "cancelled" && e.Reason == "unknown" }

// life reads a life back.
func (s *survey) life(ref lifeRef) (*story.Life, error) {
	n := int(max(ref.steps, ref.ended+1))
	events, err := s.lives.At(ref.at, n)
	if err != nil {
		return nil, err
	}
	at := func(i int32) *kvgatev1.JournalEvent {
		if i < 0 {
			return nil
		}
		return events[i]
	}
	first := events[0]
	return &story.Life{
		Pool: s.pool, Ticket: first.TicketId, Session: first.SessionId, Holder: first.HolderId, Group: first.GroupId,
		Tokens: first.Tokens, Priority: first.Priority, First: first, Steps: events[:ref.steps],
		Waiting: at(ref.waiting), Granted: at(ref.granted), Ended: at(ref.ended),
	}, nil
}

// ceilingBefore returns the ceiling before an event, 0 when there was none; false when the event does not tell.
func ceilingBefore(e *kvgatev1.JournalEvent) (ledger.Tokens, bool) {
	switch e.Kind {
	case "capacity", "epoch", "recovered", "settings", "degraded":
		return 0, true
	case "admitted", "waiting", "bypassed", "released", "usage", "renewed", "lease_expired", "cancelled", "detached", "attached":
		return ledger.Tokens(e.CeilingAfter), true
	}
	return 0, false
}

// reservedBefore returns what was reserved before an event; false when the event does not tell.
func reservedBefore(e *kvgatev1.JournalEvent) (ledger.Tokens, bool) {
	after, tokens := ledger.Tokens(e.ReservedAfter), ledger.Tokens(e.Tokens)
	switch e.Kind {
	case "admitted":
		return after - tokens, true
	case "released", "lease_expired", "unclaimed":
		return after + tokens, true
	case "cancelled", "holder_expired":
		if e.Grant != 0 {
			return after + tokens, true
		}
		return after, true
	case "waiting", "bypassed", "capacity", "usage", "renewed", "degraded", "recovered", "settings", "epoch":
		return after, true
	}
	return 0, false
}
