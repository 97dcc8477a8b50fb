package fsm

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"reflect"
	"strings"
	"testing"
	"time"

	"kvgate/ledger"
	"kvgate/store"
)

// picture is what a restart must not change. A waiter's attachment is not in it: its caller is gone.
type picture struct {
	Leases   []ledger.LeaseRow
	Waiters  []string
	Counters ledger.Counters
	Settings ledger.Settings
	Seq      ledger.Seq
	Epoch    uint64
	Cluster  string
}

func pictureOf(r *Replica) (p picture) {
	r.machine.view(func(l *ledger.Ledger) {
		l.Export(func(c ledger.Change) {
			if c.Lease != nil {
				p.Leases = append(p.Leases, *c.Lease)
			}
			if w := c.Waiter; w != nil {
				p.Waiters = append(p.Waiters, fmt.Sprint(w.Seq, w.Ticket, w.Tokens, w.Since, w.MaxWait, w.Priority, w.Holder))
			}
		})
		p.Counters, _ = l.Totals(ledger.DefaultPool)
		p.Settings, _ = l.Settings(ledger.DefaultPool)
		b, _ := l.Budget(ledger.DefaultPool)
		p.Seq, p.Epoch, p.Cluster = l.Meta().Seq, b.Epoch, l.Meta().ClusterID
	})
	return p
}

// populate leaves leases, waiters, a mark and counters behind.
func populate(t *testing.T, s *single) {
	t.Helper()
	budget(t, s.Replica, 100, setting("holderTtl", func(s *ledger.Settings) { s.HolderTTL = time.Hour }))
	admit(t, s.Replica, heldBy("h", "a", 30))
	admit(t, s.Replica, ask("gone", 20))
	release(t, s.Replica, "gone")
	long := ask("b", 70)
	long.TTL = 40 * time.Minute
	admit(t, s.Replica, long)
	for _, ticket := range []string{"w1", "w2"} {
		a := heldBy("h", ticket, 50)
		a.MaxWait = time.Hour
		queue(t, s.Replica, a).leave()
		await(t, s.Replica, ledger.KindDetached, ticket)
	}
	_, err := s.Cancel(t.Context(), ledger.Cancel{Pool: ledger.DefaultPool, Ticket: "never-came"})
	must(t, err)
}

func samePicture(t *testing.T, got, want picture) {
	t.Helper()
	if !reflect.DeepEqual(got, want) {
		t.Fatalf("state after the restart:\n got %+v\nwant %+v", got, want)
	}
}

// TestRestartKeepsEverything, and the time that a node was down ages nothing.
func TestRestartKeepsEverything(t *testing.T) {
	s := startSingle(t)
	populate(t, s)
	want, left := pictureOf(s.Replica), leaseOf(s.Replica, "a").ExpiresIn
	before := s.Status().LedgerTime
	s.close()
	s.clock.Advance(30 * 24 * time.Hour)
	s.open()
	samePicture(t, pictureOf(s.Replica), want)
	if passed := s.Status().LedgerTime.Sub(before); passed < 0 || passed > time.Hour {
		t.Errorf("%v of ledger time passed while the node was down", passed)
	}
	if now := leaseOf(s.Replica, "a").ExpiresIn; now > left || now < left-time.Hour {
		t.Errorf("the lease has %v left, had %v before", now, left)
	}
	if w := waiterOf(s.Replica, "w1"); w == nil || w.Attached || w.Position != 1 {
		t.Fatalf("first waiter is %+v", w)
	}
	back := heldBy("h", "w1", 50)
	again := queue(t, s.Replica, back)
	release(t, s.Replica, "b")
	if d := again.admitted(); d.Seq <= want.Seq {
		t.Errorf("grant number %d was given before: the last one was %d", d.Seq, want.Seq)
	}
	d, err := s.Acquire(t.Context(), ask("never-came", 1))
	must(t, err)
	if d.Reason != ledger.Cancelled {
		t.Errorf("%+v, want it cancelled before it came", d)
	}
}

