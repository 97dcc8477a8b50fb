package sessions

import (
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"slices"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"golang.org/x/sync/errgroup"
	"google.golang.org/protobuf/types/known/durationpb"

	"kvgate/rpc/client"
	v1 "kvgate/rpc/kvgate/v1"
	"kvgate/sessions"
)

const (
	groupSessions = 1000
	groupEngines  = 64
	// admissionCallers ask for leases all the while.
	admissionCallers = 4
)

// lightEngine answers what kvgate asks of an engine, and counts closes by session.
type lightEngine struct {
	*httptest.Server
	// hang keeps close_session from being answered; nil for an engine that works.
	hang chan struct{}
	// takes is how long an answer takes.
	takes time.Duration

	mu    sync.Mutex
	heard map[string]int
}

func newLightEngine(t testing.TB, hang chan struct{}, takes time.Duration) *lightEngine {
	e := &lightEngine{heard: map[string]int{}, hang: hang, takes: takes}
	mux := http.NewServeMux()
	mux.HandleFunc("GET /metrics", func(w http.ResponseWriter, _ *http.Request) {
		_, _ = io.WriteString(w, "sglang:max_total_num_tokens 100000\nsglang:token_usage 0.1\nsglang:num_used_tokens 10000\n")
	})
	mux.HandleFunc("POST "+closePath, e.close)
	e.Server = httptest.NewServer(mux)
	t.Cleanup(e.Close)
	return e
}

func (e *lightEngine) close(w http.ResponseWriter, r *http.Request) {
	var body struct {
		ID string `json:"session_id"`
	}
	if err := json.NewDecoder(r.Body).Decode(&body); err != nil {
		http.Error(w, err.Error(), http.StatusBadRequest)
		return
	}
	if e.hang != nil {
		select {
		case <-e.hang:
		case <-r.Context().Done():
			return
		}
	}
	time.Sleep(e.takes)
	e.mu.Lock()
	defer e.mu.Unlock()
	e.heard[body.ID]++
}

// TestCloseOfALargeGroup closes 1,000 sessions on 64 engines in one call, one engine hanging at first,
// while admission works.
func TestCloseOfALargeGroup(t *testing.T) {
	back := make(chan struct{})
	engines := make([]*lightEngine, groupEngines)
	urls := make([]string, groupEngines)
	for i := range engines {
		var hang chan struct{}
		if i == 0 {
			hang = back
		}
		engines[i] = newLightEngine(t, hang, 0)
		urls[i] = engines[i].URL
	}
	c := start(t, 1, "", groupEngines, &v1.Settings{EngineUrls: urls, CloseDeadline: durationpb.New(time.Hour)})
	c.openGroup("step-1")
	before := c.admission(func() {})

	var elapsed, sound time.Duration
	during := c.admission(func() {
		began := time.Now()
		res := must(c, c.Sessions().CloseGroup, &v1.CloseGroupRequest{GroupId: "step-1"})
		if res.Closing != groupSessions {
			t.Errorf("%d sessions close, want %d", res.Closing, groupSessions)
		}
		c.awaitHeard(engines[1:])
		sound = time.Since(began)
		c.owedByTheHangingEngine(urls[0])
		close(back)
		c.awaitHeard(engines)
		eventually(c, "all sessions closed", c.Sessions().ListSessions, &v1.ListSessionsRequest{State: closed, PageSize: 2 * groupSessions},
			func(r *v1.ListSessionsResponse) bool { return len(r.Sessions) == groupSessions })
		elapsed = time.Since(began)
	})
	t.Logf("63 sound engines heard all %d closes after %v, all engines after %v", groupSessions, sound, elapsed)
	t.Logf("acquire and release, p50/p99: alone %v/%v of %d pairs, meanwhile %v/%v of %d pairs",
		before.at(.5), before.at(.99), len(before), during.at(.5), during.at(.99), len(during))
	if stats := c.Stats(); stats.Bypassed[client.Degraded] != 0 || stats.Errors != 0 || stats.Lost != 0 {
		t.Errorf("admission suffered: %+v", stats)
	}
}

// engineTakes is what a busy engine's server elsewhere takes to answer a close, in BenchmarkCloseOfALargeGroup.
const engineTakes = 10 * time.Millisecond

