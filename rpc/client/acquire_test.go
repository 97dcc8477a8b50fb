package client

import (
	"context"
	"errors"
	"net/http"
	"os"
	"testing"
	"testing/synctest"
	"time"

	"connectrpc.com/connect"
	"go.uber.org/goleak"

	kvgatev1 "kvgate/rpc/kvgate/v1"
)

func TestMain(m *testing.M) {
	// The rules are compiled once per process; not inside a bubble.
	if err := validate(&kvgatev1.AcquireRequest{TicketId: "t", PromptTokens: 1}); err != nil {
		os.Exit(2)
	}
	goleak.VerifyTestMain(m)
}

func TestAcquireAdmitsAndReleases(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t, []string{"a:1"}, []string{"a:1"})
		g := w.acquire("t1")
		w.wantDecision(g, Admit, CapacityAvailable)
		if g.LeaseID != "1:t1" || g.Number == 0 || g.ReservationTokens != 10 {
			t.Fatalf("grant %+v", g.Decision)
		}
		w.wantSizes(1, 0)
		if err := g.ReleaseWait(t.Context(), Usage{PromptTokens: 9, Outcome: "stop"}); err != nil {
			t.Fatal(err)
		}
		g.Release() // a second release does nothing
		w.close()
		w.wantSizes(0, 0)
		if len(seen(w.ledger, &w.ledger.releases)) != 1 {
			t.Fatalf("%d releases sent, want 1", len(seen(w.ledger, &w.ledger.releases)))
		}
		sent := seen(w.ledger, &w.ledger.releases)[0]
		if sent.GetGrant() != g.Number || sent.GetLeaseId() != g.LeaseID || sent.GetUsage().GetOutcome() != "stop" {
			t.Fatalf("release sent %v", sent)
		}
		if s := w.client.Stats(); s.Admitted != 1 || s.Released != 1 || s.Degraded != 0 {
			t.Fatalf("stats %+v", s)
		}
	})
}

func TestWaitsAndAges(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t, []string{"a:1"}, []string{"a:1"})
		first := w.acquire("t1", func(r *Request) { r.PromptTokens = 100 })
		began := time.Now()
		w.wantDecision(w.acquire("t2", func(r *Request) { r.MaxWait = 5 * time.Second }), Bypass, Aged)
		if took := time.Since(began); took != 5*time.Second {
			t.Fatalf("aged after %v", took)
		}
		w.wantDecision(w.acquire("t3", func(r *Request) { r.MaxWait = NoWait }), Bypass, Aged)
		time.AfterFunc(7*time.Second, func() { first.Release() })
		second := w.acquire("t4", func(r *Request) { r.PromptTokens = 100 })
		w.wantDecision(second, Admit, CapacityAvailable)
		if second.Waited < 7*time.Second {
			t.Fatalf("waited %v", second.Waited)
		}
		if s := w.client.Stats(); s.Waited != 2 || s.Bypassed[Aged] != 2 {
			t.Fatalf("stats %+v", s)
		}
	})
}

