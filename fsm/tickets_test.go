package fsm

import (
	"context"
	"errors"
	"slices"
	"sync"
	"testing"
	"time"

	"kvgate/ledger"
)

func TestAcquireAndRelease(t *testing.T) {
	s := startSingle(t)
	budget(t, s.Replica, 100)
	first := admit(t, s.Replica, ask("a", 60))
	if again := admit(t, s.Replica, ask("a", 60)); again.Seq != first.Seq {
		t.Errorf("a retry got grant %d, the first was %d", again.Seq, first.Seq)
	}
	fenced, err := s.Release(t.Context(), ledger.Release{Pool: ledger.DefaultPool, Ticket: "a", Grant: first.Seq + 1})
	must(t, err)
	if fenced {
		t.Error("a release with the number of another grant released it")
	}
	release(t, s.Replica, "a")
	again, err := s.Release(t.Context(), ledger.Release{Pool: ledger.DefaultPool, Ticket: "a"})
	must(t, err)
	if again {
		t.Error("the same lease was released twice")
	}
}

func TestWaitersAreGrantedInOrder(t *testing.T) {
	s := startSingle(t)
	budget(t, s.Replica, 100)
	admit(t, s.Replica, ask("a", 100))
	b, c := queue(t, s.Replica, ask("b", 80)), queue(t, s.Replica, ask("c", 30))
	release(t, s.Replica, "a")
	got := b.admitted()
	if got.Seq == 0 || got.Waiter == 0 || leaseOf(s.Replica, "c") != nil {
		t.Errorf("b got %+v, c has %v: the head goes first", got, leaseOf(s.Replica, "c"))
	}
	release(t, s.Replica, "b")
	c.admitted()
}

func TestCallerThatLeavesKeepsThePlace(t *testing.T) {
	s := startSingle(t)
	budget(t, s.Replica, 100)
	admit(t, s.Replica, ask("a", 100))
	b, c := queue(t, s.Replica, ask("b", 100)), queue(t, s.Replica, ask("c", 100))
	place := waiterOf(s.Replica, "b").Seq
	b.leave()
	await(t, s.Replica, ledger.KindDetached, "b")
	if w := waiterOf(s.Replica, "b"); w == nil || w.Attached || w.Position != 1 {
		t.Fatalf("waiter is %+v, want it detached and first", w)
	}
	back := queue(t, s.Replica, ask("b", 100))
	if w := waiterOf(s.Replica, "b"); w.Seq != place || w.Position != 1 {
		t.Fatalf("the retry has place %d, number %d; want 1, %d", w.Position, w.Seq, place)
	}
	release(t, s.Replica, "a")
	if d := back.admitted(); d.Waiter != place {
		t.Errorf("granted as waiter %d, want %d", d.Waiter, place)
	}
	if waiterOf(s.Replica, "c") == nil {
		t.Error("c does not wait any more")
	}
	c.leave()
}

func TestRetryWithOtherTokensIsRefused(t *testing.T) {
	s := startSingle(t)
	budget(t, s.Replica, 100)
	admit(t, s.Replica, ask("a", 100))
	b := queue(t, s.Replica, ask("b", 50))
	if _, err := s.Acquire(t.Context(), ask("b", 51)); !errors.Is(err, ledger.ErrTicketMismatch) {
		t.Errorf("error %v, want a mismatch", err)
	}
	release(t, s.Replica, "a")
	b.admitted()
}

func TestTwoCallersOfOneTicket(t *testing.T) {
	s := startSingle(t)
	budget(t, s.Replica, 100)
	admit(t, s.Replica, ask("a", 100))
	first := queue(t, s.Replica, ask("b", 100))
	second, third := begin(t, s.Replica, ask("b", 100)), begin(t, s.Replica, ask("b", 100))
	eventually(t, "three calls are blocked", func() bool { return listening(s.Replica, "b") == 3 })
	second.leave()
	eventually(t, "two calls are blocked", func() bool { return listening(s.Replica, "b") == 2 })
	if w := waiterOf(s.Replica, "b"); !w.Attached {
		t.Error("the ticket is detached while calls are blocked on it")
	}
	release(t, s.Replica, "a")
	if x, y := first.admitted(), third.admitted(); x.Seq != y.Seq {
		t.Errorf("the callers got grants %d and %d", x.Seq, y.Seq)
	}
}

