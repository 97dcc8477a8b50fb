package scrape

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"time"
)

const (
	// MaxBody is the largest answer that is read, in bytes. A page is about 120 KB at TP 2.
	MaxBody = 16 << 20
	// keepBuffer is the largest buffer that goes back to the pool.
	keepBuffer = 1 << 20
)

// Keys are the bearer keys this node presents. Empty means none is sent. They come from files of the
// node and are never replicated or logged.
type Keys struct {
	Router string
	Engine string
	// EngineAdmin is presented where no engine key is set: an engine started with an admin key only wants
	// that one on its info endpoints.
	EngineAdmin string
}

func (k Keys) engine() bearer {
	if k.Engine == "" && k.EngineAdmin != "" {
		return bearer{"engine admin key", k.EngineAdmin}
	}
	return bearer{"engine key", k.Engine}
}

func (k Keys) router() bearer { return bearer{"router key", k.Router} }

// bearer is a key and what people call it.
type bearer struct{ name, value string }

// NewTransport returns the transport for engine and router traffic: keep-alive, no proxy whatever
// HTTP_PROXY says, and no compression, which would cost the engines more than the bytes are worth.
func NewTransport() *http.Transport {
	return &http.Transport{
		Proxy:                  nil,
		DialContext:            (&net.Dialer{Timeout: 5 * time.Second, KeepAlive: 15 * time.Second}).DialContext,
		TLSHandshakeTimeout:    5 * time.Second,
		DisableCompression:     true,
		MaxIdleConnsPerHost:    2,
		IdleConnTimeout:        90 * time.Second,
		MaxResponseHeaderBytes: 64 << 10,
	}
}

// newHTTPClient follows redirects on the same host only, so that a key never travels elsewhere.
func newHTTPClient(rt http.RoundTripper) *http.Client {
	return &http.Client{Transport: rt, CheckRedirect: func(req *http.Request, via []*http.Request) error {
		if req.URL.Host != via[0].URL.Host || req.URL.Scheme != via[0].URL.Scheme || len(via) > 3 {
			return http.ErrUseLastResponse
		}
		return nil
	}}
}

// get reads one body into buf. Errors: ErrUnreachable, ErrUnauthorized, ErrStatus, ErrTooLarge.
func get(ctx context.Context, c *http.Client, url string, key bearer, buf *bytes.Buffer) error {
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, url, nil)
	if err != nil {
		return fmt.Errorf("%w: %q", ErrBadURL, clip(url))
	}
	req.Header.Set("Accept", "text/plain;version=0.0.4, application/json;q=0.9, */*;q=0.1")
	req.Header.Set("User-Agent", "kvgate")
	if key.value != "" {
		req.Header.Set("Authorization", "Bearer "+key.value)
	}
	resp, err := c.Do(req)
	if err != nil {
		return unreachable(err)
	}
	defer resp.Body.Close()
	if err := checkStatus(resp, key); err != nil {
		// A short body is read so that the connection can be used again.
		_, _ = io.CopyN(io.Discard, resp.Body, 4<<10)
		return err
	}
	return readBody(resp, buf)
}

func checkStatus(resp *http.Response, key bearer) error {
	switch {
	case resp.StatusCode == http.StatusOK:
		return nil
	case resp.StatusCode == http.StatusNotFound:
		return fmt.Errorf("%w: GET %s answers 404", errNotFound, resp.Request.URL.Path)
	case resp.StatusCode != http.StatusUnauthorized && resp.StatusCode != http.StatusForbidden:
		return fmt.Errorf("%w: GET %s answers %d", ErrStatus, resp.Request.URL.Path, resp.StatusCode)
	case key.value == "":
		return fmt.Errorf("%w: GET %s answers %d and this node has no %s", ErrUnauthorized, resp.Request.URL.Path, resp.StatusCode, key.name)
	}
	return fmt.Errorf("%w: GET %s answers %d to this node's %s", ErrUnauthorized, resp.Request.URL.Path, resp.StatusCode, key.name)
}

func readBody(resp *http.Response, buf *bytes.Buffer) error {
	if resp.ContentLength > MaxBody {
		return fmt.Errorf("%w: %d bytes, allowed are %d", ErrTooLarge, resp.ContentLength, MaxBody)
	}
	n, err := buf.ReadFrom(io.LimitReader(resp.Body, MaxBody+1))
	switch {
	case errors.Is(err, bytes.ErrTooLarge), n > MaxBody:
		return fmt.Errorf("%w: over %d bytes", ErrTooLarge, MaxBody)
	case err != nil:
		return unreachable(err)
	}
	return nil
}
