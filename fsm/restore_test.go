package fsm

import (
	"bytes"
	"context"
	"errors"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/hashicorp/raft"
	"google.golang.org/protobuf/proto"

	"kvgate/fsm/fsmpb"
	"kvgate/ledger"
	"kvgate/store"
)

// restoredInto restores an archive into a new directory and starts a node on it.
func restoredInto(t *testing.T, archive string) (*single, Restored) {
	t.Helper()
	dir := filepath.Join(t.TempDir(), "r1")
	done, err := DirectoryRestore{
		Archive: archive, DataDir: dir, NodeID: "r1", RaftAddress: "127.0.0.1:0", Log: quiet, Now: time.Now,
	}.Run()
	must(t, err)
	return startSingle(t, func(o *Options) { o.NodeID, o.DataDir, o.Bootstrap = "r1", dir, false }), done
}

// TestRestoreDirectory: a snapshot becomes a new cluster that holds the same leases, queue and journal, contacts
// nobody, decides, and survives a restart.
func TestRestoreDirectory(t *testing.T) {
	s := startSingle(t)
	populate(t, s)
	archive, header := saved(t, s.Replica)
	want, events := pictureOf(s.Replica), liveEvents(t, s.Replica)
	left := leaseOf(s.Replica, "a").ExpiresIn
	s.clock.Advance(time.Hour)
	r, done := restoredInto(t, archive)
	got := pictureOf(r.Replica)
	if got.Cluster == want.Cluster || got.Cluster != done.ClusterID || r.Status().ClusterID != done.ClusterID {
		t.Errorf("cluster is %q, of the archive %q, answered %q", got.Cluster, want.Cluster, done.ClusterID)
	}
	got.Cluster = want.Cluster
	if !got.Settings.Quarantine {
		t.Error("the pool is not in quarantine")
	}
	got.Settings.Quarantine = false
	if got.Seq < want.Seq+leap {
		t.Errorf("numbers go on from %d; the cluster that was saved may have given out more than %d meanwhile", got.Seq, want.Seq)
	}
	got.Seq = want.Seq
	samePicture(t, got, want)
	if now := leaseOf(r.Replica, "a").ExpiresIn; now > left || now < left-10*time.Minute {
		t.Errorf("the lease has %v left, had %v when it was saved", now, left)
	}
	if kept := liveEvents(t, r.Replica); !slices.Equal(kept[:len(events)], events) {
		t.Errorf("journal is\n%q\nwant it to begin with\n%q", kept, events)
	}
	if told := journal(t, r.Replica, store.JournalQuery{Kinds: []string{string(ledger.KindRestored)}}); len(told) != 1 ||
		!strings.Contains(told[0].Detail, header.ClusterID) {
		t.Errorf("the journal tells of the restore: %v", told)
	}
	if st := r.Status(); !slices.Equal(st.Quarantined, []string{"default"}) || !strings.Contains(st.Health, "quarantine") || !st.Ready {
		t.Errorf("status %+v", st)
	}
	again := queue(t, r.Replica, heldBy("h", "w1", 50))
	release(t, r.Replica, "b")
	if d := again.admitted(); d.Seq <= want.Seq {
		t.Errorf("grant %d was given before, the last was %d", d.Seq, want.Seq)
	}
	before := machineRows(r.machine)
	r.restart()
	if leaseOf(r.Replica, "w1") == nil || len(before) == 0 {
		t.Error("the restart lost a lease")
	}
}

// TestRestoreDirectoryRefuses what is not empty; what a restore that was cut short left is no obstacle, nor a
// data directory.
func TestRestoreDirectoryRefuses(t *testing.T) {
	s := startSingle(t)
	archive, _ := saved(t, s.Replica)
	into := func(dir string) error {
		_, err := DirectoryRestore{Archive: archive, DataDir: dir, NodeID: "r1", RaftAddress: "127.0.0.1:1", Log: quiet, Now: time.Now}.Run()
		return err
	}
	dir := t.TempDir()
	must(t, os.WriteFile(filepath.Join(dir, "notes"), nil, 0o600))
	if err := into(dir); !errors.Is(err, store.ErrNotEmpty) {
		t.Errorf("a directory in use: %v", err)
	}
	dir = t.TempDir()
	must(t, os.MkdirAll(filepath.Join(dir, "restoring", "journal"), 0o700))
	must(t, os.WriteFile(filepath.Join(dir, "raft.db"), []byte("half"), 0o600))
	if _, err := store.OpenDir(dir, "r1"); !errors.Is(err, store.ErrUnfinished) {
		t.Errorf("half a directory opens: %v", err)
	}
	must(t, into(dir))
	d, err := store.OpenDir(dir, "r1")
	must(t, err)
	must(t, d.Close())
}

