package fsm

import (
	"context"
	"fmt"
	"log/slog"
	"strings"
	"sync"
	"testing"
	"time"

	"kvgate/fsm/fsmpb"
	"kvgate/ledger"
	"kvgate/store"
)

// clock is a clock that a test moves; it also runs by itself.
type clock struct {
	mu     sync.Mutex
	offset time.Duration
}

func (c *clock) Now() time.Time {
	c.mu.Lock()
	defer c.mu.Unlock()
	return time.Now().Add(c.offset)
}

func (c *clock) Advance(d time.Duration) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.offset += d
}

// logged collects what a node logs.
type logged struct {
	mu   sync.Mutex
	text strings.Builder
}

func (l *logged) Write(b []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.text.Write(b)
}

func (l *logged) has(s string) bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	return strings.Contains(l.text.String(), s)
}

func (l *logged) String() string {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.text.String()
}

// single is one node that is a cluster by itself.
type single struct {
	*Replica
	t     *testing.T
	opts  Options
	clock *clock
	log   *logged
}

// bornBefore, unless it is nil, gives single nodes their data directory before they start.
var bornBefore func(*testing.T, *Options)

func startSingle(t *testing.T, change ...func(*Options)) *single {
	t.Helper()
	s := &single{t: t, clock: &clock{}, log: &logged{}}
	s.opts = Options{
		NodeID: "n1", DataDir: t.TempDir(), RaftListen: "127.0.0.1:0", Bootstrap: true, FreeSpaceFloor: 1,
		Now: s.clock.Now, Log: slog.New(slog.NewTextHandler(s.log, nil)),
	}
	for _, f := range change {
		f(&s.opts)
	}
	if bornBefore != nil {
		bornBefore(t, &s.opts)
	}
	t.Cleanup(func() {
		s.close()
		if t.Failed() {
			t.Log(s.log)
		}
	})
	s.open()
	return s
}

func (s *single) open() {
	s.t.Helper()
	r, err := Open(s.opts)
	must(s.t, err)
	s.Replica = r
	eventually(s.t, "node is ready", func() bool { return r.Status().Ready })
}

// close does nothing when the node is closed already.
func (s *single) close() {
	s.t.Helper()
	if s.Replica != nil {
		must(s.t, s.Close())
		s.Replica = nil
	}
}

func (s *single) restart() {
	s.t.Helper()
	s.close()
	s.open()
}

// budget gives the default pool a budget of tokens that does not grow stale.
func budget(t *testing.T, r *Replica, tokens ledger.Tokens, change ...func(*ledger.Patch)) {
	t.Helper()
	p := ledger.Patch{Set: ledger.Settings{Staleness: 1000 * time.Hour, Headroom: 1}, Fields: []string{"staleness", "headroom"}}
	for _, f := range change {
		f(&p)
	}
	_, err := r.UpdateSettings(t.Context(), ledger.DefaultPool, p)
	must(t, err)
	must(t, r.Reconcile(t.Context(), ledger.DefaultPool, ledger.Round{
		Fresh: true, Discovery: "static", Engines: []ledger.Engine{{URL: "http://e:1", Healthy: true, Capacity: tokens}},
	}))
}

// setting is a change for budget.
func setting(name string, set func(*ledger.Settings)) func(*ledger.Patch) {
	return func(p *ledger.Patch) {
		set(&p.Set)
		p.Fields = append(p.Fields, name)
	}
}

func ask(ticket string, tokens ledger.Tokens) ledger.Acquire {
	return ledger.Acquire{Pool: ledger.DefaultPool, Ticket: ticket, ReservationTokens: tokens, MaxWait: -1}
}

// admit acquires a ticket that need not wait.
func admit(t *testing.T, r *Replica, a ledger.Acquire) ledger.Decision {
	t.Helper()
	d, err := r.Acquire(t.Context(), a)
	must(t, err)
	if d.Action != ledger.ActionAdmit {
		t.Fatalf("%s: %+v, want a lease", a.Ticket, d)
	}
	return d
}

