package peer

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"sync"
	"time"

	"github.com/hashicorp/raft"
)

// Options configure a Network.
type Options struct {
	// Listen is the HOST:PORT to listen on.
	Listen string
	// Advertise is the HOST:PORT under which other nodes reach this one; a name is resolved at every
	// dial. Empty means the address listened on.
	Advertise string
	// Self says who this node is. It is asked at every handshake and must not block.
	Self func() Identity
	// ServerTLS and ClientTLS secure the connections; nil means plain TCP. Both or none.
	ServerTLS, ClientTLS *tls.Config
	Log                  *slog.Logger
}

// Network is one listener shared by raft and the calls between nodes. It runs until Close.
type Network struct {
	opts     Options
	listener net.Listener
	address  address
	dialer   net.Dialer
	raft     *port
	calls    *port

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
	n := &Network{opts: opts, listener: l, address: address(opts.Advertise)}
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

// Close stops listening. Connections that were handed out stay their owners'.
func (n *Network) Close() error {
	n.cancel()
	err := n.listener.Close()
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
	stop := context.AfterFunc(n.ctx, func() { _ = conn.Close() })
	from := conn.RemoteAddr().String()
	if n.opts.ServerTLS != nil {
		conn = tls.Server(conn, n.opts.ServerTLS)
	}
	kind, err := welcome(conn, n.opts.Self())
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
	if n.opts.ClientTLS != nil {
		conn = tls.Client(conn, n.clientTLS(addr))
	}
	stop := context.AfterFunc(ctx, func() { _ = conn.SetDeadline(time.Unix(1, 0)) })
	_, err = greet(conn, kind, n.opts.Self(), timeout)
	if !stop() && err == nil {
		err = ctx.Err()
	}
	if err != nil {
		return nil, errors.Join(fmt.Errorf("greet %s: %w", addr, err), conn.Close())
	}
	return conn, nil
}

func (n *Network) clientTLS(addr string) *tls.Config {
	c := n.opts.ClientTLS.Clone()
	if host, _, err := net.SplitHostPort(addr); err == nil && c.ServerName == "" {
		c.ServerName = host
	}
	return c
}

// Raft returns raft's part of the network.
func (n *Network) Raft() raft.StreamLayer { return stream{n.raft, n} }

type stream struct {
	*port
	network *Network
}

// Dial implements raft.StreamLayer.
func (s stream) Dial(addr raft.ServerAddress, timeout time.Duration) (net.Conn, error) {
	return s.network.dial(s.network.ctx, string(addr), KindRaft, timeout)
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
