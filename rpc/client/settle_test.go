package client

import (
	"context"
	"errors"
	"net/http"
	"testing"
	"testing/synctest"
	"time"
)

// TestReleaseSurvivesOutages: a release is repeated until it is known, and Release does not wait.
func TestReleaseSurvivesOutages(t *testing.T) {
	for name, f := range map[string]fault{
		"page":    {html: http.StatusBadGateway},
		"hang":    {hang: true},
		"lost":    {loseIt: true},
		"refused": {html: http.StatusUnauthorized},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				w := newWorld(t, []string{"a:1"}, []string{"a:1"})
				g := w.acquire("t1")
				node := w.nodes["a:1"]
				node.during(on("Release", 0, f))
				began := time.Now()
				g.Release()
				if took := time.Since(began); took != 0 {
					t.Fatalf("Release took %v", took)
				}
				time.Sleep(time.Minute)
				node.during(nil)
				if err := g.ReleaseWait(t.Context()); err != nil {
					t.Fatal(err)
				}
				w.wantSizes(0, 0)
				if s := w.client.Stats(); s.Released != 1 || s.ReleaseRetries == 0 {
					t.Fatalf("stats %+v", s)
				}
			})
		})
	}
}

func TestReleaseEndsWithTheLease(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t, []string{"a:1"}, []string{"a:1"})
		w.ledger.ttl = 30 * time.Second
		g := w.acquire("t1")
		w.nodes["a:1"].during(on("Release", 0, fault{html: 500}))
		began := time.Now()
		if err := g.ReleaseWait(t.Context()); err == nil {
			t.Fatal("no error from a release that never arrived")
		}
		if took := time.Since(began); took < 20*time.Second || took > 31*time.Second {
			t.Fatalf("given up after %v, want the lease's 30 s", took)
		}
		if s := w.client.Stats(); s.Unsettled != 1 || s.Released != 0 {
			t.Fatalf("stats %+v", s)
		}
	})
}

// TestReacquireAfterRelease: the same ticket again gets a lease of its own, which the release of the
// first cannot take away.
func TestReacquireAfterRelease(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t, []string{"a:1"}, []string{"a:1"})
		w.nodes["a:1"].during(on("Release", 2, fault{html: 500}))
		first := w.acquire("t1")
		first.Release()
		second := w.acquire("t1")
		if second.Number == first.Number {
			t.Fatal("the second Acquire joined a lease that is being released")
		}
		time.Sleep(time.Minute)
		w.wantSizes(1, 0)
	})
}

func TestReleaseLeavesOutBadUsage(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t, []string{"a:1"}, []string{"a:1"})
		if err := w.acquire("t1").ReleaseWait(t.Context(), Usage{PromptTokens: -1}); err != nil {
			t.Fatal(err)
		}
		w.wantSizes(0, 0)
		if u := seen(w.ledger, &w.ledger.releases)[0].GetUsage(); u != nil {
			t.Fatalf("usage sent: %v", u)
		}
		if n := w.client.Stats().Errors; n != 1 {
			t.Fatalf("%d errors counted, want 1", n)
		}
	})
}

// TestReleaseOfBypass: only a session's bypassed attempts are reported.
func TestReleaseOfBypass(t *testing.T) {
	for session, want := range map[string]int{"": 0, "s1": 1} {
		synctest.Test(t, func(t *testing.T) {
			w := newWorld(t, []string{"a:1"}, []string{"a:1"})
			g := w.acquire("t1", func(r *Request) { r.Protected, r.Session = true, session })
			w.wantDecision(g, Bypass, Protected)
			if err := g.ReleaseWait(t.Context()); err != nil {
				t.Fatal(err)
			}
			w.close()
			if n := w.nodes["a:1"].count("Release"); n != want {
				t.Fatalf("session %q: %d releases, want %d", session, n, want)
			}
		})
	}
}

func TestCloseReleasesAndCancels(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t, []string{"a:1"}, []string{"a:1"})
		held := w.acquire("t1", func(r *Request) { r.PromptTokens = 100 })
		result := make(chan error, 1)
		go func() {
			_, err := w.client.Acquire(context.Background(), Request{Ticket: "t2", PromptTokens: 1})
			result <- err
		}()
		if err := w.ledger.await(t.Context(), func() bool { return len(w.ledger.waiters) == 1 }); err != nil {
			t.Fatal(err)
		}
		w.nodes["a:1"].during(on("Release", 2, fault{html: 500}))
		w.close()
		w.close()
		if err := <-result; !errors.Is(err, ErrClosed) {
			t.Fatalf("waiting Acquire returned %v", err)
		}
		w.wantSizes(0, 0)
		if _, err := w.client.Acquire(t.Context(), Request{Ticket: "t3", PromptTokens: 1}); !errors.Is(err, ErrClosed) {
			t.Fatalf("Acquire after Close returned %v", err)
		}
		if _, err := w.client.Budget(t.Context(), ""); !errors.Is(err, ErrClosed) {
			t.Fatalf("Budget after Close returned %v", err)
		}
		held.Release()
	})
}

func TestCloseIsBounded(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t, []string{"a:1"}, []string{"a:1"})
		g := w.acquire("t1")
		w.nodes["a:1"].during(always(fault{hang: true}))
		g.Release()
		ctx, cancel := context.WithTimeout(t.Context(), 2*time.Second)
		defer cancel()
		began := time.Now()
		if err := w.client.Close(ctx); !errors.Is(err, context.DeadlineExceeded) {
			t.Fatalf("Close returned %v", err)
		}
		if took := time.Since(began); took != 2*time.Second {
			t.Fatalf("Close took %v", took)
		}
		if err := g.ReleaseWait(t.Context()); err == nil {
			t.Fatal("no error from a release that never arrived")
		}
	})
}