// TestFailsOpen: whatever is wrong on the other side, Acquire answers bypass degraded within its
// budget, and leaves nothing behind once the coordinator is well again.
func TestFailsOpen(t *testing.T) {
	unavailable := kvgateError(connect.CodeUnavailable, &kvgatev1.ErrorInfo{Code: "no_leader"})
	full := kvgateError(connect.CodeResourceExhausted, &kvgatev1.ErrorInfo{Code: "too_many_waiters"})
	for name, script := range map[string]func(string) fault{
		"hang":           on("Acquire", 0, fault{hang: true}),
		"slow":           on("Acquire", 0, fault{delay: time.Hour}),
		"page":           on("Acquire", 0, fault{html: http.StatusOK}),
		"internal error": on("Acquire", 0, fault{html: http.StatusInternalServerError}),
		"not found page": on("Acquire", 0, fault{html: http.StatusNotFound}),
		"no leader":      on("Acquire", 0, fault{err: unavailable}),
		"queue full":     on("Acquire", 0, fault{err: full}),
		"bad token":      on("Acquire", 0, fault{err: connect.NewError(connect.CodeUnauthenticated, errors.New("who"))}),
		"lost answers":   on("Acquire", 0, fault{loseIt: true}),
		"no action":      on("Acquire", 0, fault{answer: &kvgatev1.AcquireResponse{TicketId: "t1"}}),
		"wrong ticket":   on("Acquire", 0, fault{answer: &kvgatev1.AcquireResponse{Action: Bypass, TicketId: "x"}}),
		"no lease id":    on("Acquire", 0, fault{answer: &kvgatev1.AcquireResponse{Action: Admit, TicketId: "t1"}}),
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				w := newWorld(t, []string{"a:1"}, []string{"a:1"})
				w.nodes["a:1"].during(script)
				began := time.Now()
				g := w.acquire("t1", func(r *Request) { r.MaxWait = 2 * time.Second })
				w.wantDecision(g, Bypass, Degraded)
				if g.Cause == nil {
					t.Fatal("no cause")
				}
				if took := time.Since(began); took > 5*time.Second {
					t.Fatalf("failed open after %v, want at most max wait + 3 s", took)
				}
				g.Release()
				if s := w.client.Stats(); s.Degraded != 1 || s.Bypassed[Degraded] != 1 || s.Errors != 0 {
					t.Fatalf("stats %+v", s)
				}
				w.nodes["a:1"].during(nil)
				w.close()
				w.wantSizes(0, 0)
			})
		})
	}
}

func TestFailsOpenWhenAllAreDown(t *testing.T) {
	for name, prepare := range map[string]func(*memNet){
		"refused":    func(*memNet) {},
		"black hole": func(m *memNet) { m.hole("a:1"); m.hole("b:1"); m.hole("c:1") },
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				w := newWorld(t, []string{"a:1", "b:1", "c:1"}, nil)
				prepare(w.net)
				began := time.Now()
				w.wantDecision(w.acquire("t1", func(r *Request) { r.MaxWait = 10 * time.Second }), Bypass, Degraded)
				if took := time.Since(began); took > 13*time.Second {
					t.Fatalf("failed open after %v", took)
				}
			})
		})
	}
}

// TestDownIsRemembered: once a cluster is known to be down, an Acquire makes one round and goes ahead.
func TestDownIsRemembered(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t, []string{"a:1", "b:1"}, nil)
		began := time.Now()
		w.acquire("t1")
		if took := time.Since(began); took < 3*time.Second || took > 5*time.Second {
			t.Fatalf("the first failed open after %v, want the decision budget", took)
		}
		began = time.Now()
		w.acquire("t2")
		if took := time.Since(began); took > time.Second {
			t.Fatalf("the second failed open after %v, want at once", took)
		}
		if n := w.client.Stats().Unsettled; n != 0 {
			t.Fatalf("%d cancels of tickets that nobody has seen", n)
		}
	})
}

func TestFailsOver(t *testing.T) {
	for name, prepare := range map[string]func(*world){
		"refused":      func(*world) {},
		"black hole":   func(w *world) { w.net.hole("a:1") },
		"page":         func(w *world) { w.serveFaulty("a:1", always(fault{html: 502})) },
		"lost answers": func(w *world) { w.serveFaulty("a:1", always(fault{loseIt: true})) },
		"hint": func(w *world) {
			err := kvgateError(connect.CodeUnavailable, &kvgatev1.ErrorInfo{Code: "no_leader", LeaderHint: "c:1"})
			w.serveFaulty("a:1", always(fault{err: err}))
		},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				w := newWorld(t, []string{"a:1", "b:1", "c:1"}, []string{"b:1", "c:1"})
				prepare(w)
				began := time.Now()
				w.wantDecision(w.acquire("t1"), Admit, CapacityAvailable)
				if took := time.Since(began); took > pingAfter+pingTimeout+time.Second {
					t.Fatalf("failed over after %v: a dead peer must not use up the max wait", took)
				}
				w.wantSizes(1, 0)
				other := "b:1"
				if name == "hint" {
					other = "c:1"
				}
				w.acquire("t2")
				w.acquire("t3")
				if n := w.nodes[other].count("Acquire"); n != 3 {
					t.Fatalf("%s served %d acquires, want all 3: the client sticks to what works", other, n)
				}
			})
		})
	}
}

