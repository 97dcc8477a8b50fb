package rpc

import (
	"bytes"
	"compress/gzip"
	"context"
	"errors"
	"io"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"net/http/httptrace"
	"strconv"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"connectrpc.com/connect"

	"kvgate/ledger"
	kvgatev1 "kvgate/rpc/kvgate/v1"
	"kvgate/rpc/kvgate/v1/kvgatev1connect"
)

// h2c returns a client that speaks HTTP/2 without TLS, and counts its connections.
func h2c(t *testing.T) (*http.Client, *atomic.Int64) {
	t.Helper()
	protocols := new(http.Protocols)
	protocols.SetUnencryptedHTTP2(true)
	transport := &http.Transport{Protocols: protocols}
	t.Cleanup(transport.CloseIdleConnections)
	dialled := new(atomic.Int64)
	counting := roundTripper(func(req *http.Request) (*http.Response, error) {
		trace := &httptrace.ClientTrace{GotConn: func(info httptrace.GotConnInfo) {
			if !info.Reused {
				dialled.Add(1)
			}
		}}
		return transport.RoundTrip(req.WithContext(httptrace.WithClientTrace(req.Context(), trace)))
	})
	return &http.Client{Transport: counting}, dialled
}

type roundTripper func(*http.Request) (*http.Response, error)

func (f roundTripper) RoundTrip(req *http.Request) (*http.Response, error) { return f(req) }

func TestBlockedAcquiresNeverStopARelease(t *testing.T) {
	const blocked = 600 // Go's default is 250 streams per connection
	b, entered, _ := blocking()
	r := start(t, b)
	httpClient, dialled := h2c(t)
	c := kvgatev1connect.NewAdmissionServiceClient(httpClient, r.url)
	// The first call opens the connection that all others share.
	release := func() bool {
		res, err := c.Release(context.Background(), connect.NewRequest(&kvgatev1.ReleaseRequest{TicketId: "t"}))
		return err == nil && res.Msg.GetReleased()
	}
	if !release() {
		t.Fatal("release on a fresh connection was not answered")
	}
	ctx, cancel := context.WithCancel(context.Background())
	ended := make(chan error, blocked)
	for i := range blocked {
		go func() {
			_, err := c.Acquire(ctx, connect.NewRequest(&kvgatev1.AcquireRequest{TicketId: strconv.Itoa(i), PromptTokens: 1}))
			ended <- err
		}()
	}
	for range blocked {
		<-entered
	}
	if !release() {
		t.Error("release was not answered while acquires block")
	}
	if n := dialled.Load(); n != 1 {
		t.Errorf("%d connections, want 1: the test must load one", n)
	}
	cancel()
	for range blocked {
		if err := <-ended; connect.CodeOf(err) != connect.CodeCanceled {
			t.Errorf("an acquire whose caller left ended with %v", err)
		}
	}
}

func TestShutdownLetsBlockedAcquiresGo(t *testing.T) {
	b, entered, left := blocking()
	r := start(t, b)
	decided := make(chan answer, 1)
	go func() { decided <- r.post("AdmissionService/Acquire", oneTicket) }()
	<-entered
	if err := r.stop(); err != nil {
		t.Errorf("Serve returned %v", err)
	}
	if err := <-left; !errors.Is(err, context.Canceled) {
		t.Errorf("the backend saw %v", err)
	}
	got := (<-decided).ok(t)
	if got["action"] != "ACTION_BYPASS" || got["reason"] != "REASON_DEGRADED" {
		t.Errorf("got %v", got)
	}
}

func TestShutdownCutsOffWhatDoesNotEnd(t *testing.T) {
	entered, hung := make(chan struct{}), make(chan struct{})
	b := &fakeBackend{ledger: ledger.New(), release: func(context.Context, ledger.Release) (bool, error) {
		close(entered)
		<-hung
		return false, nil
	}}
	srv, err := New(Options{Backend: b, Log: slog.New(slog.DiscardHandler), ShutdownGrace: time.Nanosecond})
	if err != nil {
		t.Fatal(err)
	}
	ln := httptest.NewUnstartedServer(nil).Listener
	ctx, cancel := context.WithCancel(context.Background())
	served := make(chan error, 1)
	go func() { served <- srv.Serve(ctx, ln) }()
	called := make(chan error, 1)
	client := &http.Client{Transport: &http.Transport{}}
	go func() {
		_, err := client.Post("http://"+ln.Addr().String()+"/kvgate.v1.AdmissionService/Release", "application/json", strings.NewReader(`{"ticketId":"t"}`))
		called <- err
	}()
	<-entered
	cancel()
	if err := <-served; err != nil {
		t.Errorf("Serve returned %v", err)
	}
	if err := <-called; err == nil {
		t.Error("the hanging call was answered")
	}
	close(hung)
	client.CloseIdleConnections()
}

func TestServeReportsAListenerThatFails(t *testing.T) {
	srv, err := New(Options{Backend: &fakeBackend{}, Log: slog.New(slog.DiscardHandler)})
	if err != nil {
		t.Fatal(err)
	}
	ln := httptest.NewUnstartedServer(nil).Listener
	ln.Close()
	if err := srv.Serve(context.Background(), ln); err == nil || !strings.Contains(err.Error(), ln.Addr().String()) {
		t.Errorf("got %v", err)
	}
}

