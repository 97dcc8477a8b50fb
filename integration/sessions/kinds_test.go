package sessions

import (
	"context"
	"slices"
	"testing"
	"time"

	"google.golang.org/protobuf/types/known/durationpb"

	"kvgate/integration/enginesim"
	"kvgate/integration/procs"
	"kvgate/rpc/client"
	v1 "kvgate/rpc/kvgate/v1"
)

// TestStreamingSession lives on the engine that the caller named, and is closed there and nowhere else.
func TestStreamingSession(t *testing.T) {
	f := fleet(t, 2, enginesim.Config{StreamingSessions: true})
	c := start(t, 1, f.RouterURL(), 2, &v1.Settings{})
	here, elsewhere := f.Engines[0], f.Engines[1]
	if err := post(t.Context(), here.URL()+"/open_session", []byte(`{"session_id":"twice","capacity_of_str_len":0,"streaming":true}`)); err != nil {
		t.Fatal(err)
	}
	for _, id := range []string{"once", "twice"} { // the engine has the second open already, which counts as opened
		s, err := c.OpenSession(t.Context(), client.SessionRequest{ID: id, Kind: client.Streaming, EngineURL: here.URL()})
		if err != nil || s.Cause != nil {
			t.Fatalf("%s: %+v, %v", id, s, err)
		}
	}
	if n := here.Stats().StreamingSessions; n != 2 {
		t.Errorf("%d sessions are open on the engine, want 2", n)
	}
	for _, id := range []string{"once", "twice"} {
		c.CloseSession("", id, client.Join)
		c.state(id, closed)
	}
	procs.Eventually(t, limit, func() bool { return here.Stats().StreamingSessions == 0 }, func() string { return "the engine holds on to a closed session" })
	if n := elsewhere.Calls(closePath) + elsewhere.Calls("/open_session"); n != 0 {
		t.Errorf("the other engine was called %d times", n)
	}
}

// TestFailedStreamingOpenLeavesNothing: the call fails, and the session is not known.
func TestFailedStreamingOpenLeavesNothing(t *testing.T) {
	f := fleet(t, 1, enginesim.Config{StreamingSessions: true})
	c := start(t, 1, f.RouterURL(), 1, &v1.Settings{})
	inject(t, f.Engines[0], enginesim.Fault{Kind: enginesim.FaultStatus, Path: "/open_session", Status: 500})
	_, err := c.OpenSession(t.Context(), client.SessionRequest{ID: "s", Kind: client.Streaming, EngineURL: f.Engines[0].URL()})
	if err == nil {
		t.Fatal("opened on an engine that refuses")
	}
	if list := must(c, c.Sessions().ListSessions, &v1.ListSessionsRequest{}).Sessions; len(list) != 0 {
		t.Errorf("left behind: %v", list)
	}
}

// TestPlacement is told with every acquire, and forgotten when its engine leaves.
func TestPlacement(t *testing.T) {
	f := fleet(t, 2, enginesim.Config{})
	c := start(t, 1, f.RouterURL(), 2, &v1.Settings{})
	engine := f.Engines[0].URL()
	if err := c.BindSession(t.Context(), "", "s", engine+"@1", 1, 0); err != nil {
		t.Fatal(err)
	}
	g := c.acquire("s", "s:0")
	if g.EngineURL != engine || g.DPRank != 1 {
		t.Errorf("the grant says %q rank %d", g.EngineURL, g.DPRank)
	}
	g.Release()
	if err := f.Router.Remove(engine); err != nil {
		t.Fatal(err)
	}
	c.session("s", "without a binding", func(s *v1.Session) bool { return s.Binding == nil })
	if g := c.acquire("s", "s:1"); g.EngineURL != "" {
		t.Errorf("the grant says %q, which has left", g.EngineURL)
	}
}

// TestPinsOnEngines: those that know pins hold the prefix, others make the pin the ledger's alone; closing
// the session drops it and gives the ceiling back.
func TestPinsOnEngines(t *testing.T) {
	for name, knows := range map[string]bool{"known": true, "unknown": false} {
		t.Run(name, func(t *testing.T) {
			f := fleet(t, 1, enginesim.Config{PinPrefix: knows})
			ratio := 0.5
			c := start(t, 1, f.RouterURL(), 1, &v1.Settings{PinRatio: &ratio})
			a := agents(t, c, f, "pins", 0, 1)[0] // the engine has the prefix now
			idle := eventually(c, "nothing reserved", c.Observe().GetBudget, &v1.GetBudgetRequest{}, func(b *v1.GetBudgetResponse) bool { return b.Reserved == 0 })
			pin := must(c, c.Sessions().PinPrefix, &v1.PinPrefixRequest{PinId: "p", SessionId: a.id, TokenIds: a.prompt(), Ttl: "10m"}).Pin
			if pin.Tokens != promptTokens || pin.LedgerOnly == knows || (len(pin.HeldBy) == 1) != knows {
				t.Errorf("pin is %v", pin)
			}
			if n := f.Engines[0].Calls("/hicache/pin_prefix"); n != 1 {
				t.Errorf("the engine was asked %d times, want once", n)
			}
			if b := must(c, c.Observe().GetBudget, &v1.GetBudgetRequest{}); b.Available != idle.Available-promptTokens {
				t.Errorf("%d tokens are available, want %d less than %d", b.Available, promptTokens, idle.Available)
			}
			must(c, c.Sessions().CloseSession, &v1.CloseSessionRequest{SessionId: a.id, Wait: true})
			if pins := must(c, c.Sessions().ListPins, &v1.ListPinsRequest{}).Pins; len(pins) != 0 {
				t.Errorf("pins outlive their session: %v", pins)
			}
		})
	}
}

