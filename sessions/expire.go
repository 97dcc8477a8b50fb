package sessions

// Expire moves the table's time and lets go of what is due, in the order of deadlines, at most limit of
// it. rules answers for a pool; it is asked only when a session is closed for idleness. It reports how
// much was let go and whether more is due.
func (t *Table) Expire(now Time, limit int, rules func(pool string) Rules) (n int, more bool) {
	t.SetNow(now)
	for ; len(t.due) > 0 && t.due[0].slot().at <= t.now; n++ {
		if n >= limit {
			return n, true
		}
		switch x := t.due[0].(type) {
		case *session:
			t.expire(x, rules)
		case *ticket:
			t.emit(x.s.pool, x.s, Event{Kind: TicketForgotten, Ticket: x.Ticket, Reason: "never released"})
			t.end(x, Turn{})
		case *pin:
			t.unpin(x, "expired")
		}
	}
	return n, false
}

// expire does what is due for a session. It always moves or clears the deadline.
func (t *Table) expire(s *session, rules func(pool string) Rules) {
	switch {
	case s.State == Closed || s.State == ClosedWithFailures:
		t.setCreditors(s, nil)
		t.forget(s)
	case s.State == Closing && s.Close.Phase == Telling:
		t.finish(s)
	case s.State == Closing:
		t.step(s)
	case s.Binding != nil && s.Binding.TTL > 0 && t.now >= s.ActiveAt.Add(s.Binding.TTL):
		t.unbind(s, "expired")
	default:
		s.pool.Totals.Idle++
		t.touch(s.pool)
		if t.begin(s, CloseRequest{}, rules(s.Pool), "idle") {
			t.step(s)
		}
	}
}
