package fsm

import (
	"context"
	"errors"
	"fmt"
	"reflect"
	"slices"
	"strings"
	"testing"
	"time"

	"kvgate/ledger"
	"kvgate/sessions"
)

// TestStreamingSessionsAreOpenedOnTheirEngine before they are recorded; what fails leaves nothing.
func TestStreamingSessionsAreOpenedOnTheirEngine(t *testing.T) {
	f := &fleet{}
	s := startSingle(t, withFleet(f))
	engines(t, s.Replica, "http://a:1", "http://b:1")
	ask := sessions.OpenRequest{Pool: ledger.DefaultPool, ID: "s", Kind: sessions.Streaming, IdleTimeout: -1, Engine: "http://A:1@3/"}
	f.answers(func(context.Context, string) error { return sessions.ErrStreamingOff })
	if _, err := s.OpenSession(t.Context(), ask); !errors.Is(err, sessions.ErrStreamingOff) {
		t.Errorf("error %v", err)
	}
	if v := sessionOf(s.Replica, "s"); v.ID != "" {
		t.Errorf("a failed open left %+v", v)
	}
	f.answers(nil)
	for name, c := range map[string]struct {
		change func(*sessions.OpenRequest)
		want   error
	}{
		"engine not listed": {func(r *sessions.OpenRequest) { r.Engine = "http://c:1" }, sessions.ErrUnknownEngine},
		"no engine":         {func(r *sessions.OpenRequest) { r.Engine = "" }, sessions.ErrInvalid},
		"no pool":           {func(r *sessions.OpenRequest) { r.Pool = "none" }, ledger.ErrUnknownPool},
	} {
		bad := ask
		c.change(&bad)
		if _, err := s.OpenSession(t.Context(), bad); !errors.Is(err, c.want) {
			t.Errorf("%s: %v", name, err)
		}
	}
	for range 2 {
		if v, err := s.OpenSession(t.Context(), ask); err != nil || v.Engine != "http://a:1" {
			t.Fatalf("%+v, %v", v, err)
		}
	}
	want := []string{"http://a:1 open s 5m0s", "http://a:1 open s 5m0s"} // the one that failed, and one
	if got := f.heard(""); !slices.Equal(got, want) {
		t.Errorf("calls %v, want %v", got, want)
	}
	awaitClosed(t, s.Replica, closeSession(t, s.Replica, "s"))
	if got := f.heard("close"); !slices.Equal(got, []string{"http://a:1 close s"}) {
		t.Errorf("closed on %v", got)
	}
}

// TestAStreamingOpenThatLosesARaceIsUndone: of two that open one id on two engines at once, the engine of the
// second one is told to close it again.
func TestAStreamingOpenThatLosesARaceIsUndone(t *testing.T) {
	f := &fleet{}
	s := startSingle(t, withFleet(f))
	engines(t, s.Replica, "http://a:1", "http://b:1")
	open := func(engine string) error {
		_, err := s.OpenSession(t.Context(), sessions.OpenRequest{Pool: ledger.DefaultPool, ID: "s", Kind: sessions.Streaming, Engine: engine})
		return err
	}
	f.answers(func(_ context.Context, call string) error {
		if strings.HasPrefix(call, "http://b:1 open") {
			must(t, open("http://a:1"))
		}
		return nil
	})
	if err := open("http://b:1"); !errors.Is(err, sessions.ErrKind) {
		t.Fatalf("the second open answers %v", err)
	}
	if got := f.heard("close"); !slices.Equal(got, []string{"http://b:1 close s"}) {
		t.Errorf("closed %v", got)
	}
	if v := sessionOf(s.Replica, "s"); v.State != sessions.Open || v.Engine != "http://a:1" {
		t.Errorf("session %+v", v)
	}
}