// listening counts the calls that are blocked on a ticket.
func listening(r *Replica, ticket string) int {
	w, t := waiterOf(r, ticket), r.leading()
	if w == nil || t == nil {
		return 0
	}
	t.waits.mu.Lock()
	defer t.waits.mu.Unlock()
	if b := t.waits.bySeq[w.Seq]; b != nil {
		return len(b.calls)
	}
	return 0
}

// gate holds up raft's log.
type gate struct {
	mu     sync.Mutex
	closed chan struct{}
}

func (g *gate) shut() {
	g.mu.Lock()
	defer g.mu.Unlock()
	g.closed = make(chan struct{})
}

func (g *gate) open() {
	g.mu.Lock()
	defer g.mu.Unlock()
	if g.closed != nil {
		close(g.closed)
		g.closed = nil
	}
}

func (g *gate) pass(string) error {
	g.mu.Lock()
	closed := g.closed
	g.mu.Unlock()
	if closed != nil {
		<-closed
	}
	return nil
}

// TestCallerGoneBeforeTheResult: what was decided for a caller that is gone is detached at once.
func TestCallerGoneBeforeTheResult(t *testing.T) {
	var g gate
	s := startSingle(t, func(o *Options) { o.BeforeWrite = g.pass })
	t.Cleanup(g.open)
	budget(t, s.Replica, 100)
	gone, cancel := context.WithCancel(t.Context())
	cancel()
	for _, ticket := range []string{"granted", "waits"} {
		g.shut()
		term := s.leading()
		c := &call{op: acquireOp(ask(ticket, 60)), done: make(chan Result, 1), decided: make(chan ledger.Decision, 1)}
		must(t, term.submit(t.Context(), c))
		if _, err := term.await(gone, c); !errors.Is(err, context.Canceled) {
			t.Fatalf("%s: error %v, want that the call was cancelled", ticket, err)
		}
		g.open()
		await(t, s.Replica, ledger.KindDetached, ticket)
	}
	if w := waiterOf(s.Replica, "waits"); w == nil || w.Attached || listening(s.Replica, "waits") != 0 {
		t.Errorf("waiter is %+v, want it detached", w)
	}
	if leaseOf(s.Replica, "granted") == nil {
		t.Error("the grant does not wait to be claimed")
	}
	s.clock.Advance(11 * time.Second)
	await(t, s.Replica, ledger.KindUnclaimed, "granted")
}

// TestDecisionIsNeverUnheard: a call that leaves while its ticket is decided either hears the decision
// or is told of it in leaving, and of several the last one gives the grant back.
func TestDecisionIsNeverUnheard(t *testing.T) {
	for i := range 2000 {
		p := &proposer{calls: make(chan *call, 8), waits: waits{bySeq: map[ledger.Seq]*blocked{}}}
		waiting := ledger.Decision{Pool: "p", Ticket: "t", Action: ledger.ActionWait, Seq: 1, Waiter: 1, Attempt: 1}
		calls := make([]*call, 1+i%3)
		for k := range calls {
			calls[k] = &call{decided: make(chan ledger.Decision, 1)}
			p.waits.add(waiting, calls[k])
		}
		var wg sync.WaitGroup
		wg.Go(func() {
			p.waits.decide(ledger.Decision{Pool: "p", Ticket: "t", Action: ledger.ActionAdmit, Seq: 2, Waiter: 1, Attempt: 1})
		})
		for _, c := range calls {
			wg.Go(func() { p.leave(waiting, c) })
		}
		wg.Wait()
		if len(p.calls) != 1 {
			t.Fatalf("round %d: %d detaches were proposed after all %d callers left, want 1", i, len(p.calls), len(calls))
		}
	}
}

