package client

import (
	"bytes"
	"context"
	"crypto/tls"
	"errors"
	"io"
	"maps"
	"net"
	"net/http"
	"net/url"
	"slices"
	"sync"
	"sync/atomic"
	"syscall"
	"time"
)

const (
	dialTimeout = time.Second
	// A connection that is silent for pingAfter is pinged; without an answer within pingTimeout it is
	// closed and its calls fail over. Together they bound how long a dead peer holds a waiting Acquire.
	pingAfter   = 2 * time.Second
	pingTimeout = 2 * time.Second
	idleTimeout = 90 * time.Second
)

type dialFunc func(ctx context.Context, network, address string) (net.Conn, error)

// retryHTTP2 is how long a server that answered in HTTP/1 is spoken to in it.
const retryHTTP2 = time.Minute

// transport speaks HTTP/2: without TLS for http URLs, negotiated for https. Where only HTTP/1.1 passes, a
// proxy for instance, it speaks that. It ignores proxy settings of the environment: the coordinator is on
// the cluster's own network, and a proxy would cut long waits. Safe for concurrent use.
type transport struct {
	conns *conns
	// prior sends HTTP/2 without asking, negotiated is for https, old for servers that answered in HTTP/1.
	prior, negotiated, old *http.Transport
}

func newTransport(tlsConfig *tls.Config, c *conns) *transport {
	return &transport{
		conns: c,
		prior: newProtocol(tlsConfig, c.dialPrior, (*http.Protocols).SetUnencryptedHTTP2),
		negotiated: newProtocol(tlsConfig, c.dialContext, func(p *http.Protocols, on bool) {
			p.SetHTTP1(on)
			p.SetHTTP2(on)
		}),
		old: newProtocol(tlsConfig, c.dialContext, (*http.Protocols).SetHTTP1),
	}
}

// RoundTrip implements http.RoundTripper. A request that failed because the server speaks HTTP/1 was not
// carried out, so it is sent again, unless it is a stream.
func (t *transport) RoundTrip(req *http.Request) (*http.Response, error) {
	if req.URL.Scheme == "https" {
		return t.negotiated.RoundTrip(req)
	}
	address := hostPort(req.URL)
	if t.conns.speaksHTTP1(address) {
		return t.oldRoundTrip(req)
	}
	res, err := t.prior.RoundTrip(req)
	if err == nil || !t.conns.speaksHTTP1(address) {
		return res, err
	}
	again := req.Clone(req.Context())
	if req.GetBody != nil {
		body, failed := req.GetBody()
		if failed != nil {
			return nil, err
		}
		again.Body = body
	}
	return t.oldRoundTrip(again)
}

// oldRoundTrip sends no streams: a proxy between may read a body to its end before it passes anything on.
func (t *transport) oldRoundTrip(req *http.Request) (*http.Response, error) {
	if req.GetBody == nil && req.Body != nil && req.Body != http.NoBody {
		_ = req.Body.Close()
		return nil, errNoStreams
	}
	return t.old.RoundTrip(req)
}

// CloseIdleConnections closes connections that no call uses.
func (t *transport) CloseIdleConnections() {
	for _, each := range []*http.Transport{t.prior, t.negotiated, t.old} {
		each.CloseIdleConnections()
	}
}

// hostPort is what the transport dials for a URL of scheme http.
func hostPort(u *url.URL) string {
	port := u.Port()
	if port == "" {
		port = "80"
	}
	return net.JoinHostPort(u.Hostname(), port)
}

func newProtocol(tlsConfig *tls.Config, dial dialFunc, set func(*http.Protocols, bool)) *http.Transport {
	protocols := new(http.Protocols)
	set(protocols, true)
	return &http.Transport{
		DialContext:         dial,
		TLSClientConfig:     tlsConfig,
		TLSHandshakeTimeout: 2 * time.Second,
		IdleConnTimeout:     idleTimeout,
		Protocols:           protocols,
		HTTP2:               &http.HTTP2Config{SendPingTimeout: pingAfter, PingTimeout: pingTimeout},
		DisableCompression:  true,
	}
}

