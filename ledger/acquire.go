package ledger

import "fmt"

// maxTicket bounds a ticket id, in bytes.
const maxTicket = 256

// Acquire decides on a ticket: admit, bypass, or wait. It returns ErrTicketMismatch,
// ErrTooManyWaiters or a *FieldError; then nothing changed.
func (l *Ledger) Acquire(op Acquire) (Decision, error) {
	if err := op.check(); err != nil {
		return Decision{}, err
	}
	p, ok := l.pools[op.Pool]
	if !ok {
		return Decision{
			Pool: op.Pool, Ticket: op.Ticket, Action: ActionBypass, Reason: Degraded,
			Warnings: []string{"unknown_pool"},
		}, nil
	}
	l.settle(p, op.Ticket)
	tokens := p.set.Reservation(op.PromptTokens, op.MaxNewTokens, op.ReservationTokens)
	if p.over(op.Ticket, op.Call) {
		// The same call again, or a late copy of one that has ended.
		return Decision{
			Pool: p.name, Ticket: op.Ticket, Action: ActionBypass, Reason: Cancelled, Tokens: tokens, Epoch: p.Epoch,
		}, nil
	}
	if reason := l.exempt(p, &op); reason != ReasonUnspecified {
		return l.excuse(p, &op, tokens, reason), nil
	}
	if x, ok := p.byTicket[op.Ticket]; ok {
		return l.claim(p, x), nil
	}
	if w, ok := p.waiting[op.Ticket]; ok {
		return l.join(p, w, &op, tokens)
	}
	return l.decide(p, &op, tokens)
}

func (op *Acquire) check() error {
	fields := []struct {
		name  string
		value Tokens
	}{
		{"promptTokens", op.PromptTokens},
		{"maxNewTokens", op.MaxNewTokens},
		{"reservationTokens", op.ReservationTokens},
	}
	for _, f := range fields {
		if f.value < 0 || f.value > MaxTokens {
			return fieldError(f.name, int64(f.value), "0 to 1000000000000 tokens")
		}
	}
	if op.Ticket == "" || len(op.Ticket) > maxTicket {
		return fieldError("ticketId", fmt.Sprintf("%d bytes long", len(op.Ticket)), "1 to 256 bytes")
	}
	return nil
}

// excuse lets a request go that needs no decision. A retry of a ticket that waits takes it out of the
// queue: nobody would claim or release what it was granted later.
func (l *Ledger) excuse(p *pool, op *Acquire, tokens Tokens, reason Reason) Decision {
	w, waits := p.waiting[op.Ticket]
	if !waits {
		return l.bypass(p, op, tokens, reason)
	}
	l.letGo(w, KindBypassed, reason)
	d := l.decisions[len(l.decisions)-1]
	l.advance(p)
	return d
}

// exempt names the reason for which the request needs no decision, steps 1 to 3.
func (l *Ledger) exempt(p *pool, op *Acquire) Reason {
	switch {
	case !p.set.Admission:
		return Disabled
	case !p.inScope(op.Mode):
		return OutOfScope
	}
	if m, ok := p.marks[op.Ticket]; ok && !m.Spent {
		l.spend(p, m, op.Call)
		return Cancelled
	}
	if op.Protected {
		return Protected
	}
	return ReasonUnspecified
}

// claim answers a retry of a ticket that holds a lease: the same lease, nothing charged twice.
func (l *Ledger) claim(p *pool, x *lease) Decision {
	if x.ClaimBy != 0 {
		x.ClaimBy = 0
		l.arm(&x.timer, x.Deadline)
		l.emitLease(p, x, Event{Kind: KindAttached})
	}
	x.Attempt++
	l.touchLease(x)
	l.touchActivity(x.holder)
	return l.admitted(p, x)
}

func (l *Ledger) admitted(p *pool, x *lease) Decision {
	return Decision{
		Pool: p.name, Ticket: x.Ticket, Action: ActionAdmit, Reason: CapacityAvailable,
		Tokens: x.Tokens, Seq: x.Grant, Attempt: x.Attempt, Epoch: x.Epoch, ExpiresIn: x.Deadline.Sub(l.meta.Now),
	}
}

// asked is the reservation as the caller sees it, whatever the decode cap makes of it.
func (op *Acquire) asked() Tokens {
	if op.ReservationTokens > 0 {
		return op.ReservationTokens
	}
	return op.PromptTokens + op.MaxNewTokens
}

