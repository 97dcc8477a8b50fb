package client

import (
	"bytes"
	"context"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"connectrpc.com/connect"

	kvgatev1 "kvgate/rpc/kvgate/v1"
)

func TestNewRefuses(t *testing.T) {
	ok := []string{"http://127.0.0.1:1"}
	for name, try := range map[string]struct {
		addresses []string
		opts      []Option
		field     string
	}{
		"none":        {nil, nil, "endpoints"},
		"no scheme":   {[]string{"127.0.0.1:7070"}, nil, "endpoints"},
		"ftp":         {[]string{"ftp://h"}, nil, "endpoints"},
		"query":       {[]string{"http://h:1/?a=b"}, nil, "endpoints"},
		"long holder": {ok, []Option{WithHolderID(strings.Repeat("h", 257))}, "holderId"},
		"budget":      {ok, []Option{WithDecisionBudget(0)}, "decisionBudget"},
		"max wait":    {ok, []Option{WithDefaultMaxWait(-1)}, "defaultMaxWait"},
		"retry":       {ok, []Option{WithRetry(2, 1)}, "retryLongest"},
		"retry zero":  {ok, []Option{WithRetry(0, 1)}, "retryFirst"},
		"timeout":     {ok, []Option{WithAttemptTimeout(-1)}, "attemptTimeout"},
		"ttl":         {ok, []Option{WithDefaultTTL(0)}, "defaultTTL"},
		"call budget": {ok, []Option{WithCallBudget(0)}, "callBudget"},
		"long pool":   {ok, []Option{WithPool(strings.Repeat("p", 257))}, "pool"},
		"token line":  {ok, []Option{WithToken("secret\n")}, "token"},
		"token space": {ok, []Option{WithToken(" secret")}, "token"},
		"token é":     {ok, []Option{WithToken("sécret")}, "token"},
		"logger":      {ok, []Option{WithLogger(nil)}, "logger"},
		"two clients": {ok, []Option{WithHTTPClient(http.DefaultClient), WithTLSConfig(&tls.Config{MinVersion: tls.VersionTLS13})}, "tlsConfig"},
	} {
		_, err := New(try.addresses, try.opts...)
		var e *Error
		if !errors.As(err, &e) || e.Field != try.field || !errors.Is(err, ErrInvalid) {
			t.Errorf("%s: got %v, want field %s", name, err, try.field)
		}
		if err != nil && strings.Contains(err.Error(), "secret") {
			t.Errorf("%s: the token is shown: %v", name, err)
		}
	}
}

func TestDefaultHolderIsUnique(t *testing.T) {
	if a, b := newHolderID(), newHolderID(); a == b {
		t.Fatalf("two holders are both %q", a)
	}
}

func TestPlainCalls(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t, []string{"a:1", "b:1"}, []string{"b:1"})
		budget, err := w.client.Budget(t.Context(), "")
		if err != nil || budget.GetCeiling() != 100 || budget.GetPool() != "default" {
			t.Fatalf("got %v, %v", budget, err)
		}
		metrics, err := w.client.DrainStep(t.Context(), "p", 3, "run")
		if err != nil || metrics["agentic_kv/budget/ceiling"] != 1 {
			t.Fatalf("got %v, %v", metrics, err)
		}
		var e *Error
		if _, err := w.client.DrainStep(t.Context(), "p", -1, "run"); !errors.As(err, &e) || e.Field != "step" {
			t.Fatalf("got %v", err)
		}
		w.acquire("t1")
		for _, want := range []bool{true, false} {
			if released, err := w.client.Release(t.Context(), "", "t1"); err != nil || released != want {
				t.Fatalf("got %v, %v, want %v", released, err, want)
			}
		}
	})
}

// TestRawClientsFailOver: the raw API goes to the endpoint that works, and reports errors as they are.
func TestRawClientsFailOver(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t, []string{"a:1", "b:1"}, []string{"b:1"})
		resp, err := w.client.Observe().GetBudget(t.Context(), connect.NewRequest(&kvgatev1.GetBudgetRequest{}))
		if err != nil || resp.Msg.GetCeiling() != 100 {
			t.Fatalf("got %v, %v", resp, err)
		}
		if _, err := w.client.Admission().Heartbeat(t.Context(), connect.NewRequest(&kvgatev1.HeartbeatRequest{HolderId: "h"})); err != nil {
			t.Fatal(err)
		}
		if n := w.net.dials["a:1"]; n != 1 {
			t.Fatalf("dialled the dead endpoint %d times, want once", n)
		}
		w.nodes["b:1"].during(always(fault{err: connect.NewError(connect.CodeUnavailable, errors.New("no"))}))
		_, err = w.client.Cluster().GetStatus(t.Context(), connect.NewRequest(&kvgatev1.GetStatusRequest{}))
		if connect.CodeOf(err) != connect.CodeUnimplemented {
			t.Fatalf("got %v", err)
		}
		_, err = w.client.Observe().GetBudget(t.Context(), connect.NewRequest(&kvgatev1.GetBudgetRequest{}))
		if connect.CodeOf(err) != connect.CodeUnavailable {
			t.Fatalf("got %v", err)
		}
	})
}

