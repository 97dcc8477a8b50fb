package fsm

import (
	"context"
	"errors"
	"maps"
	"slices"
	"strings"
	"testing"
	"time"

	"connectrpc.com/connect"

	"kvgate/fsm/fsmpb"
	"kvgate/ledger"
	"kvgate/store"
)

// wantAskers: the journal says who asked for the changes of a pool.
func wantAskers(t *testing.T, f *member, pool string, want ...string) {
	t.Helper()
	var got []string
	kinds := []string{string(ledger.KindSettings), string(ledger.KindPoolDeleted)}
	for _, e := range journal(t, f.Replica, store.JournalQuery{Pool: pool, Kinds: kinds}) {
		got = append(got, e.By)
	}
	if !slices.Equal(got, want) {
		t.Errorf("changes of %s by %q, want %q", pool, got, want)
	}
}

// TestEveryCallOnAFollower is answered as the leader would.
func TestEveryCallOnAFollower(t *testing.T) {
	c := startCluster(t)
	c.budget(100)
	for _, f := range c.followers() {
		id := f.opts.NodeID
		first := admit(t, f.Replica, heldBy("h", id, 40))
		// The follower sees what it was told, at once.
		must(t, f.View(t.Context(), false, func(l *ledger.Ledger) {
			if v, _ := l.Ticket(ledger.DefaultPool, id); v.Lease == nil || v.Lease.Grant != first.Seq {
				t.Errorf("%s does not read its own write: %+v", id, v)
			}
		}))
		renewed, err := f.Renew(t.Context(), ledger.DefaultPool, []ledger.LeaseRef{{Ticket: id, Grant: first.Seq}, {Ticket: "none"}}, time.Minute)
		must(t, err)
		if len(renewed) != 2 || !renewed[0].OK || renewed[0].ExpiresIn <= 0 || renewed[0].ExpiresIn > time.Minute || renewed[1].OK {
			t.Errorf("%s: renewed %+v", id, renewed)
		}
		if st, err := f.Heartbeat(t.Context(), "h"); err != nil || st.Leases != 1 {
			t.Errorf("%s: heartbeat %+v, %v", id, st, err)
		}
		if was, err := f.Cancel(t.Context(), ledger.Cancel{Pool: ledger.DefaultPool, Ticket: "early-" + id}); err != nil || was != ledger.CancelUnknown {
			t.Errorf("%s: cancel %v, %v", id, was, err)
		}
		release(t, f.Replica, id)
		set, err := f.UpdateSettings(t.Context(), "pool-"+id, ledger.Patch{
			Set: ledger.Settings{ModelID: id}, Fields: []string{"modelId"}, By: "one at " + id,
		})
		must(t, err)
		if set.ModelID != id || set.MaxWait != ledger.DefaultSettings().MaxWait {
			t.Errorf("%s: settings %+v", id, set)
		}
		if deleted, err := f.DeletePool(t.Context(), "pool-"+id, "another at "+id); err != nil || !deleted {
			t.Errorf("%s: deleted %v, %v", id, deleted, err)
		}
		page, err := f.Journal(t.Context(), false, store.JournalQuery{Ticket: id, Limit: 10})
		must(t, err)
		if len(page.Events) != 3 {
			t.Errorf("%s: %d events of its ticket, want admitted, renewed, released", id, len(page.Events))
		}
		wantAskers(t, f, "pool-"+id, "one at "+id, "another at "+id)
		wantRefusals(t, f)
	}
	f := c.followers()[0]
	m, err := f.DrainStep(t.Context(), ledger.DefaultPool, "run", 5)
	must(t, err)
	if m["agentic_kv/admission/admit"] != 2 {
		t.Errorf("drained %v", m)
	}
	if again, err := f.DrainStep(t.Context(), ledger.DefaultPool, "run", 5); err != nil || !maps.Equal(again, m) {
		t.Errorf("the same step again: %v, %v", again, err)
	}
	c.hashesAgree()
}

// wantRefusals: errors come over the network as what they are.
func wantRefusals(t *testing.T, f *member) {
	t.Helper()
	var field *ledger.FieldError
	_, err := f.UpdateSettings(t.Context(), ledger.DefaultPool, ledger.Patch{Set: ledger.Settings{Headroom: 2}, Fields: []string{"headroom"}})
	if !errors.As(err, &field) || field.Field != "headroom" {
		t.Errorf("%s: error %v, want one that names headroom", f.opts.NodeID, err)
	}
	if err := f.Reconcile(t.Context(), ledger.DefaultPool, ledger.Round{}); !errors.Is(err, ErrNotLeader) {
		t.Errorf("%s: a follower's round of polling: %v", f.opts.NodeID, err)
	}
}

// TestLongWaitThroughAFollower, and a call that is given up there is detached on the leader.
func TestLongWaitThroughAFollower(t *testing.T) {
	c := startCluster(t)
	c.budget(100)
	a, b := c.followers()[0], c.followers()[1]
	leader := c.leader().Replica
	admit(t, a.Replica, ask("held", 100))
	first, second := queue(t, a.Replica, ask("first", 100)), queue(t, b.Replica, ask("second", 100))
	first.leave()
	await(t, leader, ledger.KindDetached, "first")
	again := begin(t, b.Replica, ask("first", 100))
	eventually(t, "the retry is attached", func() bool { w := waiterOf(leader, "first"); return w != nil && w.Attached })
	release(t, b.Replica, "held")
	if d := again.admitted(); d.Tokens != 100 {
		t.Errorf("granted %+v", d)
	}
	release(t, a.Replica, "first")
	second.admitted()
}

