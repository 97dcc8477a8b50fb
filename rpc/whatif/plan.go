package whatif

import (
	"cmp"
	"container/heap"
	"time"

	kvgatev1 "kvgate/rpc/kvgate/v1"
	"kvgate/rpc/story"

	"kvgate/ledger"
)

// place orders what happens at the same ledger time as the recording had it.
type place struct {
	index uint64
	n     uint32
}

func placeOf(e *kvgatev1.JournalEvent) place { return place{e.Index, e.N} }

// job is one input at a ledger time.
type job struct {
	at    ledger.Time
	place place
	seq   int
	run   func()
}

type agenda []job

func (a agenda) Len() int { return len(a) }
func (a agenda) Less(i, j int) bool {
	x, y := a[i], a[j]
	return cmp.Or(cmp.Compare(x.at, y.at), cmp.Compare(x.place.index, y.place.index), cmp.Compare(x.place.n, y.place.n), cmp.Compare(x.seq, y.seq)) < 0
}
func (a agenda) Swap(i, j int) { a[i], a[j] = a[j], a[i] }

// Push implements heap.Interface.
func (a *agenda) Push(x any) { *a = append(*a, x.(job)) }

// Pop implements heap.Interface.
func (a *agenda) Pop() any {
	old := *a
	last := old[len(old)-1]
	*a = old[:len(old)-1]
	return last
}

func (r *replay) schedule(at ledger.Time, p place, run func()) {
	r.scheduled++
	heap.Push(&r.todo, job{at, p, r.scheduled, run})
}

func (r *replay) at(e *kvgatev1.JournalEvent, run func()) {
	r.schedule(ledger.Time(e.LedgerTime), placeOf(e), run)
}

// attempt is one life of a ticket in the replay.
type attempt struct {
	*story.Life
	op ledger.Acquire
	// seq and number fence a detach as the ledger does.
	seq    ledger.Seq
	number uint32
}

// plan schedules all inputs of the recording.
func (r *replay) plan() {
	for _, l := range r.lives {
		r.planLife(l)
	}
	for i, e := range r.events {
		r.planPool(i, e)
	}
}

// planLife schedules the arrival of a ticket and what its caller did while it waited, at the recorded times. What
// follows a grant is scheduled when there is one.
func (r *replay) planLife(l *story.Life) {
	a := &attempt{Life: l, op: r.acquire(l)}
	if l.First.Arrival != nil {
		r.at(l.First, func() { r.arrive(a) })
	} else {
		r.adopt(a)
	}
	for _, e := range l.Steps {
		if e != l.First && (l.Granted == nil || e.Grant == 0) && e.Kind != "leader" {
			r.planWait(a, e)
		}
	}
	if l.Ended == l.First && l.First.Arrival == nil && l.First.Grant == 0 {
		r.planWait(a, l.First)
	}
}

// planWait schedules what a caller did with a ticket that waits.
func (r *replay) planWait(a *attempt, e *kvgatev1.JournalEvent) {
	switch {
	case e.Kind == "detached":
		r.at(e, func() { r.l.Detach(r.pool, a.Ticket, a.seq, a.number) })
	case e.Kind == "attached":
		op := a.op
		op.MaxWait = -1
		if e.Reason != "" {
			op.MaxWait = time.Duration(e.Deadline - e.LedgerTime)
		}
		r.at(e, func() { r.retry(a, op) })
	case e.Kind == "cancelled" && e.Reason != "unknown":
		r.at(e, func() { r.giveUp(a) })
	case e.Kind == "bypassed" && e.Arrival == nil && (e.Reason == "protected" || e.Reason == "out_of_scope"):
		op := a.op
		op.Protected = true
		if e.Reason == "out_of_scope" {
			op.Mode = ledger.ModeEval
		}
		r.at(e, func() { r.retry(a, op) })
	}
}

// planLease schedules what a caller did with its lease, as long after the grant as it was recorded.
func (r *replay) planLease(a *attempt, granted ledger.Time) {
	if a.Granted == nil {
		if d, ok := r.usualHold(); ok {
			r.guessed++
			r.schedule(granted.Add(d), place{index: ^uint64(0)}, func() { r.release(a) })
		}
		return
	}
	for _, e := range a.Steps {
		if e == a.Granted || e.Grant == 0 && (e.Kind != "bypassed" || e.Arrival == nil || e == a.First) {
			continue
		}
		at := granted + ledger.Time(e.LedgerTime-a.Granted.LedgerTime)
		switch e.Kind {
		case "released":
			if e.Reason != "session_closing" {
				r.schedule(at, placeOf(e), func() { r.release(a) })
			}
		case "bypassed":
			op := r.asked(a.Life, e.Arrival)
			r.schedule(at, placeOf(e), func() { r.retry(a, op) })
		case "cancelled":
			r.schedule(at, placeOf(e), func() { r.l.Cancel(ledger.Cancel{Pool: r.pool, Ticket: a.Ticket}) })
		case "renewed":
			ttl := time.Duration(e.Deadline - e.LedgerTime)
			r.schedule(at, placeOf(e), func() { r.l.Renew(r.pool, []ledger.LeaseRef{{Ticket: a.Ticket}}, ttl) })
		case "detached":
			r.schedule(at, placeOf(e), func() { r.l.Detach(r.pool, a.Ticket, a.seq, a.number) })
		case "attached":
			op := a.op
			op.MaxWait = -1
			r.schedule(at, placeOf(e), func() { r.retry(a, op) })
		}
	}
}

