package whatif

import (
	"cmp"
	"container/heap"
	"errors"
	"slices"
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

func (p place) before(o place) bool { return p.index < o.index || p.index == o.index && p.n < o.n }

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

// attempt is one life of a ticket in the replay. It keeps what may be needed of the recorded one, which is little: many
// wait at a time when a replay lets fewer go.
type attempt struct {
	ticket string
	op     ledger.Acquire
	// granted: it got a lease in the recording, and lease is what its caller did with that.
	granted bool
	lease   []leaseStep
	// seq and number fence a detach as the ledger does.
	seq    ledger.Seq
	number uint32
	// steps counts what is scheduled about it.
	steps int
}

// leaseStep is something that a caller did with its lease, so long after the grant.
type leaseStep struct {
	after ledger.Time
	place place
	run   func()
}

// step schedules something about a ticket, which is remembered as long as there is something to come.
func (r *replay) step(a *attempt, at ledger.Time, p place, run func()) {
	a.steps++
	r.schedule(at, p, func() {
		a.steps--
		run()
		r.dropIfOver(a)
	})
}

// dropIfOver forgets a ticket that the ledger no longer has and nothing will happen to.
func (r *replay) dropIfOver(a *attempt) {
	if a.steps > 0 || r.live[a.ticket] != a {
		return
	}
	if v, known := r.l.Ticket(r.pool, a.ticket); !known || v.Waiter == nil && v.Lease == nil {
		delete(r.live, a.ticket)
	}
}

// adoptAll plans the tickets that were there before the recording.
func (r *replay) adoptAll() {
	for _, ref := range r.known.refs {
		if ref.adopt {
			r.planLife(ref)
		}
	}
}

// planEntry schedules what one log entry tells: the tickets that arrive with it, and what happened to the pool.
func (r *replay) planEntry(entry []*kvgatev1.JournalEvent) {
	refs := r.known.refs
	for i, e := range entry {
		for r.next < len(refs) && refs[r.next].place().before(placeOf(e)) {
			r.next++
		}
		if r.next < len(refs) && refs[r.next].place() == placeOf(e) && !refs[r.next].adopt {
			r.planLife(refs[r.next])
		}
		r.planPool(entry, i)
	}
}

// planLife schedules the arrival of a ticket and what its caller did while it waited, at the recorded times. What
// follows a grant is scheduled when there is one.
func (r *replay) planLife(ref lifeRef) {
	l, err := r.known.life(ref)
	if err != nil {
		r.failed = errors.Join(r.failed, err)
		return
	}
	a := &attempt{ticket: l.Ticket, op: r.acquire(l), granted: l.Granted != nil}
	a.lease = r.leaseSteps(a, l)
	if l.First.Arrival != nil {
		r.step(a, ledger.Time(l.First.LedgerTime), placeOf(l.First), func() { r.arrive(a, l.First) })
	} else {
		r.adopt(a, l)
	}
	for _, e := range l.Steps {
		if e != l.First && (l.Granted == nil || e.Grant == 0) {
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
		r.step(a, ledger.Time(e.LedgerTime), placeOf(e), func() { r.l.Detach(r.pool, a.ticket, a.seq, a.number) })
	case e.Kind == "attached":
		op := a.op
		op.MaxWait = -1
		if e.Reason != "" {
			op.MaxWait = time.Duration(e.Deadline - e.LedgerTime)
		}
		r.step(a, ledger.Time(e.LedgerTime), placeOf(e), func() { r.retry(a, op) })
	case e.Kind == "cancelled" && e.Reason != "unknown":
		r.step(a, ledger.Time(e.LedgerTime), placeOf(e), func() { r.giveUp(a) })
	case e.Kind == "bypassed" && e.Arrival == nil && (e.Reason == "protected" || e.Reason == "out_of_scope"):
		op := a.op
		op.Protected = true
		if e.Reason == "out_of_scope" {
			op.Mode = ledger.ModeEval
		}
		r.step(a, ledger.Time(e.LedgerTime), placeOf(e), func() { r.retry(a, op) })
	}
}

// planLease schedules what a caller did with its lease, as long after the grant as it was recorded.
func (r *replay) planLease(a *attempt, granted ledger.Time) {
	if !a.granted {
		if d, ok := r.usualHold(); ok {
			r.guessed++
			r.step(a, granted.Add(d), place{index: ^uint64(0)}, func() { r.release(a) })
		}
		return
	}
	for _, x := range a.lease {
		r.step(a, granted+x.after, x.place, x.run)
	}
}

// leaseSteps lists what a caller did with its lease.
func (r *replay) leaseSteps(a *attempt, l *story.Life) (out []leaseStep) {
	if l.Granted == nil {
		return nil
	}
	for _, e := range l.Steps {
		if e == l.Granted || e.Grant == 0 && (e.Kind != "bypassed" || e.Arrival == nil || e == l.First) {
			continue
		}
		if run := r.withLease(a, l, e); run != nil {
			out = append(out, leaseStep{ledger.Time(e.LedgerTime - l.Granted.LedgerTime), placeOf(e), run})
		}
	}
	return out
}

// withLease returns what a caller did when an event was recorded; nil when it did nothing. It must not hold on to the
// life or the event.
func (r *replay) withLease(a *attempt, l *story.Life, e *kvgatev1.JournalEvent) func() {
	switch e.Kind {
	case "released":
		if e.Reason != "session_closing" {
			return func() { r.release(a) }
		}
	case "bypassed":
		if e.Arrival != nil {
			op := r.asked(l, e.Arrival)
			return func() { r.retry(a, op) }
		}
	case "cancelled":
		return func() { r.l.Cancel(ledger.Cancel{Pool: r.pool, Ticket: a.ticket}) }
	case "renewed":
		ttl := time.Duration(e.Deadline - e.LedgerTime)
		return func() { r.l.Renew(r.pool, []ledger.LeaseRef{{Ticket: a.ticket}}, ttl) }
	case "detached":
		return func() { r.l.Detach(r.pool, a.ticket, a.seq, a.number) }
	case "attached":
		return func() {
			op := a.op
			op.MaxWait = -1
			r.retry(a, op)
		}
	}
	return nil
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
func (r *replay) planPool(entry []*kvgatev1.JournalEvent, i int) {
	switch e := entry[i]; e.Kind {
	case "capacity", "usage", "degraded", "recovered":
		r.planRound(entry, i)
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
			r.planLeave(entry, i)
		}
	case "pinned", "unpinned":
		r.planPin(e)
	case "pool_deleted":
		r.at(e, func() { r.l.DeletePool(r.pool, "") })
	}
}

// planLeave schedules what a closing session left behind: all that the same log entry tells of, at once.
func (r *replay) planLeave(entry []*kvgatev1.JournalEvent, i int) {
	e := entry[i]
	same := func(x *kvgatev1.JournalEvent) bool {
		return x.LedgerTime == e.LedgerTime && x.SessionId == e.SessionId && x.Reason == "session_closing"
	}
	if slices.ContainsFunc(entry[:i], same) {
		return // told with the first of them
	}
	leave := ledger.Leave{Pool: r.pool, Session: e.SessionId}
	for _, x := range entry[i:] {
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
func (r *replay) planRound(entry []*kvgatev1.JournalEvent, i int) {
	e := entry[i]
	if m := e.Measured; m != nil {
		r.measured = m
	}
	if e.Kind == "degraded" || e.Kind == "recovered" {
		r.degraded = e.Kind == "degraded"
	}
	if (e.Kind == "capacity" || e.Kind == "usage") && i+1 < len(entry) {
		if next := entry[i+1].Kind; next == "degraded" || next == "recovered" {
			return // the round is told with that
		}
	}
	if e.Kind == "capacity" && i > 0 && entry[i-1].Kind == "settings" {
		return // a change of settings changed the ceiling, and the replay makes that itself
	}
	round := ledger.Round{Fresh: !r.degraded, Degrade: r.degraded, Reason: e.Reason, Engines: []ledger.Engine{engineOf(r.measured)}}
	r.at(e, func() { r.l.Reconcile(r.pool, round) })
}

func engineOf(m *kvgatev1.Measured) ledger.Engine {
	return ledger.Engine{
		URL: "http://recorded", Healthy: m.GetCapacityTokens() > 0, Capacity: ledger.Tokens(m.GetCapacityTokens()), Role: ledger.RoleRegular,
		Usage: m.GetPressure(), Pressure: m.GetPressure(), Used: ledger.Tokens(m.GetUsedTokens()), Evictable: ledger.Tokens(m.GetEvictableTokens()),
	}
}