func archiveBytes(t *testing.T, r *Replica) []byte {
	t.Helper()
	path, _ := saved(t, r)
	data, err := os.ReadFile(path)
	must(t, err)
	return data
}

// TestRestoreIntoCluster: the state of three nodes is replaced; deadlines keep what they had left in ledger time,
// callers that wait are decided anew, what was decided since is lost only by force, and restarts keep all that.
func TestRestoreIntoCluster(t *testing.T) {
	c := startCluster(t)
	c.budget(100)
	lead := c.leader()
	admit(t, lead.Replica, heldBy("h", "a", 60))
	queue(t, lead.Replica, heldBy("h", "w", 50)).leave()
	await(t, lead.Replica, ledger.KindDetached, "w")
	archive := archiveBytes(t, lead.Replica)
	had := leaseOf(lead.Replica, "a")
	o := RestoreOptions{Confirm: lead.clusterID()}
	if _, err := lead.Restore(t.Context(), bytes.NewReader(archive), RestoreOptions{Confirm: "other"}); !errors.Is(err, ErrWrongCluster) {
		t.Errorf("another cluster confirmed: %v", err)
	}
	var other *LeaderError
	if _, err := c.followers()[0].Restore(t.Context(), bytes.NewReader(archive), o); !errors.As(err, &other) {
		t.Errorf("a follower restores: %v", err)
	}
	if _, err := lead.Restore(t.Context(), bytes.NewReader(archive[:len(archive)-9]), o); !errors.Is(err, ErrBadArchive) || !errors.Is(err, store.ErrTruncated) {
		t.Errorf("a truncated archive: %v", err)
	}
	release(t, lead.Replica, "a")
	newer := admit(t, lead.Replica, heldBy("h", "later", 10))
	c.clock.Advance(5 * time.Minute)
	if _, err := lead.Restore(t.Context(), bytes.NewReader(archive), o); !errors.Is(err, ErrNewerState) || !strings.Contains(err.Error(), "events are newer than the archive") {
		t.Errorf("newer decisions: %v", err)
	}
	blocked := queue(t, lead.Replica, heldBy("h", "blocked", 95))
	o.Force = true
	done, err := lead.Restore(t.Context(), bytes.NewReader(archive), o)
	must(t, err)
	if done.Dropped == 0 || done.Index <= done.ArchiveIndex || len(done.Quarantined) > 0 {
		t.Errorf("restored %+v", done)
	}
	c.ready()
	lead = c.leader()
	if leaseOf(lead.Replica, "later") != nil {
		t.Error("a newer lease is still there")
	}
	if x := leaseOf(lead.Replica, "a"); x == nil || x.ExpiresIn > had.ExpiresIn || x.ExpiresIn < had.ExpiresIn-2*time.Minute {
		t.Fatalf("lease %+v, had %+v when it was saved", x, had)
	}
	eventually(t, "the blocked ticket is asked for again", func() bool { return waiterOf(lead.Replica, "blocked") != nil })
	release(t, lead.Replica, "a")
	if d := admit(t, lead.Replica, heldBy("h", "w", 50)); d.Seq <= newer.Seq {
		t.Errorf("number %d was given before the restore, the last was %d", d.Seq, newer.Seq)
	}
	release(t, lead.Replica, "w")
	blocked.admitted()
	c.hashesAgree()
	restartAll(t, c)
	c.hashesAgree()
	c.journalsAgree(done.Index)
	if leaseOf(c.leader().Replica, "blocked") == nil {
		t.Error("the restart lost a lease")
	}
}

func restartAll(t *testing.T, c *cluster) {
	t.Helper()
	nodes := c.up()
	c.close()
	for _, m := range nodes {
		m.open(t)
	}
	c.ready()
}

// journalsAgree: all nodes tell the same, and of one restore at index.
func (c *cluster) journalsAgree(index uint64) {
	c.t.Helper()
	eventually(c.t, "all journals agree", func() bool {
		want := liveEvents(c.t, c.up()[0].Replica)
		for _, m := range c.up()[1:] {
			if !slices.Equal(liveEvents(c.t, m.Replica), want) {
				return false
			}
		}
		return true
	})
	page, err := c.leader().Journal(c.t.Context(), true, store.JournalQuery{Kinds: []string{string(ledger.KindRestored)}, Limit: 10})
	must(c.t, err)
	if len(page.Events) != 1 || page.Events[0].Index != index {
		c.t.Errorf("restores in the journal: %+v, want one at %d", page.Events, index)
	}
}

