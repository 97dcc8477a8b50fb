package fsm

import (
	"errors"
	"fmt"
	"testing"
	"time"

	"kvgate/fsm/fsmpb"
	"kvgate/ledger"
	"kvgate/sessions"
)

// TestAClosingSessionGetsNothing: its waiters are let go before the queue advances, so that none of them is
// granted what another left; what comes later is refused.
func TestAClosingSessionGetsNothing(t *testing.T) {
	d := newDesk(t)
	d.acquire(turnOf("s1", "t1", 100))
	for i, s := range []string{"s1", "s2", "s1", "s3"} {
		a := turnOf(s, fmt.Sprint("w", i), 90)
		a.Group = "g"
		d.acquire(a)
	}
	d.do(openOp(sessions.OpenRequest{Pool: ledger.DefaultPool, ID: "s1", Group: "g", IdleTimeout: -1}))
	d.do(openOp(sessions.OpenRequest{Pool: ledger.DefaultPool, ID: "s3", Group: "other", IdleTimeout: -1}))
	r, err := applyBatch(d.core, &fsmpb.Batch{Version: Version, LedgerTime: int64(d.now), Ops: []*fsmpb.Op{
		{Kind: &fsmpb.Op_CloseGroup{CloseGroup: &fsmpb.CloseGroup{Pool: ledger.DefaultPool, Group: "g"}}},
		releaseOp(ledger.Release{Pool: ledger.DefaultPool, Ticket: "t1"}),
	}}, Version)
	must(t, err)
	var got []string
	for _, x := range r.decisions {
		got = append(got, x.Ticket+" "+x.Reason.String())
	}
	want := "[w0 session_closing w2 session_closing w1 session_closing w3 capacity_available]"
	if fmt.Sprint(got) != want || r.results[0].Value != 2 {
		t.Errorf("decisions %v, want %s; %v sessions are closing", got, want, r.results[0].Value)
	}
	if r := d.do(acquireOp(turnOf("s1", "late", 1))); !errors.Is(r.Err, sessions.ErrClosing) {
		t.Errorf("a turn of a closing session: %+v", r)
	}
	if v, _ := d.ledger.Ticket(ledger.DefaultPool, "late"); v.Lease != nil || v.Waiter != nil {
		t.Error("something was charged for it")
	}
}

// TestTheCloseTakesLeasesBack: what is not released in time is released by the close, and whoever waits for
// the room is granted it.
func TestTheCloseTakesLeasesBack(t *testing.T) {
	d := newDesk(t)
	d.acquire(turnOf("s", "t", 100))
	a := ask("next", 100)
	a.MaxWait = time.Hour
	d.acquire(a)
	d.do(closeOp(sessions.CloseRequest{Pool: ledger.DefaultPool, ID: "s"}))
	d.at(34)
	if v := d.flights("s", 1, 0, 0); v.Close.Phase != sessions.Aborting {
		t.Fatalf("phase %v", v.Close.Phase)
	}
	d.at(35)
	if v := d.get("s"); v.Close.Phase != sessions.Telling || len(v.Owed) != 2 {
		t.Fatalf("phase %v, owed %v", v.Close.Phase, v.Owed)
	}
	if v, _ := d.ledger.Ticket(ledger.DefaultPool, "next"); v.Lease == nil {
		t.Error("the room was not given to the next")
	}
}

// TestDeadlinesOfBothSidesInTheirOrder: a batch that comes late lets go what is due at the time at which it
// fell due, also when one side's deadline follows from the other's.
func TestDeadlinesOfBothSidesInTheirOrder(t *testing.T) {
	d := newDesk(t, changed("leaseTtl", func(s *ledger.Settings) { s.LeaseTTL = 10 * time.Second }))
	d.do(openOp(sessions.OpenRequest{Pool: ledger.DefaultPool, ID: "s", IdleTimeout: 5 * time.Second}))
	d.acquire(turnOf("s", "t", 10))
	d.core.forget()
	d.at(100)
	var got []string
	for _, n := range d.order {
		if n >= 0 {
			e := d.ledger.Events()[n]
			got = append(got, fmt.Sprint(time.Duration(e.At), " ", e.Kind))
		} else {
			e := d.table.Events()[-1-n]
			got = append(got, fmt.Sprint(time.Duration(e.At), " ", e.Kind))
		}
	}
	want := "[10s lease_expired 15s session_closing 15s session_phase 1m15s close_failed 1m15s session_closed]"
	if fmt.Sprint(got) != want {
		t.Errorf("got %v, want %s", got, want)
	}
}