func TestCallsHaveABudget(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t, []string{"a:1"}, nil)
		began := time.Now()
		_, err := w.client.Cancel(context.Background(), "", "t1")
		var e *Error
		if !errors.As(err, &e) || e.Code != connect.CodeUnavailable {
			t.Fatalf("got %v", err)
		}
		if took := time.Since(began); took > defaultConfig().callBudget+time.Second {
			t.Fatalf("took %v", took)
		}
		ctx, cancel := context.WithTimeout(t.Context(), time.Second)
		defer cancel()
		if _, err := w.client.Budget(ctx, ""); !errors.Is(err, context.DeadlineExceeded) {
			t.Fatalf("got %v", err)
		}
	})
}

// TestTroubleIsLoggedRarely: an outage is one line per kind in ten seconds, and every event is told to
// the hook.
func TestTroubleIsLoggedRarely(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var out bytes.Buffer
		var mu sync.Mutex
		seen := map[EventKind]int{}
		w := newWorld(t, []string{"a:1"}, nil,
			WithLogger(slog.New(slog.NewTextHandler(&out, nil))),
			WithOnEvent(func(e Event) { mu.Lock(); defer mu.Unlock(); seen[e.Kind]++ }))
		for range 50 {
			w.acquire("t1")
		}
		w.close()
		if n := strings.Count(out.String(), "attempts go ahead without a lease"); n != 1 {
			t.Fatalf("%d lines about failing open, want 1:\n%s", n, out.String())
		}
		if seen[EventDegraded] != 50 || seen[EventBypassed] != 50 {
			t.Fatalf("events %v", seen)
		}
	})
}

// TestTLSAndToken: https endpoints speak HTTP/2, and the token goes along.
func TestTLSAndToken(t *testing.T) {
	node := newFakeNode(newFakeLedger(100))
	var mu sync.Mutex
	var seen []string
	server := httptest.NewUnstartedServer(http.HandlerFunc(func(rw http.ResponseWriter, r *http.Request) {
		mu.Lock()
		seen = append(seen, r.Proto+" "+r.Header.Get("Authorization"))
		mu.Unlock()
		node.server.Handler.ServeHTTP(rw, r)
	}))
	server.EnableHTTP2 = true
	server.StartTLS()
	defer server.Close()
	roots := x509.NewCertPool()
	roots.AddCert(server.Certificate())
	c, err := New([]string{server.URL}, WithToken("secret"), WithoutHolder(),
		WithTLSConfig(&tls.Config{RootCAs: roots, MinVersion: tls.VersionTLS13}))
	if err != nil {
		t.Fatal(err)
	}
	g, err := c.Acquire(t.Context(), Request{Ticket: "t1", PromptTokens: 1})
	if err != nil || g.Action != Admit {
		t.Fatalf("got %+v, %v", g, err)
	}
	if err := c.Close(t.Context()); err != nil {
		t.Fatal(err)
	}
	for _, s := range seen {
		if s != "HTTP/2.0 Bearer secret" {
			t.Errorf("request came as %q", s)
		}
	}
	if len(seen) != 3 {
		t.Errorf("%d requests, want the try of a stream, acquire and release", len(seen))
	}
}

// TestPlainCallOfTLSServer: the error says what is probably wrong with the URL.
func TestPlainCallOfTLSServer(t *testing.T) {
	server := httptest.NewUnstartedServer(http.NotFoundHandler())
	server.Config.ErrorLog = slog.NewLogLogger(slog.DiscardHandler, slog.LevelInfo)
	server.StartTLS()
	defer server.Close()
	var log bytes.Buffer
	c, err := New([]string{strings.Replace(server.URL, "https://", "http://", 1)},
		WithLogger(slog.New(slog.NewTextHandler(&log, nil))), WithDecisionBudget(time.Second), WithDefaultMaxWait(time.Millisecond), WithoutHolder())
	if err != nil {
		t.Fatal(err)
	}
	defer func() {
		gone, cancel := context.WithCancel(t.Context())
		cancel() // nothing that it owes can be delivered
		_ = c.Close(gone)
	}()
	g, err := c.Acquire(t.Context(), Request{Ticket: "t1", PromptTokens: 1})
	if err != nil {
		t.Fatal(err)
	}
	err = g.Cause
	if err == nil || !strings.Contains(err.Error(), "is it http:// where it should be https://") {
		t.Errorf("error %v", err)
	}
}