func (w *world) serveFaulty(address string, script func(string) fault) {
	node := newFakeNode(w.ledger)
	node.during(script)
	listener := w.net.listen(address)
	go func() { _ = node.server.Serve(listener) }()
	w.Cleanup(func() { _ = node.server.Close() })
}

func TestFollowsLeaderHeader(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t, []string{"a:1", "b:1"}, []string{"a:1", "b:1"}, WithoutHolder())
		w.nodes["a:1"].during(always(fault{leaders: "b:1"}))
		w.acquire("t1")
		w.acquire("t2")
		if a, b := w.nodes["a:1"].count("Acquire"), w.nodes["b:1"].count("Acquire"); a != 1 || b != 1 {
			t.Fatalf("a served %d and b %d, want 1 and 1", a, b)
		}
	})
}

// TestLeaderDiesWhileWaiting: the ticket comes back elsewhere, with what is left of its max wait, and
// keeps its place.
func TestLeaderDiesWhileWaiting(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t, []string{"a:1", "b:1"}, []string{"a:1", "b:1"}, WithoutHolder())
		first := w.acquire("t1", func(r *Request) { r.PromptTokens = 100 })
		time.AfterFunc(4*time.Second, func() {
			w.net.mu.Lock()
			delete(w.net.listeners, "a:1")
			w.net.mu.Unlock()
			_ = w.nodes["a:1"].server.Close()
		})
		time.AfterFunc(6*time.Second, func() { first.Release() })
		g := w.acquire("t2", func(r *Request) { r.MaxWait = 20 * time.Second })
		w.wantDecision(g, Admit, CapacityAvailable)
		if g.Waited < 6*time.Second {
			t.Fatalf("waited %v: the place was lost", g.Waited)
		}
		sent := seen(w.ledger, &w.ledger.maxWaits)
		if len(sent) != 3 || sent[1] != 20*time.Second || sent[2] > 16*time.Second || sent[2] < 15*time.Second {
			t.Fatalf("max waits sent: %v", sent)
		}
	})
}

// TestPoolsMaxWait: without a max wait the first try leaves it to the pool, a retry sends the rest.
func TestPoolsMaxWait(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t, []string{"a:1"}, []string{"a:1"}, WithDefaultMaxWait(8*time.Second))
		w.nodes["a:1"].during(on("Acquire", 1, fault{loseIt: true}))
		w.acquire("t1")
		sent := seen(w.ledger, &w.ledger.maxWaits)
		if len(sent) != 2 || sent[0] != -1 || sent[1] > 8*time.Second || sent[1] < 7*time.Second {
			t.Fatalf("max waits sent: %v", sent)
		}
	})
}

func TestProgrammingErrors(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t, []string{"a:1"}, []string{"a:1"})
		for field, req := range map[string]Request{
			"ticketId":          {PromptTokens: 1},
			"promptTokens":      {Ticket: "t", PromptTokens: -1},
			"reservationTokens": {Ticket: "t"},
			"sessionId":         {Ticket: "t", PromptTokens: 1, Session: "a\nb"},
			"maxWait":           {Ticket: "t", PromptTokens: 1, MaxWait: -time.Second},
			"ttl":               {Ticket: "t", PromptTokens: 1, TTL: -time.Second},
			"mode":              {Ticket: "t", PromptTokens: 1, Mode: 99},
		} {
			_, err := w.client.Acquire(t.Context(), req)
			var e *Error
			if !errors.As(err, &e) || e.Field != field || !errors.Is(err, ErrInvalid) {
				t.Errorf("%s: got %v", field, err)
			}
		}
		if n := w.nodes["a:1"].count("Acquire"); n != 0 {
			t.Errorf("%d invalid requests were sent", n)
		}
	})
}

func TestRefusals(t *testing.T) {
	for want, info := range map[error]*kvgatev1.ErrorInfo{
		ErrTicketMismatch: {Code: "ticket_mismatch"},
		ErrSessionClosing: {Code: "session_closing"},
	} {
		synctest.Test(t, func(t *testing.T) {
			w := newWorld(t, []string{"a:1"}, []string{"a:1"})
			w.nodes["a:1"].during(always(fault{err: kvgateError(connect.CodeFailedPrecondition, info)}))
			_, err := w.client.Acquire(t.Context(), Request{Ticket: "t", PromptTokens: 1})
			var e *Error
			if !errors.Is(err, want) || !errors.As(err, &e) || e.Name != info.GetCode() {
				t.Fatalf("got %v, want %v", err, want)
			}
			if n := w.nodes["a:1"].count("Cancel"); n != 0 {
				t.Fatalf("%d cancels after a refusal", n)
			}
		})
	}
}

