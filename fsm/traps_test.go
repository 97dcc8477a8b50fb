package fsm

import (
	"fmt"
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/hashicorp/raft"

	"kvgate/fsm/fsmpb"
	"kvgate/ledger"
	"kvgate/store"
)

// bulk has the leader decide many operations, a batch at a time.
func bulk(t *testing.T, r *Replica, n int, op func(i int) *fsmpb.Op) {
	t.Helper()
	for from := 0; from < n; from += maxBatchOps {
		ops := make([]*fsmpb.Op, min(maxBatchOps, n-from))
		for i := range ops {
			ops[i] = op(from + i)
		}
		f, err := r.launch(t.Context(), ops)
		must(t, err)
		for i := range ops {
			res, err := f.first(t.Context(), i)
			must(t, err)
			must(t, res.Err)
		}
	}
}

func leases(r *Replica) (n int) {
	r.machine.view(func(l *ledger.Ledger) {
		b, _ := l.Budget(ledger.DefaultPool)
		n = int(b.Leases)
	})
	return n
}

// massLeases grants leases that all end at about the same time.
func massLeases(t *testing.T, r *Replica, name string, n int, ttl time.Duration) {
	t.Helper()
	bulk(t, r, n, func(i int) *fsmpb.Op {
		a := ask(fmt.Sprint(name, i), 1)
		a.TTL = ttl
		return acquireOp(a)
	})
	if got := leases(r); got != n {
		t.Fatalf("%d leases, want %d", got, n)
	}
}

// entries counts by log entry the events of a kind from an index on.
func entries(t *testing.T, r *Replica, kind ledger.Kind, from uint64) map[uint64]int {
	t.Helper()
	out := map[uint64]int{}
	page, err := r.Journal(t.Context(), true, store.JournalQuery{Kinds: []string{string(kind)}, FromIndex: from, Limit: 1 << 20})
	must(t, err)
	for _, e := range page.Events {
		out[e.Index]++
	}
	return out
}

func lastIndex(t *testing.T, m *member) uint64 {
	t.Helper()
	last, err := m.disk.logs.LastIndex()
	must(t, err)
	return last
}

// TestTrap1EveryNoticeBeginsATerm: leadership that was lost and won back in between arrives as one more notice
// that the node leads, and notices are always taken, or raft would block [hashicorp/raft#384, hashicorp/nomad#6977].
func TestTrap1EveryNoticeBeginsATerm(t *testing.T) {
	s := startSingle(t)
	budget(t, s.Replica, 100)
	admit(t, s.Replica, ask("a", 100))
	waits := queue(t, s.Replica, ask("b", 100))
	old := s.leading()
	for range 3 * cap(s.notices) {
		s.notices <- true
	}
	eventually(t, "another term has begun", func() bool { now := s.leading(); return now != nil && now != old })
	if old.ctx.Err() == nil {
		t.Error("two terms at once")
	}
	eventually(t, "the ticket is attached again", func() bool { w := waiterOf(s.Replica, "b"); return w != nil && w.Attached })
	release(t, s.Replica, "a")
	waits.admitted()
}

// TestTrap5MassExpiry: however many leases end at once, one log entry lets go a bounded number of them,
// and entries follow each other only as long as that gets on [hashicorp/vault#4751].
func TestTrap5MassExpiry(t *testing.T) {
	const n, ttl = 2*maxDue + 100, time.Minute
	c := startCluster(t)
	c.budget(n)
	leader := c.leader()
	massLeases(t, leader.Replica, "t", n, ttl)
	before := lastIndex(t, leader)
	c.clock.Advance(2 * ttl)
	var byEntry map[uint64]int
	sum := 0
	// The journal has an entry a moment after the ledger.
	eventually(t, "all leases have expired", func() bool {
		byEntry, sum = entries(t, leader.Replica, ledger.KindLeaseExpired, before), 0
		for _, k := range byEntry {
			sum += k
		}
		return leases(leader.Replica) == 0 && sum >= n
	})
	for index, k := range byEntry {
		if k > maxDue {
			t.Errorf("entry %d lets %d leases go, at most %d may", index, k, maxDue)
		}
	}
	if sum != n {
		t.Errorf("%d leases expired, want %d", sum, n)
	}
	// Three entries do it; others may be ticks and what the leader does now and then.
	if wrote := lastIndex(t, leader) - before; wrote > 20 {
		t.Errorf("%d log entries for %d expiries", wrote, n)
	}
	c.hashesAgree()
}

