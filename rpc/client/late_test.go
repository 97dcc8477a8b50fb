package client

import (
	"context"
	"errors"
	"net"
	"net/http"
	"strings"
	"sync"
	"syscall"
	"testing"
	"testing/synctest"
	"time"

	kvgatev1 "kvgate/rpc/kvgate/v1"
)

// unreachable is a transport that cannot connect any more once it is told so, as when a node dies. A long
// poll that is open then fails the same way: its connection is gone, and there is no other.
type unreachable struct {
	http.RoundTripper
	mu   sync.Mutex
	down chan struct{}
}

// RoundTrip implements [http.RoundTripper].
func (u *unreachable) RoundTrip(r *http.Request) (*http.Response, error) {
	u.mu.Lock()
	down := u.down
	u.mu.Unlock()
	refused := &net.OpError{Op: "dial", Net: "tcp", Err: syscall.ECONNREFUSED}
	if strings.HasSuffix(r.URL.Path, "/AwaitGrants") {
		select {
		case <-down:
			return nil, refused
		case <-r.Context().Done():
			return nil, r.Context().Err()
		}
	}
	select {
	case <-down:
		return nil, refused
	default:
		return u.RoundTripper.RoundTrip(r)
	}
}

func (u *unreachable) heal() {
	u.mu.Lock()
	defer u.mu.Unlock()
	u.down = make(chan struct{})
}

// TestPollThatCannotConnect: a ticket that waits through a node was sent there, also when its decision can
// not be asked for since nothing listens there any more. Its caller gives up before anything else is reached.
func TestPollThatCannotConnect(t *testing.T) {
	n := startRealNode(t, 100)
	transport := &http.Transport{}
	defer transport.CloseIdleConnections()
	way := &unreachable{RoundTripper: transport, down: make(chan struct{})}
	c := n.client(t, WithHTTPClient(&http.Client{Transport: way}))
	g, err := c.Acquire(t.Context(), Request{Ticket: "held", ReservationTokens: 100})
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	left := make(chan error)
	go func() {
		_, err := c.Acquire(ctx, Request{Ticket: "w", ReservationTokens: 100, MaxWait: time.Hour})
		left <- err
	}()
	within(t, "w waits", func() bool { return n.budget().Waiting == 1 })
	close(way.down)
	within(t, "the client has noticed", func() bool { return c.Stats().Retries > 0 })
	cancel()
	if err := <-left; !errors.Is(err, context.Canceled) {
		t.Fatal(err)
	}
	way.heal()
	within(t, "w is cancelled", func() bool { return c.Stats().Cancelled == 1 })
	if b := n.budget(); b.Waiting != 0 {
		t.Errorf("%d wait", b.Waiting)
	}
	g.Release()
	closeSoon(t, c)
	n.empty(t)
}

// TestLateCopies: a node that seemed to fail carries an Acquire out once more after its caller gave up, or
// after the lease that another try got was released. It gets nothing.
func TestLateCopies(t *testing.T) {
	for name, lost := range map[string]int{"given up": 0, "released": 1} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				w := newWorld(t, []string{"a:1"}, []string{"a:1"})
				w.nodes["a:1"].during(on("Acquire", lost, fault{loseIt: true}))
				ctx, cancel := context.WithTimeout(t.Context(), time.Second)
				defer cancel()
				g, err := w.client.Acquire(ctx, Request{Ticket: "t1", PromptTokens: 10})
				if err == nil {
					err = g.ReleaseWait(t.Context())
				} else if errors.Is(err, context.DeadlineExceeded) {
					err = nil
				}
				if err != nil {
					t.Fatal(err)
				}
				synctest.Wait()
				for _, call := range seen(w.ledger, &w.ledger.calls) {
					late, err := w.ledger.acquire(t.Context(), &kvgatev1.AcquireRequest{TicketId: "t1", PromptTokens: 10, CallId: call})
					if call == 0 || err != nil || late.GetReason() != Cancelled {
						t.Errorf("a late copy of call %d: %v, %v", call, late, err)
					}
				}
				w.wantSizes(0, 0)
			})
		})
	}
}

// TestUntrackedMayHaveBeenAdmitted: a node that lets a ticket through because it did not hear the leader's
// decision does not know that there is none.
func TestUntrackedMayHaveBeenAdmitted(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t, []string{"a:1"}, []string{"a:1"})
		w.nodes["a:1"].during(on("Acquire", 1, fault{answer: &kvgatev1.AcquireResponse{
			Action: Bypass, Reason: Degraded, TicketId: "t1", Warnings: []string{"untracked: the coordinator could not decide"},
		}}))
		w.wantDecision(w.acquire("t1"), Bypass, Degraded)
		synctest.Wait()
		if n := w.nodes["a:1"].count("Cancel"); n != 1 {
			t.Fatalf("%d cancels of what may have been admitted, want 1", n)
		}
		w.close()
	})
}