// TestPinsAskTheEngines that are named, or all, and say which hold the prefix.
func TestPinsAskTheEngines(t *testing.T) {
	f := &fleet{}
	s := startSingle(t, withFleet(f))
	engines(t, s.Replica, "http://a:1", "http://b:1", "http://c:1")
	_, err := s.UpdateSettings(t.Context(), ledger.DefaultPool, ledger.Patch{Set: ledger.Settings{PinRatio: 0.5}, Fields: []string{"pinRatio"}})
	must(t, err)
	f.answers(func(_ context.Context, call string) error {
		switch call[:len("http://a:1")] {
		case "http://a:1":
			return errNoPins
		case "http://b:1":
			return sessions.ErrUnreachable
		}
		return nil
	})
	pin := sessions.PinRequest{Pool: ledger.DefaultPool, ID: "p", Tokens: 3, TTL: 10 * time.Minute}
	v, err := s.PinPrefix(t.Context(), pin, []int32{1, 2, 3})
	must(t, err)
	if fmt.Sprint(v.Held, v.Refused, v.LedgerOnly) != "[http://c:1] [http://a:1] false" || len(f.heard("pin [1 2 3] 10m0s")) != 3 {
		t.Errorf("pin %+v, calls %v", v, f.heard(""))
	}
	pin.ID, pin.Engine = "q", "http://a:1@1"
	if v, err = s.PinPrefix(t.Context(), pin, []int32{4}); err != nil || !v.LedgerOnly || len(f.heard("pin [4]")) != 1 {
		t.Errorf("pin %+v, %v", v, err)
	}
	pin.ID = "r"
	if v, err = s.PinPrefix(t.Context(), pin, nil); err != nil || !v.LedgerOnly || len(f.heard("")) != 4 {
		t.Errorf("without token ids: pin %+v, %v, calls %v", v, err, f.heard(""))
	}
	for _, want := range []bool{true, false} {
		if was, err := s.UnpinPrefix(t.Context(), ledger.DefaultPool, "p"); err != nil || was != want {
			t.Errorf("unpinned %v, %v", was, err)
		}
	}
	if _, err := s.UnpinPrefix(t.Context(), "nowhere", "p"); !errors.Is(err, ledger.ErrUnknownPool) {
		t.Errorf("unpinned in a pool that does not exist: %v", err)
	}
}

// TestSessionsThroughAFollower: each call gives what it would on the leader, and refusals are what they are.
func TestSessionsThroughAFollower(t *testing.T) {
	f := &fleet{}
	c := startCluster(t, withFleet(f))
	engines(t, c.leader().Replica, "http://a:1")
	r := c.followers()[0].Replica
	opened := openSession(t, r, "s")
	if _, err := r.BindSession(t.Context(), sessions.BindRequest{Pool: ledger.DefaultPool, ID: "s", Engine: "http://a:1", DPRank: 1, TTL: time.Hour}); err != nil {
		t.Fatal(err)
	}
	d := admit(t, r, turnOf("s", "t", 10))
	if d.Binding == nil || *d.Binding != (ledger.Binding{Engine: "http://a:1", DPRank: 1}) {
		t.Errorf("answer %+v", d)
	}
	touched, err := r.TouchSession(t.Context(), ledger.DefaultPool, "s")
	must(t, err)
	var here, there sessions.View
	must(t, r.Sessions(t.Context(), false, func(t *sessions.Table) { here, _ = t.Get(ledger.DefaultPool, "s") }))
	c.leader().machine.look(func(c *core) { there, _ = c.table.Get(ledger.DefaultPool, "s") })
	same(t, "views", touched, there)
	same(t, "views", here, there)
	if touched.Seq != opened.Seq || touched.InFlight != 1 {
		t.Errorf("session %+v", touched)
	}
	release(t, r, "t")
	gone := awaitClosed(t, r, closeSession(t, r, "s"))
	if gone.State != sessions.Closed {
		t.Errorf("closed as %+v", gone.SessionRow)
	}
	if v := awaitClosed(t, r, sessions.View{SessionRow: sessions.SessionRow{Pool: ledger.DefaultPool, ID: "s", Seq: 12345}}); v.State != sessions.Closed || v.Seq != 12345 {
		t.Errorf("an incarnation that is gone: %+v", v.SessionRow)
	}
	var field *sessions.FieldError
	_, noKind := r.OpenSession(t.Context(), sessions.OpenRequest{Pool: ledger.DefaultPool, ID: "k", Kind: 9})
	if !errors.As(noKind, &field) || field.Field != "kind" {
		t.Errorf("unknown kind: %v", noKind)
	}
	_, unknown := r.TouchSession(t.Context(), ledger.DefaultPool, "none")
	_, disabled := r.PinPrefix(t.Context(), sessions.PinRequest{Pool: ledger.DefaultPool, ID: "p", Tokens: 1}, nil)
	_, elsewhere := r.BindSession(t.Context(), sessions.BindRequest{Pool: ledger.DefaultPool, ID: "b", Engine: "http://none:1"})
	_, closing := r.Acquire(t.Context(), turnOf("s", "late", 1))
	for want, got := range map[error]error{
		sessions.ErrUnknown: unknown, sessions.ErrPinsDisabled: disabled, sessions.ErrUnknownEngine: elsewhere, sessions.ErrClosing: closing,
	} {
		if !errors.Is(got, want) {
			t.Errorf("error %v, want %v", got, want)
		}
	}
	c.hashesAgree()
}

