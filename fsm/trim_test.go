package fsm

import (
	"fmt"
	"testing"
	"time"

	"kvgate/ledger"
	"kvgate/store"
)

// pairs makes n pairs of events.
func pairs(t *testing.T, s *single, from, n int) {
	t.Helper()
	for i := range n {
		ticket := fmt.Sprint("t", from+i)
		admit(t, s.Replica, ask(ticket, 1))
		release(t, s.Replica, ticket)
	}
}

func kept(t *testing.T, r *Replica) (first uint64, events int) {
	t.Helper()
	page, err := r.Journal(t.Context(), true, store.JournalQuery{Limit: 100_000})
	must(t, err)
	return page.FirstKept, len(page.Events)
}

// TestTrimByCount keeps the newest events; the first index kept is part of the state.
func TestTrimByCount(t *testing.T) {
	s := startSingle(t)
	budget(t, s.Replica, 100, setting("journalMaxEvents", func(s *ledger.Settings) { s.JournalMaxEvents = 10 }))
	pairs(t, s, 0, 20)
	_, before := kept(t, s.Replica)
	term := s.leading()
	must(t, term.trimOnce(t.Context()))
	first, after := kept(t, s.Replica)
	// The cut falls between two entries, and telling of it is an event, too.
	if after < 10 || after > 12 || before <= 40 {
		t.Fatalf("%d events of %d are left, want 10 and the one that tells of the cut", after, before)
	}
	var stored uint64
	s.machine.view(func(l *ledger.Ledger) { stored = l.Meta().JournalFirst })
	if first != stored {
		t.Errorf("the journal begins at %d, the state says %d", first, stored)
	}
	s.restart()
	if again, n := kept(t, s.Replica); again != first || n < after {
		t.Errorf("after a restart %d events from %d on, want at least %d from %d", n, again, after, first)
	}
	if cut, err := s.journalCut(ledger.Settings{JournalMaxEvents: 1000, JournalMaxAge: time.Hour}); cut != 0 || err != nil {
		t.Errorf("cut at %d (%v) where nothing has to go", cut, err)
	}
}

// TestTrimByAge drops what is older than the age, however little there is.
func TestTrimByAge(t *testing.T) {
	s := startSingle(t)
	budget(t, s.Replica, 100, setting("journalMaxAge", func(s *ledger.Settings) { s.JournalMaxAge = time.Hour }))
	pairs(t, s, 0, 5)
	s.clock.Advance(2 * time.Hour)
	pairs(t, s, 5, 1)
	must(t, s.leading().trimOnce(t.Context()))
	for _, e := range journal(t, s.Replica, store.JournalQuery{}) {
		if e.WallTime < s.clock.Now().Add(-time.Hour).UnixNano() {
			t.Errorf("%s of %s is older than an hour", e.Kind, e.Ticket)
		}
	}
	if got := journal(t, s.Replica, store.JournalQuery{Ticket: "t5"}); len(got) != 2 {
		t.Errorf("%d new events are left, want 2", len(got))
	}
	if got := journal(t, s.Replica, store.JournalQuery{Ticket: "t4"}); len(got) != 0 {
		t.Errorf("%d old events are left", len(got))
	}
}

// TestJournalPages: filters and pages together give every matching event once.
func TestJournalPages(t *testing.T) {
	s := startSingle(t)
	budget(t, s.Replica, 100)
	pairs(t, s, 0, 7)
	var seen int
	q := store.JournalQuery{Limit: 2, Kinds: []string{string(ledger.KindReleased)}}
	for {
		page, err := s.Journal(t.Context(), false, q)
		must(t, err)
		seen += len(page.Events)
		if !page.More {
			break
		}
		q.FromIndex, q.FromN = page.NextIndex, page.NextN
	}
	if seen != 7 {
		t.Errorf("%d events, want 7", seen)
	}
	for _, q := range []store.JournalQuery{
		{Holder: "nobody", Limit: 10}, {Pool: "b", Limit: 10}, {Since: s.clock.Now().Add(time.Hour), Limit: 10},
		{Until: s.clock.Now().Add(-time.Hour), Limit: 10},
	} {
		if page, err := s.Journal(t.Context(), true, q); err != nil || len(page.Events) != 0 {
			t.Errorf("%+v: %d events, %v", q, len(page.Events), err)
		}
	}
}
