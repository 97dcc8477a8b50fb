package ledger

import "slices"

// At returns the ledger as it reads at t, for views only: what is shown then counts the time since the
// last command. Nothing that falls due until t is let go.
func (l *Ledger) At(t Time) *Ledger {
	if t <= l.meta.Now {
		return l
	}
	at := *l
	at.meta.Now = t
	return &at
}

// Pools returns the names of the pools, sorted.
func (l *Ledger) Pools() []string { return slices.Clone(l.names) }

// Settings returns a pool's settings.
func (l *Ledger) Settings(pool string) (Settings, bool) {
	p, ok := l.pools[pool]
	if !ok {
		return Settings{}, false
	}
	return p.set.clone(), true
}

// Budget returns what a pool has and what is taken.
func (l *Ledger) Budget(pool string) (Budget, bool) {
	p, ok := l.pools[pool]
	if !ok {
		return Budget{}, false
	}
	b := Budget{
		Pool: p.name, Ceiling: p.ceiling, Pinned: p.pinned, Reserved: p.reserved, Epoch: p.Epoch, Degraded: p.Degraded,
		DegradedReason: p.DegradedReason, Pressure: p.pressure, PressureThreshold: p.set.PressureThreshold,
		Admission: p.set.Admission, Waiting: p.waitingCount(), Leases: int64(p.leases.len()),
	}
	if w := p.queue.head(); w != nil {
		b.OldestWait = l.meta.Now.Sub(w.Since)
	}
	return b, true
}

// Ticket returns what the ledger knows of a ticket; false when there is no such pool.
func (l *Ledger) Ticket(pool, ticket string) (TicketView, bool) {
	p, ok := l.pools[pool]
	if !ok {
		return TicketView{}, false
	}
	var v TicketView
	if x, ok := p.byTicket[ticket]; ok {
		lease := l.leaseView(x)
		v.Lease = &lease
	}
	if w, ok := p.waiting[ticket]; ok {
		waiter := l.waiterView(w, p.queue.position(w))
		v.Waiter = &waiter
	}
	return v, true
}

// Leases returns up to limit leases with numbers above after, in grant order.
func (l *Ledger) Leases(pool string, after Seq, limit int, f LeaseFilter) ([]LeaseView, bool) {
	p, ok := l.pools[pool]
	if !ok {
		return nil, false
	}
	var out []LeaseView
	for x := range p.leases.after(after) {
		if len(out) >= limit {
			break
		}
		if (f.Holder == "" || f.Holder == x.Holder) && (f.Session == "" || f.Session == x.Session) {
			out = append(out, l.leaseView(x))
		}
	}
	return out, true
}

// Waiters returns up to limit waiters in queue order from position from on; 1 is the head.
func (l *Ledger) Waiters(pool string, from, limit int) ([]WaiterView, bool) {
	p, ok := l.pools[pool]
	if !ok {
		return nil, false
	}
	from = max(from, 1)
	var out []WaiterView
	for pos := from; len(out) < limit; pos++ {
		w := p.queue.at(pos)
		if w == nil {
			break
		}
		out = append(out, l.waiterView(w, pos))
	}
	return out, true
}

// Capacity returns a pool's newest knowledge of its engines.
func (l *Ledger) Capacity(pool string) (CapacityView, bool) {
	p, ok := l.pools[pool]
	if !ok {
		return CapacityView{}, false
	}
	v := CapacityView{Engines: slices.Clone(p.Engines), Discovery: p.Discovery, Snapshot: p.Snapshot}
	if p.Snapshot {
		v.Age = l.meta.Now.Sub(p.SnapshotAt)
	}
	return v, true
}

// Totals returns what a pool counted since it was made.
func (l *Ledger) Totals(pool string) (Counters, bool) {
	p, ok := l.pools[pool]
	if !ok {
		return Counters{}, false
	}
	return p.Total, true
}

func (l *Ledger) leaseView(x *lease) LeaseView {
	return LeaseView{
		Ticket: x.Ticket, Grant: x.Grant, Epoch: x.Epoch, Tokens: x.Tokens, Holder: x.Holder,
		Session: x.Session, Group: x.Group, RID: x.RID,
		Held: l.meta.Now.Sub(x.GrantedAt), ExpiresIn: max(0, x.dueAt().Sub(l.meta.Now)),
	}
}

func (l *Ledger) waiterView(w *waiter, position int) WaiterView {
	return WaiterView{
		Ticket: w.Ticket, Seq: w.Seq, Position: position, Tokens: w.Tokens, Priority: w.Priority,
		Reason: w.Reason, Waited: l.meta.Now.Sub(w.Since), AgesIn: max(0, w.ageAt().Sub(l.meta.Now)),
		Attached: w.Attached, Holder: w.Holder, Session: w.Session, Group: w.Group,
	}
}
