package fsm

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"
	"testing"
	"time"

	"kvgate/ledger"
	"kvgate/sessions"
)

// laneLog is what a lane answered.
type laneLog struct {
	mu       sync.Mutex
	waits    map[string]bool
	decided  []string
	failures []error
	released int
}

func (g *laneLog) acquire(l Lane, a ledger.Acquire) {
	l.Acquire(context.Background(), a, func(d ledger.Decision, err error) {
		g.mu.Lock()
		defer g.mu.Unlock()
		switch {
		case err != nil:
			g.failures = append(g.failures, fmt.Errorf("%s: %w", a.Ticket, err))
		case d.Action == ledger.ActionWait:
			if g.waits == nil {
				g.waits = map[string]bool{}
			}
			g.waits[a.Ticket] = true
		default:
			g.decided = append(g.decided, fmt.Sprint(a.Ticket, " ", d.Action))
			// Whoever is granted makes room for the next, through the same lane.
			l.Release(ledger.Release{Pool: a.Pool, Ticket: a.Ticket, Grant: d.Seq}, g.release)
		}
	})
}

func (g *laneLog) release(_ bool, err error) {
	g.mu.Lock()
	defer g.mu.Unlock()
	if err != nil {
		g.failures = append(g.failures, err)
	}
	g.released++
}

func (g *laneLog) state() (waits, decided, released int, failures []error) {
	g.mu.Lock()
	defer g.mu.Unlock()
	return len(g.waits), len(g.decided), g.released, slices.Clone(g.failures)
}

func laneTickets(n int) (names []string) {
	for i := range n {
		names = append(names, fmt.Sprintf("t%03d", i))
	}
	return names
}

// TestLaneKeepsItsOrder: on the leader and through a follower tickets queue in the order they were asked
// for, a release behind them all is carried out at once, and they are granted in that order.
func TestLaneKeepsItsOrder(t *testing.T) {
	c := startCluster(t)
	c.budget(100)
	for _, m := range []*member{c.leader(), c.followers()[0]} {
		held := ask("held-"+m.opts.NodeID, 100)
		d := admit(t, m.Replica, held)
		lane := m.OpenLane(t.Context())
		var log laneLog
		names := laneTickets(3 * laneBatch / 2)
		for i, name := range names {
			names[i] = m.opts.NodeID + name
			log.acquire(lane, ask(names[i], 10))
		}
		eventually(t, "all wait", func() bool { waits, _, _, _ := log.state(); return waits == len(names) })
		lane.Release(ledger.Release{Pool: held.Pool, Ticket: held.Ticket, Grant: d.Seq}, log.release)
		eventually(t, "all are released", func() bool { _, _, released, _ := log.state(); return released == len(names)+1 })
		lane.Close()
		if _, decided, _, failures := log.state(); decided != len(names) || len(failures) > 0 {
			t.Errorf("%s: %d decided, failures %v", m.opts.NodeID, decided, failures)
		}
		want := []string{"admitted " + held.Ticket}
		for _, name := range names {
			want = append(want, "admitted "+name)
		}
		got := slices.DeleteFunc(story(t, c.leader().Replica, ledger.KindAdmitted), func(e string) bool { return !slices.Contains(want, e) })
		if !slices.Equal(got, want) {
			t.Errorf("%s: granted in another order than asked: %d grants", m.opts.NodeID, len(got))
		}
	}
	c.hashesAgree()
}

// TestLaneEndDetaches what waits, on the leader and through a follower, and answers it.
func TestLaneEndDetaches(t *testing.T) {
	c := startCluster(t)
	c.budget(100)
	admit(t, c.leader().Replica, ask("held", 100))
	for _, m := range []*member{c.leader(), c.followers()[0]} {
		ctx, cancel := context.WithCancel(t.Context())
		lane := m.OpenLane(ctx)
		var log laneLog
		ticket := "of-" + m.opts.NodeID
		log.acquire(lane, ask(ticket, 100))
		eventually(t, "it waits", func() bool { waits, _, _, _ := log.state(); return waits == 1 })
		cancel()
		lane.Close()
		if _, decided, _, failures := log.state(); decided != 0 || len(failures) != 1 || !errors.Is(failures[0], context.Canceled) {
			t.Errorf("%s: %d decided, failures %v, want that it was cancelled", ticket, decided, failures)
		}
		await(t, c.leader().Replica, ledger.KindDetached, ticket)
		log.acquire(lane, ask("late", 1))
		lane.Close()
	}
	if waiterOf(c.leader().Replica, "late") != nil || leaseOf(c.leader().Replica, "late") != nil {
		t.Error("an operation after the end was carried out")
	}
}

