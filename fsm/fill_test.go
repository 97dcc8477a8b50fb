package fsm

import (
	"connectrpc.com/connect"
	"context"
	"errors"
	"kvgate/fsm/fsmpb"
	"os"
	"path/filepath"
	"reflect"
	"slices"
	"strconv"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/hashicorp/raft"

	"kvgate/store"
)

// keepNothing makes a node's next snapshot take the whole log with it.
func keepNothing(t *testing.T, m *member) {
	t.Helper()
	must(t, m.raft.ReloadConfig(raft.ReloadableConfig{
		TrailingLogs: 1, SnapshotInterval: m.config.SnapshotInterval, SnapshotThreshold: m.config.SnapshotThreshold,
		HeartbeatTimeout: m.config.HeartbeatTimeout, ElectionTimeout: m.config.ElectionTimeout,
	}))
	must(t, m.raft.Snapshot().Error())
}

// A node that lost its data gets its state from a snapshot, and the journal that led to it from the
// others: it may lead one day and be asked what happened last night.
func TestJournalComesWithTheSnapshot(t *testing.T) {
	c := startCluster(t)
	c.budget(1000)
	for i := range 40 {
		ticket := "t" + strconv.Itoa(i)
		admit(t, c.leader().Replica, ask(ticket, 10))
		release(t, c.leader().Replica, ticket)
	}
	for _, m := range c.up() {
		keepNothing(t, m)
	}
	lost := c.followers()[0]
	c.lose(lost)
	lost.open(t)
	c.ready()
	c.hashesAgree()
	want := journal(t, c.leader().Replica, store.JournalQuery{Ticket: "t0", Limit: 10})
	if len(want) != 2 {
		t.Fatalf("the leader tells %d events of t0, want 2", len(want))
	}
	page, err := lost.Journal(t.Context(), true, store.JournalQuery{Ticket: "t0", Limit: 10})
	must(t, err)
	if len(page.Events) != len(want) {
		t.Errorf("the node that came back tells %d events of t0 from entry %d on, want %d", len(page.Events), page.FirstKept, len(want))
	}
	if !lost.log.has("journal copied from another node") {
		t.Error("the node got its journal in another way than by copying it")
	}
}

// TestDeletedSegmentComesBack: what somebody deleted of the journal is brought back from snapshot and log.
func TestDeletedSegmentComesBack(t *testing.T) {
	s := startSingle(t)
	budget(t, s.Replica, 100)
	pairs(t, s, 0, 5)
	must(t, s.raft.Snapshot().Error()) // seals what is there
	pairs(t, s, 5, 5)
	want, err := s.Journal(t.Context(), true, store.JournalQuery{Limit: 100})
	must(t, err)
	s.close()
	open, err := filepath.Glob(filepath.Join(s.opts.DataDir, "journal", "*"))
	must(t, err)
	must(t, os.Remove(open[slices.IndexFunc(open, func(name string) bool { return strings.HasSuffix(name, ".active") })]))
	s.open()
	got, err := s.Journal(t.Context(), true, store.JournalQuery{Limit: 100})
	must(t, err)
	got.Events = got.Events[:min(len(got.Events), len(want.Events))] // the new term adds one
	if !reflect.DeepEqual(got.Events, want.Events) {
		t.Errorf("%d events, want the %d of before", len(got.Events), len(want.Events))
	}
	if !s.log.has("a segment of the journal is missing") {
		t.Error("the node does not say what is missing")
	}
}

// TestEventsThatAreNotThereYet: a node that could give only a part of what is wanted says so, so that no journal gets
// a hole: one whose disk takes no more, and one that has not come that far.
func TestEventsThatAreNotThereYet(t *testing.T) {
	c := startCluster(t)
	c.budget(1000)
	full := c.leader()
	var free atomic.Bool
	putWith(full.machine, func(p *page) error {
		if free.Load() {
			return full.machine.persist(p)
		}
		return store.ErrNoSpace
	})
	admit(t, full.Replica, ask("a", 10))
	eventually(t, "the disk refuses", func() bool {
		full.machine.mu.RLock()
		defer full.machine.mu.RUnlock()
		return full.machine.scribe.refused
	})
	to := full.machine.applied.Load()
	ask := func(m *member, index uint64) error {
		ctx, cancel := context.WithTimeout(t.Context(), 100*time.Millisecond)
		defer cancel()
		_, err := m.peers.Events(ctx, connect.NewRequest(&fsmpb.EventsRequest{FromIndex: 1, ToIndex: index}))
		return err
	}
	if err := ask(full, to); !errors.Is(err, context.DeadlineExceeded) {
		t.Errorf("a node with a full disk answers %v", err)
	}
	free.Store(true)
	must(t, full.machine.flush(t.Context()))
	must(t, ask(full, to))
	behind := c.followers()[0]
	must(t, behind.machine.reach(t.Context(), to))
	must(t, ask(behind, to))
	if err := ask(behind, to+1000); !errors.Is(err, errNotThere) {
		t.Errorf("a node that lags answers %v", err)
	}
}

// putWith changes how a machine that is at work writes its pages.
func putWith(m *Machine, put func(*page) error) {
	for done := false; !done; {
		m.rest()
		m.mu.Lock()
		if done = !m.scribe.writing; done {
			m.scribe.put = put
		}
		m.mu.Unlock()
	}
}
