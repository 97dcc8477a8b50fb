package sessions

import (
	"cmp"
	"fmt"
	"slices"
	"strings"
	"time"
)

// maxGroupSteps bounds how many closes of a group take their first steps within the call. The others
// are due at once, and taken up by Expire.
const maxGroupSteps = 256

// CloseRequest begins to close a session.
type CloseRequest struct {
	Pool, ID string
	Mode     Mode
	// Timeout of the join; 0 means the pool's.
	Timeout time.Duration
}

// Close begins to close a session, and answers with how far that is. Again it changes nothing, but that
// an abort ends a join. An id that is not known is answered as closed, and nothing is sent to anybody.
// Errors: *FieldError.
func (t *Table) Close(r CloseRequest, rules Rules) (View, error) {
	switch {
	case r.ID == "":
		return View{}, fieldError("sessionId", `""`, "1 to 256 bytes")
	case r.Mode > Abort:
		return View{}, fieldError("mode", r.Mode, "CLOSE_MODE_JOIN or CLOSE_MODE_ABORT")
	case r.Timeout < 0 || r.Timeout > maxDuration:
		return View{}, fieldError("timeout", r.Timeout, "0s (the pool's join timeout) to 8760h")
	}
	s := t.find(r.Pool, r.ID)
	if s == nil {
		return View{SessionRow: SessionRow{Pool: r.Pool, ID: r.ID, Kind: Radix, State: Closed}}, nil
	}
	if t.begin(s, r, rules, "asked") {
		t.step(s)
	}
	return t.view(s), nil
}

// CloseGroup closes the open sessions of a group and reports how many are closing because of it.
// Errors: *FieldError.
func (t *Table) CloseGroup(pool, group string, mode Mode, rules Rules) (int, error) {
	switch {
	case group == "":
		return 0, fieldError("groupId", `""`, "1 to 256 bytes")
	case mode > Abort:
		return 0, fieldError("mode", mode, "CLOSE_MODE_JOIN or CLOSE_MODE_ABORT")
	}
	p := t.pools[pool]
	if p == nil {
		return 0, nil
	}
	n := 0
	for s := range p.groups[group].all() {
		open := s.State == Open
		if !t.begin(s, CloseRequest{Mode: mode}, rules, "group") {
			continue
		}
		if n < maxGroupSteps {
			t.step(s)
		} else if s.flights == 0 {
			s.Close.PhaseUntil = t.now
			t.changed(s)
		}
		if open {
			n++
		}
	}
	return n, nil
}

// begin makes a session closing, takes its waiters out of the queue and drops its pins and binding. It
// reports whether the session has a step to take.
func (t *Table) begin(s *session, r CloseRequest, rules Rules, reason string) bool {
	switch {
	case s.State == Closing && s.Close.Phase == Joining && r.Mode == Abort && s.Close.Mode != Abort:
		s.Close.Mode, s.Close.PhaseUntil = Abort, t.now
		t.changed(s)
		return true
	case s.State != Open:
		return false
	}
	wait := time.Duration(0)
	if r.Mode != Abort {
		r.Mode = Join
		wait = clampDuration(cmp.Or(r.Timeout, rules.JoinTimeout))
	}
	s.Close = CloseRow{
		Mode: r.Mode, Reason: reason, Since: t.now, PhaseUntil: t.now.Add(wait),
		AbortTimeout: clampDuration(rules.AbortTimeout), CloseDeadline: clampDuration(rules.CloseDeadline),
		ServedOnly: rules.ServedOnly, Discovers: rules.Discovers && !s.pool.known(),
	}
	s.Binding = nil
	t.dropWaiters(s)
	for _, x := range s.pins.list() {
		t.unpin(x, "session closing")
	}
	t.enter(s, Closing, Joining)
	t.emit(s.pool, s, Event{Kind: SessionClosing, Reason: reason + ", " + r.Mode.String()})
	if !rules.Lifecycle {
		t.letGo(s)
		t.finish(s)
		return false
	}
	return true
}

func (t *Table) dropWaiters(s *session) {
	var drop []string
	for x := s.first; x != nil; {
		next := x.next
		if x.Waiting {
			drop = append(drop, x.Ticket)
			t.dropTicket(x)
		}
		x = next
	}
	if len(drop) > 0 {
		t.effects = append(t.effects, Effect{Pool: s.Pool, Session: s.ID, Drop: drop})
	}
}

// step enters the next phase when the present one is over: nothing is in flight, or its time is up.
func (t *Table) step(s *session) {
	if s.Close.Phase == Joining && s.flights > 0 && t.now >= s.Close.PhaseUntil {
		s.Close.PhaseUntil = t.now.Add(s.Close.AbortTimeout)
		t.enter(s, Closing, Aborting)
		t.emit(s.pool, s, Event{Kind: SessionPhase, Reason: Aborting.String()})
	}
	late := s.Close.Phase == Aborting && t.now >= s.Close.PhaseUntil
	if s.Close.Phase != Telling && (s.flights == 0 || late) {
		t.tell(s)
	}
}

