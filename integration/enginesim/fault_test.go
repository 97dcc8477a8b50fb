package enginesim_test

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"net/http"
	"net/http/httptest"
	"testing"
	"testing/synctest"
	"time"

	"kvgate/integration/enginesim"
)

// get starts a GET and returns a channel that is closed once it is answered.
func (b *bench) get(path string) <-chan struct{} {
	over := make(chan struct{})
	go func() {
		defer close(over)
		b.call("GET", path, nil)
	}()
	synctest.Wait()
	return over
}

func answered(c <-chan struct{}) bool {
	synctest.Wait()
	select {
	case <-c:
		return true
	default:
		return false
	}
}

func (b *bench) inject(f enginesim.Fault) {
	b.t.Helper()
	if err := b.Inject(f); err != nil {
		b.t.Fatal(err)
	}
}

func TestHangHoldsRequestsOfItsPathUntilHealed(t *testing.T) {
	simulate(t, enginesim.Config{}, func(t *testing.T, b *bench) {
		b.inject(enginesim.Fault{Kind: enginesim.FaultHang, Path: "/close_session"})
		over := make(chan struct{})
		go func() {
			defer close(over)
			b.call("POST", "/close_session", fields{"session_id": "a"})
		}()
		time.Sleep(time.Hour)
		equal(t, "answered", answered(over), false)
		equal(t, "ids heard", len(b.ClosedSessions()), 0)
		b.want(http.StatusOK, "GET", "/health", nil)
		if err := b.Heal(); err != nil {
			t.Fatal(err)
		}
		equal(t, "answered after healing", answered(over), true)
		equal(t, "ids heard", len(b.ClosedSessions()), 1)
	})
}

func TestHangOfEverythingEndsByItself(t *testing.T) {
	simulate(t, enginesim.Config{EnableMetrics: true}, func(t *testing.T, b *bench) {
		b.inject(enginesim.Fault{Kind: enginesim.FaultHang, For: time.Minute})
		health, metrics := b.get("/health"), b.get("/metrics")
		time.Sleep(59 * time.Second)
		equal(t, "answered", answered(health) || answered(metrics), false)
		time.Sleep(2 * time.Second)
		equal(t, "answered", answered(health) && answered(metrics), true)
	})
}

func TestHangEndsWithItsClient(t *testing.T) {
	simulate(t, enginesim.Config{}, func(t *testing.T, b *bench) {
		b.inject(enginesim.Fault{Kind: enginesim.FaultHang})
		ctx, cancel := context.WithTimeout(t.Context(), time.Second)
		defer cancel()
		ended := make(chan any, 1)
		go func() {
			defer func() { ended <- recover() }()
			b.Handler().ServeHTTP(httptest.NewRecorder(), httptest.NewRequestWithContext(ctx, "GET", "/health", nil))
		}()
		equal(t, "how the handler ended", <-ended, any(http.ErrAbortHandler))
	})
}

func TestStatusIsPerPath(t *testing.T) {
	simulate(t, enginesim.Config{}, func(t *testing.T, b *bench) {
		b.want(http.StatusOK, "POST", "/_sim/fault", fields{"kind": "status", "path": "/close_session", "status": 500})
		b.want(http.StatusInternalServerError, "POST", "/close_session", fields{"session_id": "a"})
		b.want(http.StatusOK, "GET", "/health", nil)
		equal(t, "ids heard", len(b.ClosedSessions()), 0)
	})
}

func TestSlowScrapeStarvesHealth(t *testing.T) {
	simulate(t, enginesim.Config{EnableMetrics: true}, func(t *testing.T, b *bench) {
		b.inject(enginesim.Fault{Kind: enginesim.FaultSlow, Path: "/metrics", Delay: 10 * time.Second})
		start := time.Now()
		scrape := b.get("/metrics")
		health := make(chan time.Duration, 1)
		go func() {
			b.call("GET", "/health", nil)
			health <- time.Since(start)
		}()
		equal(t, "health answered after", <-health, 10*time.Second)
		<-scrape
	})
}

