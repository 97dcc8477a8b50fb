package fsm

import (
	"fmt"
	"testing"
	"time"

	"kvgate/fsm/fsmpb"
	"kvgate/ledger"
	"kvgate/sessions"
)

// desk is a core without a log: each operation is one entry.
type desk struct {
	*core
	t   *testing.T
	now time.Duration
}

const twoEngines = 50 // capacity of each of the two engines of a desk

func newDesk(t *testing.T, change ...func(*ledger.Patch)) *desk {
	d := &desk{core: emptyCore(), t: t}
	p := ledger.Patch{
		Set:    ledger.Settings{Staleness: 1000 * time.Hour, Headroom: 1, MaxWait: 20 * time.Second, LeaseTTL: 100 * time.Second, PinRatio: 0.5},
		Fields: []string{"staleness", "headroom", "maxWait", "leaseTtl", "pinRatio"},
	}
	for _, f := range change {
		f(&p)
	}
	d.do(updateOp(ledger.DefaultPool, p))
	d.engines("http://a:1", "http://b:1")
	return d
}

// engines has a discovery list them.
func (d *desk) engines(urls ...string) {
	round := ledger.Round{Fresh: true, Discovery: "static"}
	for _, u := range urls {
		round.Engines = append(round.Engines, ledger.Engine{URL: u, Healthy: true, Capacity: twoEngines, Incarnation: "1"})
	}
	d.do(reconcileOp(ledger.DefaultPool, round))
}

// do applies one operation as an entry of its own, now.
func (d *desk) do(op *fsmpb.Op) Result {
	d.t.Helper()
	r, err := applyBatch(d.core, &fsmpb.Batch{Version: Version, LedgerTime: int64(d.now), Ops: []*fsmpb.Op{op}}, Version)
	must(d.t, err)
	checkInStep(d.t, d.core)
	return r.results[0]
}

// at moves time on.
func (d *desk) at(s int) {
	d.now = time.Duration(s) * time.Second
	d.do(&fsmpb.Op{Kind: &fsmpb.Op_Tick{Tick: &fsmpb.Tick{}}})
}

func (d *desk) acquire(a ledger.Acquire) ledger.Decision {
	d.t.Helper()
	r := d.do(acquireOp(a))
	must(d.t, r.Err)
	return r.Value.(ledger.Decision)
}

func (d *desk) get(id string) sessions.View {
	d.t.Helper()
	v, ok := d.table.Get(ledger.DefaultPool, id)
	if !ok {
		d.t.Fatalf("no session %q", id)
	}
	return v
}

func (d *desk) flights(id string, inFlight, waiting int, turns int64) sessions.View {
	d.t.Helper()
	v := d.get(id)
	if v.InFlight != inFlight || v.Waiting != waiting || v.Turns != turns {
		d.t.Fatalf("session %q has %d in flight, %d waiting, %d turns; want %d, %d, %d", id, v.InFlight, v.Waiting, v.Turns, inFlight, waiting, turns)
	}
	return v
}

// turnOf asks for a turn of a session.
func turnOf(session, ticket string, tokens ledger.Tokens) ledger.Acquire {
	a := ask(ticket, tokens)
	a.Session = session
	return a
}

func (d *desk) release(r ledger.Release) bool {
	d.t.Helper()
	r.Pool = ledger.DefaultPool
	return d.do(releaseOp(r)).Value.(bool)
}

func changed(name string, set func(*ledger.Settings)) func(*ledger.Patch) { return setting(name, set) }

