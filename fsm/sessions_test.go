package fsm

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"kvgate/ledger"
	"kvgate/sessions"
	"kvgate/store"
)

// fleet answers calls to engines with a function, and notes them.
type fleet struct {
	mu     sync.Mutex
	calls  []string
	answer func(ctx context.Context, call string) error
}

func (f *fleet) call(ctx context.Context, engine, what string) error {
	call := engine + " " + what
	f.mu.Lock()
	f.calls = append(f.calls, call)
	answer := f.answer
	f.mu.Unlock()
	if answer == nil {
		return nil
	}
	return answer(ctx, call)
}

func (f *fleet) OpenSession(ctx context.Context, engine, id string, idle time.Duration) error {
	return f.call(ctx, engine, fmt.Sprintf("open %s %v", id, idle))
}

func (f *fleet) CloseSession(ctx context.Context, engine, id string) error {
	return f.call(ctx, engine, "close "+id)
}

func (f *fleet) Abort(ctx context.Context, engine, rid string) error {
	return f.call(ctx, engine, "abort "+rid)
}

func (f *fleet) PinPrefix(ctx context.Context, engine string, tokens []int32, ttl time.Duration) (bool, error) {
	err := f.call(ctx, engine, fmt.Sprintf("pin %v %v", tokens, ttl))
	if errors.Is(err, errNoPins) {
		return true, nil
	}
	return false, err
}

var errNoPins = errors.New("404")

// answers has the engines answer otherwise from now on.
func (f *fleet) answers(fn func(ctx context.Context, call string) error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.answer = fn
}

// heard returns the calls so far that contain a text, sorted.
func (f *fleet) heard(text string) (out []string) {
	f.mu.Lock()
	defer f.mu.Unlock()
	for _, c := range f.calls {
		if strings.Contains(c, text) {
			out = append(out, c)
		}
	}
	slices.Sort(out)
	return out
}

// withFleet has a node call engines, and get over failures quickly.
func withFleet(f *fleet) func(*Options) {
	return func(o *Options) {
		o.Engines = f
		o.Closer = sessions.Options{Poll: 5 * time.Millisecond, Flush: time.Millisecond, FirstRetry: 5 * time.Millisecond, LastRetry: 10 * time.Millisecond}
	}
}

// engines gives the default pool engines of 100 tokens each.
func engines(t *testing.T, r *Replica, urls ...string) {
	t.Helper()
	budget(t, r, 100, setting("holderTtl", func(s *ledger.Settings) { s.HolderTTL = 1000 * time.Hour }))
	round := ledger.Round{Fresh: true, Discovery: "static"}
	for _, u := range urls {
		round.Engines = append(round.Engines, ledger.Engine{URL: u, Healthy: true, Capacity: 100})
	}
	must(t, r.Reconcile(t.Context(), ledger.DefaultPool, round))
}

func openSession(t *testing.T, r *Replica, id string) sessions.View {
	t.Helper()
	v, err := r.OpenSession(t.Context(), sessions.OpenRequest{Pool: ledger.DefaultPool, ID: id, Group: "g", IdleTimeout: -1})
	must(t, err)
	return v
}

func closeSession(t *testing.T, r *Replica, id string) sessions.View {
	t.Helper()
	v, err := r.CloseSession(t.Context(), sessions.CloseRequest{Pool: ledger.DefaultPool, ID: id})
	must(t, err)
	return v
}

// awaitClosed waits until an incarnation is closed.
func awaitClosed(t *testing.T, r *Replica, v sessions.View) sessions.View {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), patience)
	defer cancel()
	got, err := r.AwaitClosed(ctx, v.Pool, v.ID, v.Seq)
	must(t, err)
	return got
}

func sessionOf(r *Replica, id string) (v sessions.View) {
	r.machine.look(func(c *core) { v, _ = c.table.Get(ledger.DefaultPool, id) })
	return v
}

