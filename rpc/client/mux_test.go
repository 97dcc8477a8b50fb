package client

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"math/rand/v2"
	"net"
	"net/http"
	"net/http/httptest"
	"net/http/httputil"
	"net/url"
	"strings"
	"sync"
	"testing"
	"time"

	"kvgate/fsm"
	"kvgate/ledger"
	"kvgate/rpc"
)

// realNode is a node as it is served, whose default pool has a budget of tokens. What comes before it may
// refuse calls, or cut connections.
type realNode struct {
	replica *fsm.Replica
	url     string

	mu sync.Mutex
	// refused are calls that answer 404, as those of an older server.
	refused []string
	seen    map[string]int
	cut     func(call string) bool
	// hangs is a call that is never answered.
	hangs string
}

const nodePatience = 30 * time.Second

func within(t *testing.T, what string, ok func() bool) {
	t.Helper()
	deadline := time.After(nodePatience)
	ticker := time.NewTicker(5 * time.Millisecond)
	defer ticker.Stop()
	for !ok() {
		select {
		case <-ticker.C:
		case <-deadline:
			t.Fatalf("after %v still not so: %s", nodePatience, what)
		}
	}
}

func startRealNode(t *testing.T, tokens ledger.Tokens, refused ...string) *realNode {
	t.Helper()
	r, err := fsm.Open(fsm.Options{
		NodeID: "n1", DataDir: t.TempDir(), RaftListen: "127.0.0.1:0", Bootstrap: true, Log: slog.New(slog.DiscardHandler),
	})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = r.Close() })
	within(t, "the node leads", func() bool { return r.Status().Ready })
	patch := ledger.Patch{Set: ledger.Settings{Headroom: 1, Staleness: time.Hour}, Fields: []string{"headroom", "staleness"}}
	if _, err := r.UpdateSettings(t.Context(), ledger.DefaultPool, patch); err != nil {
		t.Fatal(err)
	}
	if err := r.Reconcile(t.Context(), ledger.DefaultPool, ledger.Round{
		Fresh: true, Discovery: "static", Engines: []ledger.Engine{{URL: "http://e:1", Healthy: true, Capacity: tokens}},
	}); err != nil {
		t.Fatal(err)
	}
	n := &realNode{replica: r, refused: refused, seen: map[string]int{}}
	n.serve(t)
	return n
}

func (n *realNode) serve(t *testing.T) {
	t.Helper()
	srv, err := rpc.New(rpc.Options{Backend: n.replica, Log: slog.New(slog.DiscardHandler)})
	if err != nil {
		t.Fatal(err)
	}
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	server := srv.HTTPServer()
	server.Handler = n.before(server.Handler)
	server.ConnContext = func(ctx context.Context, conn net.Conn) context.Context {
		return context.WithValue(ctx, connKey{}, conn)
	}
	done := make(chan struct{})
	go func() { defer close(done); _ = server.Serve(listener) }()
	t.Cleanup(func() { _ = server.Close(); <-done })
	n.url = "http://" + listener.Addr().String()
}

func (n *realNode) before(next http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		call := r.URL.Path[strings.LastIndex(r.URL.Path, "/")+1:]
		n.mu.Lock()
		n.seen[call]++
		cut := n.cut
		refused := false
		for _, name := range n.refused {
			refused = refused || name == call
		}
		n.mu.Unlock()
		if refused {
			http.NotFound(w, r)
			return
		}
		if call == n.hangs {
			<-r.Context().Done()
			return
		}
		switch {
		case cut == nil || !cut(call):
		case call == "Exchange": // breaks in its middle
			conn := r.Context().Value(connKey{}).(net.Conn)
			defer time.AfterFunc(10*time.Millisecond, func() { _ = conn.Close() }).Stop()
		default:
			_ = r.Context().Value(connKey{}).(net.Conn).Close()
			panic(http.ErrAbortHandler)
		}
		next.ServeHTTP(w, r)
	})
}

func (n *realNode) calls(call string) int {
	n.mu.Lock()
	defer n.mu.Unlock()
	return n.seen[call]
}

func (n *realNode) budget() (b ledger.Budget) {
	_ = n.replica.View(context.Background(), true, func(l *ledger.Ledger) { b, _ = l.Budget(ledger.DefaultPool) })
	return b
}

