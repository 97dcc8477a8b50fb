package fsm

import (
	"context"
	"testing"
	"time"

	"kvgate/ledger"
)

func shortHolders(s *ledger.Settings) { s.HolderTTL = time.Second }

// heartbeats sends them until the test ends or stop is called.
func heartbeats(t *testing.T, r *Replica, holder string) (stop func()) {
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan struct{})
	go func() {
		defer close(done)
		ticker := time.NewTicker(20 * time.Millisecond)
		defer ticker.Stop()
		for {
			if _, err := r.Heartbeat(ctx, holder); err != nil && ctx.Err() == nil {
				t.Error(err)
			}
			select {
			case <-ticker.C:
			case <-ctx.Done():
				return
			}
		}
	}()
	stop = func() { cancel(); <-done }
	t.Cleanup(stop)
	return stop
}

func heldBy(holder, ticket string, tokens ledger.Tokens) ledger.Acquire {
	a := ask(ticket, tokens)
	a.Holder = holder
	return a
}

// TestSilentHolderIsReclaimed, and one that heart-beats is not.
func TestSilentHolderIsReclaimed(t *testing.T) {
	s := startSingle(t)
	budget(t, s.Replica, 100, setting("holderTtl", shortHolders))
	admit(t, s.Replica, heldBy("alive", "a", 40))
	stop := heartbeats(t, s.Replica, "alive")
	admit(t, s.Replica, heldBy("silent", "b", 60))
	queue(t, s.Replica, heldBy("silent", "c", 90)).leave()

	await(t, s.Replica, ledger.KindHolderExpired, "b")
	await(t, s.Replica, ledger.KindHolderExpired, "c")
	if leaseOf(s.Replica, "a") == nil {
		t.Fatal("the lease of a holder that heart-beats was taken back")
	}
	status, err := s.Heartbeat(t.Context(), "alive")
	must(t, err)
	if status != (HolderStatus{TTL: time.Second, Leases: 1}) {
		t.Errorf("heartbeat answers %+v", status)
	}
	if status, err = s.Heartbeat(t.Context(), "silent"); err != nil || status.Leases != 0 || status.Waiters != 0 {
		t.Errorf("heartbeat of a holder that has nothing left answers %+v, %v", status, err)
	}
	stop()
	await(t, s.Replica, ledger.KindHolderExpired, "a")
}

// TestHolderThatActsIsAlive: an operation is as good as a heartbeat.
func TestHolderThatActsIsAlive(t *testing.T) {
	s := startSingle(t)
	budget(t, s.Replica, 100, setting("holderTtl", shortHolders))
	admit(t, s.Replica, heldBy("busy", "a", 10))
	admit(t, s.Replica, heldBy("silent", "b", 10))
	eventually(t, "the silent holder is reclaimed", func() bool {
		_, err := s.Renew(t.Context(), ledger.DefaultPool, []ledger.LeaseRef{{Ticket: "a"}}, 0)
		must(t, err)
		return leaseOf(s.Replica, "b") == nil
	})
	if leaseOf(s.Replica, "a") == nil {
		t.Error("the lease of a holder that renews was taken back")
	}
}

// TestStallIsForgiven: when the leader itself stood still, holders get the time back. Ledger time went
// on meanwhile, so the journal tells when the holder was given up.
func TestStallIsForgiven(t *testing.T) {
	const stall = time.Minute
	s := startSingle(t)
	budget(t, s.Replica, 100, setting("holderTtl", func(s *ledger.Settings) { s.HolderTTL = 2 * time.Second }))
	admit(t, s.Replica, heldBy("h", "a", 10))
	granted := await(t, s.Replica, ledger.KindAdmitted, "a")
	s.clock.Advance(stall)
	gone := await(t, s.Replica, ledger.KindHolderExpired, "a")
	if after := time.Duration(gone.LedgerTime - granted.LedgerTime); after < stall+2*time.Second-scanEvery {
		t.Errorf("given up %v after it was last heard of: a stall of %v was not forgiven", after, stall)
	}
}

// TestReclaimNamesWhatItSaw: a holder that was active since the scan keeps what it has.
func TestReclaimNamesWhatItSaw(t *testing.T) {
	s := startSingle(t)
	budget(t, s.Replica, 100)
	admit(t, s.Replica, heldBy("h", "a", 10))
	var seen ledger.HolderView
	s.machine.view(func(l *ledger.Ledger) { seen = l.Holder("h")[0] })
	seen.LastActive--
	s.leading().holders.reclaim(t.Context(), client{HolderView: seen})
	if leaseOf(s.Replica, "a") == nil {
		t.Fatal("a holder that was active since was reclaimed")
	}
	seen.LastActive++
	s.leading().holders.reclaim(t.Context(), client{HolderView: seen})
	if leaseOf(s.Replica, "a") != nil {
		t.Error("a silent holder was not reclaimed")
	}
}
