package sessions

import "pgregory.net/rapid"

// checkTable asserts what must hold after every step.
func checkTable(t rapid.TB, tab *Table) {
	for _, p := range tab.pools {
		checkPool(t, tab, p)
	}
	for i, x := range tab.due {
		d := x.slot()
		if d.pos != i+1 {
			t.Fatalf("deadline %d thinks that it is at %d", i, d.pos)
		}
		if i > 0 && tab.due.Less(i, (i-1)/2) {
			t.Fatalf("deadline %d is before its parent", i)
		}
	}
	for s := range tab.busy.all() {
		if !s.working() {
			t.Fatalf("session %q is %v in phase %v, and the closer is to work on it", s.ID, s.State, s.Close.Phase)
		}
	}
}

func checkPool(t rapid.TB, tab *Table, p *pool) {
	open, closing, owed, tickets, rids, busy := 0, 0, 0, 0, 0, 0
	pinned := int64(0)
	for s := range p.sessions.all() {
		checkSession(t, s)
		owed += s.debts()
		tickets += s.waiting + s.flights
		rids += s.flights
		switch s.State {
		case Open:
			open++
		case Closing:
			closing++
		}
		if s.working() {
			busy++
		}
		for x := range s.pins.all() {
			if s.State != Open || p.byPin[x.ID] != x {
				t.Fatalf("session %q is %v and has pin %q", s.ID, s.State, x.ID)
			}
		}
	}
	for x := range p.pins.all() {
		pinned += x.Tokens
	}
	got := []int64{int64(p.open), int64(p.closing), int64(p.owed), int64(len(p.byTicket)), int64(p.rids.len()), int64(tab.busy.len()), p.pinned}
	want := []int64{int64(open), int64(closing), int64(owed), int64(tickets), int64(rids), int64(busy), pinned}
	for i, what := range []string{"open", "closing", "owed", "tickets", "request ids", "busy", "pinned"} {
		if got[i] != want[i] {
			t.Fatalf("%s: counted %d, there are %d", what, got[i], want[i])
		}
	}
	sum := p.Totals
	if sum.Opened < sum.Closed || sum.Closed < sum.CloseFailures {
		t.Fatalf("totals %+v", sum)
	}
}

// checkSession: a closing or closed session has no waiters; a closed one has no tickets; what it owes is
// written down before the engines are told; and every engine that owed ends acked, failed or left.
func checkSession(t rapid.TB, s *session) {
	waiting, flights := 0, 0
	for x := s.first; x != nil; x = x.next {
		if x.Waiting {
			waiting++
		} else {
			flights++
		}
		if x.next != nil && x.next.Seq <= x.Seq {
			t.Fatalf("tickets of session %q are out of order", s.ID)
		}
	}
	switch {
	case waiting != s.waiting || flights != s.flights:
		t.Fatalf("session %q counts %d waiting and %d in flight, there are %d and %d", s.ID, s.waiting, s.flights, waiting, flights)
	case s.State != Open && waiting > 0:
		t.Fatalf("session %q is %v and has waiters", s.ID, s.State)
	case s.State > Closing && flights > 0:
		t.Fatalf("session %q is %v and has tickets", s.ID, s.State)
	case s.State == Closing && s.Close.Phase == Telling && (s.debts() == 0 || flights > 0):
		t.Fatalf("session %q tells engines with %d debts and %d tickets", s.ID, s.debts(), flights)
	case s.State == Closed && (s.owed != nil || s.Close.Failed > 0):
		t.Fatalf("session %q is closed and not all engines heard", s.ID)
	case s.State == ClosedWithFailures && (s.debts() > 0 || s.owed == nil || len(s.owed.Creditors) != s.Close.Failed):
		t.Fatalf("session %q is closed with failures of %d engines", s.ID, s.Close.Failed)
	case s.State != Open && s.Binding != nil:
		t.Fatalf("session %q is %v and bound", s.ID, s.State)
	}
}