// empty waits until nothing is left of anybody.
func (n *realNode) empty(t *testing.T) {
	t.Helper()
	within(t, "neither lease nor waiter is left", func() bool {
		b := n.budget()
		return b.Leases == 0 && b.Waiting == 0 && b.Reserved == 0
	})
}

func (n *realNode) client(t *testing.T, opts ...Option) *Client {
	t.Helper()
	c, err := New([]string{n.url}, append([]Option{
		WithLogger(slog.New(slog.DiscardHandler)), WithRetry(time.Millisecond, 20*time.Millisecond), WithDecisionBudget(nodePatience),
	}, opts...)...)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = c.Close(context.Background()) })
	return c
}

func closeSoon(t *testing.T, c *Client) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), nodePatience)
	defer cancel()
	if err := c.Close(ctx); err != nil {
		t.Error(err)
	}
}

// muxModes are the ways to carry tickets, by what the server refuses to know.
var muxModes = []struct {
	name    string
	refused []string
	uses    string
}{
	{"stream", nil, "Exchange"},
	{"batch", []string{"Exchange"}, "Submit"},
	{"call", []string{"Exchange", "Submit", "AwaitGrants"}, "Acquire"},
}

// TestEveryMode grants, makes wait, renews, cancels and releases, by the calls that it is made of.
func TestEveryMode(t *testing.T) {
	for _, mode := range muxModes {
		t.Run(mode.name, func(t *testing.T) {
			n := startRealNode(t, 100, mode.refused...)
			c := n.client(t)
			first, err := c.Acquire(t.Context(), Request{Ticket: "a", ReservationTokens: 100})
			if err != nil || first.Action != Admit {
				t.Fatalf("%+v, %v", first, err)
			}
			granted := make(chan *Grant)
			go func() {
				g, err := c.Acquire(t.Context(), Request{Ticket: "b", ReservationTokens: 100, MaxWait: time.Hour})
				if err != nil {
					t.Error(err)
				}
				granted <- g
			}()
			within(t, "b waits", func() bool { return n.budget().Waiting == 1 })
			if err := first.Renew(t.Context(), time.Minute); err != nil {
				t.Error(err)
			}
			first.Release(Usage{PromptTokens: 3})
			if g := <-granted; g == nil || g.Action != Admit || g.Waited <= 0 {
				t.Errorf("b got %+v", g)
			}
			if was, err := c.Cancel(t.Context(), "", "b"); err != nil || was.String() != "CANCEL_STATE_LEASED" {
				t.Errorf("cancel: %v, %v", was, err)
			}
			var failed *Error
			if _, err := c.Release(t.Context(), "", "x", Usage{PromptTokens: -1}); !errors.As(err, &failed) || failed.Field != "usage.promptTokens" {
				t.Errorf("a bad release: %v", err)
			}
			closeSoon(t, c)
			n.empty(t)
			if n.calls(mode.uses) == 0 || mode.uses != "Acquire" && n.calls("Acquire") > 0 {
				t.Errorf("calls: %v", n.seen)
			}
			if s := c.Stats(); s.Admitted != 2 || s.Degraded != 0 || s.Errors > 1 || s.Retries != 0 {
				t.Errorf("stats %+v", s)
			}
		})
	}
}

// TestBatchesOverHTTP1: a client without HTTP/2 has no streams, and needs no more than batches.
func TestBatchesOverHTTP1(t *testing.T) {
	n := startRealNode(t, 100)
	transport := &http.Transport{}
	defer transport.CloseIdleConnections()
	c := n.client(t, WithHTTPClient(&http.Client{Transport: transport}))
	g, err := c.Acquire(t.Context(), Request{Ticket: "a", ReservationTokens: 100})
	if err != nil || g.Action != Admit {
		t.Fatalf("%+v, %v", g, err)
	}
	g.Release()
	closeSoon(t, c)
	n.empty(t)
	if n.calls("Submit") == 0 || n.calls("Acquire") != 0 {
		t.Errorf("calls: %v", n.seen)
	}
}

