package fsm

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/http"
	"sync"
	"sync/atomic"
	"time"

	"connectrpc.com/connect"

	"kvgate/fsm/fsmpb"
	"kvgate/fsm/fsmpb/fsmpbconnect"
	"kvgate/fsm/peer"
	"kvgate/ledger"
)

// peers calls the other nodes and answers their calls, over the raft port.
type peers struct {
	replica   *Replica
	network   *peer.Network
	transport *http.Transport
	server    *http.Server

	// writes is the newest command version that every member is known to apply.
	writes atomic.Uint32

	// mu guards clients and seen.
	mu      sync.Mutex
	clients map[string]fsmpbconnect.PeerServiceClient
	// seen holds what the other members last said, by node id.
	seen map[string]described
}

type described struct {
	*fsmpb.DescribeResponse
	at time.Time
	// lag is how far its applied index was behind what was committed when it was asked.
	lag uint64
}

const (
	// maxPeerStreams is far above what waiting tickets need: each forwarded Acquire holds a stream.
	maxPeerStreams = 250_000
	// dialLimit bounds how long a call waits for a connection to a node that may be gone.
	dialLimit     = time.Second
	describeEvery = time.Second
	describeLimit = 500 * time.Millisecond
	// forgetAfter is how old an answer may be before its node counts as unreachable.
	forgetAfter = 3 * time.Second
)

// errNotDialled: the other node was not reached, so it never had the call.
var errNotDialled = errors.New("no connection")

func newPeers(r *Replica, network *peer.Network) *peers {
	p := &peers{replica: r, network: network, clients: map[string]fsmpbconnect.PeerServiceClient{}, seen: map[string]described{}}
	p.writes.Store(OldestVersion)
	cleartext := new(http.Protocols)
	cleartext.SetUnencryptedHTTP2(true)
	p.transport = &http.Transport{
		Protocols: cleartext,
		DialContext: func(ctx context.Context, _, addr string) (net.Conn, error) {
			ctx, cancel := context.WithTimeout(ctx, dialLimit)
			defer cancel()
			conn, err := network.Dial(ctx, addr)
			if err != nil {
				err = fmt.Errorf("%w: %w", errNotDialled, err)
			}
			return conn, err
		},
		HTTP2: &http.HTTP2Config{SendPingTimeout: time.Second, PingTimeout: time.Second},
	}
	mux := http.NewServeMux()
	mux.Handle(fsmpbconnect.NewPeerServiceHandler(p, connect.WithCompressMinBytes(64<<10)))
	p.server = &http.Server{
		Handler: mux, Protocols: cleartext, HTTP2: &http.HTTP2Config{MaxConcurrentStreams: maxPeerStreams},
		ReadHeaderTimeout: 10 * time.Second,
	}
	return p
}

// serve answers calls until the network closes.
func (p *peers) serve() {
	_ = p.server.Serve(p.network.Calls())
}

func (p *peers) close() {
	_ = p.server.Close()
	p.transport.CloseIdleConnections()
}

func (p *peers) client(addr string) fsmpbconnect.PeerServiceClient {
	p.mu.Lock()
	defer p.mu.Unlock()
	c, ok := p.clients[addr]
	if !ok {
		c = fsmpbconnect.NewPeerServiceClient(&http.Client{Transport: p.transport}, "http://"+addr, connect.WithSendCompression(""))
		p.clients[addr] = c
	}
	return c
}

// do has another node decide an operation.
func (p *peers) do(ctx context.Context, addr string, op *fsmpb.Op) (Result, error) {
	call, cancel := undated(ctx)
	defer cancel()
	res, err := p.client(addr).Do(call, connect.NewRequest(&fsmpb.DoRequest{Op: op}))
	if err != nil {
		return Result{}, unreached(ctx, err)
	}
	r := decodeResult(res.Msg.Result)
	if retriable(r.Err) || errors.Is(r.Err, ErrTimeout) || errors.Is(r.Err, ErrReadOnly) {
		return Result{}, r.Err
	}
	return r, nil
}

// undated returns a context that ends with ctx but does not say when: with a deadline the leader would end
// the call a moment before this node does, and say that it could not decide, where it is the caller whose
// time is over.
func undated(ctx context.Context) (context.Context, context.CancelFunc) {
	call, cancel := context.WithCancel(context.WithoutCancel(ctx))
	stop := context.AfterFunc(ctx, cancel)
	return call, func() { stop(); cancel() }
}

// unreached says that nobody knows what became of a call. Why is told in words only: the deadline of a dial
// or the other node's code is not the caller's.
func unreached(ctx context.Context, err error) error {
	if ctx.Err() != nil {
		return context.Cause(ctx)
	}
	if errors.Is(err, errNotDialled) {
		return fmt.Errorf("%w: %w: %v", ErrLeadershipLost, errNotDialled, err) //nolint:errorlint // see above
	}
	return fmt.Errorf("%w: the leader did not answer: %v", ErrLeadershipLost, err) //nolint:errorlint // see above
}

