package cluster

import (
	"fmt"
	"strings"
	"time"
)

// replay runs through the journal and checks that each event may follow those before it.
type replay struct {
	problems []string
	now      int64
	reserved int64
	leases   map[string]*heldLease
	waiters  map[string]*queued
	// queue holds the waiters in order of arrival.
	queue []*queued
	// grants are all leases ever granted, by number.
	grants map[uint64]*heldLease
}

// heldLease is a lease as the journal tells it.
type heldLease struct {
	grant    *Event
	ended    *Event
	renewed  *Event // the newest renewal
	deadline int64
	// claimBy is when an unclaimed grant is taken back; 0 when it was claimed.
	claimBy int64
}

// setAt returns when the deadline was last set, and by which event.
func (l *heldLease) setAt() *Event {
	if l.renewed != nil {
		return l.renewed
	}
	return l.grant
}

// due is when the lease ends by itself.
func (l *heldLease) due() int64 {
	if l.claimBy != 0 {
		return min(l.claimBy, l.deadline)
	}
	return l.deadline
}

// queued is a waiter as the journal tells it.
type queued struct {
	enqueued *Event
	detached bool
	dropAt   int64
}

func newReplay() *replay {
	return &replay{leases: map[string]*heldLease{}, waiters: map[string]*queued{}, grants: map[uint64]*heldLease{}}
}

const maxProblems = 20

func (r *replay) problem(e *Event, format string, args ...any) {
	if len(r.problems) < maxProblems {
		r.problems = append(r.problems, fmt.Sprintf("event %d.%d (%s %s): ", e.Index, e.N, e.Kind, e.TicketId)+fmt.Sprintf(format, args...))
	}
}

// ageLimit is how long after its max wait a waiter may be let go, in ledger time.
const ageLimit = int64(50 * time.Millisecond)

func (r *replay) step(e *Event) {
	if e.LedgerTime < r.now {
		r.problem(e, "ledger time goes back from %v to %v", time.Duration(r.now), time.Duration(e.LedgerTime))
	}
	r.now = e.LedgerTime
	switch e.Kind {
	case "admitted":
		r.admitted(e)
	case "waiting":
		r.waiting(e)
	case "renewed":
		r.renewed(e)
	case "released", "lease_expired", "unclaimed":
		r.leaseEnds(e)
	case "bypassed", "abandoned":
		r.waitEnds(e)
	case "cancelled", "holder_expired":
		if e.Grant != 0 {
			r.leaseEnds(e)
		} else {
			r.waitEnds(e)
		}
	case "detached", "attached":
		r.attachment(e)
	case "leader":
		for _, w := range r.waiters {
			if !w.detached {
				w.detached, w.dropAt = true, e.LedgerTime+int64(detachGrace)
			}
		}
		return
	case "settings", "drained", "trimmed", "pool_deleted":
		return
	case "session_opened", "session_bound", "session_unbound", "session_closing", "session_phase", "abort_sent", "abort_refused", "close_sent",
		"close_failed", "close_voided", "session_closed", "ticket_forgotten", "pinned", "unpinned":
		return // sessions and pins say nothing of the budget; what they drop or release has events of its own
	}
	if e.ReservedAfter != r.reserved {
		r.problem(e, "reserved is said to be %d, the leases sum up to %d", e.ReservedAfter, r.reserved)
		r.reserved = e.ReservedAfter
	}
	if e.WaitingAfter != int64(len(r.waiters)) && e.Kind != "degraded" {
		r.problem(e, "%d are said to wait, the journal tells of %d", e.WaitingAfter, len(r.waiters))
	}
}

func (r *replay) admitted(e *Event) {
	if old := r.leases[e.TicketId]; old != nil {
		r.problem(e, "the ticket holds grant %d already", old.grant.Grant)
	}
	if r.grants[e.Grant] != nil {
		r.problem(e, "grant %d was given before", e.Grant)
	}
	l := &heldLease{grant: e, deadline: e.Deadline}
	if w := r.waiters[e.TicketId]; w != nil {
		if head := r.head(); head != w {
			r.problem(e, "granted before %s, which came first", head.enqueued.TicketId)
		}
		if w.detached {
			l.claimBy = e.LedgerTime + int64(detachGrace)
		}
		r.remove(w)
	} else if head := r.head(); head != nil && head.enqueued.Priority >= e.Priority && e.Wait == nil {
		// The event of a direct grant does not carry its priority, so only the lowest is certain.
		if head.enqueued.Priority >= highestPriority {
			r.problem(e, "granted at once while %s waits", head.enqueued.TicketId)
		}
	}
	r.leases[e.TicketId], r.grants[e.Grant] = l, l
	r.reserved += e.Tokens
	if e.ReservedAfter > e.CeilingAfter {
		r.problem(e, "reserved %d is above the ceiling %d", e.ReservedAfter, e.CeilingAfter)
	}
}