// TestLaneSurvivesItsLeader: tickets that wait, and tickets that were asked for while nobody led, are
// granted in their order by the next leader.
func TestLaneSurvivesItsLeader(t *testing.T) {
	c := startCluster(t, func(o *Options) { o.FailOpenAfter = patience })
	c.budget(100)
	m := c.followers()[0]
	held := admit(t, m.Replica, ask("held", 100))
	lane := m.OpenLane(t.Context())
	defer lane.Close()
	var log laneLog
	names := laneTickets(200)
	for _, name := range names[:100] {
		log.acquire(lane, ask(name, 100))
	}
	eventually(t, "the first half waits", func() bool { waits, _, _, _ := log.state(); return waits == 100 })
	c.stop(c.leader())
	for _, name := range names[100:] {
		log.acquire(lane, ask(name, 100))
	}
	eventually(t, "the second half waits", func() bool { waits, _, _, _ := log.state(); return waits == 200 })
	lane.Release(ledger.Release{Pool: ledger.DefaultPool, Ticket: "held", Grant: held.Seq}, log.release)
	eventually(t, "all are released", func() bool { _, _, released, _ := log.state(); return released == len(names)+1 })
	want := []string{"admitted held"}
	for _, name := range names {
		want = append(want, "admitted "+name)
	}
	if got := story(t, c.leader().Replica, ledger.KindAdmitted); !slices.Equal(got, want) {
		t.Errorf("granted %v", got)
	}
	if _, _, _, failures := log.state(); len(failures) > 0 {
		t.Errorf("failures: %v", failures)
	}
}

// TestGiveBack: a grant that nobody heard of must be claimed, one that was answered again since stays.
func TestGiveBack(t *testing.T) {
	s := startSingle(t)
	budget(t, s.Replica, 100)
	d := admit(t, s.Replica, ask("a", 60))
	s.GiveBack(d)
	await(t, s.Replica, ledger.KindDetached, "a")
	kept := admit(t, s.Replica, ask("b", 40))
	admit(t, s.Replica, ask("b", 40))
	s.GiveBack(kept)
	s.GiveBack(ledger.Decision{Action: ledger.ActionBypass})
	release(t, s.Replica, "b")
	if got := story(t, s.Replica, ledger.KindDetached); len(got) != 1 {
		t.Errorf("detached: %v, want a alone", got)
	}
}

// TestLaneWithoutALeader answers within its time, in a way that lets tickets go, and carries nothing out
// later that was answered.
func TestLaneWithoutALeader(t *testing.T) {
	c := startCluster(t, func(o *Options) { o.FailOpenAfter = 300 * time.Millisecond })
	c.budget(100)
	m := c.followers()[0]
	for _, other := range c.up() {
		if other != m {
			c.stop(other)
		}
	}
	lane := m.OpenLane(t.Context())
	defer lane.Close()
	for range 2 { // the second finds that nobody leads
		answers := make(chan error, 2)
		lane.Acquire(t.Context(), ask("a", 10), func(_ ledger.Decision, err error) { answers <- err })
		lane.Release(ledger.Release{Pool: ledger.DefaultPool, Ticket: "a"}, func(_ bool, err error) { answers <- err })
		for range 2 {
			select {
			case err := <-answers:
				if !errors.Is(err, ErrNoLeader) && !errors.Is(err, ErrLeadershipLost) && !errors.Is(err, ErrTimeout) {
					t.Errorf("answered %v", err)
				}
			case <-time.After(patience):
				t.Fatal("no answer")
			}
		}
	}
}

