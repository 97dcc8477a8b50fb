package client

import (
	"context"
	"crypto/tls"
	"maps"
	"net"
	"net/http"
	"slices"
	"sync"
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

	mu     sync.Mutex
	open   map[*trackedConn]struct{}
	closed bool
}

func newConns(dial dialFunc) *conns {
	if dial == nil {
		dial = (&net.Dialer{Timeout: dialTimeout, KeepAlive: 15 * time.Second}).DialContext
	}
	return &conns{dial: dial, open: map[*trackedConn]struct{}{}}
}

func (c *conns) dialContext(ctx context.Context, network, address string) (net.Conn, error) {
	conn, err := c.dial(ctx, network, address)
	if err != nil {
		return nil, err
	}
	tracked := &trackedConn{Conn: conn, owner: c}
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

type trackedConn struct {
	net.Conn
	owner *conns
}

func (t *trackedConn) Close() error {
	t.owner.mu.Lock()
	delete(t.owner.open, t)
	t.owner.mu.Unlock()
	return t.Conn.Close()
}