// TestProxyThatSpeaksHTTP1 in between is found out without being told: batches pass, and nothing degrades.
func TestProxyThatSpeaksHTTP1(t *testing.T) {
	n := startRealNode(t, 100)
	target, err := url.Parse(n.url)
	if err != nil {
		t.Fatal(err)
	}
	backend := &http.Transport{}
	defer backend.CloseIdleConnections()
	forward := httputil.NewSingleHostReverseProxy(target)
	forward.Transport = backend
	proxy := httptest.NewServer(forward)
	defer proxy.Close()
	n.url = proxy.URL
	c := n.client(t)
	for _, ticket := range []string{"a", "b"} {
		g, err := c.Acquire(t.Context(), Request{Ticket: ticket, ReservationTokens: 50})
		if err != nil || g.Action != Admit {
			t.Fatalf("%+v, %v", g, err)
		}
		defer g.Release()
	}
	if b, err := c.Budget(t.Context(), ""); err != nil || b.Leases != 2 {
		t.Errorf("budget %v, %v", b, err)
	}
	for _, ticket := range []string{"a", "b"} {
		if _, err := c.Release(t.Context(), "", ticket); err != nil {
			t.Error(err)
		}
	}
	closeSoon(t, c)
	n.empty(t)
	if n.calls("Submit") == 0 || n.calls("Acquire") != 0 || c.Stats().Degraded != 0 {
		t.Errorf("calls: %v, stats %+v", n.seen, c.Stats())
	}
}

// TestSlowTicketDelaysNobody: while one waits, others come and go.
func TestSlowTicketDelaysNobody(t *testing.T) {
	for _, mode := range muxModes {
		t.Run(mode.name, func(t *testing.T) {
			n := startRealNode(t, 100, mode.refused...)
			c := n.client(t)
			if _, err := c.Acquire(t.Context(), Request{Ticket: "held", ReservationTokens: 60}); err != nil {
				t.Fatal(err)
			}
			ctx, cancel := context.WithCancel(t.Context())
			left := make(chan error)
			go func() {
				_, err := c.Acquire(ctx, Request{Ticket: "slow", ReservationTokens: 100, MaxWait: time.Hour, Priority: -1})
				left <- err
			}()
			within(t, "slow waits", func() bool { return n.budget().Waiting == 1 })
			for i := range 50 {
				g, err := c.Acquire(t.Context(), Request{Ticket: fmt.Sprint("quick", i), ReservationTokens: 40})
				if err != nil || g.Action != Admit {
					t.Fatalf("%+v, %v", g, err)
				}
				if err := g.ReleaseWait(t.Context()); err != nil {
					t.Fatal(err)
				}
			}
			cancel()
			if err := <-left; !errors.Is(err, context.Canceled) {
				t.Error(err)
			}
			closeSoon(t, c)
			n.empty(t)
		})
	}
}

// TestMuxStorm: hundreds of tickets whose callers leave at random, over connections that are cut at
// random, against a real node. Afterwards nothing of theirs is left, and nobody met an error.
func TestMuxStorm(t *testing.T) {
	seed := *stormSeed
	if seed == 0 {
		seed = rand.Uint64()
	}
	t.Logf("seed %d", seed)
	for _, mode := range muxModes {
		t.Run(mode.name, func(t *testing.T) {
			n := startRealNode(t, 200, mode.refused...)
			var mu sync.Mutex
			random := rand.New(rand.NewPCG(seed, 1))
			n.cut = func(call string) bool {
				mu.Lock()
				defer mu.Unlock()
				// Every connection carries hundreds of calls when each operation is one.
				return call == "Exchange" && random.IntN(2) == 0 || random.IntN(map[bool]int{true: 400, false: 10}[mode.uses == "Acquire"]) == 0
			}
			c := n.client(t)
			var wg sync.WaitGroup
			for i := range 300 {
				wg.Go(func() { stormWorker(t, c, rand.New(rand.NewPCG(seed, 1000+uint64(i))), i) })
			}
			wg.Wait()
			n.mu.Lock()
			n.cut = nil
			n.mu.Unlock()
			closeSoon(t, c)
			n.empty(t)
			if s := c.Stats(); s.Admitted == 0 || s.Cancelled == 0 || s.Unsettled != 0 {
				t.Errorf("stats %+v", s)
			}
		})
	}
}

// TestStreamThatPassesNothing is left for batches: something in between may hold streams up.
func TestStreamThatPassesNothing(t *testing.T) {
	n := startRealNode(t, 100)
	n.hangs = "Exchange"
	c := n.client(t, WithAttemptTimeout(200*time.Millisecond))
	for range 2 {
		if _, err := c.Cancel(t.Context(), "", "x"); err != nil {
			t.Fatal(err)
		}
	}
	closeSoon(t, c)
	if n.calls("Submit") == 0 {
		t.Errorf("calls: %v", n.seen)
	}
}