// TestBlockedTurnsHearOfTheClose, and keep nobody else from the queue.
func TestBlockedTurnsHearOfTheClose(t *testing.T) {
	s := startSingle(t)
	budget(t, s.Replica, 100)
	admit(t, s.Replica, ask("hog", 100))
	first, next := queue(t, s.Replica, turnOf("s", "w", 100)), queue(t, s.Replica, ask("n", 100))
	closeSession(t, s.Replica, "s")
	if d := first.answer(); d.Action != ledger.ActionBypass || d.Reason != ledger.SessionClosing {
		t.Errorf("the blocked turn hears %+v", d)
	}
	release(t, s.Replica, "hog")
	next.admitted()
}

// TestSilentHolderOfBypassedAttempts: the watch sees holders that the ledger does not know.
func TestSilentHolderOfBypassedAttempts(t *testing.T) {
	s := startSingle(t)
	budget(t, s.Replica, 100, setting("holderTtl", func(s *ledger.Settings) { s.HolderTTL = time.Hour }))
	a := turnOf("s", "t", 10)
	a.Protected, a.Holder = true, "h"
	if _, err := s.Acquire(t.Context(), a); err != nil {
		t.Fatal(err)
	}
	if st, err := s.Heartbeat(t.Context(), "h"); err != nil || st.TTL != time.Hour {
		t.Errorf("heartbeat %+v, %v", st, err)
	}
	s.leading().holders.reclaim(t.Context(), client{HolderView: ledger.HolderView{Pool: ledger.DefaultPool, Holder: "h"}})
	if v := sessionOf(s.Replica, "s"); v.InFlight != 1 {
		t.Fatal("a reclaim that saw no attempt ended one")
	}
	budget(t, s.Replica, 100, setting("holderTtl", func(s *ledger.Settings) { s.HolderTTL = time.Second }))
	eventually(t, "the attempt of the silent holder ended", func() bool { return sessionOf(s.Replica, "s").InFlight == 0 })
}

// TestSessionsSurviveARestart with what is owed, and a fresh closer carries on.
func TestSessionsSurviveARestart(t *testing.T) {
	f := &fleet{}
	f.answers(func(_ context.Context, call string) error {
		if strings.Contains(call, "b:1") {
			return sessions.ErrUnreachable
		}
		return nil
	})
	s := startSingle(t, withFleet(f))
	engines(t, s.Replica, "http://a:1", "http://b:1")
	v := openSession(t, s.Replica, "s")
	closeSession(t, s.Replica, "s")
	eventually(t, "one engine to acknowledge", func() bool { return sessionOf(s.Replica, "s").Close.Acked == 1 })
	s.restart()
	if got := sessionOf(s.Replica, "s"); got.Seq != v.Seq || len(got.Owed) != 1 || got.Owed[0].Engine != "http://b:1" {
		t.Fatalf("after a restart: %+v", got)
	}
	f.answers(nil)
	if got := awaitClosed(t, s.Replica, v); got.State != sessions.Closed || got.Close.Acked != 2 {
		t.Errorf("closed as %+v", got.SessionRow)
	}
	if got := f.heard("http://a:1"); len(got) != 1 {
		t.Errorf("told again although it had acknowledged: %v", got)
	}
}

// TestNoEngineIsCalledWithoutACaller of engines: closes fail at their deadline, and say so.
func TestNoEngineIsCalledWithoutACaller(t *testing.T) {
	s := startSingle(t)
	budget(t, s.Replica, 100)
	openSession(t, s.Replica, "s")
	v := closeSession(t, s.Replica, "s")
	s.clock.Advance(time.Minute)
	if got := awaitClosed(t, s.Replica, v); got.State != sessions.ClosedWithFailures {
		t.Errorf("closed as %+v", got.SessionRow)
	}
	if _, err := s.OpenSession(t.Context(), sessions.OpenRequest{
		Pool: ledger.DefaultPool, ID: "x", Kind: sessions.Streaming, Engine: "http://e:1",
	}); !errors.Is(err, sessions.ErrUnreachable) {
		t.Errorf("streaming open: %v", err)
	}
	if status, err := s.OwedStatus(t.Context(), ledger.DefaultPool, []string{"s"}); err != nil || len(status) != 0 {
		t.Errorf("status %v, %v", status, err)
	}
}