// TestACloseIsToldAfterTheLastRelease, to every engine, once, and the journal tells how it went.
func TestACloseIsToldAfterTheLastRelease(t *testing.T) {
	f := &fleet{}
	s := startSingle(t, withFleet(f))
	engines(t, s.Replica, "http://a:1", "http://b:1")
	openSession(t, s.Replica, "s")
	admit(t, s.Replica, turnOf("s", "lease", 10))
	bypassed := turnOf("s", "bypassed", 10)
	bypassed.Protected = true
	if _, err := s.Acquire(t.Context(), bypassed); err != nil {
		t.Fatal(err)
	}
	v := closeSession(t, s.Replica, "s")
	if v.State != sessions.Closing || v.InFlight != 2 {
		t.Fatalf("the close answers %+v", v)
	}
	if _, err := s.Acquire(t.Context(), turnOf("s", "late", 1)); !errors.Is(err, sessions.ErrClosing) {
		t.Errorf("a turn of a closing session: %v", err)
	}
	release(t, s.Replica, "lease")
	if got := f.heard(""); len(got) != 0 || sessionOf(s.Replica, "s").Close.Phase != sessions.Joining {
		t.Fatalf("told %v while an attempt was in flight", got)
	}
	if released, err := s.Release(t.Context(), ledger.Release{Pool: ledger.DefaultPool, Ticket: "bypassed"}); err != nil || released {
		t.Errorf("release of what holds no lease: %v, %v", released, err)
	}
	if got := awaitClosed(t, s.Replica, v); got.State != sessions.Closed || got.Close.Acked != 2 {
		t.Errorf("closed as %+v", got.SessionRow)
	}
	if got, want := f.heard(""), []string{"http://a:1 close s", "http://b:1 close s"}; !slices.Equal(got, want) {
		t.Errorf("calls %v, want %v", got, want)
	}
	var kinds []string
	told := 0
	for _, e := range journal(t, s.Replica, store.JournalQuery{Session: "s", Limit: 100}) {
		if told += len(e.Engines); e.Kind != "close_sent" {
			kinds = append(kinds, e.Kind)
		}
	}
	want := "[session_opened admitted bypassed session_closing released session_phase session_closed]"
	if fmt.Sprint(kinds) != want || told != 2 {
		t.Errorf("journal %v with %d engines told, want %s", kinds, told, want)
	}
}

// TestTheLeaderChangesInEveryStepOfAClose: whatever the old leader was at, the new one carries on, and each
// engine hears the close.
func TestTheLeaderChangesInEveryStepOfAClose(t *testing.T) {
	f := &fleet{}
	c := startCluster(t, withFleet(f))
	engines(t, c.leader().Replica, "http://a:1", "http://b:1")
	refused := errors.New("not now")
	cases := []struct {
		name string
		mode sessions.Mode
		// turn: a turn is in flight when the close begins, and ends once another node leads.
		turn bool
		// answer is what engines do until then; it tells when the old leader has come as far as it should.
		answer func(ctx context.Context, arrived func()) error
	}{
		{"joining", sessions.Join, true, nil},
		{"abort-unanswered", sessions.Abort, true, func(ctx context.Context, arrived func()) error { arrived(); <-ctx.Done(); return ctx.Err() }},
		{"close-unanswered", sessions.Join, false, func(ctx context.Context, arrived func()) error { arrived(); <-ctx.Done(); return ctx.Err() }},
		{"acknowledged-unreported", sessions.Join, false, func(ctx context.Context, arrived func()) error { arrived(); <-ctx.Done(); return nil }},
		{"in-backoff", sessions.Join, false, func(_ context.Context, arrived func()) error { arrived(); return refused }},
	}
	for _, step := range cases {
		t.Run(step.name, func(t *testing.T) {
			old, to := c.leader(), c.followers()[0]
			arrived, once := make(chan struct{}), sync.Once{}
			if step.answer != nil {
				f.answers(func(ctx context.Context, _ string) error {
					return step.answer(ctx, func() { once.Do(func() { close(arrived) }) })
				})
			} else {
				close(arrived)
			}
			openSession(t, old.Replica, step.name)
			if step.turn {
				admit(t, old.Replica, turnOf(step.name, "turn-"+step.name, 1))
			}
			v, err := old.CloseSession(t.Context(), sessions.CloseRequest{Pool: ledger.DefaultPool, ID: step.name, Mode: step.mode, Timeout: time.Hour})
			must(t, err)
			<-arrived
			must(t, old.TransferLeadership(t.Context(), to.opts.NodeID))
			f.answers(nil)
			eventually(t, "the other node leads", func() bool { return to.leading() != nil })
			if step.turn {
				if step.mode == sessions.Abort {
					eventually(t, "the new leader aborts", func() bool { return sessionOf(to.Replica, step.name).Tickets[0].AbortSent })
				}
				release(t, to.Replica, "turn-"+step.name)
			}
			if got := awaitClosed(t, to.Replica, v); got.State != sessions.Closed || got.Close.Acked != 2 {
				t.Errorf("closed as %+v", got.SessionRow)
			}
			for _, e := range []string{"http://a:1", "http://b:1"} {
				if len(f.heard(e+" close "+step.name)) == 0 {
					t.Errorf("%s never heard of the close: %v", e, f.heard(step.name))
				}
			}
		})
	}
	c.hashesAgree()
}