func TestNewWantsABackend(t *testing.T) {
	if _, err := New(Options{}); err == nil || !strings.Contains(err.Error(), "Backend") {
		t.Errorf("got %v", err)
	}
}

func TestInterceptorsRunBeforeValidation(t *testing.T) {
	refuse := connect.UnaryInterceptorFunc(func(connect.UnaryFunc) connect.UnaryFunc {
		return func(context.Context, connect.AnyRequest) (connect.AnyResponse, error) {
			return nil, connect.NewError(connect.CodeUnauthenticated, errors.New("who are you"))
		}
	})
	srv, err := New(Options{Backend: &fakeBackend{}, Interceptors: []connect.Interceptor{refuse}})
	if err != nil {
		t.Fatal(err)
	}
	req := httptest.NewRequest(http.MethodPost, "/kvgate.v1.AdmissionService/Cancel", strings.NewReader(`{}`))
	req.Header.Set("Content-Type", "application/json")
	w := httptest.NewRecorder()
	srv.Handler().ServeHTTP(w, req)
	if w.Code != http.StatusUnauthorized {
		t.Errorf("an invalid request of a stranger answered %d %s", w.Code, w.Body)
	}
}

func TestSmallAnswersAreNotCompressed(t *testing.T) {
	l := ledger.New()
	b := &fakeBackend{ledger: l}
	r := start(t, b)
	encoding := func(method string) (string, []byte) {
		req, _ := http.NewRequest(http.MethodPost, r.url+"/kvgate.v1.ObserveService/"+method, strings.NewReader(`{}`))
		req.Header.Set("Content-Type", "application/json")
		req.Header.Set("Accept-Encoding", "gzip")
		res, err := r.client.Do(req)
		if err != nil {
			t.Fatal(err)
		}
		defer res.Body.Close()
		body, _ := io.ReadAll(res.Body)
		return res.Header.Get("Content-Encoding"), body
	}
	if got, _ := encoding("ListPools"); got != "" {
		t.Errorf("a small answer has encoding %q", got)
	}
	for i := range 1000 {
		if _, err := l.UpdateSettings("pool-"+strconv.Itoa(i), ledger.Patch{}); err != nil {
			t.Fatal(err)
		}
	}
	got, body := encoding("ListPools")
	zip, err := gzip.NewReader(bytes.NewReader(body))
	if got != "gzip" || err != nil {
		t.Fatalf("a large answer has encoding %q: %v", got, err)
	}
	plain, err := io.ReadAll(zip)
	if err != nil || !bytes.Contains(plain, []byte("pool-999")) {
		t.Errorf("it unpacks to %d bytes: %v", len(plain), err)
	}
}

// A compressed bomb counts by what it unpacks to.
func TestBodyLimitHoldsAfterDecompression(t *testing.T) {
	r := start(t, &fakeBackend{})
	var packed bytes.Buffer
	zip := gzip.NewWriter(&packed)
	if _, err := io.Copy(zip, io.LimitReader(spaces{}, 8*maxBodyBytes)); err != nil {
		t.Fatal(err)
	}
	zip.Close()
	req, _ := http.NewRequest(http.MethodPost, r.url+"/kvgate.v1.AdmissionService/Cancel", &packed)
	req.Header.Set("Content-Type", "application/json")
	req.Header.Set("Content-Encoding", "gzip")
	res, err := r.client.Do(req)
	if err != nil {
		t.Fatal(err)
	}
	defer res.Body.Close()
	if res.StatusCode != http.StatusTooManyRequests {
		t.Errorf("status %d, want that of resource_exhausted", res.StatusCode)
	}
}

type spaces struct{}

func (spaces) Read(p []byte) (int, error) {
	for i := range p {
		p[i] = ' '
	}
	return len(p), nil
}

func TestGRPCAndGRPCWebWork(t *testing.T) {
	l := fleet(t)
	b := &fakeBackend{ledger: l}
	b.acquire = b.decide
	r := start(t, b)
	httpClient, _ := h2c(t)
	for name, option := range map[string]connect.ClientOption{"grpc": connect.WithGRPC(), "grpcweb": connect.WithGRPCWeb()} {
		c := kvgatev1connect.NewAdmissionServiceClient(httpClient, r.url, option)
		res, err := c.Acquire(context.Background(), connect.NewRequest(&kvgatev1.AcquireRequest{TicketId: name, PromptTokens: 3}))
		if err != nil || res.Msg.GetAction() != kvgatev1.Action_ACTION_ADMIT {
			t.Errorf("%s: %v %v", name, res, err)
		}
		_, err = c.Acquire(context.Background(), connect.NewRequest(&kvgatev1.AcquireRequest{TicketId: "a\n", PromptTokens: 3}))
		if got := errorInfo(err).GetField(); connect.CodeOf(err) != connect.CodeInvalidArgument || got != "ticketId" {
			t.Errorf("%s: %v with field %q", name, err, got)
		}
	}
}

func errorInfo(err error) *kvgatev1.ErrorInfo {
	var failed *connect.Error
	if errors.As(err, &failed) {
		for _, d := range failed.Details() {
			if v, err := d.Value(); err == nil {
				if info, ok := v.(*kvgatev1.ErrorInfo); ok {
					return info
				}
			}
		}
	}
	return nil
}
