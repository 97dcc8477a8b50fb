package fsm

import (
	"fmt"
	"time"

	"pgregory.net/rapid"

	"kvgate/fsm/fsmpb"
	"kvgate/ledger"
	"kvgate/sessions"
)

// batches draws log entries that are likely to mean something to a machine.
type batches struct {
	t       *rapid.T
	machine *Machine
	now     ledger.Time
}

func (g *batches) batch() *fsmpb.Batch {
	g.now += ledger.Time(rapid.Int64Range(-int64(time.Second), int64(20*time.Second)).Draw(g.t, "passed"))
	b := &fsmpb.Batch{Version: Version, LedgerTime: int64(g.now), WallTime: rapid.Int64().Draw(g.t, "wall")}
	for range rapid.IntRange(1, 6).Draw(g.t, "ops") {
		b.Ops = append(b.Ops, g.op())
	}
	return b
}

// first is a batch that makes most others mean something: engines, room for pins, and sessions.
func (g *batches) first() *fsmpb.Batch {
	b := &fsmpb.Batch{Version: Version, Ops: []*fsmpb.Op{updateOp(ledger.DefaultPool, ledger.Patch{
		Set:    ledger.Settings{PinRatio: 0.5, Staleness: time.Hour, JoinTimeout: 10 * time.Second},
		Fields: []string{"pinRatio", "staleness", "joinTimeout"},
	})}}
	round := ledger.Round{Fresh: true, Discovery: "static"}
	for i := range 3 {
		round.Engines = append(round.Engines, ledger.Engine{URL: fmt.Sprintf("http://e%d:1", i), Healthy: true, Capacity: 60, Incarnation: "1"})
	}
	b.Ops = append(b.Ops, reconcileOp(ledger.DefaultPool, round))
	for i := range rapid.IntRange(0, 3).Draw(g.t, "sessions") {
		b.Ops = append(b.Ops, openOp(sessions.OpenRequest{
			Pool: ledger.DefaultPool, ID: fmt.Sprint("s", i), Group: "g", Kind: sessions.Kind(i), Engine: "http://e0:1", IdleTimeout: -1,
		}))
	}
	return b
}

func (g *batches) pool() string {
	if rapid.IntRange(0, 5).Draw(g.t, "usual pool") > 0 {
		return ledger.DefaultPool
	}
	return rapid.SampledFrom([]string{ledger.DefaultPool, "b", "none"}).Draw(g.t, "pool")
}

func (g *batches) ticket() string {
	return fmt.Sprint("t", rapid.IntRange(0, 5).Draw(g.t, "ticket"))
}

// callNumber is one of few, so that the same call comes again.
func (g *batches) callNumber() uint64 { return uint64(rapid.IntRange(0, 2).Draw(g.t, "call")) }

func (g *batches) small(name string) uint64 { return uint64(rapid.IntRange(0, 30).Draw(g.t, name)) }

func (g *batches) op() *fsmpb.Op {
	makers := []func() *fsmpb.Op{
		g.acquire, g.acquire, g.acquire, g.acquire, g.release, g.release, g.renew, g.cancel, g.detach, g.reclaim,
		g.reconcile, g.reconcile, g.settings, g.admin, g.session, g.session, g.session, g.closes, g.closes, g.pin,
	}
	return rapid.SampledFrom(makers).Draw(g.t, "kind")()
}

func (g *batches) acquire() *fsmpb.Op {
	t := g.t
	return acquireOp(ledger.Acquire{
		Pool: g.pool(), Ticket: g.ticket(), PromptTokens: ledger.Tokens(rapid.IntRange(-1, 60).Draw(t, "prompt")),
		MaxNewTokens: ledger.Tokens(g.small("new")), Mode: ledger.Mode(rapid.IntRange(0, 2).Draw(t, "mode")),
		Protected: rapid.IntRange(0, 9).Draw(t, "protected") == 0, Priority: rapid.Int32Range(-1, 1).Draw(t, "priority"),
		Holder: rapid.SampledFrom([]string{"", "h0", "h1"}).Draw(t, "holder"), Session: rapid.SampledFrom([]string{"", "s0", "s1", "s1"}).Draw(t, "session"),
		Group: rapid.SampledFrom([]string{"", "g"}).Draw(t, "group"), RID: rapid.SampledFrom([]string{"", "r"}).Draw(t, "rid"),
		MaxWait: time.Duration(rapid.IntRange(-1, 30).Draw(t, "max wait")) * time.Second,
		TTL:     time.Duration(rapid.IntRange(0, 60).Draw(t, "ttl")) * time.Second, Call: g.callNumber(),
	})
}

func (g *batches) release() *fsmpb.Op {
	r := ledger.Release{Pool: g.pool(), Ticket: g.ticket(), Holder: "h0"}
	switch rapid.IntRange(0, 3).Draw(g.t, "fence") {
	case 0:
		r.Grant = ledger.Seq(g.small("grant"))
	case 1:
		r.Epoch, r.HasEpoch = g.small("epoch")%4, true
	case 2:
		r.Usage = &ledger.Usage{PromptTokens: 5, CompletionTokens: 3, CachedTokens: 1, Engine: "http://a:1", Outcome: "ok"}
	}
	return releaseOp(r)
}

func (g *batches) renew() *fsmpb.Op {
	refs := []ledger.LeaseRef{{Ticket: g.ticket()}, {Ticket: g.ticket(), Grant: ledger.Seq(g.small("grant"))}}
	return renewOp(g.pool(), refs, time.Duration(g.small("ttl"))*time.Second)
}

