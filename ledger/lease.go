package ledger

import "time"

// lease is a granted reservation.
type lease struct {
	LeaseRow
	timer         timer
	pool          *pool
	holder        *holder
	inHolder      siblings[*lease]
	dirty, stored bool
	gone          bool
}

func (x *lease) number() Seq { return x.Grant }

// grant charges the ledger at once.
func (l *Ledger) grant(p *pool, op *Acquire, tokens Tokens) *lease {
	x := l.newGrant(p, op.row(p, tokens))
	l.touchActivity(x.holder)
	l.emitLease(p, x, Event{
		Kind: KindAdmitted, Reason: CapacityAvailable.String(), Deadline: x.Deadline, Priority: op.Priority, Arrival: op.arrival(),
	})
	return x
}

// grantAfter charges the ledger for a waiter, which leaves the queue. A grant that nobody waits for
// must be claimed within the detach grace. The waiter leaves after its lease was made, so that a
// holder with nothing else is not forgotten in between: being granted is no sign of life.
func (l *Ledger) grantAfter(p *pool, w *waiter, waited time.Duration) *lease {
	x := l.newGrant(p, LeaseRow{
		Pool: p.name, Ticket: w.Ticket, Tokens: w.Tokens, TTL: p.set.ttl(w.TTL),
		Holder: w.Holder, Session: w.Session, Group: w.Group, RID: w.RID,
		Waiter: w.Seq, Attempt: w.Attempt,
	})
	l.removeWaiter(w)
	if !w.Attached {
		l.unclaim(x)
	}
	l.emitLease(p, x, Event{
		Kind: KindAdmitted, Reason: CapacityAvailable.String(), Deadline: x.Deadline, Wait: waited, Priority: w.Priority,
	})
	return x
}

func (l *Ledger) newGrant(p *pool, row LeaseRow) *lease {
	row.Grant, row.Epoch, row.GrantedAt = l.nextSeq(), p.Epoch, l.meta.Now
	row.Deadline = l.meta.Now.Add(row.TTL)
	x := l.addLease(p, row)
	l.touchLease(x)
	l.count(p, &p.Total.Admit)
	return x
}

// addLease puts a row into the pool and its indexes.
func (l *Ledger) addLease(p *pool, row LeaseRow) *lease {
	x := &lease{LeaseRow: row, pool: p}
	x.timer = timer{rank: rankLease, seq: x.Grant, owner: x}
	p.byTicket[x.Ticket] = x
	p.leases.push(x)
	p.reserved += x.Tokens
	x.holder = l.holderOf(p, x.Holder)
	if x.holder != nil {
		x.holder.leases.push(x)
	}
	l.arm(&x.timer, x.dueAt())
	return x
}

func (x *lease) dueAt() Time {
	if x.ClaimBy != 0 {
		return min(x.ClaimBy, x.Deadline)
	}
	return x.Deadline
}

func (l *Ledger) unclaim(x *lease) {
	x.ClaimBy = l.meta.Now.Add(max(1, x.pool.set.DetachGrace))
	l.arm(&x.timer, x.dueAt())
	l.touchLease(x)
}

// dropLease takes the lease out of the pool and its indexes and gives its tokens back.
func (l *Ledger) dropLease(p *pool, x *lease) {
	l.disarm(&x.timer)
	p.reserved -= x.Tokens
	delete(p.byTicket, x.Ticket)
	p.leases.remove(x)
	if x.holder != nil {
		x.holder.leases.remove(x)
		l.leaveHolder(p, x.holder)
	}
	x.gone = true
	l.touchLease(x)
}

// expire reclaims a lease whose deadline passed, or a grant that nobody claimed.
func (x *lease) expire(l *Ledger) {
	p := x.pool
	l.dropLease(p, x)
	kind, n := KindLeaseExpired, &p.Total.LeaseExpired
	if x.ClaimBy != 0 && x.ClaimBy < x.Deadline {
		kind, n = KindUnclaimed, &p.Total.Unclaimed
	}
	l.count(p, n)
	l.emitLease(p, x, Event{Kind: kind, Deadline: x.Deadline})
	l.advance(p)
}

// Release ends a lease and reports whether there was one. A request that carries the epoch or number
// of an older grant of the ticket does nothing.
func (l *Ledger) Release(op Release) bool {
	p, ok := l.pools[op.Pool]
	if !ok {
		return false
	}
	l.settle(p, op.Ticket)
	if h := p.holders[op.Holder]; h != nil {
		l.touchActivity(h)
	}
	x, ok := p.byTicket[op.Ticket]
	if !ok || fenced(x, op.Epoch, op.HasEpoch, op.Grant) {
		return false
	}
	l.touchActivity(x.holder)
	l.dropLease(p, x)
	l.count(p, &p.Total.Released)
	l.emitLease(p, x, Event{Kind: KindReleased, Reason: outcome(op.Usage), Detail: l.report(p, x, op.Usage)})
	if op.Ended != 0 {
		l.end(p, op.Ticket, op.Ended, CancelLeased)
	}
	l.advance(p)
	return true
}