// TestAbortsSpareOthers: a request id that is a prefix of another one in flight is not aborted, also when that
// one belongs to no session.
func TestAbortsSpareOthers(t *testing.T) {
	f := &fleet{}
	s := startSingle(t, withFleet(f))
	engines(t, s.Replica, "http://a:1")
	mine, free, other := turnOf("s", "r-1", 1), turnOf("s", "q", 1), ask("r-10", 1)
	other.RID = "r-10"
	for _, a := range []ledger.Acquire{mine, free, other} {
		admit(t, s.Replica, a)
	}
	_, err := s.CloseSession(t.Context(), sessions.CloseRequest{Pool: ledger.DefaultPool, ID: "s", Mode: sessions.Abort})
	must(t, err)
	sent := func(ticket string) (out bool) {
		for _, x := range sessionOf(s.Replica, "s").Tickets {
			out = out || x.Ticket == ticket && x.AbortSent
		}
		return out
	}
	eventually(t, "q is aborted", func() bool { return sent("q") })
	if got := f.heard("abort"); !slices.Equal(got, []string{"http://a:1 abort q"}) {
		t.Fatalf("aborted %v", got)
	}
	release(t, s.Replica, "r-10")
	eventually(t, "r-1 is aborted", func() bool { return sent("r-1") })
}

// TestAbortsSpareTheSameID: neither is a request of no session that has the same id.
func TestAbortsSpareTheSameID(t *testing.T) {
	f := &fleet{}
	s := startSingle(t, withFleet(f))
	engines(t, s.Replica, "http://a:1")
	mine, free, other := turnOf("s", "r", 1), turnOf("s", "q", 1), ask("stray", 1)
	mine.RID, other.RID = "same", "same"
	for _, a := range []ledger.Acquire{mine, free, other} {
		admit(t, s.Replica, a)
	}
	_, err := s.CloseSession(t.Context(), sessions.CloseRequest{Pool: ledger.DefaultPool, ID: "s", Mode: sessions.Abort})
	must(t, err)
	eventually(t, "q is aborted", func() bool { return len(f.heard("abort q")) > 0 })
	if got := f.heard("abort same"); len(got) > 0 {
		t.Fatalf("aborted %v", got)
	}
	release(t, s.Replica, "stray")
	eventually(t, "r is aborted", func() bool { return len(f.heard("abort same")) > 0 })
}

// TestLifecycleOffSilencesWhatIsOwed: closes that began before are told to nobody while it is off, say why, and
// are made good when it is on again.
func TestLifecycleOffSilencesWhatIsOwed(t *testing.T) {
	f := &fleet{}
	s := startSingle(t, withFleet(f))
	engines(t, s.Replica, "http://a:1")
	lifecycle := func(on bool) {
		var p ledger.Patch
		setting("lifecycle", func(x *ledger.Settings) { x.Lifecycle = on })(&p)
		_, err := s.UpdateSettings(t.Context(), ledger.DefaultPool, p)
		must(t, err)
	}
	admit(t, s.Replica, turnOf("s", "t", 1))
	openSession(t, s.Replica, "s")
	closing := closeSession(t, s.Replica, "s")
	lifecycle(false)
	release(t, s.Replica, "t")
	eventually(t, "a debt", func() bool { return len(sessionOf(s.Replica, "s").Owed) == 1 })
	got, err := s.OwedStatus(t.Context(), ledger.DefaultPool, []string{"s", "none"})
	must(t, err)
	want := map[string][]sessions.OwedStatus{"s": {{Engine: "http://a:1", LastError: "not told: lifecycle is off"}}}
	if !reflect.DeepEqual(got, want) {
		t.Fatalf("status %+v, want %+v", got, want)
	}
	openSession(t, s.Replica, "later")
	if v := closeSession(t, s.Replica, "later"); v.State != sessions.Closed || len(f.heard("")) > 0 {
		t.Fatalf("a new close is %v, and engines heard %v", v.State, f.heard(""))
	}
	lifecycle(true)
	if v := awaitClosed(t, s.Replica, closing); v.State != sessions.Closed || v.Close.Acked != 1 {
		t.Fatalf("closed as %+v", v)
	}
}