// TestReadOnlyLeaderSaysWhy also to the followers.
func TestReadOnlyLeaderSaysWhy(t *testing.T) {
	c := startCluster(t)
	c.budget(100)
	f := c.followers()[0]
	leader := c.leader()
	c.full.becomes(store.ErrNoSpace)
	defer c.full.becomes(nil)
	eventually(t, "the leader notices", func() bool { return !leader.Status().Writable })
	_, err := f.Acquire(t.Context(), ask("a", 1))
	if !errors.Is(err, ErrReadOnly) || !strings.Contains(err.Error(), store.ErrNoSpace.Error()) {
		t.Errorf("error %v, want that writes are refused and why", err)
	}
}

// TestCallersTimeIsOver on the leader: the node that forwarded learns that nothing was decided in time,
// not of an error that nobody knows.
func TestCallersTimeIsOver(t *testing.T) {
	c := startCluster(t)
	gone, cancel := context.WithCancel(t.Context())
	cancel()
	op := &fsmpb.Op{Kind: &fsmpb.Op_Cancel{Cancel: &fsmpb.Cancel{Pool: ledger.DefaultPool, Ticket: "a"}}}
	res, err := c.leader().peers.Do(gone, connect.NewRequest(&fsmpb.DoRequest{Op: op}))
	must(t, err)
	if got := decodeResult(res.Msg.Result); !errors.Is(got.Err, ErrTimeout) {
		t.Errorf("error %v, want %v", got.Err, ErrTimeout)
	}
}

// TestTransferInTheMiddleOfAWait: every caller, wherever it is, gets its grant from the new leader.
func TestTransferInTheMiddleOfAWait(t *testing.T) {
	c := startCluster(t)
	c.budget(100)
	old := c.leader()
	admit(t, old.Replica, ask("held", 100))
	var calls []*blockedCall
	var order []ledger.Seq
	for _, m := range c.up() {
		calls = append(calls, queue(t, m.Replica, ask("w-"+m.opts.NodeID, 100)))
		eventually(t, "the leader knows the waiter", func() bool { return waiterOf(old.Replica, "w-"+m.opts.NodeID) != nil })
		order = append(order, waiterOf(old.Replica, "w-"+m.opts.NodeID).Seq)
	}
	to := c.followers()[0]
	must(t, old.TransferLeadership(t.Context(), to.opts.NodeID))
	eventually(t, "the other node leads", func() bool { return to.leading() != nil })
	eventually(t, "all callers are attached again", func() bool {
		for _, m := range c.up() {
			if w := waiterOf(to.Replica, "w-"+m.opts.NodeID); w == nil || !w.Attached {
				return false
			}
		}
		return true
	})
	release(t, to.Replica, "held")
	for i, m := range c.up() {
		if d := calls[i].admitted(); d.Waiter != order[i] {
			t.Errorf("%s was granted as waiter %d, had place %d", m.opts.NodeID, d.Waiter, order[i])
		}
		release(t, m.Replica, "w-"+m.opts.NodeID)
	}
}

// TestLeaderThatClosesHandsOver, and a caller on another node does not notice.
func TestLeaderThatClosesHandsOver(t *testing.T) {
	c := startCluster(t)
	c.budget(100)
	old, f := c.leader(), c.followers()[0]
	held := admit(t, f.Replica, ask("held", 100))
	left := leaseOf(old.Replica, "held").ExpiresIn
	waiting := queue(t, f.Replica, ask("w", 100))
	must(t, old.Close())
	if !old.log.has("raft: starting leadership transfer") {
		t.Error("the leader did not hand over")
	}
	old.Replica = nil
	c.ready()
	eventually(t, "the caller is attached again", func() bool {
		w := waiterOf(c.leader().Replica, "w")
		return w != nil && w.Attached
	})
	if l := leaseOf(c.leader().Replica, "held"); l == nil || l.Grant != held.Seq || l.ExpiresIn > left {
		t.Errorf("the lease is %+v, had %v left", l, left)
	}
	release(t, f.Replica, "held")
	waiting.admitted()
}

// TestWithoutAMajority calls end with an error within their bound, and reads from the node itself go on.
func TestWithoutAMajority(t *testing.T) {
	c := startCluster(t)
	c.budget(100)
	last := c.followers()[0]
	admit(t, last.Replica, ask("a", 10))
	must(t, last.View(t.Context(), false, func(*ledger.Ledger) {}))
	for _, m := range c.up() {
		if m != last {
			c.stop(m)
		}
	}
	if _, err := last.Acquire(t.Context(), ask("b", 10)); err == nil {
		t.Error("one node of three decided")
	}
	if err := last.View(t.Context(), false, func(*ledger.Ledger) {}); err == nil {
		t.Error("one node of three answered a read that must be current")
	}
	must(t, last.View(t.Context(), true, func(l *ledger.Ledger) {
		if v, _ := l.Ticket(ledger.DefaultPool, "a"); v.Lease == nil {
			t.Error("the lease is not known any more")
		}
	}))
	if st := last.Status(); st.FailureTolerance != 0 {
		t.Errorf("failure tolerance %d", st.FailureTolerance)
	}
}