// join answers a retry of a ticket that waits: the same place. A retry may ask for the same as before,
// or for what comes to the same now.
//
// A retry that has less patience than is left of the wait shortens it: callers send what is left of
// theirs, and must not be told something else while their ticket stays in the queue.
func (l *Ledger) join(p *pool, w *waiter, op *Acquire, tokens Tokens) (Decision, error) {
	if tokens != w.Tokens && op.asked() != w.Asked {
		return Decision{}, ErrTicketMismatch
	}
	if until := l.meta.Now.Add(op.MaxWait); op.MaxWait >= 0 && until < w.ageAt() {
		w.MaxWait = until.Sub(w.Since)
		l.armWaiter(w)
		l.emitWaiter(w, Event{Kind: KindAttached, Reason: "less patience", Wait: l.meta.Now.Sub(w.Since), Deadline: w.ageAt()})
	}
	if op.MaxWait == 0 {
		l.letGo(w, KindBypassed, Aged)
		d := l.decisions[len(l.decisions)-1]
		l.advance(p)
		return d, nil
	}
	l.attach(p, w)
	w.Attempt++
	l.touchWaiter(w)
	l.touchActivity(w.holder)
	return w.waits(l.meta.Now), nil
}

// decide is steps 6 to 9, for a ticket that the ledger does not know.
func (l *Ledger) decide(p *pool, op *Acquire, tokens Tokens) (Decision, error) {
	if p.Degraded {
		return l.bypass(p, op, tokens, Degraded), nil
	}
	if !p.fits(tokens) {
		return l.bypass(p, op, tokens, Oversized), nil
	}
	reason := p.blocked(tokens)
	if head := p.queue.head(); head != nil && head.Priority >= op.Priority {
		reason = OlderWaiter
	}
	if reason == WaitUnspecified {
		return l.admitted(p, l.grant(p, op, tokens)), nil
	}
	maxWait := op.MaxWait
	if maxWait < 0 {
		maxWait = p.set.MaxWait
	}
	if maxWait == 0 {
		return l.bypass(p, op, tokens, Aged), nil
	}
	if p.waitingCount() >= p.set.MaxWaiters {
		return Decision{}, ErrTooManyWaiters
	}
	return l.enqueue(p, op, tokens, reason, maxWait), nil
}

func (op *Acquire) arrival() Arrival {
	return Arrival{
		Known: true, Protected: op.Protected, Mode: op.Mode, Prompt: op.PromptTokens, MaxNew: op.MaxNewTokens,
		Outright: op.ReservationTokens, MaxWait: op.MaxWait, PoolWait: op.PoolWait, TTL: op.TTL,
	}
}

func (op *Acquire) row(p *pool, tokens Tokens) LeaseRow {
	return LeaseRow{
		Pool: p.name, Ticket: op.Ticket, Tokens: tokens, TTL: p.set.ttl(op.TTL),
		Holder: op.Holder, Session: op.Session, Group: op.Group, RID: op.RID, Attempt: 1,
	}
}

func (l *Ledger) bypass(p *pool, op *Acquire, tokens Tokens, reason Reason) Decision {
	l.count(p, &p.Total.Bypass[reason])
	l.emit(Event{
		Pool: p.name, Kind: KindBypassed, Ticket: op.Ticket, Session: op.Session, Holder: op.Holder,
		Group: op.Group, Tokens: tokens, Epoch: p.Epoch, Reason: reason.String(), Priority: op.Priority,
		ReservedAfter: p.reserved, CeilingAfter: p.ceiling, WaitingAfter: p.waitingCount(), Arrival: op.arrival(),
	})
	return Decision{
		Pool: p.name, Ticket: op.Ticket, Action: ActionBypass, Reason: reason, Tokens: tokens, Epoch: p.Epoch,
	}
}

func (l *Ledger) count(p *pool, n *int64) {
	*n++
	l.touchPool(p, dirtyCounters)
}

// settle lets go of the ticket's lease or waiter when its deadline has passed but a bounded Advance
// did not reach it.
func (l *Ledger) settle(p *pool, ticket string) {
	if x, ok := p.byTicket[ticket]; ok && x.timer.at <= l.meta.Now {
		l.disarm(&x.timer)
		x.expire(l)
	}
	if w, ok := p.waiting[ticket]; ok && w.timer.at <= l.meta.Now {
		l.disarm(&w.timer)
		w.expire(l)
	}
	if m, ok := p.marks[ticket]; ok && m.timer.at <= l.meta.Now {
		l.dropMark(p, m)
	}
}

func (w *waiter) waits(now Time) Decision {
	return Decision{
		Pool: w.Pool, Ticket: w.Ticket, Action: ActionWait, Wait: w.Reason, Tokens: w.Tokens,
		Seq: w.Seq, Waiter: w.Seq, Attempt: w.Attempt, Waited: now.Sub(w.Since),
	}
}

// ageAt returns when the waiter has waited long enough.
func (w *waiter) ageAt() Time { return w.Since.Add(min(w.MaxWait, maxDuration)) }
