package client

import (
	"errors"
	"fmt"
	"testing"
	"testing/synctest"
	"time"
)

func TestHeartbeatsOnlyWhileNeeded(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t, []string{"a:1"}, []string{"a:1"})
		node := w.nodes["a:1"]
		time.Sleep(time.Minute)
		if n := node.count("Heartbeat"); n != 0 {
			t.Fatalf("%d heartbeats before the first Acquire", n)
		}
		var grants []*Grant
		for i := range 10 {
			grants = append(grants, w.acquire(fmt.Sprint("t", i)))
		}
		time.Sleep(29 * time.Second)
		// At once, and then every 5 s, whatever the number of tickets.
		if n := node.count("Heartbeat"); n != 6 {
			t.Fatalf("%d heartbeats in 29 s, want 6", n)
		}
		for _, g := range grants {
			g.Release()
		}
		time.Sleep(time.Hour)
		if n := node.count("Heartbeat"); n != 6 {
			t.Fatalf("%d heartbeats, want none after the last release", n)
		}
		w.acquire("again")
		time.Sleep(11 * time.Second)
		if n := node.count("Heartbeat"); n != 9 {
			t.Fatalf("%d heartbeats, want 3 more", n)
		}
	})
}

func TestHeartbeatFollowsServersTTL(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t, []string{"a:1"}, []string{"a:1"})
		w.ledger.holderTTL = 3 * time.Second
		w.acquire("t1")
		time.Sleep(9500 * time.Millisecond)
		if n := w.nodes["a:1"].count("Heartbeat"); n != 10 {
			t.Fatalf("%d heartbeats in 9.5 s of a 3 s TTL, want 10", n)
		}
	})
}

func TestHeartbeatWhileWaiting(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t, []string{"a:1"}, []string{"a:1"})
		w.ledger.capacity = 1
		w.wantDecision(w.acquire("t1", func(r *Request) { r.MaxWait = 21 * time.Second }), Bypass, Aged)
		if n := w.nodes["a:1"].count("Heartbeat"); n != 5 {
			t.Fatalf("%d heartbeats in 21 s of waiting, want 5", n)
		}
	})
}

func TestWithoutHolder(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t, []string{"a:1"}, []string{"a:1"}, WithoutHolder())
		w.acquire("t1")
		time.Sleep(time.Minute)
		if n := w.nodes["a:1"].count("Heartbeat"); n != 0 {
			t.Fatalf("%d heartbeats", n)
		}
	})
}

func TestHeartbeatTellsThatStateIsGone(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t, []string{"a:1"}, []string{"a:1"})
		g1, g2 := w.acquire("t1"), w.acquire("t2")
		time.Sleep(12 * time.Second)
		select {
		case <-g1.Lost():
			t.Fatal("lost while the lease is there")
		default:
		}
		w.ledger.mu.Lock()
		clear(w.ledger.leases)
		w.ledger.reserved = 0
		w.ledger.mu.Unlock()
		time.Sleep(6 * time.Second)
		for _, g := range []*Grant{g1, g2} {
			select {
			case <-g.Lost():
			default:
				t.Fatalf("%s is not lost", g.Ticket)
			}
		}
		time.Sleep(time.Minute)
		if n := w.client.Stats().Lost; n != 2 {
			t.Fatalf("lost counted %d times, want 2", n)
		}
		g1.Release() // a lost grant is released like any other
	})
}

func TestRenewsTogetherAtHalfTime(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t, []string{"a:1"}, []string{"a:1"})
		w.ledger.ttl = 60 * time.Second
		first := w.acquire("t1")
		time.Sleep(time.Second)
		w.acquire("t2")
		time.Sleep(28 * time.Second)
		if n := len(seen(w.ledger, &w.ledger.renewals)); n != 0 {
			t.Fatalf("%d renewals before half time", n)
		}
		time.Sleep(2 * time.Second)
		if r := seen(w.ledger, &w.ledger.renewals); len(r) != 1 || r[0] != 2 {
			t.Fatalf("renewals %v, want one of both leases", r)
		}
		if left := time.Until(first.ExpiresAt()); left < 58*time.Second {
			t.Fatalf("expires in %v", left)
		}
		first.Release()
		time.Sleep(30 * time.Second)
		if r := seen(w.ledger, &w.ledger.renewals); len(r) != 2 || r[1] != 1 {
			t.Fatalf("renewals %v, want a second one without the released lease", r)
		}
	})
}

func TestRenewRetriesThenLoses(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t, []string{"a:1"}, []string{"a:1"})
		w.ledger.ttl = 60 * time.Second
		healed, failing := w.acquire("t1"), w.nodes["a:1"]
		failing.during(on("Renew", 0, fault{html: 500}))
		time.Sleep(45 * time.Second)
		failing.during(nil)
		time.Sleep(30 * time.Second)
		if left := time.Until(healed.ExpiresAt()); left <= 0 {
			t.Fatal("the lease was not renewed after the outage")
		}
		failing.during(on("Renew", 0, fault{html: 500}))
		time.Sleep(2 * time.Minute)
		select {
		case <-healed.Lost():
		default:
			t.Fatal("a lease that is over is not lost")
		}
	})
}

func TestNoAutoRenew(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t, []string{"a:1"}, []string{"a:1"}, WithAutoRenew(false))
		g := w.acquire("t1")
		time.Sleep(400 * time.Second)
		if n := len(seen(w.ledger, &w.ledger.renewals)); n != 0 {
			t.Fatalf("%d renewals", n)
		}
		if err := g.Renew(t.Context(), 0); err != nil {
			t.Fatal(err)
		}
		if left := time.Until(g.ExpiresAt()); left < 599*time.Second {
			t.Fatalf("expires in %v", left)
		}
	})
}

func TestRenewOfWhatIsGone(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t, []string{"a:1"}, []string{"a:1"})
		g := w.acquire("t1")
		if _, err := w.client.Cancel(t.Context(), "", "t1"); err != nil {
			t.Fatal(err)
		}
		if err := g.Renew(t.Context(), time.Minute); !errors.Is(err, ErrLeaseGone) {
			t.Fatalf("got %v", err)
		}
		<-g.Lost()
		leases, err := w.client.Renew(t.Context(), "", []string{g.LeaseID}, 0)
		if err != nil || len(leases) != 1 || leases[0].GetRenewed() {
			t.Fatalf("got %v, %v", leases, err)
		}
	})
}