// highestPriority is the highest that the load asks for.
const highestPriority = 2

// head returns the waiter that is served next.
func (r *replay) head() (head *queued) {
	for _, w := range r.queue {
		if head == nil || w.enqueued.Priority > head.enqueued.Priority {
			head = w
		}
	}
	return head
}

func (r *replay) remove(w *queued) {
	delete(r.waiters, w.enqueued.TicketId)
	for i, x := range r.queue {
		if x == w {
			r.queue = append(r.queue[:i], r.queue[i+1:]...)
			return
		}
	}
}

func (r *replay) waiting(e *Event) {
	if r.waiters[e.TicketId] != nil || r.leases[e.TicketId] != nil {
		r.problem(e, "the ticket waits or holds a lease already")
	}
	w := &queued{enqueued: e}
	r.waiters[e.TicketId] = w
	r.queue = append(r.queue, w)
}

func (r *replay) renewed(e *Event) {
	l := r.leases[e.TicketId]
	if l == nil || l.grant.Grant != e.Grant {
		r.problem(e, "renews grant %d, which is not held", e.Grant)
		return
	}
	l.renewed, l.deadline, l.claimBy = e, e.Deadline, 0
}

func (r *replay) leaseEnds(e *Event) {
	l := r.leases[e.TicketId]
	if l == nil || l.grant.Grant != e.Grant {
		r.problem(e, "ends grant %d, which is not held", e.Grant)
		return
	}
	switch e.Kind {
	case "lease_expired":
		if e.LedgerTime < l.deadline || e.Deadline != l.deadline {
			r.problem(e, "expired at %v, the deadline is %v", time.Duration(e.LedgerTime), time.Duration(l.deadline))
		}
	case "unclaimed":
		if l.claimBy == 0 || e.LedgerTime < l.claimBy {
			r.problem(e, "taken back at %v, it had to be claimed by %v", time.Duration(e.LedgerTime), time.Duration(l.claimBy))
		}
	}
	if at := l.due(); e.LedgerTime > at && e.Kind != "lease_expired" && e.Kind != "unclaimed" {
		r.problem(e, "ended at %v by a call, but it was due at %v", time.Duration(e.LedgerTime), time.Duration(at))
	}
	if e.Tokens != l.grant.Tokens {
		r.problem(e, "gives back %d tokens of %d", e.Tokens, l.grant.Tokens)
	}
	l.ended = e
	delete(r.leases, e.TicketId)
	r.reserved -= e.Tokens
}

func (r *replay) waitEnds(e *Event) {
	w := r.waiters[e.TicketId]
	if w == nil {
		if e.Kind == "abandoned" || e.Kind == "holder_expired" {
			r.problem(e, "the ticket does not wait")
		}
		return
	}
	r.remove(w)
	late := e.LedgerTime - w.enqueued.Deadline
	switch {
	case e.Kind == "abandoned" && (!w.detached || e.LedgerTime < w.dropAt):
		r.problem(e, "dropped at %v; detached %t, to be kept until %v", time.Duration(e.LedgerTime), w.detached, time.Duration(w.dropAt))
	case late > ageLimit:
		r.problem(e, "let go %v after its max wait", time.Duration(late))
	}
}

func (r *replay) attachment(e *Event) {
	if e.Grant != 0 {
		l := r.leases[e.TicketId]
		if l == nil {
			r.problem(e, "the ticket holds no lease")
			return
		}
		l.claimBy = 0
		if e.Kind == "detached" {
			l.claimBy = e.Deadline
		}
		return
	}
	w := r.waiters[e.TicketId]
	if w == nil {
		r.problem(e, "the ticket does not wait")
		return
	}
	w.detached, w.dropAt = e.Kind == "detached", e.Deadline
}

func (r *replay) err(what string) error {
	if len(r.problems) == 0 {
		return nil
	}
	return fmt.Errorf("%s:\n  %s", what, strings.Join(r.problems, "\n  "))
}