// TestLaneBeginsNothingAnew: a ticket that waited, and was cancelled elsewhere while nobody led, stays
// cancelled when the node that waited for it asks the next leader. One whose caller left is not asked for.
func TestLaneBeginsNothingAnew(t *testing.T) {
	s := startSingle(t)
	budget(t, s.Replica, 100)
	admit(t, s.Replica, ask("held", 100))
	a := ask("a", 100)
	a.MaxWait = time.Hour
	lost := make(chan struct{})
	d, err := s.ask(t.Context(), a, s.now(), func(context.Context) (Result, error) {
		close(lost)
		return Result{}, ErrLeadershipLost
	})
	<-lost
	if err != nil || d.Action != ledger.ActionBypass || d.Reason != ledger.Cancelled || d.Tokens != 100 {
		t.Errorf("answered %+v, %v", d, err)
	}
	gone, cancel := context.WithCancel(t.Context())
	cancel()
	lane := s.OpenLane(t.Context())
	defer lane.Close()
	answered := make(chan error, 1)
	lane.Acquire(gone, a, func(_ ledger.Decision, err error) { answered <- err })
	if err := <-answered; !errors.Is(err, context.Canceled) {
		t.Errorf("answered %v", err)
	}
	if got := story(t, s.Replica, ledger.KindWaiting); len(got) > 0 {
		t.Errorf("the journal tells of %v", got)
	}
}

// TestLaneTellsWhyItEnded: who waited for a ticket that ended with the leader hears why no new one would
// be admitted, if there is a reason, and no ticket is begun.
func TestLaneTellsWhyItEnded(t *testing.T) {
	s := startSingle(t)
	budget(t, s.Replica, 100)
	closed := ask("a", 10)
	closed.Session = "s"
	_, err := s.OpenSession(t.Context(), sessions.OpenRequest{Pool: ledger.DefaultPool, ID: "s", Kind: sessions.Radix})
	must(t, err)
	_, err = s.CloseSession(t.Context(), sessions.CloseRequest{Pool: ledger.DefaultPool, ID: "s"})
	must(t, err)
	late, elsewhere := ask("a", 10), ask("a", 10)
	late.MaxWait, elsewhere.Pool = 0, "none"
	set := func(p ledger.Patch) func() {
		return func() {
			_, err := s.UpdateSettings(t.Context(), ledger.DefaultPool, p)
			must(t, err)
		}
	}
	nothing := func() {}
	for _, c := range []struct {
		change func()
		ask    ledger.Acquire
		want   ledger.Reason
	}{
		{nothing, ask("a", 10), ledger.Cancelled},
		{nothing, late, ledger.Aged},
		{nothing, closed, ledger.SessionClosing},
		{nothing, elsewhere, ledger.Degraded},
		{set(ledger.Patch{Fields: []string{"admission"}}), ask("a", 10), ledger.Disabled},
		{set(ledger.Patch{Fields: []string{"quarantine", "admission"}, Set: ledger.Settings{Quarantine: true, Admission: true}}), closed, ledger.SessionClosing},
	} {
		c.change()
		op := acquireOp(c.ask)
		op.GetAcquire().Joins = true
		res, err := s.attempt(t.Context(), op)
		d, _ := res.Value.(ledger.Decision)
		if err != nil || res.Err != nil || d.Action != ledger.ActionBypass || d.Reason != c.want {
			t.Errorf("answered %+v, %v, %v; want %v", d, res.Err, err, c.want)
		}
	}
	if got := story(t, s.Replica, ledger.KindBypassed); len(got) > 0 {
		t.Errorf("the journal tells of %v", got)
	}
}

// TestLaneBatchesAreBounded in number and in bytes, since each is one log entry; one operation always goes.
func TestLaneBatchesAreBounded(t *testing.T) {
	l := &lane{}
	for _, size := range []int{maxBatchBytes + 1, maxBatchBytes - 1, 1, 5} {
		l.queue = append(l.queue, &step{size: size})
	}
	for range laneBatch {
		l.queue = append(l.queue, &step{size: 1})
	}
	for _, want := range []int{1, 2, laneBatch, 1, 0} {
		if got := len(l.take()); got != want {
			t.Errorf("a batch of %d, want %d", got, want)
		}
	}
}