// TestAbort ends what is in flight on the engines, but never a rid that another one begins with.
func TestAbort(t *testing.T) {
	f := fleet(t, 1, enginesim.Config{})
	c := start(t, 1, f.RouterURL(), 1, &v1.Settings{AbortTimeout: durationpb.New(2 * time.Second)})
	c.acquire("other", "r-10")
	c.acquire("s", "r-1") // a prefix of the other's
	c.acquire("s", "q-1")
	res := must(c, c.Sessions().CloseSession, &v1.CloseSessionRequest{SessionId: "s", Mode: v1.CloseMode_CLOSE_MODE_ABORT, Wait: true})
	if res.Session.State != closed {
		t.Errorf("session is %v", res.Session)
	}
	aborted := f.Engines[0].AbortedRIDs()
	if !slices.Contains(aborted, "q-1") || slices.Contains(aborted, "r-1") {
		t.Errorf("aborted %v, want q-1 and not r-1, which would end r-10", aborted)
	}
	leases := must(c, c.Observe().ListLeases, &v1.ListLeasesRequest{}).Leases
	if len(leases) != 1 || leases[0].TicketId != "r-10" {
		t.Errorf("leases are %v, want that of the other session alone", leases)
	}
}

// TestIdleSessionsClose once nothing is in flight for the idle timeout, and not while a turn runs.
func TestIdleSessionsClose(t *testing.T) {
	f := fleet(t, 1, enginesim.Config{})
	c := start(t, 1, f.RouterURL(), 1, &v1.Settings{})
	for _, id := range []string{"idle", "busy"} {
		if _, err := c.OpenSession(t.Context(), client.SessionRequest{ID: id, IdleTimeout: time.Second}); err != nil {
			t.Fatal(err)
		}
	}
	g := c.acquire("busy", "busy:0")
	if s := c.state("idle", closed); s.CloseReason != "idle" {
		t.Errorf("closed because of %q", s.CloseReason)
	}
	if s := c.session("busy", "known", func(*v1.Session) bool { return true }); s.State != v1.SessionState_SESSION_STATE_OPEN {
		t.Errorf("a session was closed during its turn: %v", s)
	}
	g.Release()
	c.state("busy", closed)
}

// TestReusedIDIsWarnedOf by every acquire, since engines may silently not tag its KV.
func TestReusedIDIsWarnedOf(t *testing.T) {
	f := fleet(t, 1, enginesim.Config{})
	c := start(t, 1, f.RouterURL(), 1, &v1.Settings{})
	c.acquire("s", "s:0").Release()
	must(c, c.Sessions().CloseSession, &v1.CloseSessionRequest{SessionId: "s", Wait: true})
	if _, err := c.Acquire(context.Background(), client.Request{Ticket: "s:1", Session: "s", PromptTokens: 1}); err == nil {
		t.Error("a closed session takes tickets")
	}
	if s, err := c.OpenSession(t.Context(), client.SessionRequest{ID: "s"}); err != nil || !slices.Contains(s.Warnings, "session_id_reused") {
		t.Errorf("opened again: %+v, %v", s, err)
	}
	if g := c.acquire("s", "s:2"); !slices.Contains(g.Warnings, "session_id_reused") {
		t.Errorf("the grant warns of %v", g.Warnings)
	}
}

// TestServedScope tells only the engines that releases named.
func TestServedScope(t *testing.T) {
	f := fleet(t, 2, enginesim.Config{})
	scope := v1.CloseScope_CLOSE_SCOPE_SERVED
	c := start(t, 1, f.RouterURL(), 2, &v1.Settings{CloseScope: &scope})
	c.acquire("s", "s:0").Release(client.Usage{PromptTokens: 10, EngineURL: f.Engines[1].URL()})
	c.session("s", "over its turn", func(s *v1.Session) bool { return s.Turns == 1 })
	must(c, c.Sessions().CloseSession, &v1.CloseSessionRequest{SessionId: "s", Wait: true})
	if served, other := heard(f.Engines[1], "s"), heard(f.Engines[0], "s"); served != 1 || other != 0 {
		t.Errorf("the engine that served heard %d times and the other %d, want once and never", served, other)
	}
}
