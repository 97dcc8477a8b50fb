package client

import (
	"context"
	"io"
	"log/slog"
	"net"
	"net/http"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"connectrpc.com/connect"

	kvgatev1 "kvgate/rpc/kvgate/v1"
	"kvgate/rpc/kvgate/v1/kvgatev1connect"
)

// fault is what goes wrong with one call. The zero value is a call that works.
type fault struct {
	err     error // answered instead of doing anything
	delay   time.Duration
	hang    bool // never answers
	html    int  // a page with this status, as from a proxy
	loseIt  bool // does it, then cuts the connection
	answer  *kvgatev1.AcquireResponse
	leaders string // Kvgate-Leader of the answer
}

// fakeNode serves a ledger that it may share with other nodes.
type fakeNode struct {
	kvgatev1connect.UnimplementedAdmissionServiceHandler
	kvgatev1connect.UnimplementedObserveServiceHandler
	kvgatev1connect.UnimplementedSessionServiceHandler

	ledger *fakeLedger
	server *http.Server

	mu     sync.Mutex
	script func(call string) fault
	calls  []string
}

type connKey struct{}

func newFakeNode(ledger *fakeLedger) *fakeNode {
	n := &fakeNode{ledger: ledger}
	mux := http.NewServeMux()
	mux.Handle(kvgatev1connect.NewAdmissionServiceHandler(n))
	mux.Handle(kvgatev1connect.NewObserveServiceHandler(n))
	mux.Handle(kvgatev1connect.NewSessionServiceHandler(n))
	protocols := new(http.Protocols)
	protocols.SetUnencryptedHTTP2(true)
	n.server = &http.Server{
		Handler: n.faulty(mux), Protocols: protocols,
		HTTP2: &http.HTTP2Config{MaxConcurrentStreams: 10000},
		ConnContext: func(ctx context.Context, conn net.Conn) context.Context {
			return context.WithValue(ctx, connKey{}, conn)
		},
	}
	return n
}

// during makes the node work as script says, from now on. nil means without faults.
func (n *fakeNode) during(script func(call string) fault) {
	n.mu.Lock()
	defer n.mu.Unlock()
	n.script = script
}

func (n *fakeNode) count(call string) int {
	n.mu.Lock()
	defer n.mu.Unlock()
	count := 0
	for _, c := range n.calls {
		if c == call {
			count++
		}
	}
	return count
}

type faultKey struct{}

func (n *fakeNode) faulty(next http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		call := r.URL.Path[strings.LastIndex(r.URL.Path, "/")+1:]
		n.mu.Lock()
		n.calls = append(n.calls, call)
		var f fault
		if n.script != nil {
			f = n.script(call)
		}
		n.mu.Unlock()
		if f.hang {
			<-r.Context().Done()
			return
		}
		if f.delay > 0 && !sleep(r.Context(), f.delay) {
			return
		}
		if f.leaders != "" {
			w.Header().Set(leaderHeader, f.leaders)
		}
		if f.html != 0 {
			w.Header().Set("Content-Type", "text/html")
			w.WriteHeader(f.html)
			_, _ = io.WriteString(w, "<html>it works</html>")
			return
		}
		next.ServeHTTP(w, r.WithContext(context.WithValue(r.Context(), faultKey{}, f)))
		if f.loseIt {
			_ = r.Context().Value(connKey{}).(net.Conn).Close()
			panic(http.ErrAbortHandler)
		}
	})
}

// serve does one call, or what its fault says.
func serve[Req, Res any](ctx context.Context, req *connect.Request[Req], do func(*Req) (*Res, error)) (*connect.Response[Res], error) {
	f := ctx.Value(faultKey{}).(fault)
	if f.err != nil {
		return nil, f.err
	}
	if answer, ok := any(f.answer).(*Res); ok && answer != nil && f.answer != nil {
		return connect.NewResponse(answer), nil
	}
	res, err := do(req.Msg)
	if err != nil {
		return nil, err
	}
	if f.loseIt {
		_ = ctx.Value(connKey{}).(net.Conn).Close()
	}
	return connect.NewResponse(res), nil
}

