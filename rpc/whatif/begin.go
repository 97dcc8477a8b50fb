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
	first := r.events[0]
	r.start = ledger.Time(first.LedgerTime)
	now, ok := settingsOf(story.SettingsBefore(r.events, nil)[r.pool])
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
	if c := r.ceilingBefore(); c > 0 {
		capacity = ledger.CapacityRow{Snapshot: true, SnapshotAt: r.start, Engines: []ledger.Engine{{
			URL: "http://recorded", Healthy: true, Role: ledger.RoleRegular, Capacity: capacityFor(c, now.Headroom), Pressure: r.pressureBefore(),
		}}}
	} else {
		r.degraded = true
	}
	r.loader.Add(ledger.Change{Capacity: &capacity, Name: r.pool})
	return nil
}

// ceilingBefore returns the ceiling at the beginning, 0 when there was none.
func (r *replay) ceilingBefore() ledger.Tokens {
	for _, e := range r.events {
		switch e.Kind {
		case "capacity", "epoch", "recovered", "settings", "degraded":
			return 0
		case "admitted", "waiting", "bypassed", "released", "usage", "renewed", "lease_expired", "cancelled", "detached", "attached":
			return ledger.Tokens(e.CeilingAfter)
		}
	}
	return 0
}

// pressureBefore returns the first pressure that is told: what it was before cannot be known.
func (r *replay) pressureBefore() float64 {
	for _, e := range r.events {
		if e.Measured != nil {
			r.measured = e.Measured
			return e.Measured.Pressure
		}
	}
	return 0
}

// adopt puts a ticket into the beginning that was there before the recording.
func (r *replay) adopt(a *attempt) {
	e := a.First
	if e.Kind == "cancelled" && e.Reason == "unknown" {
		return
	}
	r.inherited++
	r.grants++
	r.live[a.Ticket] = a
	a.seq, a.number = r.grants, 1
	if e.Kind != "admitted" && e.Grant != 0 {
		r.adoptLease(a)
		return
	}
	waited := e.Wait.AsDuration()
	patience := longAgo
	if e.Reason == "aged" {
		patience = waited
	}
	r.loader.Add(ledger.Change{Waiter: &ledger.WaiterRow{
		Pool: r.pool, Ticket: a.Ticket, Seq: r.grants, Tokens: ledger.Tokens(a.Tokens), Asked: ledger.Tokens(a.Tokens), Priority: a.Priority,
		Since: ledger.Time(e.LedgerTime).Add(-waited), MaxWait: patience, Reason: ledger.OlderWaiter, Holder: a.Holder, Session: a.Session,
		Group: a.Group, Attached: true, Attempt: 1,
	}})
	r.adoptHolder(a.Holder)
}

func (r *replay) adoptLease(a *attempt) {
	e := a.First
	r.adopted += ledger.Tokens(a.Tokens)
	until := r.start.Add(longAgo)
	if e.Kind == "lease_expired" {
		until = ledger.Time(e.Deadline)
	}
	r.loader.Add(ledger.Change{Lease: &ledger.LeaseRow{
		Pool: r.pool, Ticket: a.Ticket, Grant: r.grants, Tokens: ledger.Tokens(a.Tokens), GrantedAt: r.start, TTL: time.Hour, Deadline: until,
		Holder: a.Holder, Session: a.Session, Group: a.Group, Attempt: 1,
	}})
	r.adoptHolder(a.Holder)
	switch e.Kind {
	case "released", "cancelled", "unclaimed":
		r.at(e, func() { r.release(a) })
	}
}

func (r *replay) adoptHolder(name string) {
	if name != "" {
		r.loader.Add(ledger.Change{Holder: &ledger.HolderRow{Pool: r.pool, Holder: name, LastActive: r.start}})
	}
}

// load makes the ledger from the rows, with one lease for what was held all along.
func (r *replay) load() error {
	if rest := r.reservedBefore() - r.adopted; rest > 0 {
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

// reservedBefore returns what was reserved before the first event that tells it.
func (r *replay) reservedBefore() ledger.Tokens {
	for _, e := range r.events {
		after, tokens := ledger.Tokens(e.ReservedAfter), ledger.Tokens(e.Tokens)
		switch e.Kind {
		case "admitted":
			return after - tokens
		case "released", "lease_expired", "unclaimed":
			return after + tokens
		case "cancelled", "holder_expired":
			if e.Grant != 0 {
				return after + tokens
			}
			return after
		case "waiting", "bypassed", "capacity", "usage", "renewed", "degraded", "recovered", "settings", "epoch":
			return after
		}
	}
	return 0
}
