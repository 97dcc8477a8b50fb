package peer

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"sync"
	"sync/atomic"
	"time"

	"github.com/hashicorp/raft"
	"golang.org/x/time/rate"
)

// warnEvery is how often a connection that cannot be made secure is worth a line.
const warnEvery = 5 * time.Second

// Options configure a Network.
type Options struct {
	// Listen is the HOST:PORT to listen on.
	Listen string
	// Advertise is the HOST:PORT under which other nodes reach this one; a name is resolved at every
	// dial. Empty means the address listened on.
	Advertise string
	// Self says who this node is. It is asked at every handshake and must not block.
	Self func() Identity
	// ServerTLS and ClientTLS secure the connections; nil means plain TCP. Both or none. ClientTLS is asked
	// at every dial, with the host that is dialled.
	ServerTLS *tls.Config
	ClientTLS func(serverName string) *tls.Config
	Log       *slog.Logger
}

// Network is one listener shared by raft and the calls between nodes. It runs until Close.
type Network struct {
	opts     Options
	listener net.Listener
	address  address
	dialer   net.Dialer
	raft     *port
	calls    *port
	// warn keeps a certificate that nobody accepts from writing a line per dial.
	warn rate.Sometimes

	// holds is whether connections of raft are closed at once.
	holds atomic.Bool

	// mu guards dialled, the connections that raft made and has not closed; nil once severed.
	mu      sync.Mutex
	dialled map[*tracked]struct{}

	ctx    context.Context
	cancel context.CancelFunc
	done   sync.WaitGroup
}

// Listen opens the listener and begins to accept.
func Listen(opts Options) (*Network, error) {
	if opts.Self == nil || (opts.ServerTLS == nil) != (opts.ClientTLS == nil) {
		return nil, errors.New("peer network needs an identity, and TLS for both sides or none")
	}
	if opts.Log == nil {
		opts.Log = slog.Default()
	}
	l, err := net.Listen("tcp", opts.Listen)
	if err != nil {
		return nil, fmt.Errorf("listen for other nodes: %w", err)
	}
	n := &Network{opts: opts, listener: l, address: address(opts.Advertise), warn: rate.Sometimes{Interval: warnEvery}, dialled: map[*tracked]struct{}{}}
	if _, port, err := net.SplitHostPort(opts.Advertise); err != nil || port == "0" {
		n.address = address(l.Addr().String())
	}
	n.ctx, n.cancel = context.WithCancel(context.Background())
	n.raft, n.calls = newPort(n.address), newPort(n.address)
	n.done.Add(1)
	go n.accept()
	return n, nil
}

// address is a HOST:PORT whose host may be a name.
type address string

func (a address) Network() string { return "tcp" }
func (a address) String() string  { return string(a) }

// Address returns the HOST:PORT under which other nodes reach this one.
func (n *Network) Address() string { return string(n.address) }

// Calls returns the listener of calls from other nodes.
func (n *Network) Calls() net.Listener { return n.calls }

// Close stops listening; closing again does nothing. Connections that were handed out stay their owners'.
func (n *Network) Close() error {
	n.cancel()
	err := n.listener.Close()
	if errors.Is(err, net.ErrClosed) {
		err = nil
	}
	n.raft.shut()
	n.calls.shut()
	n.done.Wait()
	return err
}

// accept hands connections on. A connection that does not finish its hello costs one goroutine for the
// length of the handshake timeout.
func (n *Network) accept() {
	defer n.done.Done()
	for {
		conn, err := n.listener.Accept()
		if err != nil {
			if n.ctx.Err() != nil {
				return
			}
			n.opts.Log.Warn("accepting a connection of another node", "error", err)
			select {
			case <-n.ctx.Done():
				return
			case <-time.After(50 * time.Millisecond):
			}
			continue
		}
		n.done.Add(1)
		go n.sort(conn)
	}
}

func (n *Network) sort(conn net.Conn) {
	defer n.done.Done()
	plain := conn
	stop := context.AfterFunc(n.ctx, func() { _ = plain.Close() })
	from := conn.RemoteAddr().String()
	var kind Kind
	conn, err := n.secureServer(n.ctx, conn)
	if err == nil {
		kind, err = welcome(conn, n.opts.Self())
	}
	stop()
	if err != nil {
		n.opts.Log.Warn("connection of another node refused", "from", from, "error", err)
		_ = conn.Close()
		return
	}
	p := n.calls
	if kind == KindRaft {
		p = n.raft
	}
	if kind == KindRaft && n.holds.Load() {
		_ = conn.Close()
		return
	}
	p.hand(conn)
}