// TestTrap5ExpiryWithoutQuorum: a leader that cannot commit the expiry of what is due does not try again and
// again; it ends its term, and whoever leads next goes on.
func TestTrap5ExpiryWithoutQuorum(t *testing.T) {
	const n, ttl = maxDue + 100, time.Minute
	c := startCluster(t)
	c.budget(n)
	leader, others := c.leader(), c.followers()
	massLeases(t, leader.Replica, "t", n, ttl)
	for _, m := range others {
		c.stop(m)
	}
	before := lastIndex(t, leader)
	c.clock.Advance(2 * ttl)
	eventually(t, "the leader has noticed", func() bool { return leader.leading() == nil })
	if wrote := lastIndex(t, leader) - before; wrote > 5 {
		t.Errorf("the leader put %d entries into its log that nobody confirmed", wrote)
	}
	if got := leases(leader.Replica); got != n {
		t.Errorf("%d leases without a quorum, want all %d", got, n)
	}
	for _, m := range others {
		m.open(t)
	}
	c.ready()
	after := c.leader()
	c.clock.Advance(2 * ttl)
	eventually(t, "all leases have expired", func() bool { return leases(after.Replica) == 0 })
	c.hashesAgree()
}

func fileSize(t *testing.T, s *single, name string) int64 {
	t.Helper()
	info, err := os.Stat(filepath.Join(s.opts.DataDir, name))
	must(t, err)
	return info.Size()
}

// liveBytes is what the rows in the state image come to.
func liveBytes(t *testing.T, s *single) (n int64) {
	t.Helper()
	for _, b := range store.Buckets() {
		must(t, s.disk.state.ForEach(b, func(k, v []byte) error { n += int64(len(k) + len(v)); return nil }))
	}
	return n
}

// logBytes is what the entries in raft's log come to.
func logBytes(t *testing.T, s *single) (n int64) {
	t.Helper()
	first, err := s.disk.logs.FirstIndex()
	must(t, err)
	last, err := s.disk.logs.LastIndex()
	must(t, err)
	for i := first; i <= last; i++ {
		var entry raft.Log
		must(t, s.disk.logs.GetLog(i, &entry))
		n += int64(len(entry.Data))
	}
	return n
}

// maxChurn is how many operations an entry of the churn carries.
const maxChurn = 64

// churn grants and releases leases in turns; what is live before is live after.
func churn(t *testing.T, s *single, round, entries int) {
	t.Helper()
	for k := range entries {
		name := func(i int) string { return fmt.Sprintf("churn-%d-%d-%d", round, k, i) }
		bulk(t, s.Replica, maxChurn, func(i int) *fsmpb.Op { return acquireOp(ask(name(i), 1)) })
		bulk(t, s.Replica, maxChurn, func(i int) *fsmpb.Op {
			return releaseOp(ledger.Release{Pool: ledger.DefaultPool, Ticket: name(i)})
		})
	}
	must(t, s.raft.Snapshot().Error())
}

// TestTrap6FilesStayBounded: churn leaves neither the state image nor raft's log larger than what is live
// asks for [hashicorp/consul#15890].
func TestTrap6FilesStayBounded(t *testing.T) {
	const live, perRound = 2000, 60
	s := startSingle(t, func(o *Options) { o.SnapshotThreshold = 64 })
	budget(t, s.Replica, 1_000_000)
	bulk(t, s.Replica, live, func(i int) *fsmpb.Op { return acquireOp(ask(fmt.Sprint("live", i), 1)) })
	for round := range 3 {
		churn(t, s, round, perRound)
	}
	state, log := fileSize(t, s, "state.db"), fileSize(t, s, "raft.db")
	for round := range 9 {
		churn(t, s, 3+round, perRound)
	}
	grownState, grownLog := fileSize(t, s, "state.db"), fileSize(t, s, "raft.db")
	rows, kept := liveBytes(t, s), logBytes(t, s)
	t.Logf("state.db %d, then %d bytes for %d of rows; raft.db %d, then %d bytes for %d of entries",
		state, grownState, rows, log, grownLog, kept)
	if grownState > 2*state || grownLog > 2*log {
		t.Error("files go on growing: there was three times as much churn since the first sizes")
	}
	if limit := 8*rows + 1<<20; grownState > limit {
		t.Errorf("state.db has %d bytes for %d of rows, at most %d are all right", grownState, rows, limit)
	}
	if limit := 8*kept + 1<<20; grownLog > limit {
		t.Errorf("raft.db has %d bytes for %d of entries, at most %d are all right", grownLog, kept, limit)
	}
	if got := leases(s.Replica); got != live {
		t.Errorf("%d leases, want %d", got, live)
	}
}