// Do implements the peer service. It never forwards: a node that does not lead says so.
func (p *peers) Do(ctx context.Context, req *connect.Request[fsmpb.DoRequest]) (*connect.Response[fsmpb.DoResponse], error) {
	res, err := p.replica.doHere(ctx, req.Msg.Op)
	if err != nil && ctx.Err() != nil {
		err = fmt.Errorf("%w: %w", ErrTimeout, err) // the caller's time is over, which is not this node's error
	}
	if err != nil {
		res = Result{Err: err}
	}
	return connect.NewResponse(&fsmpb.DoResponse{Result: encodeResult(res)}), nil
}

// ReadIndex implements the peer service.
func (p *peers) ReadIndex(ctx context.Context, _ *connect.Request[fsmpb.ReadIndexRequest]) (*connect.Response[fsmpb.ReadIndexResponse], error) {
	if err := p.replica.verifyLead(ctx); err != nil {
		return nil, connect.NewError(connect.CodeUnavailable, err)
	}
	return connect.NewResponse(&fsmpb.ReadIndexResponse{Index: p.replica.machine.applied.Load()}), nil
}

// Beat implements the peer service.
func (p *peers) Beat(ctx context.Context, req *connect.Request[fsmpb.BeatRequest]) (*connect.Response[fsmpb.BeatResponse], error) {
	s, err := p.replica.beatHere(ctx, req.Msg.Holder)
	if err != nil {
		return nil, connect.NewError(connect.CodeUnavailable, err)
	}
	return connect.NewResponse(&fsmpb.BeatResponse{Ttl: int64(s.TTL), Leases: s.Leases, Waiters: s.Waiters}), nil
}

// Describe implements the peer service.
func (p *peers) Describe(context.Context, *connect.Request[fsmpb.DescribeRequest]) (*connect.Response[fsmpb.DescribeResponse], error) {
	return connect.NewResponse(p.replica.describe()), nil
}

// describe asks one node what it knows of itself.
func (p *peers) describe(ctx context.Context, addr string) (*fsmpb.DescribeResponse, error) {
	ctx, cancel := context.WithTimeout(ctx, describeLimit)
	defer cancel()
	res, err := p.client(addr).Describe(ctx, connect.NewRequest(&fsmpb.DescribeRequest{}))
	if err != nil {
		return nil, err
	}
	return res.Msg, nil
}

// watch keeps seen current until ctx ends.
func (p *peers) watch(ctx context.Context) {
	ticker := time.NewTicker(describeEvery)
	defer ticker.Stop()
	for {
		var wg sync.WaitGroup
		for _, n := range p.replica.members() {
			if n.ID == p.replica.opts.NodeID {
				continue
			}
			wg.Go(func() { p.look(ctx, n.ID, n.Address) })
		}
		wg.Wait()
		p.writes.Store(p.common())
		select {
		case <-ctx.Done():
			return
		case <-ticker.C:
		}
	}
}

// common returns the newest command version that every member applies. A member that was never heard
// of counts as the oldest; one that is down as what it last said. What was written once is known to all.
func (p *peers) common() uint32 {
	version, written := p.replica.opts.CommandVersion, uint32(0)
	p.replica.machine.view(func(l *ledger.Ledger) { written = l.Meta().Version })
	p.mu.Lock()
	defer p.mu.Unlock()
	for _, m := range p.replica.members() {
		if m.ID == p.replica.opts.NodeID {
			continue
		}
		said := OldestVersion
		if d, ok := p.seen[m.ID]; ok {
			said = d.CommandVersion
		}
		version = min(version, max(said, OldestVersion))
	}
	return max(version, written)
}

func (p *peers) look(ctx context.Context, id, addr string) {
	committed := p.replica.raft.CommitIndex()
	d, err := p.describe(ctx, addr)
	if err != nil || d.NodeId != id {
		return
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	p.seen[id] = described{d, p.replica.now(), committed - min(committed, d.AppliedIndex)}
}

// forget drops what a member said.
func (p *peers) forget(id string) {
	p.mu.Lock()
	defer p.mu.Unlock()
	delete(p.seen, id)
}

// known returns what a member said lately.
func (p *peers) known(id string) (described, bool) {
	p.mu.Lock()
	defer p.mu.Unlock()
	d, ok := p.seen[id]
	if !ok || p.replica.now().Sub(d.at) > forgetAfter {
		return described{}, false
	}
	return d, true
}

func holderStatus(m *fsmpb.BeatResponse) HolderStatus {
	return HolderStatus{TTL: time.Duration(m.Ttl), Leases: m.Leases, Waiters: m.Waiters}
}

var _ fsmpbconnect.PeerServiceHandler = (*peers)(nil)