func TestContextEndsWait(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t, []string{"a:1"}, []string{"a:1"})
		w.acquire("t1", func(r *Request) { r.PromptTokens = 100 })
		ctx, cancel := context.WithTimeout(t.Context(), 3*time.Second)
		defer cancel()
		g, err := w.client.Acquire(ctx, Request{Ticket: "t2", PromptTokens: 10})
		if g != nil || !errors.Is(err, context.DeadlineExceeded) {
			t.Fatalf("got %v, %v", g, err)
		}
		synctest.Wait()
		w.wantSizes(1, 0)
		if s := w.client.Stats(); s.Cancelled != 1 {
			t.Fatalf("stats %+v", s)
		}
	})
}

// TestReacquireAfterOwnCancel: the client waits for its own cancel, which does not let the next call go.
func TestReacquireAfterOwnCancel(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t, []string{"a:1"}, []string{"a:1"})
		node := w.nodes["a:1"]
		cancelSlowly := on("Cancel", 0, fault{delay: time.Second})
		node.during(func(call string) fault {
			if call == "Acquire" {
				return fault{hang: true}
			}
			return cancelSlowly(call)
		})
		ctx, cancel := context.WithTimeout(t.Context(), time.Second)
		defer cancel()
		if _, err := w.client.Acquire(ctx, Request{Ticket: "t1", PromptTokens: 10}); err == nil {
			t.Fatal("no error from the cancelled Acquire")
		}
		node.during(cancelSlowly)
		began := time.Now()
		w.wantDecision(w.acquire("t1"), Admit, CapacityAvailable)
		if took := time.Since(began); took < time.Second {
			t.Fatalf("asked again after %v, before its own cancel was known", took)
		}
		if n := node.count("Acquire"); n != 2 {
			t.Fatalf("%d acquires, want 2: the cancel of the first lets the second alone", n)
		}
		w.close()
		w.wantSizes(0, 0)
	})
}

// TestUsersCancelIsADecision: a mark left by Client.Cancel does bypass.
func TestUsersCancelIsADecision(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t, []string{"a:1"}, []string{"a:1"})
		was, err := w.client.Cancel(t.Context(), "", "t1")
		if err != nil || was != kvgatev1.CancelState_CANCEL_STATE_UNKNOWN {
			t.Fatalf("got %v, %v", was, err)
		}
		w.wantDecision(w.acquire("t1"), Bypass, Cancelled)
	})
}

// TestSharedTicket: one of two callers of a ticket going away does not cancel it for the other.
func TestSharedTicket(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t, []string{"a:1"}, []string{"a:1"})
		first := w.acquire("t1", func(r *Request) { r.PromptTokens = 100 })
		ctx, cancel := context.WithTimeout(t.Context(), time.Second)
		defer cancel()
		time.AfterFunc(2*time.Second, func() { first.Release() })
		left := make(chan error, 1)
		go func() {
			_, err := w.client.Acquire(ctx, Request{Ticket: "t2", PromptTokens: 10})
			left <- err
		}()
		g := w.acquire("t2")
		w.wantDecision(g, Admit, CapacityAvailable)
		if err := <-left; !errors.Is(err, context.DeadlineExceeded) {
			t.Fatal(err)
		}
		if n := w.nodes["a:1"].count("Cancel"); n != 0 {
			t.Fatalf("%d cancels while the ticket is held", n)
		}
		g.Release()
		w.close()
		w.wantSizes(0, 0)
		released := seen(w.ledger, &w.ledger.releases)
		if last := released[len(released)-1]; last.GetTicketId() != "t2" || last.GetEndedCallId() == 0 {
			t.Fatalf("release %v does not end the call that the first caller left", last)
		}
		if n := w.nodes["a:1"].count("Cancel"); n != 0 {
			t.Fatalf("%d cancels, though the release did it", n)
		}
	})
}
