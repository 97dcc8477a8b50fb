package sessions

import (
	"cmp"
	"slices"
	"strings"
)

// MaxReports bounds how many sessions one batch of reports is about, so that a log entry stays short.
const MaxReports = 512

// Report is what the closer learnt about one session. What does not apply any more is ignored.
type Report struct {
	Pool, Session string
	// Seq is the session's number: an acknowledgement for an earlier incarnation of the id is void.
	Seq uint64
	// Acked are engines that acknowledged the close.
	Acked []string
	// Aborted are tickets that every engine was asked to abort.
	Aborted []string
	// Refused are aborts that an engine did not take so far. They change nothing but the journal.
	Refused []Refusal
}

// Report takes in a batch of reports and returns how many said something new.
func (t *Table) Report(batch []Report) int {
	n := 0
	for i := range batch {
		r := &batch[i]
		s := t.find(r.Pool, r.Session)
		if s == nil || s.Seq != r.Seq {
			continue
		}
		refused := t.noteRefusals(s, r.Refused)
		aborted, acked := t.noteAborts(s, r.Aborted), t.noteAcks(s, r.Acked)
		if refused || aborted || acked {
			n++
		}
	}
	return n
}

func (t *Table) noteAborts(s *session, tickets []string) bool {
	n := 0
	for _, name := range tickets {
		x := s.pool.byTicket[name]
		if x == nil || x.s != s || !t.mayAbort(x) {
			continue
		}
		x.AbortSent = true
		t.touch(x)
		t.emit(s.pool, s, Event{Kind: AbortSent, Ticket: name, Holder: x.Holder})
		n++
	}
	if n == 0 {
		return false
	}
	s.pool.Totals.Aborted += int64(n)
	t.touch(s.pool)
	s.rev++
	return true
}

func (t *Table) noteAcks(s *session, engines []string) bool {
	paid := t.pay(s, engines)
	if len(paid) == 0 {
		return false
	}
	s.settle(len(paid), 0, 0)
	t.touch(s.pool)
	t.emit(s.pool, s, Event{Kind: CloseSent, Engines: paid})
	if s.debts() == 0 {
		t.finish(s)
	}
	return true
}

// noteRefusals tells of aborts that engines did not take, in one event for each ticket and reason. What is over by
// now is left out.
func (t *Table) noteRefusals(s *session, list []Refusal) (told bool) {
	list = slices.Clone(list)
	slices.SortFunc(list, func(a, b Refusal) int {
		return cmp.Or(strings.Compare(a.Ticket, b.Ticket), strings.Compare(a.Reason, b.Reason), strings.Compare(a.Engine, b.Engine))
	})
	for len(list) > 0 {
		first, n := list[0], 0
		var engines []string
		for n < len(list) && list[n].Ticket == first.Ticket && list[n].Reason == first.Reason {
			engines = append(engines, list[n].Engine)
			n++
		}
		list = list[n:]
		if x := s.pool.byTicket[first.Ticket]; x != nil && x.s == s && t.mayAbort(x) {
			t.emit(s.pool, s, Event{Kind: AbortRefused, Ticket: first.Ticket, Holder: x.Holder, Engines: engines, Reason: first.Reason})
			told = true
		}
	}
	return told
}

// mayAbort reports whether engines are being asked to abort a ticket.
func (t *Table) mayAbort(x *ticket) bool {
	return x.s.Close.Phase == Aborting && !x.AbortSent && !x.Waiting
}