// Dial connects to another node for calls.
func (n *Network) Dial(ctx context.Context, addr string) (net.Conn, error) {
	return n.dial(ctx, addr, KindCall, handshakeTimeout)
}

func (n *Network) dial(ctx context.Context, addr string, kind Kind, timeout time.Duration) (net.Conn, error) {
	ctx, cancel := context.WithTimeout(ctx, timeout)
	defer cancel()
	conn, err := n.dialer.DialContext(ctx, "tcp", addr)
	if err != nil {
		return nil, err
	}
	secure, err := n.secureClient(ctx, conn, addr)
	if err == nil {
		stop := context.AfterFunc(ctx, func() { _ = secure.SetDeadline(time.Unix(1, 0)) })
		_, err = greet(secure, kind, n.opts.Self(), timeout)
		// A server says only now what it thinks of the certificate shown to it.
		err = insecure(err)
		if !stop() && err == nil {
			err = ctx.Err()
		}
	}
	if err != nil {
		if errors.Is(err, ErrInsecure) {
			n.warn.Do(func() { n.opts.Log.Warn("no secure connection to another node", "to", addr, "error", err) })
		}
		return nil, errors.Join(fmt.Errorf("greet %s: %w", addr, err), conn.Close())
	}
	return secure, nil
}

// HoldRaft closes connections of raft that others make until it is told otherwise: they must not wait for
// the answers of a raft that does not run yet.
func (n *Network) HoldRaft(hold bool) { n.holds.Store(hold) }

// Raft returns raft's part of the network.
func (n *Network) Raft() raft.StreamLayer { return stream{n.raft, n} }

type stream struct {
	*port
	network *Network
}

// Dial implements raft.StreamLayer.
func (s stream) Dial(addr raft.ServerAddress, timeout time.Duration) (net.Conn, error) {
	conn, err := s.network.dial(s.network.ctx, string(addr), KindRaft, timeout)
	if err != nil {
		return nil, err
	}
	return s.network.track(conn)
}

// tracked is a connection that raft made.
type tracked struct {
	net.Conn
	network *Network
}

// Close implements net.Conn.
func (c *tracked) Close() error {
	c.network.mu.Lock()
	delete(c.network.dialled, c)
	c.network.mu.Unlock()
	return c.Conn.Close()
}

func (n *Network) track(conn net.Conn) (net.Conn, error) {
	n.mu.Lock()
	defer n.mu.Unlock()
	if n.dialled == nil {
		return nil, errors.Join(ErrClosed, conn.Close())
	}
	c := &tracked{conn, n}
	n.dialled[c] = struct{}{}
	return c, nil
}

// Sever closes the network and the connections that raft made over it, also those in use: from then on the
// others hear nothing from this node's raft.
func (n *Network) Sever() error {
	err := n.Close()
	n.mu.Lock()
	conns := n.dialled
	n.dialled = nil
	n.mu.Unlock()
	for c := range conns {
		_ = c.Conn.Close()
	}
	return err
}

// port is the listener of one kind of connection.
type port struct {
	addr  net.Addr
	conns chan net.Conn
	done  chan struct{}
	once  sync.Once
}

func newPort(addr net.Addr) *port {
	return &port{addr: addr, conns: make(chan net.Conn), done: make(chan struct{})}
}

func (p *port) hand(conn net.Conn) {
	select {
	case p.conns <- conn:
	case <-p.done:
		_ = conn.Close()
	}
}

// Accept implements net.Listener.
func (p *port) Accept() (net.Conn, error) {
	select {
	case c := <-p.conns:
		return c, nil
	case <-p.done:
		return nil, ErrClosed
	}
}

// Addr implements net.Listener.
func (p *port) Addr() net.Addr { return p.addr }

// Close implements net.Listener: it ends this kind of connection only.
func (p *port) Close() error {
	p.shut()
	return nil
}

func (p *port) shut() { p.once.Do(func() { close(p.done) }) }