// TestRestoreOfAnotherCluster puts the pools in quarantine, and a node that was down gets it all, too.
func TestRestoreOfAnotherCluster(t *testing.T) {
	s := startSingle(t)
	populate(t, s)
	archive := archiveBytes(t, s.Replica)
	c := startCluster(t)
	down := c.followers()[0]
	c.stop(down)
	lead := c.leader()
	done, err := lead.Restore(t.Context(), bytes.NewReader(archive), RestoreOptions{Confirm: lead.clusterID()})
	must(t, err)
	if !slices.Equal(done.Quarantined, []string{"default"}) || done.ClusterID != lead.clusterID() {
		t.Errorf("restored %+v in cluster %s", done, lead.clusterID())
	}
	down.open(t)
	c.ready()
	c.hashesAgree()
	c.journalsAgree(done.Index)
	if leaseOf(down.Replica, "a") == nil || down.clusterID() != c.leader().clusterID() {
		t.Error("the node that was down lacks the restored state")
	}
}

// TestConformanceAfterRestore: what is true of any node is true of one that was restored.
func TestConformanceAfterRestore(t *testing.T) {
	s := startSingle(t)
	budget(t, s.Replica, 100)
	admit(t, s.Replica, ask("earlier", 40))
	release(t, s.Replica, "earlier")
	archive, _ := saved(t, s.Replica)
	bornBefore = func(t *testing.T, o *Options) {
		t.Helper()
		o.DataDir, o.Bootstrap = filepath.Join(t.TempDir(), "restored"), false
		_, err := DirectoryRestore{
			Archive: archive, DataDir: o.DataDir, NodeID: o.NodeID, RaftAddress: "127.0.0.1:0", Log: quiet, Now: time.Now,
		}.Run()
		must(t, err)
	}
	defer func() { bornBefore = nil }()
	for name, test := range map[string]func(*testing.T){
		"acquire and release":   TestAcquireAndRelease,
		"order":                 TestWaitersAreGrantedInOrder,
		"place of who leaves":   TestCallerThatLeavesKeepsThePlace,
		"other tokens":          TestRetryWithOtherTokensIsRefused,
		"two callers":           TestTwoCallersOfOneTicket,
		"unheard decisions":     TestDecisionIsNeverUnheard,
		"abandoned, unclaimed":  TestAbandonedAndUnclaimed,
		"claimed":               TestClaimedGrantStays,
		"ageing":                TestAgeingOrder,
		"no wait":               TestMaxWaitZeroDoesNotWait,
		"cancel":                TestCancelEndsTheWait,
		"expiry":                TestLeaseExpires,
		"calls that come again": TestTrap2CallsThatComeAgain,
		"silent holder":         TestSilentHolderIsReclaimed,
		"restart":               TestRestartKeepsEverything,
	} {
		t.Run(name, test)
	}
}

// TestRestoreNeedsAMajority: a leader that is alone by then does not replace anything.
func TestRestoreNeedsAMajority(t *testing.T) {
	c := startCluster(t)
	c.budget(100)
	lead := c.leader()
	archive := archiveBytes(t, lead.Replica)
	admit(t, lead.Replica, heldBy("h", "a", 60))
	o := RestoreOptions{Confirm: lead.clusterID(), Force: true}
	for _, m := range c.followers() {
		c.stop(m)
	}
	if done, err := lead.Restore(t.Context(), bytes.NewReader(archive), o); err == nil {
		t.Errorf("restored alone: %+v", done)
	}
	if leaseOf(lead.Replica, "a") == nil {
		t.Error("the state was replaced")
	}
}