func (n *fakeNode) Acquire(ctx context.Context, req *connect.Request[kvgatev1.AcquireRequest]) (*connect.Response[kvgatev1.AcquireResponse], error) {
	return serve(ctx, req, func(r *kvgatev1.AcquireRequest) (*kvgatev1.AcquireResponse, error) { return n.ledger.acquire(ctx, r) })
}

func (n *fakeNode) Release(ctx context.Context, req *connect.Request[kvgatev1.ReleaseRequest]) (*connect.Response[kvgatev1.ReleaseResponse], error) {
	return serve(ctx, req, func(r *kvgatev1.ReleaseRequest) (*kvgatev1.ReleaseResponse, error) { return n.ledger.release(r), nil })
}

func (n *fakeNode) Cancel(ctx context.Context, req *connect.Request[kvgatev1.CancelRequest]) (*connect.Response[kvgatev1.CancelResponse], error) {
	return serve(ctx, req, func(r *kvgatev1.CancelRequest) (*kvgatev1.CancelResponse, error) { return n.ledger.cancel(r), nil })
}

func (n *fakeNode) Renew(ctx context.Context, req *connect.Request[kvgatev1.RenewRequest]) (*connect.Response[kvgatev1.RenewResponse], error) {
	return serve(ctx, req, func(r *kvgatev1.RenewRequest) (*kvgatev1.RenewResponse, error) { return n.ledger.renew(r), nil })
}

func (n *fakeNode) Heartbeat(ctx context.Context, req *connect.Request[kvgatev1.HeartbeatRequest]) (*connect.Response[kvgatev1.HeartbeatResponse], error) {
	return serve(ctx, req, func(*kvgatev1.HeartbeatRequest) (*kvgatev1.HeartbeatResponse, error) {
		return n.ledger.heartbeat(), nil
	})
}

func (n *fakeNode) GetBudget(ctx context.Context, req *connect.Request[kvgatev1.GetBudgetRequest]) (*connect.Response[kvgatev1.GetBudgetResponse], error) {
	return serve(ctx, req, func(r *kvgatev1.GetBudgetRequest) (*kvgatev1.GetBudgetResponse, error) {
		return &kvgatev1.GetBudgetResponse{Pool: r.GetPool(), Ceiling: n.ledger.capacity}, nil
	})
}

func (n *fakeNode) DrainStep(ctx context.Context, req *connect.Request[kvgatev1.DrainStepRequest]) (*connect.Response[kvgatev1.DrainStepResponse], error) {
	return serve(ctx, req, func(r *kvgatev1.DrainStepRequest) (*kvgatev1.DrainStepResponse, error) {
		return &kvgatev1.DrainStepResponse{Step: r.GetStep(), Metrics: map[string]float64{"agentic_kv/budget/ceiling": 1}}, nil
	})
}

// memNet is a network in memory, so that a test may run in a synctest bubble.
type memNet struct {
	mu        sync.Mutex
	listeners map[string]*memListener
	holes     map[string]bool // accept, and never answer
	dials     map[string]int
}

func newMemNet() *memNet {
	return &memNet{listeners: map[string]*memListener{}, holes: map[string]bool{}, dials: map[string]int{}}
}

func (m *memNet) listen(address string) *memListener {
	l := &memListener{conns: make(chan net.Conn), closed: make(chan struct{})}
	m.mu.Lock()
	defer m.mu.Unlock()
	m.listeners[address] = l
	return l
}

func (m *memNet) hole(address string) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.holes[address] = true
}