// tell releases what the session still holds and writes down which engines must hear of its end, before
// any of them is told.
func (t *Table) tell(s *session) {
	// What is let go ran somewhere and left KV there, as a turn that was released does: see owes.
	s.Turns += int64(s.flights)
	if leases := t.letGo(s); len(leases) > 0 {
		t.effects = append(t.effects, Effect{Pool: s.Pool, Session: s.ID, Release: leases})
	}
	s.Close.PhaseUntil = t.now.Add(s.Close.CloseDeadline)
	list := s.creditors()
	if s.Kind == Streaming && len(list) == 0 {
		s.settle(0, 0, 1)
	}
	t.enter(s, Closing, Telling)
	t.owe(s, list)
}

// owe makes list what a session's close owes, and ends the close when that is nothing.
func (t *Table) owe(s *session, list []Creditor) {
	t.setCreditors(s, list)
	t.changed(s)
	reason := fmt.Sprintf("%v %d engines", Telling, len(list))
	if s.awaitsEngines() {
		reason = "telling waits until the pool's engines are found"
	}
	t.emit(s.pool, s, Event{Kind: SessionPhase, Reason: reason})
	if len(list) == 0 {
		t.finish(s)
	}
}

// awaitsEngines reports whether the close waits until the pool's engines are known.
func (s *session) awaitsEngines() bool { return s.debts() > 0 && s.owed.Creditors[0].Engine == "" }

// letGo forgets what is in flight and returns the tickets among it that hold leases.
func (t *Table) letGo(s *session) (leases []string) {
	for s.first != nil {
		if !s.first.Bypassed {
			leases = append(leases, s.first.Ticket)
		}
		t.dropTicket(s.first)
	}
	return leases
}

// creditors are the engines that may hold KV of the session.
func (s *session) creditors() []Creditor {
	if s.Close.Discovers && !s.pool.known() && s.Kind == Radix && s.owes("") {
		return []Creditor{{Debt: Owed}}
	}
	var out []Creditor
	for _, e := range s.pool.Engines {
		if s.owes(e.URL) {
			out = append(out, Creditor{Engine: e.URL, Debt: Owed})
		}
	}
	return out
}

func (s *session) owes(engine string) bool {
	switch s.Kind {
	case Bind:
		return false
	case Streaming:
		return engine == s.Engine && !s.EngineLost
	}
	if !s.Close.ServedOnly || len(s.Served) == 0 && s.Turns > 0 {
		// No release ever said where a turn ran, so it may have been anywhere.
		return true
	}
	_, served := slices.BinarySearch(s.Served, engine)
	return served
}

// settle counts debts that are settled.
func (s *session) settle(acked, failed, left int) {
	s.Close.Acked += acked
	s.Close.Failed += failed
	s.Close.Left += left
	sum := &s.pool.Totals
	sum.Acked += int64(acked)
	sum.Failed += int64(failed)
	sum.Left += int64(left)
}

// setCreditors replaces the debts of a session. The list is the table's from then on.
func (t *Table) setCreditors(s *session, list []Creditor) {
	s.pool.owed -= s.debts()
	switch {
	case s.owed == nil && len(list) == 0:
		return
	case len(list) == 0:
		t.erase(s.owed)
		s.owed = nil
		return
	case s.owed == nil:
		s.owed = &owed{OwedRow: OwedRow{Session: s.Seq}}
	}
	s.owed.Creditors = list
	s.pool.owed += s.debts()
	t.touch(s.owed)
}

// debts counts the engines that still owe an acknowledgement. A list holds debts of one kind only.
func (s *session) debts() int {
	if s.owed == nil || s.owed.Creditors[0].Debt != Owed {
		return 0
	}
	return len(s.owed.Creditors)
}

// pay takes the engines among list that owe something out of the debts, and returns them.
func (t *Table) pay(s *session, list []string) []string {
	if s.debts() == 0 {
		return nil
	}
	var paid []string
	rest := slices.Clone(s.owed.Creditors)
	for _, engine := range list {
		at, found := slices.BinarySearchFunc(rest, engine, func(c Creditor, e string) int { return strings.Compare(c.Engine, e) })
		if found {
			rest = slices.Delete(rest, at, at+1)
			paid = append(paid, engine)
		}
	}
	if len(paid) > 0 {
		t.setCreditors(s, rest)
		t.changed(s)
	}
	return paid
}

// finish ends a close. Debts that are left have failed.
func (t *Table) finish(s *session) {
	state, sum := Closed, &s.pool.Totals
	if s.debts() > 0 {
		state = ClosedWithFailures
		sum.CloseFailures++
		t.fail(s)
	}
	sum.Closed++
	t.touch(s.pool)
	s.Close.ForgetAt = t.now.Add(keepClosed)
	t.enter(s, state, NotClosing)
	t.emit(s.pool, s, Event{Kind: SessionClosed, Reason: fmt.Sprintf(
		"%v: %d acknowledged, %d failed, %d left", state, s.Close.Acked, s.Close.Failed, s.Close.Left)})
}

func (t *Table) fail(s *session) {
	failed := make([]Creditor, len(s.owed.Creditors))
	names, reason := make([]string, len(failed)), "close deadline"
	for i, c := range s.owed.Creditors {
		failed[i], names[i] = Creditor{Engine: c.Engine, Debt: Failed}, c.Engine
	}
	if s.awaitsEngines() {
		names, reason = nil, "close deadline, and the pool's engines were not found"
	}
	s.settle(0, len(failed), 0)
	t.setCreditors(s, failed)
	t.emit(s.pool, s, Event{Kind: CloseFailed, Engines: names, Reason: reason})
}
