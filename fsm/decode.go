package fsm

import (
	"time"

	"kvgate/fsm/fsmpb"
	"kvgate/ledger"
)

func decodeAcquire(m *fsmpb.Acquire) ledger.Acquire {
	a := ledger.Acquire{
		Pool: m.Pool, Ticket: m.Ticket, PromptTokens: ledger.Tokens(m.PromptTokens),
		MaxNewTokens: ledger.Tokens(m.MaxNewTokens), ReservationTokens: ledger.Tokens(m.ReservationTokens),
		Mode: ledger.Mode(m.Mode), Protected: m.Protected, Priority: m.Priority, Session: m.Session,
		Group: m.Group, Holder: m.Holder, RID: m.Rid, TTL: time.Duration(m.Ttl), MaxWait: -1, PoolWait: m.PoolWait,
		Call: m.Call,
	}
	if m.MaxWait != nil {
		a.MaxWait = time.Duration(*m.MaxWait)
	}
	return a
}

func decodeRelease(m *fsmpb.Release) ledger.Release {
	r := ledger.Release{Pool: m.Pool, Ticket: m.Ticket, Grant: ledger.Seq(m.Grant), Holder: m.Holder, Ended: m.Ended}
	if m.Epoch != nil {
		r.Epoch, r.HasEpoch = *m.Epoch, true
	}
	if u := m.Usage; u != nil {
		r.Usage = &ledger.Usage{
			PromptTokens: ledger.Tokens(u.PromptTokens), CompletionTokens: ledger.Tokens(u.CompletionTokens),
			CachedTokens: ledger.Tokens(u.CachedTokens), Engine: u.Engine, Outcome: u.Outcome,
		}
	}
	return r
}

func decodeRefs(m *fsmpb.Renew) []ledger.LeaseRef {
	refs := make([]ledger.LeaseRef, len(m.Leases))
	for i, r := range m.Leases {
		refs[i] = ledger.LeaseRef{Ticket: r.GetTicket(), Grant: ledger.Seq(r.GetGrant())}
		if r != nil && r.Epoch != nil {
			refs[i].Epoch, refs[i].HasEpoch = *r.Epoch, true
		}
	}
	return refs
}

func decodeRound(m *fsmpb.Reconcile) ledger.Round {
	return ledger.Round{
		Fresh: m.Fresh, Degrade: m.Degrade, Reason: m.Reason, Discovery: m.Discovery,
		Repeats: min(max(m.Repeats, 0), maxRepeats), Engines: decodeEngines(m.Engines),
	}
}

// maxRepeats bounds how many polls one command may stand for.
const maxRepeats = 1 << 20

func decodeEngines(in []*fsmpb.Engine) []ledger.Engine {
	out := make([]ledger.Engine, len(in))
	for i, e := range in {
		out[i] = ledger.Engine{
			URL: e.GetUrl(), Healthy: e.GetHealthy(), Error: e.GetError(), Capacity: ledger.Tokens(e.GetCapacity()),
			Used: ledger.Tokens(e.GetUsed()), Evictable: ledger.Tokens(e.GetEvictable()), Usage: e.GetUsage(),
			Pressure: e.GetPressure(), DPRanks: int(e.GetDpRanks()), Role: ledger.Role(e.GetRole()),
			Incarnation: e.GetIncarnation(), EvictionRate: e.GetEvictionRate(), Running: e.GetRunning(), Queued: e.GetQueued(),
		}
	}
	return out
}

func decodeCounters(c *fsmpb.Counters) ledger.Counters {
	out := ledger.Counters{
		Admit: c.GetAdmit(), Wait: c.GetWait(), Cancelled: c.GetCancelled(), LeaseExpired: c.GetLeaseExpired(),
		Released: c.GetReleased(), Renewed: c.GetRenewed(), Abandoned: c.GetAbandoned(), Unclaimed: c.GetUnclaimed(),
		HolderExpired: c.GetHolderExpired(), WaitedGrants: c.GetWaitedGrants(), WaitedTime: time.Duration(c.GetWaitedTime()),
		ReportedReserved: ledger.Tokens(c.GetReportedReserved()), ReportedUsed: ledger.Tokens(c.GetReportedUsed()),
		ReportedCached: ledger.Tokens(c.GetReportedCached()), Reports: c.GetReports(),
		Closed: c.GetClosed(), CloseFailures: c.GetCloseFailures(),
	}
	copy(out.Bypass[:], c.GetBypass())
	return out
}
