package fsm

import (
	"time"

	"kvgate/fsm/fsmpb"
	"kvgate/ledger"
)

// This file turns ledger values into their stored form; decode.go turns them back.

func acquireOp(a ledger.Acquire) *fsmpb.Op {
	op := &fsmpb.Acquire{
		Pool: a.Pool, Ticket: a.Ticket, PromptTokens: int64(a.PromptTokens), MaxNewTokens: int64(a.MaxNewTokens),
		ReservationTokens: int64(a.ReservationTokens), Mode: uint32(a.Mode), Protected: a.Protected,
		Priority: a.Priority, Session: a.Session, Group: a.Group, Holder: a.Holder, Rid: a.RID, Ttl: int64(a.TTL), PoolWait: a.PoolWait,
		Call: a.Call,
	}
	if a.MaxWait >= 0 {
		op.MaxWait = ptr(int64(a.MaxWait))
	}
	return &fsmpb.Op{Kind: &fsmpb.Op_Acquire{Acquire: op}}
}

func releaseOp(r ledger.Release) *fsmpb.Op {
	op := &fsmpb.Release{Pool: r.Pool, Ticket: r.Ticket, Grant: uint64(r.Grant), Holder: r.Holder, Ended: r.Ended}
	if r.HasEpoch {
		op.Epoch = ptr(r.Epoch)
	}
	if u := r.Usage; u != nil {
		op.Usage = &fsmpb.Usage{
			PromptTokens: int64(u.PromptTokens), CompletionTokens: int64(u.CompletionTokens),
			CachedTokens: int64(u.CachedTokens), Engine: u.Engine, Outcome: u.Outcome,
		}
	}
	return &fsmpb.Op{Kind: &fsmpb.Op_Release{Release: op}}
}

func renewOp(pool string, refs []ledger.LeaseRef, ttl time.Duration) *fsmpb.Op {
	op := &fsmpb.Renew{Pool: pool, Ttl: int64(ttl), Leases: make([]*fsmpb.LeaseRef, len(refs))}
	for i, r := range refs {
		op.Leases[i] = &fsmpb.LeaseRef{Ticket: r.Ticket, Grant: uint64(r.Grant)}
		if r.HasEpoch {
			op.Leases[i].Epoch = ptr(r.Epoch)
		}
	}
	return &fsmpb.Op{Kind: &fsmpb.Op_Renew{Renew: op}}
}

func cancelOp(c ledger.Cancel) *fsmpb.Op {
	return &fsmpb.Op{Kind: &fsmpb.Op_Cancel{Cancel: &fsmpb.Cancel{Pool: c.Pool, Ticket: c.Ticket, Call: c.Call, Ended: c.Ended}}}
}

func reconcileOp(pool string, r ledger.Round) *fsmpb.Op {
	return &fsmpb.Op{Kind: &fsmpb.Op_Reconcile{Reconcile: &fsmpb.Reconcile{
		Pool: pool, Fresh: r.Fresh, Degrade: r.Degrade, Reason: r.Reason, Discovery: r.Discovery,
		Repeats: r.Repeats, Engines: encodeEngines(r.Engines),
	}}}
}

func encodeEngines(engines []ledger.Engine) []*fsmpb.Engine {
	out := make([]*fsmpb.Engine, len(engines))
	for i, e := range engines {
		out[i] = &fsmpb.Engine{
			Url: e.URL, Healthy: e.Healthy, Error: e.Error, Capacity: int64(e.Capacity), Used: int64(e.Used),
			Evictable: int64(e.Evictable), Usage: e.Usage, Pressure: e.Pressure, DpRanks: int32(e.DPRanks),
			Role: uint32(e.Role), Incarnation: e.Incarnation, EvictionRate: e.EvictionRate,
			Running: e.Running, Queued: e.Queued,
		}
	}
	return out
}

func updateOp(pool string, p ledger.Patch) *fsmpb.Op {
	return &fsmpb.Op{Kind: &fsmpb.Op_UpdateSettings{UpdateSettings: &fsmpb.UpdateSettings{
		Pool: pool, Patch: encodeSettings(&p.Set, p.Fields), Clear: p.Clear, By: p.By,
	}}}
}

func encodeCounters(c *ledger.Counters) *fsmpb.Counters {
	return &fsmpb.Counters{
		Admit: c.Admit, Wait: c.Wait, Cancelled: c.Cancelled, LeaseExpired: c.LeaseExpired, Released: c.Released,
		Renewed: c.Renewed, Abandoned: c.Abandoned, Unclaimed: c.Unclaimed, HolderExpired: c.HolderExpired,
		Bypass: c.Bypass[:], WaitedGrants: c.WaitedGrants, WaitedTime: int64(c.WaitedTime),
		ReportedReserved: int64(c.ReportedReserved), ReportedUsed: int64(c.ReportedUsed),
		ReportedCached: int64(c.ReportedCached), Reports: c.Reports,
		Closed: c.Closed, CloseFailures: c.CloseFailures,
	}
}

// EncodeEvent returns an event of the ledger as the journal stores it, with the wall time of its leader in
// nanoseconds since 1970.
func EncodeEvent(e ledger.Event, wall int64) *fsmpb.Event {
	m := &fsmpb.Event{}
	encodeEvent(&e, wall, m)
	return m
}

func encodeEvent(e *ledger.Event, wall int64, into *fsmpb.Event) {
	into.Reset()
	into.LedgerTime, into.WallTime = int64(e.At), wall
	into.Pool, into.Kind, into.Ticket, into.Session = e.Pool, string(e.Kind), e.Ticket, e.Session
	into.Holder, into.Group, into.Tokens, into.Epoch = e.Holder, e.Group, int64(e.Tokens), e.Epoch
	into.Grant, into.Reason, into.Wait = uint64(e.Grant), e.Reason, int64(e.Wait)
	into.ReservedAfter, into.CeilingAfter, into.WaitingAfter = int64(e.ReservedAfter), int64(e.CeilingAfter), e.WaitingAfter
	into.Priority, into.Deadline, into.Detail, into.By = e.Priority, int64(e.Deadline), e.Detail, e.By
	encodeExtras(e, into)
}

// encodeExtras adds what only some kinds of events have.
func encodeExtras(e *ledger.Event, into *fsmpb.Event) {
	if a := &e.Arrival; a.Known {
		into.Arrival = &fsmpb.Arrival{
			PromptTokens: int64(a.Prompt), MaxNewTokens: int64(a.MaxNew), ReservationTokens: int64(a.Outright),
			Mode: uint32(a.Mode), Protected: a.Protected, Ttl: int64(a.TTL), PoolWait: a.PoolWait,
		}
		if a.MaxWait >= 0 {
			into.Arrival.MaxWait = ptr(int64(a.MaxWait))
		}
	}
	if m := e.Measured; m != nil {
		into.Measured = &fsmpb.Measured{
			Capacity: int64(m.Capacity), Used: int64(m.Used), Evictable: int64(m.Evictable), Pressure: m.Pressure,
			EvictionRate: m.EvictionRate, Running: m.Running, Queued: m.Queued, Healthy: m.Healthy, Known: m.Known,
		}
	}
	if e.Before != nil {
		into.SettingsBefore = encodeSettings(e.Before, ledger.SettingNames())
	}
	if e.After != nil {
		into.SettingsAfter = encodeSettings(e.After, ledger.SettingNames())
	}
}

func ptr[T any](v T) *T { return &v }