func TestAbandonedAndUnclaimed(t *testing.T) {
	s := startSingle(t)
	budget(t, s.Replica, 100, setting("maxWait", func(s *ledger.Settings) { s.MaxWait = time.Hour }))
	admit(t, s.Replica, ask("a", 100))
	queue(t, s.Replica, ask("b", 100)).leave()
	await(t, s.Replica, ledger.KindDetached, "b")
	s.clock.Advance(11 * time.Second)
	await(t, s.Replica, ledger.KindAbandoned, "b")

	queue(t, s.Replica, ask("c", 100)).leave()
	await(t, s.Replica, ledger.KindDetached, "c")
	release(t, s.Replica, "a")
	await(t, s.Replica, ledger.KindAdmitted, "c")
	s.clock.Advance(11 * time.Second)
	await(t, s.Replica, ledger.KindUnclaimed, "c")

	queue1 := begin(t, s.Replica, ask("d", 100))
	if d := queue1.admitted(); d.Tokens != 100 {
		t.Errorf("d got %d tokens", d.Tokens)
	}
}

func TestClaimedGrantStays(t *testing.T) {
	s := startSingle(t)
	budget(t, s.Replica, 100)
	admit(t, s.Replica, ask("a", 100))
	queue(t, s.Replica, ask("b", 100)).leave()
	await(t, s.Replica, ledger.KindDetached, "b")
	release(t, s.Replica, "a")
	granted := await(t, s.Replica, ledger.KindAdmitted, "b")
	if d := admit(t, s.Replica, ask("b", 100)); uint64(d.Seq) != granted.Grant {
		t.Fatalf("the retry got grant %d, want %d", d.Seq, granted.Grant)
	}
	s.clock.Advance(11 * time.Second)
	release(t, s.Replica, "b")
}

// TestAgeingOrder: waiters whose time is over are let go in the order of their deadlines.
func TestAgeingOrder(t *testing.T) {
	s := startSingle(t)
	budget(t, s.Replica, 100)
	admit(t, s.Replica, ask("a", 100))
	waits := map[string]time.Duration{"w1": 3 * time.Minute, "w2": time.Minute, "w3": 2 * time.Minute}
	var calls []*blockedCall
	for _, ticket := range []string{"w1", "w2", "w3"} {
		a := ask(ticket, 10)
		a.MaxWait = waits[ticket]
		calls = append(calls, queue(t, s.Replica, a))
	}
	s.clock.Advance(4 * time.Minute)
	for i, c := range calls {
		if d := c.answer(); d.Action != ledger.ActionBypass || d.Reason != ledger.Aged {
			t.Errorf("w%d: %+v, want it let go as aged", i+1, d)
		}
	}
	got := story(t, s.Replica, ledger.KindBypassed)
	if want := []string{"bypassed w2", "bypassed w3", "bypassed w1"}; !slices.Equal(got, want) {
		t.Errorf("order %v, want %v", got, want)
	}
}

func TestMaxWaitZeroDoesNotWait(t *testing.T) {
	s := startSingle(t)
	budget(t, s.Replica, 100)
	admit(t, s.Replica, ask("a", 100))
	a := ask("b", 100)
	a.MaxWait = 0
	d, err := s.Acquire(t.Context(), a)
	must(t, err)
	if d.Action != ledger.ActionBypass || d.Reason != ledger.Aged {
		t.Errorf("%+v, want it let go at once", d)
	}
}