func release(t *testing.T, r *Replica, ticket string) {
	t.Helper()
	ok, err := r.Release(t.Context(), ledger.Release{Pool: ledger.DefaultPool, Ticket: ticket})
	must(t, err)
	if !ok {
		t.Fatalf("%s held no lease", ticket)
	}
}

// blockedCall is an Acquire in progress.
type blockedCall struct {
	t      *testing.T
	cancel context.CancelFunc
	done   chan struct{}
	d      ledger.Decision
	err    error
}

// begin starts an Acquire and does not wait for it.
func begin(t *testing.T, r *Replica, a ledger.Acquire) *blockedCall {
	t.Helper()
	ctx, cancel := context.WithCancel(t.Context())
	b := &blockedCall{t: t, cancel: cancel, done: make(chan struct{})}
	go func() {
		defer close(b.done)
		b.d, b.err = r.Acquire(ctx, a)
	}()
	t.Cleanup(func() { cancel(); <-b.done })
	return b
}

// queue starts an Acquire that has to wait, and returns when its ticket is in the queue.
func queue(t *testing.T, r *Replica, a ledger.Acquire) *blockedCall {
	t.Helper()
	b := begin(t, r, a)
	eventually(t, a.Ticket+" waits", func() bool {
		w := waiterOf(r, a.Ticket)
		return w != nil && w.Attached
	})
	return b
}

// answer waits for the decision.
func (b *blockedCall) answer() ledger.Decision {
	b.t.Helper()
	select {
	case <-b.done:
	case <-time.After(patience):
		b.t.Fatal("no answer")
	}
	must(b.t, b.err)
	return b.d
}

func (b *blockedCall) admitted() ledger.Decision {
	b.t.Helper()
	d := b.answer()
	if d.Action != ledger.ActionAdmit {
		b.t.Fatalf("%+v, want a lease", d)
	}
	return d
}

// leave cancels the call and waits until it has returned.
func (b *blockedCall) leave() {
	b.t.Helper()
	b.cancel()
	<-b.done
	if b.err == nil {
		b.t.Fatalf("a call that was cancelled answers %+v", b.d)
	}
}

func ticketOf(r *Replica, ticket string) (v ledger.TicketView) {
	r.machine.view(func(l *ledger.Ledger) { v, _ = l.Ticket(ledger.DefaultPool, ticket) })
	return v
}

func waiterOf(r *Replica, ticket string) *ledger.WaiterView { return ticketOf(r, ticket).Waiter }
func leaseOf(r *Replica, ticket string) *ledger.LeaseView   { return ticketOf(r, ticket).Lease }

// journal returns the events so far.
func journal(t *testing.T, r *Replica, q store.JournalQuery) (out []*fsmpb.Event) {
	t.Helper()
	q.Limit = 100_000
	page, err := r.Journal(t.Context(), true, q)
	must(t, err)
	for _, rec := range page.Events {
		e, err := DecodeEvent(rec.Data)
		must(t, err)
		out = append(out, e)
	}
	return out
}

// await waits for an event of a ticket and returns it.
func await(t *testing.T, r *Replica, kind ledger.Kind, ticket string) (found *fsmpb.Event) {
	t.Helper()
	eventually(t, fmt.Sprintf("%s is %s", ticket, kind), func() bool {
		for _, e := range journal(t, r, store.JournalQuery{Ticket: ticket, Kinds: []string{string(kind)}}) {
			found = e
		}
		return found != nil
	})
	return found
}

// story is the journal in short.
func story(t *testing.T, r *Replica, kinds ...ledger.Kind) (out []string) {
	t.Helper()
	var q store.JournalQuery
	for _, k := range kinds {
		q.Kinds = append(q.Kinds, string(k))
	}
	for _, e := range journal(t, r, q) {
		out = append(out, e.Kind+" "+e.Ticket)
	}
	return out
}