func (m *memNet) dial(ctx context.Context, network, address string) (net.Conn, error) {
	m.mu.Lock()
	l, hole := m.listeners[address], m.holes[address]
	m.dials[address]++
	m.mu.Unlock()
	refused := &net.OpError{Op: "dial", Net: network, Err: syscall.ECONNREFUSED}
	if l == nil && !hole {
		return nil, refused
	}
	mine, theirs := net.Pipe()
	if hole {
		go func() { _, _ = io.Copy(io.Discard, theirs) }()
		return mine, nil
	}
	select {
	case l.conns <- theirs:
		return mine, nil
	case <-l.closed:
		return nil, refused
	case <-ctx.Done():
		return nil, ctx.Err()
	}
}

type memListener struct {
	conns  chan net.Conn
	once   sync.Once
	closed chan struct{}
}

func (l *memListener) Accept() (net.Conn, error) {
	select {
	case conn := <-l.conns:
		return conn, nil
	case <-l.closed:
		return nil, net.ErrClosed
	}
}

func (l *memListener) Close() error {
	l.once.Do(func() { close(l.closed) })
	return nil
}

func (l *memListener) Addr() net.Addr { return &net.UnixAddr{Name: "memory", Net: "memory"} }

// world is a cluster of fake nodes in memory and a client of it.
type world struct {
	*testing.T
	net    *memNet
	ledger *fakeLedger
	nodes  map[string]*fakeNode
	client *Client
}

// newWorld serves every address in up; the client knows them and those in down, in that order after
// first.
func newWorld(t *testing.T, addresses []string, up []string, opts ...Option) *world {
	t.Helper()
	w := &world{T: t, net: newMemNet(), ledger: newFakeLedger(100), nodes: map[string]*fakeNode{}}
	for _, address := range up {
		node := newFakeNode(w.ledger)
		w.nodes[address] = node
		listener := w.net.listen(address)
		go func() { _ = node.server.Serve(listener) }()
		t.Cleanup(func() { _ = node.server.Close() })
	}
	urls := make([]string, len(addresses))
	for i, address := range addresses {
		urls[i] = "http://" + address
	}
	inMemory := func(c *config) { c.dial = w.net.dial }
	opts = append([]Option{inMemory, WithHolderID("h1"), WithLogger(slog.New(slog.DiscardHandler))}, opts...)
	c, err := New(urls, opts...)
	if err != nil {
		t.Fatal(err)
	}
	w.client = c
	t.Cleanup(func() {
		ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
		defer cancel()
		_ = c.Close(ctx)
	})
	return w
}

func (w *world) acquire(ticket string, edit ...func(*Request)) *Grant {
	w.Helper()
	req := Request{Ticket: ticket, PromptTokens: 10}
	for _, e := range edit {
		e(&req)
	}
	grant, err := w.client.Acquire(context.Background(), req)
	if err != nil {
		w.Fatalf("Acquire(%s): %v", ticket, err)
	}
	return grant
}

func (w *world) wantDecision(g *Grant, action Action, reason Reason) {
	w.Helper()
	if g.Action != action || g.Reason != reason {
		w.Fatalf("%s: got %v %v (cause %v), want %v %v", g.Ticket, g.Action, g.Reason, g.Cause, action, reason)
	}
}

func (w *world) wantSizes(leases, waiters int) {
	w.Helper()
	if l, q := w.ledger.sizes(); l != leases || q != waiters {
		w.Fatalf("ledger holds %d leases and %d waiters, want %d and %d", l, q, leases, waiters)
	}
}

func (w *world) close() {
	w.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	defer cancel()
	if err := w.client.Close(ctx); err != nil {
		w.Fatalf("Close: %v", err)
	}
}

func always(f fault) func(string) fault { return func(string) fault { return f } }

// on makes the first times calls of one kind fail, or all when times is 0.
func on(call string, times int, f fault) func(string) fault {
	seen := 0
	return func(c string) fault {
		if c != call {
			return fault{}
		}
		if seen++; times > 0 && seen > times {
			return fault{}
		}
		return f
	}
}
