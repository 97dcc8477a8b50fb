package whatif

import (
	"time"

	"kvgate/ledger"
	"kvgate/rpc/story"
)

// This file makes the ledger as it was when the recording begins. A recording from the very start begins empty;
// one whose beginning was trimmed begins with what its later events prove to have been there.

// before is the name of the lease that stands for all that was held before the recording and never ended in it.
const before = "(held before the recording)"

// prepare makes the rows of the pool at the beginning.
func (r *replay) prepare() error {
	r.start = ledger.Time(r.known.first.LedgerTime)
	now, ok := settingsOf(r.known.settings)
	if !ok {
		if now, ok = settingsOf(r.in.Settings); !ok {
			now = ledger.DefaultSettings()
		}
	}
	set, err := r.changed(now)
	if err != nil {
		return err
	}
	r.loader = ledger.NewLoader()
	for _, name := range []string{ledger.DefaultPool, r.pool} {
		row := ledger.PoolRow{Name: name, Settings: ledger.DefaultSettings()}
		if name == r.pool {
			row.Settings = set
		}
		r.loader.Add(ledger.Change{Pool: &row, Name: name})
	}
	capacity := ledger.CapacityRow{Degraded: true, DegradedReason: "no capacity snapshot yet"}
	if c := r.known.ceiling.tokens; c > 0 {
		// What the pressure was before it was first told cannot be known.
		r.measured = r.known.measured
		capacity = ledger.CapacityRow{Snapshot: true, SnapshotAt: r.start, Engines: []ledger.Engine{{
			URL: "http://recorded", Healthy: true, Role: ledger.RoleRegular, Capacity: capacityFor(c, now.Headroom), Pressure: r.measured.GetPressure(),
		}}}
	} else {
		r.degraded = true
	}
	r.loader.Add(ledger.Change{Capacity: &capacity, Name: r.pool})
	return nil
}

// adopt puts a ticket into the beginning that was there before the recording.
func (r *replay) adopt(a *attempt, l *story.Life) {
	e := l.First
	r.inherited++
	r.grants++
	r.live[a.ticket] = a
	a.seq, a.number = r.grants, 1
	if e.Kind != "admitted" && e.Grant != 0 {
		r.adoptLease(a, l)
		return
	}
	waited := e.Wait.AsDuration()
	patience := longAgo
	if e.Reason == "aged" {
		patience = waited
	}
	r.loader.Add(ledger.Change{Waiter: &ledger.WaiterRow{
		Pool: r.pool, Ticket: a.ticket, Seq: r.grants, Tokens: ledger.Tokens(l.Tokens), Asked: ledger.Tokens(l.Tokens), Priority: l.Priority,
		Since: ledger.Time(e.LedgerTime).Add(-waited), MaxWait: patience, Reason: ledger.OlderWaiter, Holder: l.Holder, Session: l.Session,
		Group: l.Group, Attached: true, Attempt: 1,
	}})
	r.adoptHolder(l.Holder)
}

func (r *replay) adoptLease(a *attempt, l *story.Life) {
	e := l.First
	r.adopted += ledger.Tokens(l.Tokens)
	until := r.start.Add(longAgo)
	if e.Kind == "lease_expired" {
		until = ledger.Time(e.Deadline)
	}
	r.loader.Add(ledger.Change{Lease: &ledger.LeaseRow{
		Pool: r.pool, Ticket: a.ticket, Grant: r.grants, Tokens: ledger.Tokens(l.Tokens), GrantedAt: r.start, TTL: time.Hour, Deadline: until,
		Holder: l.Holder, Session: l.Session, Group: l.Group, Attempt: 1,
	}})
	r.adoptHolder(l.Holder)
	switch e.Kind {
	case "released", "cancelled", "unclaimed":
		r.step(a, ledger.Time(e.LedgerTime), placeOf(e), func() { r.release(a) })
	}
}

func (r *replay) adoptHolder(name string) {
	if name != "" {
		r.loader.Add(ledger.Change{Holder: &ledger.HolderRow{Pool: r.pool, Holder: name, LastActive: r.start}})
	}
}

// load makes the ledger from the rows, with one lease for what was held all along.
func (r *replay) load() error {
	if rest := r.known.reserved.tokens - r.adopted; rest > 0 {
		r.grants++
		r.inherited++
		r.loader.Add(ledger.Change{Lease: &ledger.LeaseRow{
			Pool: r.pool, Ticket: before, Grant: r.grants, Tokens: rest, GrantedAt: r.start, TTL: time.Hour, Deadline: r.start.Add(longAgo), Attempt: 1,
		}})
	}
	r.loader.Add(ledger.Change{Meta: &ledger.MetaRow{Now: r.start, Seq: r.grants}})
	l, err := r.loader.Finish()
	r.l = l
	return err
}