func TestCancelEndsTheWait(t *testing.T) {
	s := startSingle(t)
	budget(t, s.Replica, 100)
	admit(t, s.Replica, ask("a", 100))
	b := queue(t, s.Replica, ask("b", 100))
	was, err := s.Cancel(t.Context(), ledger.Cancel{Pool: ledger.DefaultPool, Ticket: "b"})
	must(t, err)
	if d := b.answer(); was != ledger.CancelWaiting || d.Reason != ledger.Cancelled {
		t.Errorf("cancelled %v, answered %+v", was, d)
	}
}

func TestLeaseExpires(t *testing.T) {
	s := startSingle(t)
	budget(t, s.Replica, 100)
	admit(t, s.Replica, ask("a", 100))
	b := queue(t, s.Replica, ask("b", 100))
	renewed, err := s.Renew(t.Context(), ledger.DefaultPool, []ledger.LeaseRef{{Ticket: "a"}, {Ticket: "z"}}, time.Second)
	must(t, err)
	if len(renewed) != 2 || !renewed[0].OK || renewed[1].OK {
		t.Fatalf("renewed %+v", renewed)
	}
	s.clock.Advance(2 * time.Second)
	b.admitted()
	if leaseOf(s.Replica, "a") != nil {
		t.Error("an expired lease is still there")
	}
}

// TestTextThatIsNoUTF8 is one caller's mistake, and no other's.
func TestTextThatIsNoUTF8(t *testing.T) {
	s := startSingle(t)
	budget(t, s.Replica, 100)
	term := s.Status().Term
	bad := ask("a\xff", 10)
	if _, err := s.Acquire(t.Context(), bad); !errors.Is(err, ledger.ErrInvalid) {
		t.Errorf("error %v, want that it is invalid", err)
	}
	admit(t, s.Replica, ask("b", 10))
	if got := s.Status().Term; got != term {
		t.Errorf("term %d became %d", term, got)
	}
}

// TestNamesThatCannotBeStored are refused rather than stop every node.
func TestNamesThatCannotBeStored(t *testing.T) {
	s := startSingle(t)
	budget(t, s.Replica, 100)
	for _, pool := range []string{"", "a\x00b", string(make([]byte, 300))} {
		if _, err := s.UpdateSettings(t.Context(), pool, ledger.Patch{}); !errors.Is(err, ledger.ErrInvalid) {
			t.Errorf("pool %.10q: %v", pool, err)
		}
	}
	a := ask("a", 10)
	a.Holder = "h\x00"
	if _, err := s.Acquire(t.Context(), a); !errors.Is(err, ledger.ErrInvalid) {
		t.Errorf("holder: %v", err)
	}
	if _, err := s.doHere(t.Context(), nil); !errors.Is(err, ErrUnknownVersion) {
		t.Errorf("an operation of no kind: %v", err)
	}
	admit(t, s.Replica, ask("b", 10))
}

// A retry of a ticket that holds a lease, whose caller leaves before the answer, must not put the lease
// in doubt: an earlier answer may have been heard, and the work goes on under it.
func TestRetryWhoseCallerLeavesKeepsTheLease(t *testing.T) {
	s := startSingle(t)
	budget(t, s.Replica, 100)
	first := admit(t, s.Replica, ask("a", 60))
	tm := s.leading()
	gone := &call{op: acquireOp(ask("a", 60)), done: make(chan Result, 1), decided: make(chan ledger.Decision, 1)}
	gone.state.Store(callGone)
	must(t, tm.submit(t.Context(), gone))
	admit(t, s.Replica, ask("b", 10)) // the log has passed the retry, and whatever it led to
	admit(t, s.Replica, ask("c", 10))
	x := leaseOf(s.Replica, "a")
	grace := ledger.DefaultSettings().DetachGrace
	if x == nil || x.Grant != first.Seq || x.ExpiresIn <= grace {
		t.Errorf("the lease is %+v, want it to live on for longer than the detach grace", x)
	}
	if got := story(t, s.Replica, ledger.KindDetached); len(got) > 0 {
		t.Errorf("the journal tells of %v", got)
	}
}