func fenced(x *lease, epoch uint64, hasEpoch bool, grant Seq) bool {
	return hasEpoch && epoch != x.Epoch || grant != 0 && grant != x.Grant
}

func outcome(u *Usage) string {
	if u == nil {
		return ""
	}
	return u.Outcome
}

// Renew moves the deadlines of leases to now + ttl; ttl 0 means what each was granted with. A lease
// that is gone, or fenced off, is answered as not renewed.
func (l *Ledger) Renew(pool string, refs []LeaseRef, ttl time.Duration) []Renewed {
	out := make([]Renewed, len(refs))
	p, ok := l.pools[pool]
	if !ok {
		return out
	}
	for i, ref := range refs {
		l.settle(p, ref.Ticket)
		x, ok := p.byTicket[ref.Ticket]
		if !ok || fenced(x, ref.Epoch, ref.HasEpoch, ref.Grant) {
			continue
		}
		out[i] = l.renew(p, x, ttl)
	}
	return out
}

func (l *Ledger) renew(p *pool, x *lease, ttl time.Duration) Renewed {
	if ttl <= 0 {
		ttl = x.TTL
	}
	ttl = min(ttl, p.set.MaxTTL)
	x.Deadline, x.ClaimBy = l.meta.Now.Add(ttl), 0
	l.arm(&x.timer, x.Deadline)
	l.touchLease(x)
	l.touchActivity(x.holder)
	l.count(p, &p.Total.Renewed)
	l.emitLease(p, x, Event{Kind: KindRenewed, Deadline: x.Deadline})
	return Renewed{OK: true, ExpiresIn: ttl}
}

// Cancel removes the ticket's waiter, or releases its lease, or leaves a mark that makes a later
// Acquire of the ticket bypass; the mark is kept for one lease TTL. A call that comes again, with the same
// number, changes nothing and is answered as before; 0 means that it cannot be told.
//
// A Cancel that names the Acquire it is about ends what the ticket has all the same, but concerns that one
// Acquire alone from then on: its copies get nothing, nobody else is let go. Finding nothing it is no event.
func (l *Ledger) Cancel(op Cancel) CancelState {
	p, ok := l.pools[op.Pool]
	if !ok {
		return CancelUnknown
	}
	l.settle(p, op.Ticket)
	if op.Ended != 0 {
		return l.giveUp(p, op.Ticket, op.Ended)
	}
	ticket, call := op.Ticket, op.Call
	if m, ok := p.marks[ticket]; ok && call != 0 && call == m.Call {
		return m.Was
	}
	if was, over := p.ended(ticket, call); over {
		return was
	}
	was := l.cancel(p, ticket)
	switch {
	case was == CancelUnknown:
		l.mark(p, ticket, call)
	case call != 0:
		l.remember(p, MarkRow{Ticket: ticket, Until: l.meta.Now.Add(recall), Call: call, Was: was, Spent: true})
	}
	return was
}

// giveUp is Cancel for a named Acquire.
func (l *Ledger) giveUp(p *pool, ticket string, call uint64) CancelState {
	if was, over := p.ended(ticket, call); over {
		return was
	}
	was := CancelUnknown
	if p.waiting[ticket] != nil || p.byTicket[ticket] != nil {
		was = l.cancel(p, ticket)
	}
	l.end(p, ticket, call, was)
	return was
}

// cancel ends what the ticket has.
func (l *Ledger) cancel(p *pool, ticket string) CancelState {
	l.count(p, &p.Total.Cancelled)
	if w, ok := p.waiting[ticket]; ok {
		l.touchActivity(w.holder)
		l.letGo(w, KindCancelled, Cancelled)
		l.advance(p)
		return CancelWaiting
	}
	if x, ok := p.byTicket[ticket]; ok {
		l.touchActivity(x.holder)
		l.dropLease(p, x)
		l.emitLease(p, x, Event{Kind: KindCancelled, Reason: "leased"})
		l.advance(p)
		return CancelLeased
	}
	return CancelUnknown
}

func (l *Ledger) emitLease(p *pool, x *lease, e Event) {
	e.Pool, e.Ticket, e.Session, e.Holder, e.Group = p.name, x.Ticket, x.Session, x.Holder, x.Group
	e.Tokens, e.Epoch, e.Grant = x.Tokens, x.Epoch, x.Grant
	e.ReservedAfter, e.CeilingAfter, e.WaitingAfter = p.reserved, p.ceiling, p.waitingCount()
	l.emit(e)
}