// TestPinsAreKeptOutOfTheCeiling: what can never fit beside them is let go, and the queue advances when they
// are gone.
func TestPinsAreKeptOutOfTheCeiling(t *testing.T) {
	d := newDesk(t)
	d.acquire(ask("hog", 60))
	d.acquire(ask("big", 80))
	d.acquire(ask("small", 30))
	pin := sessions.PinRequest{Pool: ledger.DefaultPool, ID: "p", Tokens: 30, TTL: 5 * time.Minute}
	must(t, d.do(pinOp(pin)).Err)
	if v, _ := d.ledger.Ticket(ledger.DefaultPool, "big"); v.Waiter != nil {
		t.Error("what never fits beside the pin waits still")
	}
	if v, _ := d.ledger.Ticket(ledger.DefaultPool, "small"); v.Waiter == nil {
		t.Error("a waiter was let go, or granted beyond the ceiling")
	}
	if got := d.acquire(ask("other", 71)); got.Reason != ledger.Oversized {
		t.Errorf("71 of 70: %+v", got)
	}
	b, _ := d.ledger.Budget(ledger.DefaultPool)
	if b.Ceiling != 100 || b.Pinned != 30 || b.Available() != 10 {
		t.Errorf("budget %+v", b)
	}
	pin.ID, pin.Tokens = "q", 21
	if r := d.do(pinOp(pin)); !errors.Is(r.Err, sessions.ErrPinBudget) {
		t.Errorf("a pin beyond the budget: %+v", r)
	}
	d.do(&fsmpb.Op{Kind: &fsmpb.Op_Unpin{Unpin: &fsmpb.Unpin{Pool: ledger.DefaultPool, Id: "p"}}})
	if v, _ := d.ledger.Ticket(ledger.DefaultPool, "small"); v.Lease == nil {
		t.Error("the queue did not advance")
	}
}

// TestDiscoveryTellsWhoLeft: only what a discovery does not list has left, and ranks are one engine.
func TestDiscoveryTellsWhoLeft(t *testing.T) {
	d := newDesk(t)
	d.engines("http://a:1@0", "http://a:1@1", "http://b:1")
	d.acquire(turnOf("s", "t", 10))
	d.release(ledger.Release{Ticket: "t"})
	d.do(closeOp(sessions.CloseRequest{Pool: ledger.DefaultPool, ID: "s"}))
	owed := func(n int) {
		t.Helper()
		if v := d.get("s"); len(v.Owed) != n {
			t.Fatalf("owed %v, want %d", v.Owed, n)
		}
	}
	owed(2)
	for _, r := range []ledger.Round{
		{Reason: "nothing answered"},
		{Degrade: true, Reason: "router silent, no list ever"},
		{Degrade: true, Engines: []ledger.Engine{{URL: "http://a:1", Error: "down"}, {URL: "http://b:1", Error: "down"}}},
	} {
		d.do(reconcileOp(ledger.DefaultPool, r))
		owed(2)
	}
	d.engines("http://b:1")
	owed(1)
	d.do(reconcileOp(ledger.DefaultPool, ledger.Round{Fresh: true, Degrade: true, Reason: "no workers"}))
	if v := d.get("s"); v.State != sessions.Closed || v.Close.Left != 2 {
		t.Errorf("session %+v", v.SessionRow)
	}
}

