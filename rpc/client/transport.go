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
	"slices"
	"sync"
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

// newTransport speaks HTTP/2 only: without TLS for http URLs, negotiated for https. It ignores proxy
// settings of the environment: the coordinator is on the cluster's own network, and a proxy would cut
// long waits.
func newTransport(tlsConfig *tls.Config, dial dialFunc) *http.Transport {
	protocols := new(http.Protocols)
	protocols.SetHTTP2(true)
	protocols.SetUnencryptedHTTP2(true)
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
	// plain: none of them carries TLS.
	plain bool

	mu     sync.Mutex
	open   map[*trackedConn]struct{}
	closed bool
}

func newConns(dial dialFunc, plain bool) *conns {
	if dial == nil {
		dial = (&net.Dialer{Timeout: dialTimeout, KeepAlive: 15 * time.Second}).DialContext
	}
	return &conns{dial: dial, plain: plain, open: map[*trackedConn]struct{}{}}
}

func (c *conns) dialContext(ctx context.Context, network, address string) (net.Conn, error) {
	conn, err := c.dial(ctx, network, address)
	if err != nil {
		return nil, err
	}
	tracked := &trackedConn{Conn: conn, owner: c, strange: c.plain}
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.closed {
		_ = conn.Close()
		return nil, net.ErrClosed
	}
	c.open[tracked] = struct{}{}
	return tracked, nil
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
	owner *conns
	// strange is true until the server has said something in HTTP/2; only the one reader touches it.
	strange bool
}

// tlsAlert begins what a TLS server answers to what is no TLS.
const tlsAlert = 21

// Read tells what it probably means when a server without TLS hangs up at once, or first says a TLS alert or
// HTTP/1.
func (t *trackedConn) Read(b []byte) (int, error) {
	n, err := t.Conn.Read(b)
	if !t.strange {
		return n, err
	}
	if n == 0 && (errors.Is(err, io.EOF) || errors.Is(err, syscall.ECONNRESET)) {
		return 0, errStranger // without the cause, whose words would take its place on the way up
	}
	if n > 0 && b[0] == tlsAlert || bytes.HasPrefix(b[:n], []byte("HTTP/1.")) {
		return 0, errStranger
	}
	t.strange = n == 0
	return n, err
}

func (t *trackedConn) Close() error {
	t.owner.mu.Lock()
	delete(t.owner.open, t)
	t.owner.mu.Unlock()
	return t.Conn.Close()
}