// acquire returns what the ticket asked for.
func (r *replay) acquire(l *story.Life) ledger.Acquire {
	op := ledger.Acquire{
		Pool: r.pool, Ticket: l.Ticket, ReservationTokens: ledger.Tokens(l.Tokens), Priority: l.Priority,
		Session: l.Session, Group: l.Group, Holder: l.Holder, MaxWait: -1,
	}
	if l.First.Arrival == nil {
		return op
	}
	if l.First.Arrival.MaxWait != nil && !l.First.Arrival.PoolWait {
		r.ownWait++
	}
	return r.asked(l, l.First.Arrival)
}

// asked returns one call of a ticket.
func (r *replay) asked(l *story.Life, a *kvgatev1.Arrival) ledger.Acquire {
	op := ledger.Acquire{Pool: r.pool, Ticket: l.Ticket, Priority: l.Priority, Session: l.Session, Group: l.Group, Holder: l.Holder, MaxWait: -1}
	op.PromptTokens, op.MaxNewTokens = ledger.Tokens(a.PromptTokens), ledger.Tokens(a.MaxNewTokens)
	op.ReservationTokens, op.Protected = ledger.Tokens(a.ReservationTokens), a.Protected
	op.Mode, op.TTL = ledger.Mode(a.Mode), a.Ttl.AsDuration()
	if a.MaxWait != nil {
		op.MaxWait = a.MaxWait.AsDuration()
	}
	return op
}

// planPool schedules what happened to the pool as a whole.
func (r *replay) planPool(i int, e *kvgatev1.JournalEvent) {
	switch e.Kind {
	case "capacity", "usage", "degraded", "recovered":
		r.planRound(i, e)
	case "settings":
		if set, ok := settingsOf(e.SettingsAfter); ok {
			r.at(e, func() { r.configure(set) })
		}
	case "leader":
		r.at(e, func() { r.l.NewTerm(uint64(max(e.Epoch, 0)), e.Detail) })
	case "holder_expired":
		r.at(e, func() { r.expire(e.HolderId) })
	case "bypassed", "released":
		if e.Reason == "session_closing" && e.Arrival == nil {
			r.planLeave(i, e)
		}
	case "pinned", "unpinned":
		r.planPin(e)
	case "pool_deleted":
		r.at(e, func() { r.l.DeletePool(r.pool, "") })
	}
}

// planLeave schedules what a closing session left behind: all that the same log entry tells of, at once.
func (r *replay) planLeave(i int, e *kvgatev1.JournalEvent) {
	same := func(x *kvgatev1.JournalEvent) bool {
		return x.Index == e.Index && x.LedgerTime == e.LedgerTime && x.SessionId == e.SessionId && x.Reason == "session_closing"
	}
	for j := i - 1; j >= 0 && r.events[j].Index == e.Index; j-- {
		if same(r.events[j]) {
			return // told with the first of them
		}
	}
	leave := ledger.Leave{Pool: r.pool, Session: e.SessionId}
	for _, x := range r.events[i:] {
		if x.Index != e.Index {
			break
		}
		switch {
		case same(x) && x.Kind == "bypassed":
			leave.Waiters = append(leave.Waiters, x.TicketId)
		case same(x) && x.Kind == "released":
			leave.Leases = append(leave.Leases, x.TicketId)
		}
	}
	// Which of its tickets waits and which holds a lease may be the other way round in the replay.
	both := append(append([]string(nil), leave.Waiters...), leave.Leases...)
	leave.Waiters, leave.Leases = both, both
	r.at(e, func() { r.l.EndSessions([]ledger.Leave{leave}) })
}

func (r *replay) planPin(e *kvgatev1.JournalEvent) {
	r.at(e, func() {
		if e.Kind == "pinned" {
			r.pins[e.PinId] = ledger.Tokens(e.Tokens)
		} else {
			delete(r.pins, e.PinId)
		}
		var sum ledger.Tokens
		for _, n := range r.pins {
			sum += n
		}
		r.l.SetPinned(r.pool, sum)
	})
}

// planRound schedules a round of polling with one engine that has what all of them had. Events that one round
// gave rise to are one round again.
func (r *replay) planRound(i int, e *kvgatev1.JournalEvent) {
	if m := e.Measured; m != nil {
		r.measured = m
	}
	if e.Kind == "degraded" || e.Kind == "recovered" {
		r.degraded = e.Kind == "degraded"
	}
	if (e.Kind == "capacity" || e.Kind == "usage") && i+1 < len(r.events) {
		next := r.events[i+1]
		if next.Index == e.Index && (next.Kind == "degraded" || next.Kind == "recovered") {
			return // the round is told with that
		}
	}
	if e.Kind == "capacity" && r.bySettings(i, e) {
		return
	}
	round := ledger.Round{Fresh: !r.degraded, Degrade: r.degraded, Reason: e.Reason, Engines: []ledger.Engine{engineOf(r.measured)}}
	r.at(e, func() { r.l.Reconcile(r.pool, round) })
}

// bySettings reports that a change of the ceiling came from a change of settings, which the replay makes itself.
func (r *replay) bySettings(i int, e *kvgatev1.JournalEvent) bool {
	return i > 0 && r.events[i-1].Kind == "settings" && r.events[i-1].Index == e.Index
}

func engineOf(m *kvgatev1.Measured) ledger.Engine {
	return ledger.Engine{
		URL: "http://recorded", Healthy: m.GetCapacityTokens() > 0, Capacity: ledger.Tokens(m.GetCapacityTokens()), Role: ledger.RoleRegular,
		Usage: m.GetPressure(), Pressure: m.GetPressure(), Used: ledger.Tokens(m.GetUsedTokens()), Evictable: ledger.Tokens(m.GetEvictableTokens()),
	}
}