// TestEveryNodeTellsWhichEngineRefusesAnAbort, and the journal does, once; in quarantine, why nobody is asked.
func TestEveryNodeTellsWhichEngineRefusesAnAbort(t *testing.T) {
	f := &fleet{}
	c := startCluster(t, withFleet(f))
	leader := c.leader().Replica
	engines(t, leader, "http://a:1", "http://refuses:1")
	change := func(field string, set ledger.Settings) {
		t.Helper()
		_, err := leader.UpdateSettings(t.Context(), ledger.DefaultPool, ledger.Patch{Set: set, Fields: []string{field}})
		must(t, err)
	}
	change("abortTimeout", ledger.Settings{AbortTimeout: time.Hour})
	f.answers(func(_ context.Context, call string) error {
		if strings.Contains(call, "refuses:1 abort") {
			return sessions.ErrUnauthorized
		}
		return nil
	})
	admit(t, leader, turnOf("s", "t", 1))
	v, err := c.followers()[0].CloseSession(t.Context(), sessions.CloseRequest{Pool: ledger.DefaultPool, ID: "s", Mode: sessions.Abort})
	must(t, err)
	status := func(m *member) (list []sessions.OwedStatus) {
		byID, err := m.OwedStatus(t.Context(), ledger.DefaultPool, []string{"s"})
		must(t, err)
		return byID["s"]
	}
	for _, m := range c.up() {
		eventually(t, m.opts.NodeID+" tells who refuses", func() bool {
			list := status(m)
			return len(list) == 1 && list[0].Engine == "http://refuses:1" && list[0].Ticket == "t" && list[0].Attempts > 1 &&
				list[0].LastError == sessions.ErrUnauthorized.Error()
		})
	}
	page, err := c.followers()[0].Journal(t.Context(), false, store.JournalQuery{Limit: 100, Kinds: []string{string(sessions.AbortRefused)}})
	must(t, err)
	if len(page.Events) != 1 {
		t.Fatalf("%d events of refused aborts, want 1", len(page.Events))
	}
	if e, err := DecodeEvent(page.Events[0].Data); err != nil || e.Session != "s" || e.Ticket != "t" || !slices.Equal(e.Engines, []string{"http://refuses:1"}) {
		t.Errorf("event %v, %v", e, err)
	}
	change("lifecycle", ledger.Settings{})
	eventually(t, "a follower tells that nobody is asked", func() bool {
		list := status(c.followers()[0])
		return len(list) == 1 && list[0].Engine == "" && list[0].Ticket == "t" && list[0].LastError == "not told: lifecycle is off"
	})
	change("lifecycle", ledger.Settings{Lifecycle: true})
	release(t, leader, "t")
	awaitClosed(t, leader, v)
	c.hashesAgree()
}

// TestAnEngineThatHangsCostsItsOwnClosesOnly: tickets are decided and other engines hear, while it hangs; any
// node tells which engine owes what.
func TestAnEngineThatHangsCostsItsOwnClosesOnly(t *testing.T) {
	f, heal := &fleet{}, make(chan struct{})
	c := startCluster(t, withFleet(f), func(o *Options) { o.Closer.CallTimeout = time.Hour })
	engines(t, c.leader().Replica, "http://a:1", "http://hangs:1", "http://refuses:1")
	hanging := make(chan struct{}, 100)
	f.answers(func(ctx context.Context, call string) error {
		switch {
		case strings.Contains(call, "hangs"):
			hanging <- struct{}{}
			select {
			case <-heal:
			case <-ctx.Done():
			}
		case strings.Contains(call, "refuses"):
			return sessions.ErrUnauthorized
		}
		return ctx.Err()
	})
	var ids []string
	for i := range 20 {
		ids = append(ids, fmt.Sprint("s", i))
		openSession(t, c.leader().Replica, ids[i])
	}
	if n, err := c.followers()[0].CloseGroup(t.Context(), ledger.DefaultPool, "g", sessions.Join); err != nil || n != len(ids) {
		t.Fatalf("%d sessions are closing, %v", n, err)
	}
	<-hanging
	for i := range 50 {
		ticket := fmt.Sprint("t", i)
		admit(t, c.leader().Replica, ask(ticket, 10))
		release(t, c.leader().Replica, ticket)
	}
	eventually(t, "the others have heard of all", func() bool { return len(f.heard("http://a:1 close")) >= len(ids) })
	for _, m := range c.up() {
		eventually(t, m.opts.NodeID+" tells what is owed", func() bool {
			status, err := m.OwedStatus(t.Context(), ledger.DefaultPool, append(ids, "none"))
			must(t, err)
			refused := 0
			for _, list := range status {
				for _, e := range list {
					if e.Engine == "http://refuses:1" && e.LastError == sessions.ErrUnauthorized.Error() {
						refused++
					}
				}
			}
			return len(status) == len(ids) && refused == len(ids)
		})
	}
	f.answers(nil)
	close(heal)
	for _, id := range ids {
		if got := awaitClosed(t, c.followers()[0].Replica, sessionOf(c.leader().Replica, id)); got.State != sessions.Closed {
			t.Errorf("%s: %+v", id, got.SessionRow)
		}
	}
	c.hashesAgree()
}