func newHTTPClient(transport http.RoundTripper) *http.Client {
	return &http.Client{
		Transport: transport,
		// The API never redirects; following one would carry the token elsewhere.
		CheckRedirect: func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse },
	}
}

// conns remembers the open connections, so that Close leaves none: the transport closes only those
// that are idle, and one whose peer went silent never is. Safe for concurrent use.
type conns struct {
	dial dialFunc

	mu     sync.Mutex
	open   map[*trackedConn]struct{}
	closed bool
	// http1 has when a server answered in HTTP/1 last, by address.
	http1 map[string]time.Time
}

func newConns(dial dialFunc) *conns {
	if dial == nil {
		dial = (&net.Dialer{Timeout: dialTimeout, KeepAlive: 15 * time.Second}).DialContext
	}
	return &conns{dial: dial, open: map[*trackedConn]struct{}{}, http1: map[string]time.Time{}}
}

// dialPrior connects to a server that must speak HTTP/2 without being asked.
func (c *conns) dialPrior(ctx context.Context, network, address string) (net.Conn, error) {
	return c.connect(ctx, network, address, true)
}

// dialContext connects to any other.
func (c *conns) dialContext(ctx context.Context, network, address string) (net.Conn, error) {
	return c.connect(ctx, network, address, false)
}

func (c *conns) connect(ctx context.Context, network, address string, strange bool) (net.Conn, error) {
	conn, err := c.dial(ctx, network, address)
	if err != nil {
		return nil, err
	}
	tracked := &trackedConn{Conn: conn, owner: c, address: address}
	tracked.strange.Store(strange)
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.closed {
		_ = conn.Close()
		return nil, net.ErrClosed
	}
	c.open[tracked] = struct{}{}
	return tracked, nil
}

// speaksHTTP1 reports whether a server answered in HTTP/1 not long ago.
func (c *conns) speaksHTTP1(address string) bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	at, known := c.http1[address]
	return known && time.Since(at) < retryHTTP2
}

func (c *conns) noteHTTP1(address string) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.http1[address] = time.Now()
}

func (c *conns) close() {
	c.mu.Lock()
	c.closed = true
	open := slices.Collect(maps.Keys(c.open))
	c.mu.Unlock()
	for _, conn := range open {
		_ = conn.Close()
	}
}

// errStranger: the first that a server said, if anything, was not HTTP/2.
var errStranger = errors.New("the server does not speak HTTP/2: is it http:// where it should be https://, or no kvgate?")

type trackedConn struct {
	net.Conn
	owner   *conns
	address string
	// strange is true until the server has said something in HTTP/2.
	strange atomic.Bool
}

// tlsAlert begins what a TLS server answers to what is no TLS.
const tlsAlert = 21

// Read tells what it probably means when a server without TLS hangs up at once, or first says a TLS alert or
// HTTP/1.
func (t *trackedConn) Read(b []byte) (int, error) {
	n, err := t.Conn.Read(b)
	if !t.strange.Load() {
		return n, err
	}
	if n == 0 && (errors.Is(err, io.EOF) || errors.Is(err, syscall.ECONNRESET)) {
		return 0, errStranger // without the cause, whose words would take its place on the way up
	}
	if n > 0 && b[0] == tlsAlert {
		return 0, errStranger
	}
	if bytes.HasPrefix(b[:n], []byte("HTTP/1.0 400")) {
		return 0, errStranger // what Go's TLS servers say
	}
	if bytes.HasPrefix(b[:n], []byte("HTTP/1.")) {
		t.owner.noteHTTP1(t.address)
		return 0, errStranger
	}
	t.strange.Store(n == 0)
	return n, err
}

// Write tells the same when the server hung up before it could be read.
func (t *trackedConn) Write(b []byte) (int, error) {
	n, err := t.Conn.Write(b)
	if t.strange.Load() && (errors.Is(err, syscall.EPIPE) || errors.Is(err, syscall.ECONNRESET)) {
		return n, errStranger
	}
	return n, err
}

func (t *trackedConn) Close() error {
	t.owner.mu.Lock()
	delete(t.owner.open, t)
	t.owner.mu.Unlock()
	return t.Conn.Close()
}