// TestStepsCountCloses: each close counts in the step in which it was over, and a repeated drain repeats it.
func TestStepsCountCloses(t *testing.T) {
	d := newDesk(t)
	for _, id := range []string{"good", "bad"} {
		d.do(openOp(sessions.OpenRequest{Pool: ledger.DefaultPool, ID: id, IdleTimeout: -1}))
		d.do(closeOp(sessions.CloseRequest{Pool: ledger.DefaultPool, ID: id}))
	}
	d.do(reportOp([]sessions.Report{{Pool: ledger.DefaultPool, Session: "good", Seq: d.get("good").Seq, Acked: []string{"http://a:1", "http://b:1"}}}))
	drain := func(step int64, closes, failures float64) {
		t.Helper()
		r := d.do(&fsmpb.Op{Kind: &fsmpb.Op_DrainStep{DrainStep: &fsmpb.DrainStep{Pool: ledger.DefaultPool, Step: step}}})
		m := r.Value.(map[string]float64)
		if m["agentic_kv/session/close"] != closes || m["agentic_kv/session/close_failure"] != failures || m["agentic_kv/session/lifecycle_enabled"] != 1 {
			t.Fatalf("step %d: %v", step, m)
		}
	}
	drain(1, 1, 0)
	drain(1, 1, 0)
	d.at(60)
	drain(2, 1, 1)
	drain(3, 0, 0)
}

// TestDeletedPoolsHaveNoSessions: nothing of a pool's sessions outlives it, and none are made without one.
func TestDeletedPoolsHaveNoSessions(t *testing.T) {
	d := newDesk(t)
	d.acquire(turnOf("s", "t", 100))
	d.acquire(turnOf("s", "w", 10))
	must(t, d.do(pinOp(sessions.PinRequest{Pool: ledger.DefaultPool, ID: "p", Tokens: 30})).Err)
	d.do(&fsmpb.Op{Kind: &fsmpb.Op_DeletePool{DeletePool: &fsmpb.DeletePool{Pool: ledger.DefaultPool}}})
	if b, _ := d.ledger.Budget(ledger.DefaultPool); b.Pinned != 0 || len(d.table.Pools()) != 0 || d.table.Pending() != 0 {
		t.Errorf("left: %d tokens pinned, pools %v, %d deadlines", b.Pinned, d.table.Pools(), d.table.Pending())
	}
	for name, op := range map[string]*fsmpb.Op{
		"open": openOp(sessions.OpenRequest{Pool: "none", ID: "s"}), "bind": bindOp(sessions.BindRequest{Pool: "none", ID: "s", Engine: "e"}),
		"close": closeOp(sessions.CloseRequest{Pool: "none", ID: "s"}), "pin": pinOp(sessions.PinRequest{Pool: "none", ID: "p", Tokens: 1}),
	} {
		if r := d.do(op); !errors.Is(r.Err, ledger.ErrUnknownPool) {
			t.Errorf("%s in a pool that is not there: %+v", name, r)
		}
	}
	if len(d.table.Pools()) != 0 {
		t.Errorf("pools %v were made", d.table.Pools())
	}
}

// TestAnswersTellWhereTheSessionIs: at once and after a wait.
func TestAnswersTellWhereTheSessionIs(t *testing.T) {
	d := newDesk(t)
	must(t, d.do(bindOp(sessions.BindRequest{Pool: ledger.DefaultPool, ID: "s", Engine: "http://b:1", DPRank: 2})).Err)
	want := ledger.Binding{Engine: "http://b:1", DPRank: 2}
	if got := d.acquire(turnOf("s", "t", 100)); got.Binding == nil || *got.Binding != want || got.SessionReused {
		t.Errorf("answer %+v", got)
	}
	d.acquire(turnOf("s", "w", 100))
	r, err := applyBatch(d.core, &fsmpb.Batch{Version: Version, LedgerTime: int64(d.now), Ops: []*fsmpb.Op{
		releaseOp(ledger.Release{Pool: ledger.DefaultPool, Ticket: "t"}), releaseOp(ledger.Release{Pool: ledger.DefaultPool, Ticket: "w"}),
	}}, Version)
	must(t, err)
	if len(r.decisions) != 1 || r.decisions[0].Binding == nil || *r.decisions[0].Binding != want {
		t.Errorf("decisions %+v", r.decisions)
	}
	d.do(closeOp(sessions.CloseRequest{Pool: ledger.DefaultPool, ID: "s"}))
	d.engines("http://c:1")
	must(t, d.do(openOp(sessions.OpenRequest{Pool: ledger.DefaultPool, ID: "s"})).Err)
	if got := d.acquire(turnOf("s", "u", 10)); got.Binding != nil || !got.SessionReused {
		t.Errorf("answer of a new incarnation: %+v", got)
	}
}