func (g *batches) cancel() *fsmpb.Op {
	return &fsmpb.Op{Kind: &fsmpb.Op_Cancel{Cancel: &fsmpb.Cancel{Pool: g.pool(), Ticket: g.ticket(), Call: g.callNumber()}}}
}

func (g *batches) detach() *fsmpb.Op {
	return &fsmpb.Op{Kind: &fsmpb.Op_Detach{Detach: &fsmpb.Detach{
		Pool: g.pool(), Ticket: g.ticket(), Seq: g.small("seq"), Attempt: uint32(rapid.IntRange(0, 3).Draw(g.t, "attempt")),
	}}}
}

// reclaim names a holder that is there, mostly as it was last active.
func (g *batches) reclaim() *fsmpb.Op {
	out := &fsmpb.ReclaimHolder{Pool: g.pool(), Holder: "h0"}
	g.machine.view(func(l *ledger.Ledger) {
		l.Holders(func(h ledger.HolderView) {
			out = &fsmpb.ReclaimHolder{Pool: h.Pool, Holder: h.Holder, LastActive: int64(h.LastActive)}
		})
	})
	g.machine.look(func(c *core) {
		c.table.Flying(func(pool, holder string, _ int) {
			if out.LastActive == 0 {
				out.Pool, out.Holder = pool, holder
			}
		})
		out.NewestFlight, _ = c.table.Newest(out.Pool, out.Holder)
	})
	switch rapid.IntRange(0, 7).Draw(g.t, "late") {
	case 0:
		out.LastActive--
	case 1:
		out.NewestFlight /= 2
	}
	return &fsmpb.Op{Kind: &fsmpb.Op_ReclaimHolder{ReclaimHolder: out}}
}

func (g *batches) reconcile() *fsmpb.Op {
	t := g.t
	round := ledger.Round{Fresh: rapid.IntRange(0, 9).Draw(t, "fresh") > 0, Discovery: "static", Repeats: rapid.Int64Range(0, 3).Draw(t, "repeats")}
	round.Degrade = rapid.IntRange(0, 12).Draw(t, "degrade") == 12
	for i := range rapid.IntRange(1, 3).Draw(t, "engines") {
		usage := rapid.Float64Range(0, 0.97).Draw(t, "usage")
		round.Engines = append(round.Engines, ledger.Engine{
			URL: fmt.Sprintf("http://e%d:1", i), Healthy: rapid.IntRange(0, 4).Draw(t, "healthy") > 0, Capacity: 60,
			Used: 20, Usage: usage, Pressure: usage * usage, DPRanks: 1, Role: ledger.RoleRegular, Incarnation: rapid.SampledFrom([]string{"1", "1", "1", "2"}).Draw(t, "incarnation"),
		})
	}
	return reconcileOp(g.pool(), round)
}

func (g *batches) settings() *fsmpb.Op {
	t := g.t
	p := ledger.Patch{Set: ledger.Settings{
		Admission: rapid.IntRange(0, 5).Draw(t, "admission") > 0, MaxWait: time.Duration(g.small("wait")) * time.Second,
		DetachGrace: time.Duration(g.small("grace")) * time.Second, Staleness: time.Hour, EngineURLs: []string{"http://e0:1"},
		Lifecycle: rapid.IntRange(0, 2).Draw(t, "lifecycle") > 0, PinRatio: rapid.Float64Range(0, 0.9).Draw(t, "pin ratio"),
		JoinTimeout: time.Duration(g.small("join")) * time.Second, CloseScope: ledger.CloseScope(rapid.IntRange(0, 2).Draw(t, "scope")),
		Headroom: rapid.Float64Range(0.2, 1).Draw(t, "headroom"), Oversize: ledger.Oversize(rapid.IntRange(0, 3).Draw(t, "oversize")),
	}}
	p.Fields = rapid.SliceOfN(rapid.SampledFrom([]string{
		"admission", "maxWait", "detachGrace", "staleness", "engineUrls", "headroom", "oversize",
		"lifecycle", "pinRatio", "pinRatio", "joinTimeout", "closeScope",
	}), 1, 3).Draw(t, "fields")
	if rapid.IntRange(0, 5).Draw(t, "clears") == 0 {
		p.Clear = []string{rapid.SampledFrom([]string{"admission", "nonsense"}).Draw(t, "clear")}
	}
	pool := rapid.SampledFrom([]string{ledger.DefaultPool, "b", ""}).Draw(t, "pool")
	return updateOp(pool, p)
}

func (g *batches) admin() *fsmpb.Op {
	ops := []*fsmpb.Op{
		{Kind: &fsmpb.Op_DeletePool{DeletePool: &fsmpb.DeletePool{Pool: g.pool()}}},
		{Kind: &fsmpb.Op_DrainStep{DrainStep: &fsmpb.DrainStep{Pool: g.pool(), Run: "r", Step: int64(g.small("step"))}}},
		{Kind: &fsmpb.Op_Tick{Tick: &fsmpb.Tick{}}},
		{Kind: &fsmpb.Op_NewTerm{NewTerm: &fsmpb.NewTerm{Term: g.small("term"), Node: "n2"}}},
		{Kind: &fsmpb.Op_TrimJournal{TrimJournal: &fsmpb.TrimJournal{FirstIndex: g.small("first") / 4}}},
		{Kind: &fsmpb.Op_SetCluster{SetCluster: &fsmpb.SetCluster{Id: "c1"}}},
	}
	return rapid.SampledFrom(ops).Draw(g.t, "admin")
}