// TestEveryBypassIsInFlight: an attempt that was let through without a lease runs on the engines like any
// other, whatever the reason, until it is released or its time is over.
func TestEveryBypassIsInFlight(t *testing.T) {
	cases := map[ledger.Reason]struct {
		change func(*ledger.Patch)
		ask    func(*ledger.Acquire)
		before func(*desk)
	}{
		ledger.Protected:  {ask: func(a *ledger.Acquire) { a.Protected = true }},
		ledger.Disabled:   {change: changed("admission", func(s *ledger.Settings) { s.Admission = false })},
		ledger.OutOfScope: {ask: func(a *ledger.Acquire) { a.Mode = ledger.ModeEval }},
		ledger.Oversized:  {ask: func(a *ledger.Acquire) { a.ReservationTokens = 101 }},
		ledger.Aged: {ask: func(a *ledger.Acquire) { a.MaxWait = 0 }, before: func(d *desk) {
			d.acquire(ask("hog", 100))
		}},
		ledger.Degraded: {before: func(d *desk) {
			d.do(reconcileOp(ledger.DefaultPool, ledger.Round{Fresh: true, Degrade: true, Reason: "none"}))
		}},
		ledger.Cancelled: {before: func(d *desk) {
			for range 2 {
				d.do(cancelOp(ledger.Cancel{Pool: ledger.DefaultPool, Ticket: "t", Call: 0}))
			}
		}},
	}
	for reason, c := range cases {
		t.Run(reason.String(), func(t *testing.T) {
			a := turnOf("s", "t", 10)
			if c.ask != nil {
				c.ask(&a)
			}
			if c.change == nil {
				c.change = func(*ledger.Patch) {}
			}
			d := newDesk(t, c.change)
			if c.before != nil {
				c.before(d)
			}
			if got := d.acquire(a); got.Action != ledger.ActionBypass || got.Reason != reason {
				t.Fatalf("answer %+v", got)
			}
			v := d.flights("s", 1, 0, 0)
			if x := v.Tickets[0]; !x.Bypassed || x.Until != sessions.Time(d.now+100*time.Second) {
				t.Fatalf("ticket %+v, want it bypassed until one lease TTL from now", x)
			}
			if reason != ledger.Cancelled {
				d.acquire(a)
				d.flights("s", 1, 0, 0)
			}
			for _, stale := range []ledger.Release{{Ticket: "t", Grant: 1}, {Ticket: "t", HasEpoch: true, Epoch: 1}} {
				d.release(stale)
				d.flights("s", 1, 0, 0)
			}
			if d.release(ledger.Release{Ticket: "t", Usage: &ledger.Usage{PromptTokens: 7, CompletionTokens: 3, Engine: "http://a:1@2"}}) {
				t.Error("a release of no lease released one")
			}
			if v := d.flights("s", 0, 0, 1); v.Footprint != 10 {
				t.Errorf("footprint %d", v.Footprint)
			}
		})
	}
}

func TestABypassedAttemptIsForgottenAfterTheLeaseTTL(t *testing.T) {
	d := newDesk(t)
	a := turnOf("s", "t", 10)
	a.Protected = true
	d.acquire(a)
	a.Ticket, a.Holder = "held", "h"
	d.acquire(a)
	d.at(99)
	d.flights("s", 2, 0, 0)
	d.at(100)
	v := d.flights("s", 1, 0, 1)
	if v.Tickets[0].Ticket != "held" {
		t.Errorf("left is %+v: a holder's attempt lives as long as the holder", v.Tickets)
	}
}

// TestHolderEndsItsBypassedAttempts: the ledger does not know a holder that has nothing but those, and a
// reclaim that was overtaken by another attempt does nothing.
func TestHolderEndsItsBypassedAttempts(t *testing.T) {
	d := newDesk(t)
	a := turnOf("s", "t1", 10)
	a.Protected, a.Holder = true, "h"
	d.acquire(a)
	seen, _ := d.table.Newest(ledger.DefaultPool, "h")
	a.Ticket = "t2"
	d.acquire(a)
	reclaim := func(newest uint64) bool {
		return d.do(&fsmpb.Op{Kind: &fsmpb.Op_ReclaimHolder{ReclaimHolder: &fsmpb.ReclaimHolder{
			Pool: ledger.DefaultPool, Holder: "h", NewestFlight: newest,
		}}}).Value.(bool)
	}
	reclaim(seen)
	d.flights("s", 2, 0, 0)
	seen, _ = d.table.Newest(ledger.DefaultPool, "h")
	if reclaim(seen) {
		t.Error("more is said to be left")
	}
	d.flights("s", 0, 0, 2)
}