// BenchmarkCloseOfALargeGroup compares closing 1,000 sessions on 64 engines with the time that those need when they
// are asked by nothing but a loop with as many calls in flight, and the time of admissions meanwhile with that of
// admissions alone. Those beside the loop tell what the simulated engines themselves take, which share the processors here.
func BenchmarkCloseOfALargeGroup(b *testing.B) {
	engines := make([]*lightEngine, groupEngines)
	urls := make([]string, groupEngines)
	for i := range engines {
		engines[i] = newLightEngine(b, nil, engineTakes)
		urls[i] = engines[i].URL
	}
	c := start(b, 1, "", groupEngines, &v1.Settings{EngineUrls: urls, CloseDeadline: durationpb.New(time.Hour)})
	for b.Loop() {
		var own time.Duration
		beside := c.admission(func() { own = c.closeByHand(urls) })
		for _, e := range engines {
			e.forget()
		}
		c.openGroup("step-1")
		before := c.admission(func() {})
		var took time.Duration
		during := c.admission(func() {
			began := time.Now()
			must(c, c.Sessions().CloseGroup, &v1.CloseGroupRequest{GroupId: "step-1"})
			c.awaitHeard(engines)
			took = time.Since(began)
		})
		fmt.Printf("\n%d closes on each of %d engines, %v each: by a bare loop %v, by kvgate %v; acquire+release, p50 and p99: alone %v %v, beside the loop %v %v, beside kvgate's closes %v %v\n",
			groupSessions, groupEngines, engineTakes, own.Round(time.Millisecond), took.Round(time.Millisecond),
			before.at(.5), before.at(.99), beside.at(.5), beside.at(.99), during.at(.5), during.at(.99))
		b.ReportMetric(float64(took)/float64(own), "ratio-closes")
		b.ReportMetric(float64(during.at(.5))/float64(before.at(.5)), "ratio-p50")
		b.ReportMetric(float64(during.at(.99))/float64(before.at(.99)), "ratio-p99")
	}
}

// closeByHand tells every engine of every session, 64 calls at a time as the closer does, and returns how long that takes.
func (c *cluster) closeByHand(urls []string) time.Duration {
	c.t.Helper()
	engines := sessions.NewClient(nil, sessions.Keys{})
	defer engines.CloseIdleConnections()
	var g errgroup.Group
	g.SetLimit(64)
	began := time.Now()
	for i := range groupSessions {
		for _, url := range urls {
			g.Go(func() error { return engines.CloseSession(c.t.Context(), url, fmt.Sprintf("s-%04d", i)) })
		}
	}
	if err := g.Wait(); err != nil {
		c.t.Fatal(err)
	}
	return time.Since(began)
}

func (e *lightEngine) forget() {
	e.mu.Lock()
	defer e.mu.Unlock()
	clear(e.heard)
}

func (c *cluster) openGroup(group string) {
	c.t.Helper()
	var g errgroup.Group
	g.SetLimit(32)
	for i := range groupSessions {
		g.Go(func() error {
			_, err := c.OpenSession(c.t.Context(), client.SessionRequest{ID: fmt.Sprintf("s-%04d", i), Group: group})
			return err
		})
	}
	if err := g.Wait(); err != nil {
		c.t.Fatal(err)
	}
}

// awaitHeard waits until each of the engines heard of all closes.
func (c *cluster) awaitHeard(engines []*lightEngine) {
	c.t.Helper()
	eventually(c, "closes to be heard", c.Sessions().ListSessions, &v1.ListSessionsRequest{State: v1.SessionState_SESSION_STATE_CLOSING, PageSize: 1},
		func(*v1.ListSessionsResponse) bool {
			for _, e := range engines {
				e.mu.Lock()
				n := len(e.heard)
				e.mu.Unlock()
				if n < groupSessions {
					return false
				}
			}
			return true
		})
}

func (c *cluster) owedByTheHangingEngine(url string) {
	c.t.Helper()
	eventually(c, "only the hanging engine to owe", c.Sessions().ListSessions, &v1.ListSessionsRequest{State: v1.SessionState_SESSION_STATE_CLOSING, PageSize: 2 * groupSessions},
		func(r *v1.ListSessionsResponse) bool {
			for _, s := range r.Sessions {
				if len(s.Owed) != 1 || s.Owed[0].EngineUrl != url {
					return false
				}
			}
			return len(r.Sessions) == groupSessions
		})
}

// spans are durations, sorted.
type spans []time.Duration

func (s spans) at(share float64) time.Duration { return s[int(share*float64(len(s)-1))] }

// admission asks for leases and releases them while fn runs, and at least a thousand times; it returns how
// long each pair took.
func (c *cluster) admission(fn func()) spans {
	c.t.Helper()
	var (
		over  atomic.Bool
		count atomic.Int64
		mu    sync.Mutex
		all   spans
		g     errgroup.Group
	)
	for range admissionCallers {
		g.Go(func() error {
			for !over.Load() || count.Load() < 1000 {
				began := time.Now()
				grant, err := c.Acquire(c.t.Context(), client.Request{Ticket: fmt.Sprintf("%p-%d", &mu, count.Add(1)), PromptTokens: 10})
				if err != nil {
					return err
				}
				if grant.Action != client.Admit {
					return fmt.Errorf("not admitted: %v %w", grant.Reason, grant.Cause)
				}
				if err := grant.ReleaseWait(c.t.Context()); err != nil {
					return err
				}
				took := time.Since(began)
				mu.Lock()
				all = append(all, took)
				mu.Unlock()
			}
			return nil
		})
	}
	fn()
	over.Store(true)
	if err := g.Wait(); err != nil {
		c.t.Error(err)
	}
	slices.Sort(all)
	return all
}