func TestBadFaultsAreRefused(t *testing.T) {
	simulate(t, enginesim.Config{}, func(t *testing.T, b *bench) {
		for _, f := range []enginesim.Fault{
			{Kind: "flood"}, {Kind: enginesim.FaultStatus, Status: 99}, {Kind: enginesim.FaultSlow},
		} {
			if err := b.Inject(f); !errors.Is(err, enginesim.ErrFault) {
				t.Errorf("inject %+v: %v, want ErrFault", f, err)
			}
		}
		if err := b.Inject(enginesim.Fault{Kind: enginesim.FaultRefuse}); !errors.Is(err, enginesim.ErrNotStarted) {
			t.Errorf("refuse: %v, want ErrNotStarted", err)
		}
		b.want(http.StatusBadRequest, "POST", "/_sim/fault", fields{"kind": "flood"})
	})
}

func TestRestartLosesEverythingAndHasANewStartTime(t *testing.T) {
	cfg := enginesim.Config{EnableMetrics: true, SessionRadix: true, StreamingSessions: true}
	simulate(t, cfg, func(t *testing.T, b *bench) {
		b.generate(turn("a", "s", tokens(0, 100), 1))
		b.closeSession("ghost")
		b.want(http.StatusOK, "POST", "/open_session", open("s"))
		before := value(b.scrape()["process_start_time_seconds"])
		cut := make(chan any, 1)
		go func() {
			defer func() { cut <- recover() }()
			b.call("POST", "/generate", turn("lost", "", tokens(500, 10), 5000))
		}()
		time.Sleep(3 * time.Second)
		b.want(http.StatusOK, "POST", "/_sim/fault", fields{"kind": "restart"})
		equal(t, "how the request in flight ended", <-cut, any(http.ErrAbortHandler))
		page := b.scrape()
		equal(t, "seconds between starts", value(page["process_start_time_seconds"])-before > 2.9, true)
		equal(t, "prompt tokens", value(page["sglang:prompt_tokens_total"]), 0)
		s := b.Stats()
		equal(t, "resident", s.Resident, 0)
		equal(t, "tombstones", s.Tombstones, 0)
		equal(t, "streaming sessions", s.StreamingSessions, 0)
		b.want(http.StatusOK, "POST", "/open_session", open("s"))
		equal(t, "closes heard before are still on record", len(b.ClosedSessions()), 1)
	})
}

// TestRefuseAndResumeOnTheSameAddress is about real sockets, so it runs outside a bubble.
func TestRefuseAndResumeOnTheSameAddress(t *testing.T) {
	e, err := enginesim.New(enginesim.Config{})
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = e.Close() }()
	url, err := e.Start("")
	if err != nil {
		t.Fatal(err)
	}
	client := &http.Client{Transport: &http.Transport{}}
	defer client.CloseIdleConnections()
	health := func() error {
		resp, err := client.Get(url + "/health")
		if err != nil {
			return err
		}
		return resp.Body.Close()
	}
	if err := health(); err != nil {
		t.Fatal(err)
	}
	raw, err := json.Marshal(fields{"kind": "refuse"})
	if err != nil {
		t.Fatal(err)
	}
	resp, err := client.Post(url+"/_sim/fault", "application/json", bytes.NewReader(raw))
	if err != nil {
		t.Fatal(err)
	}
	equal(t, "status of the fault call", resp.StatusCode, http.StatusOK)
	_ = resp.Body.Close()
	if err := e.Inject(enginesim.Fault{Kind: enginesim.FaultRefuse}); err != nil { // waits for the first to be done
		t.Fatal(err)
	}
	if err := health(); err == nil {
		t.Fatal("answered while refusing")
	}
	if err := e.Heal(); err != nil {
		t.Fatal(err)
	}
	equal(t, "url", e.URL(), url)
	if err := health(); err != nil {
		t.Fatal(err)
	}
}