// TestWaitersOfASessionLeave: by whatever way a ticket leaves the queue without being let through, no turn
// took place.
func TestWaitersOfASessionLeave(t *testing.T) {
	for name, leave := range map[string]func(*desk, ledger.Decision){
		"cancelled": func(d *desk, _ ledger.Decision) {
			d.do(cancelOp(ledger.Cancel{Pool: ledger.DefaultPool, Ticket: "t", Call: 3}))
		},
		"abandoned": func(d *desk, w ledger.Decision) {
			d.do(&fsmpb.Op{Kind: &fsmpb.Op_Detach{Detach: &fsmpb.Detach{Pool: ledger.DefaultPool, Ticket: "t", Seq: uint64(w.Seq), Attempt: w.Attempt}}})
			d.at(11)
		},
		"holder silent": func(d *desk, _ ledger.Decision) {
			d.do(&fsmpb.Op{Kind: &fsmpb.Op_ReclaimHolder{ReclaimHolder: &fsmpb.ReclaimHolder{Pool: ledger.DefaultPool, Holder: "h"}}})
		},
	} {
		t.Run(name, func(t *testing.T) {
			d := newDesk(t)
			d.acquire(ask("hog", 100))
			a := turnOf("s", "t", 10)
			a.Holder = "h"
			w := d.acquire(a)
			d.flights("s", 0, 1, 0)
			leave(d, w)
			d.flights("s", 0, 0, 0)
		})
	}
}

// TestLeasesOfASessionEnd: every end of a lease ends the turn.
func TestLeasesOfASessionEnd(t *testing.T) {
	for name, end := range map[string]func(*desk, ledger.Decision){
		"released": func(d *desk, x ledger.Decision) {
			d.release(ledger.Release{Ticket: "t", Grant: x.Seq, Usage: &ledger.Usage{PromptTokens: 5, CompletionTokens: 4, Engine: "http://b:1@1"}})
			if v := d.get("s"); v.Footprint != 9 || fmt.Sprint(v.Served) != "[http://b:1]" {
				d.t.Errorf("footprint %d, served %v", v.Footprint, v.Served)
			}
		},
		"expired": func(d *desk, _ ledger.Decision) { d.at(100) },
		"cancelled": func(d *desk, _ ledger.Decision) {
			d.do(cancelOp(ledger.Cancel{Pool: ledger.DefaultPool, Ticket: "t", Call: 3}))
		},
		"unclaimed": func(d *desk, x ledger.Decision) {
			d.do(&fsmpb.Op{Kind: &fsmpb.Op_Detach{Detach: &fsmpb.Detach{Pool: ledger.DefaultPool, Ticket: "t", Seq: uint64(x.Seq), Attempt: x.Attempt}}})
			d.at(11)
		},
		"holder silent": func(d *desk, _ ledger.Decision) {
			d.do(&fsmpb.Op{Kind: &fsmpb.Op_ReclaimHolder{ReclaimHolder: &fsmpb.ReclaimHolder{Pool: ledger.DefaultPool, Holder: "h"}}})
		},
	} {
		t.Run(name, func(t *testing.T) {
			d := newDesk(t)
			a := turnOf("s", "t", 10)
			a.Holder = "h"
			d.acquire(a)
			x := d.acquire(a)
			d.flights("s", 1, 0, 0)
			if d.release(ledger.Release{Ticket: "t", Grant: x.Seq + 1}); d.get("s").InFlight != 1 {
				t.Fatal("a release of another grant ended the turn")
			}
			end(d, x)
			d.flights("s", 0, 0, 1)
		})
	}
}