// TestStartRules: whatever of the unflushed files is older, gone or damaged, the node comes back with
// the same state and the same journal.
func TestStartRules(t *testing.T) {
	const rebuilt = "state rebuilt from a snapshot"
	statePath := func(s *single) string { return filepath.Join(s.opts.DataDir, "state.db") }
	cases := map[string]struct {
		damage  func(t *testing.T, s *single)
		restore bool
	}{
		"newer than the snapshot": {func(*testing.T, *single) {}, false},
		"state gone":              {func(t *testing.T, s *single) { must(t, os.Remove(statePath(s))) }, true},
		"state damaged":           {func(t *testing.T, s *single) { scribble(t, statePath(s)) }, true},
		"state cut short":         {func(t *testing.T, s *single) { must(t, os.Truncate(statePath(s), 6000)) }, true},
		"journal damaged": {func(t *testing.T, s *single) {
			for _, path := range activeSegments(t, s) {
				scribble(t, path)
			}
		}, true},
	}
	for name, c := range cases {
		t.Run(name, func(t *testing.T) {
			s := startSingle(t)
			populate(t, s)
			must(t, s.raft.Snapshot().Error())
			_, err := s.Renew(t.Context(), ledger.DefaultPool, []ledger.LeaseRef{{Ticket: "a"}}, time.Minute)
			must(t, err)
			want, events := pictureOf(s.Replica), story(t, s.Replica)
			s.close()
			c.damage(t, s)
			s.open()
			samePicture(t, pictureOf(s.Replica), want)
			if s.log.has(rebuilt) != c.restore {
				t.Errorf("log says that the state was rebuilt: %v, want %v", !c.restore, c.restore)
			}
			if got := story(t, s.Replica); len(got) < len(events) || !reflect.DeepEqual(got[:len(events)], events) {
				t.Errorf("journal:\n got %v\nwant %v first", got, events)
			}
			must(t, s.machine.flush(t.Context()))
			hash, _, err := s.disk.state.Hash()
			must(t, err)
			s.restart()
			must(t, s.machine.flush(t.Context()))
			if again, _, err := s.disk.state.Hash(); err != nil || again == hash {
				t.Errorf("hash %s (%v): a new term must change the state", again, err)
			}
		})
	}
}

// TestLostJournalSegment: somebody deleted the events since the last snapshot. Only they are gone.
func TestLostJournalSegment(t *testing.T) {
	s := startSingle(t)
	populate(t, s)
	sealed := story(t, s.Replica)
	must(t, s.raft.Snapshot().Error())
	_, err := s.Renew(t.Context(), ledger.DefaultPool, []ledger.LeaseRef{{Ticket: "a"}}, time.Minute)
	must(t, err)
	want := pictureOf(s.Replica)
	s.close()
	for _, path := range activeSegments(t, s) {
		must(t, os.Remove(path))
	}
	s.open()
	samePicture(t, pictureOf(s.Replica), want)
	release(t, s.Replica, "a")
	await(t, s.Replica, ledger.KindReleased, "a")
	if got := story(t, s.Replica); len(got) <= len(sealed) || !reflect.DeepEqual(got[:len(sealed)], sealed) {
		t.Errorf("journal:\n got %v\nwant %v first", got, sealed)
	}
}

// scribble overwrites the middle of a file.
func scribble(t *testing.T, path string) {
	t.Helper()
	data, err := os.ReadFile(path)
	must(t, err)
	if len(data) == 0 {
		t.Fatalf("%s is empty", path)
	}
	for i := 4096 * 2; i < min(len(data), 4096*12); i++ {
		data[i] ^= 0xa5
	}
	must(t, os.WriteFile(path, data, 0o600))
}

// activeSegments returns the journal's segments that are not sealed.
func activeSegments(t *testing.T, s *single) (paths []string) {
	t.Helper()
	all, err := filepath.Glob(filepath.Join(s.opts.DataDir, "journal", "*"))
	must(t, err)
	for _, path := range all {
		if strings.Contains(filepath.Base(path), "active") {
			paths = append(paths, path)
		}
	}
	if len(paths) == 0 {
		t.Fatalf("no active segment among %v", all)
	}
	return paths
}

// TestForeignDirectoryIsRefused: a directory belongs to one node.
func TestForeignDirectoryIsRefused(t *testing.T) {
	s := startSingle(t)
	s.close()
	opts := s.opts
	opts.NodeID = "n2"
	if r, err := Open(opts); !errors.Is(err, store.ErrForeignDir) {
		if err == nil {
			must(t, r.Close())
		}
		t.Errorf("opened as another node: %v", err)
	}
	opts.NodeID = ""
	if _, err := Open(opts); err == nil {
		t.Error("opened without a node id")
	}
}

// TestEmptyDirectoryNeedsAWayIn: a node does not guess how it becomes part of a cluster.
func TestEmptyDirectoryNeedsAWayIn(t *testing.T) {
	_, err := Open(Options{NodeID: "n1", DataDir: t.TempDir(), RaftListen: "127.0.0.1:0", Log: quiet})
	if err == nil || !strings.Contains(err.Error(), "bootstrap, peers or join") {
		t.Errorf("error %v", err)
	}
}