// TestRestoreKnowsWhatItCannotKnow: decisions that the journal has trimmed count as newer.
func TestRestoreKnowsWhatItCannotKnow(t *testing.T) {
	s := startSingle(t)
	budget(t, s.Replica, 100, setting("journalMaxAge", func(s *ledger.Settings) { s.JournalMaxAge = time.Hour }))
	archive := archiveBytes(t, s.Replica)
	long := heldBy("h", "later", 60)
	long.TTL = 24 * time.Hour
	budget(t, s.Replica, 100, setting("maxTtl", func(s *ledger.Settings) { s.MaxTTL = 48 * time.Hour }))
	admit(t, s.Replica, long)
	s.clock.Advance(2 * time.Hour)
	budget(t, s.Replica, 101) // about the engines: nobody loses by it
	must(t, s.leading().trimOnce(t.Context()))
	o := RestoreOptions{Confirm: s.clusterID()}
	_, err := s.Restore(t.Context(), bytes.NewReader(archive), o)
	if !errors.Is(err, ErrNewerState) || !strings.Contains(err.Error(), "the journal does not reach back") {
		t.Errorf("decisions that were trimmed: %v", err)
	}
	o.Force = true
	if _, err := s.Restore(t.Context(), bytes.NewReader(archive), o); err != nil {
		t.Errorf("forced: %v", err)
	}
}

// TestNothingIsProposedDuringARestore: what arrives while the state is being replaced is not decided on the old one,
// where it would be lost uncounted.
func TestNothingIsProposedDuringARestore(t *testing.T) {
	s := startSingle(t)
	budget(t, s.Replica, 100)
	old := s.leading()
	s.restoring.Lock()
	op := &fsmpb.Op{Kind: &fsmpb.Op_Acquire{Acquire: &fsmpb.Acquire{Pool: ledger.DefaultPool, Ticket: "a", ReservationTokens: 1}}}
	c := &call{op: op, done: make(chan Result, 1)}
	must(t, old.submit(t.Context(), c))
	eventually(t, "the call is taken", func() bool { return len(old.calls) == 0 })
	for range 10 { // each is an entry of its own, behind the call if that was proposed
		must(t, s.raft.Barrier(0).Error())
	}
	if len(c.done) > 0 {
		t.Error("the call was answered during the restore")
	}
	old.fail(ErrLeadershipLost) // as a restore does at its end
	s.restoring.Unlock()
	if r, err := old.await(t.Context(), c); err == nil {
		t.Errorf("the call was decided: %+v", r)
	}
	eventually(t, "the next term", func() bool { now := s.leading(); return now != nil && now != old })
	if leaseOf(s.Replica, "a") != nil {
		t.Error("the call was decided during the restore")
	}
}

// TestRestoreNoticesAnotherHistory: after `recover` from an older state a cluster may count fewer entries than an
// archive of it, and yet have decided what the archive does not hold.
func TestRestoreNoticesAnotherHistory(t *testing.T) {
	s := startSingle(t)
	budget(t, s.Replica, 100)
	admit(t, s.Replica, heldBy("h", "a", 10))
	early := archiveBytes(t, s.Replica)
	for range 5 {
		admit(t, s.Replica, heldBy("h", "b", 10))
		release(t, s.Replica, "b")
	}
	late := archiveBytes(t, s.Replica)
	o := RestoreOptions{Confirm: s.clusterID()}
	if _, err := s.Restore(t.Context(), bytes.NewReader(late), o); err != nil {
		t.Fatalf("what was just saved: %v", err)
	}
	// The archive of another past of the same cluster, ahead of this one.
	past, index := anotherPast(t, s, early)
	c, err := s.Restore(t.Context(), bytes.NewReader(past), o)
	if !errors.Is(err, ErrNewerState) || !strings.Contains(err.Error(), "went another way") {
		t.Errorf("an archive up to entry %d of another past: %+v, %v", index, c, err)
	}
}

// anotherPast lets the state of an archive decide on, far beyond what s has, and returns an archive of that.
func anotherPast(t *testing.T, s *single, archive []byte) ([]byte, uint64) {
	t.Helper()
	path := filepath.Join(t.TempDir(), "early")
	must(t, os.WriteFile(path, archive, 0o600))
	m := offline(t, path).machine
	index := s.raft.LastIndex() + 1000
	data, err := proto.Marshal(&fsmpb.Batch{
		Version: Version, LedgerTime: int64(time.Hour), WallTime: time.Now().UnixNano(),
		Ops: []*fsmpb.Op{{Kind: &fsmpb.Op_Acquire{Acquire: &fsmpb.Acquire{Pool: ledger.DefaultPool, Ticket: "other", ReservationTokens: 1}}}},
	})
	must(t, err)
	m.Apply(&raft.Log{Index: index, Term: 9, Type: raft.LogCommand, Data: data})
	var out bytes.Buffer
	_, err = m.save(context.Background(), &out, store.Header{WallTime: time.Now()})
	must(t, err)
	return out.Bytes(), index
}
