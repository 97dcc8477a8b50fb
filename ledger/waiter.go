package ledger

import "time"

// waiter is a ticket in the FIFO.
type waiter struct {
	WaiterRow
	links
	timer         timer
	pool          *pool
	holder        *holder
	inHolder      siblings[*waiter]
	dirty, stored bool
	gone          bool
}

func (l *Ledger) enqueue(p *pool, op *Acquire, tokens Tokens, reason WaitReason, maxWait time.Duration) Decision {
	w := l.addWaiter(p, WaiterRow{
		Pool: p.name, Ticket: op.Ticket, Seq: l.nextSeq(), Tokens: tokens, Asked: op.asked(), Priority: op.Priority,
		Since: l.meta.Now, MaxWait: maxWait, TTL: op.TTL, Reason: reason, Holder: op.Holder,
		Session: op.Session, Group: op.Group, RID: op.RID, Attached: true, Attempt: 1,
	})
	l.touchWaiter(w)
	l.touchActivity(w.holder)
	l.count(p, &p.Total.Wait)
	l.emitWaiter(w, Event{Kind: KindWaiting, Reason: reason.String(), Deadline: w.ageAt(), Arrival: op.arrival()})
	return w.waits(l.meta.Now)
}

// addWaiter puts a row into the queue and its indexes.
func (l *Ledger) addWaiter(p *pool, row WaiterRow) *waiter {
	w := &waiter{WaiterRow: row, pool: p}
	w.timer = timer{rank: rankWaiter, seq: w.Seq, owner: w}
	p.waiting[w.Ticket] = w
	p.queue.push(w)
	w.holder = l.holderOf(p, w.Holder)
	if w.holder != nil {
		w.holder.waiters.push(w)
	}
	l.armWaiter(w)
	return w
}

func (l *Ledger) armWaiter(w *waiter) {
	at := w.ageAt()
	if !w.Attached {
		at = min(at, w.DropAt)
	}
	l.arm(&w.timer, at)
}

// removeWaiter takes the waiter out of the queue and its indexes.
func (l *Ledger) removeWaiter(w *waiter) {
	p := w.pool
	l.disarm(&w.timer)
	p.queue.remove(w)
	delete(p.waiting, w.Ticket)
	if w.holder != nil {
		w.holder.waiters.remove(w)
		l.leaveHolder(p, w.holder)
	}
	w.gone = true
	l.touchWaiter(w)
}

// letGo ends the wait with a bypass.
func (l *Ledger) letGo(w *waiter, kind Kind, reason Reason) {
	l.removeWaiter(w)
	p := w.pool
	l.count(p, &p.Total.Bypass[reason])
	waited := l.meta.Now.Sub(w.Since)
	l.emitWaiter(w, Event{Kind: kind, Reason: reason.String(), Wait: waited})
	l.decisions = append(l.decisions, Decision{
		Pool: p.name, Ticket: w.Ticket, Action: ActionBypass, Reason: reason, Tokens: w.Tokens,
		Waiter: w.Seq, Epoch: p.Epoch, Waited: waited,
	})
}

// flush lets the whole queue go.
func (l *Ledger) flush(p *pool, reason Reason) {
	for _, w := range p.queue.all() {
		l.letGo(w, KindBypassed, reason)
	}
}

// expire ends a wait whose time is over: aged, or abandoned when nobody came back for it.
func (w *waiter) expire(l *Ledger) {
	if !w.Attached && w.DropAt < w.ageAt() {
		l.count(w.pool, &w.pool.Total.Abandoned)
		l.letGo(w, KindAbandoned, Abandoned)
	} else {
		l.letGo(w, KindBypassed, Aged)
	}
	l.advance(w.pool)
}

func (l *Ledger) attach(p *pool, w *waiter) {
	if w.Attached {
		return
	}
	w.Attached, w.DropAt = true, 0
	l.armWaiter(w)
	l.emitWaiter(w, Event{Kind: KindAttached, Wait: l.meta.Now.Sub(w.Since)})
}

func (l *Ledger) detach(p *pool, w *waiter) {
	w.Attached, w.DropAt = false, l.meta.Now.Add(p.set.DetachGrace)
	l.armWaiter(w)
	l.touchWaiter(w)
}

// Detach records that the last call on a ticket went away without a cancel. seq is the number it
// waited under, or that of the grant it can no longer be told of, attempt the newest answer that was
// given for it: when a retry was answered since, nothing happens. The ticket keeps its place, or its
// grant, for the detach grace.
func (l *Ledger) Detach(pool, ticket string, seq Seq, attempt uint32) bool {
	p, ok := l.pools[pool]
	if !ok {
		return false
	}
	l.settle(p, ticket)
	if w, ok := p.waiting[ticket]; ok && w.Seq == seq && w.Attempt == attempt && w.Attached {
		l.detach(p, w)
		l.emitWaiter(w, Event{Kind: KindDetached, Wait: l.meta.Now.Sub(w.Since), Deadline: w.DropAt})
		return true
	}
	if x, ok := p.byTicket[ticket]; ok && (x.Grant == seq || x.Waiter == seq) && x.Attempt == attempt && x.ClaimBy == 0 {
		l.unclaim(x)
		l.emitLease(p, x, Event{Kind: KindDetached, Deadline: x.ClaimBy})
		return true
	}
	return false
}

// advance grants from the head while it fits. The head blocks: nobody behind it goes first.
func (l *Ledger) advance(p *pool) {
	for !p.Degraded {
		w := p.queue.head()
		if w == nil {
			return
		}
		if reason := p.blocked(w.Tokens); reason != WaitUnspecified {
			if w.Reason != reason {
				w.Reason = reason
				l.touchWaiter(w)
			}
			return
		}
		l.grantWaiter(p, w)
	}
}

func (l *Ledger) grantWaiter(p *pool, w *waiter) {
	waited := l.meta.Now.Sub(w.Since)
	x := l.grantAfter(p, w, waited)
	p.Total.WaitedGrants++
	p.Total.WaitedTime += waited
	d := l.admitted(p, x)
	d.Waiter, d.Waited = w.Seq, waited
	l.decisions = append(l.decisions, d)
}

func (l *Ledger) emitWaiter(w *waiter, e Event) {
	p := w.pool
	e.Pool, e.Ticket, e.Session, e.Holder, e.Group = p.name, w.Ticket, w.Session, w.Holder, w.Group
	e.Tokens, e.Priority, e.Epoch = w.Tokens, w.Priority, p.Epoch
	e.ReservedAfter, e.CeilingAfter, e.WaitingAfter = p.reserved, p.ceiling, p.waitingCount()
	l.emit(e)
}
