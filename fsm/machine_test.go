package fsm

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"reflect"
	"strings"
	"testing"

	"github.com/hashicorp/raft"
	"google.golang.org/protobuf/proto"
	"pgregory.net/rapid"

	"kvgate/fsm/fsmpb"
	"kvgate/ledger"
	"kvgate/sessions"
	"kvgate/store"
)

// failer is what *testing.T and *rapid.T have in common.
type failer interface {
	Helper()
	Fatalf(format string, args ...any)
	Errorf(format string, args ...any)
}

// rig is a machine with its files, without raft.
type rig struct {
	*Machine
	t    failer
	dir  *store.Dir
	path string
	// halts are the errors the machine halted with.
	halts []error
	// since is the first index whose events the journal has.
	since uint64
	// boot names the boot of the host; empty: the one it has.
	boot string
}

func newRig(t failer, root string) *rig {
	path, err := os.MkdirTemp(root, "machine-")
	check(t, err)
	r := &rig{t: t, path: path}
	r.open()
	return r
}

func (r *rig) open() {
	var err error
	r.dir, err = store.OpenDir(r.path, "n1")
	check(r.t, err)
	trail, err := store.OpenJournal(r.dir, store.JournalOptions{BootID: r.boot, Log: quiet})
	check(r.t, err)
	state, _, err := store.OpenState(r.dir, store.StateOptions{MapBytes: 16 << 20, BootID: r.boot, Log: quiet})
	check(r.t, err)
	r.Machine, err = newMachine(&disk{state: state, trail: trail}, Version, quiet, func(err error) { r.halts = append(r.halts, err) })
	check(r.t, err)
}

func (r *rig) close() {
	r.rest()
	check(r.t, errors.Join(r.state.Close(), r.trail.Close(), r.dir.Close()))
}

func (r *rig) restart() {
	r.close()
	r.open()
}

// snapshot takes and persists a snapshot.
func (r *rig) snapshot() []byte {
	s, err := r.Snapshot()
	check(r.t, err)
	defer s.Release()
	sink := &memorySink{}
	check(r.t, s.Persist(sink))
	if !sink.closed || sink.cancelled {
		r.t.Fatalf("snapshot closed %v, cancelled %v", sink.closed, sink.cancelled)
	}
	return sink.Bytes()
}

type memorySink struct {
	bytes.Buffer
	closed, cancelled bool
	// broken fails writes.
	broken bool
}

func (s *memorySink) ID() string    { return "memory" }
func (s *memorySink) Close() error  { s.closed = true; return nil }
func (s *memorySink) Cancel() error { s.cancelled = true; return nil }
func (s *memorySink) Write(b []byte) (int, error) {
	if s.broken {
		return 0, errors.New("sink is broken")
	}
	return s.Buffer.Write(b)
}

func check(t failer, err error) {
	t.Helper()
	if err != nil {
		t.Fatalf("%v", err)
	}
}

func entry(t failer, index uint64, b *fsmpb.Batch) *raft.Log {
	data, err := proto.Marshal(b)
	check(t, err)
	return &raft.Log{Index: index, Term: 1, Type: raft.LogCommand, Data: data}
}

// hash reads the whole image, and checks that its running digest is right.
func (r *rig) hash() string {
	r.rest()
	sum, index, err := r.state.Hash()
	check(r.t, err)
	if index != r.applied.Load() {
		r.t.Fatalf("image is of index %d, applied is %d", index, r.applied.Load())
	}
	return sum
}

// checkImage: the rows on disk are what the ledger exports.
func (r *rig) checkImage() {
	want := map[string]string{}
	r.look(func(c *core) {
		for _, row := range exportRows(r.t, c) {
			want[fmt.Sprintf("%v/%x", row.Bucket, row.Key)] = string(row.Value)
		}
	})
	got := map[string]string{}
	r.rest()
	for _, b := range store.Buckets() {
		check(r.t, r.state.ForEach(b, func(k, v []byte) error {
			got[fmt.Sprintf("%v/%x", b, k)] = string(v)
			return nil
		}))
	}
	if !reflect.DeepEqual(got, want) {
		r.t.Fatalf("rows on disk differ from the ledger's:\n got %q\nwant %q", got, want)
	}
}

// events returns the journal from an index on.
func (r *rig) events(from uint64) (out []string) {
	r.rest()
	check(r.t, r.trail.Read(from, 0, 0, func(index uint64, n uint32, data []byte) (bool, error) {
		out = append(out, fmt.Sprintf("%d.%d %x", index, n, data))
		return true, nil
	}))
	return out
}

// TestMachinesAgree applies random batches to one machine entry by entry, and to another in groups,
// which is disturbed in between. Both end in the same state, with the same results and journal.
func TestMachinesAgree(t *testing.T) {
	root := t.TempDir()
	rapid.Check(t, func(rt *rapid.T) {
		steady, moved := newRig(rt, root), newRig(rt, root)
		defer steady.close()
		defer func() { moved.close() }()
		gen := &batches{t: rt, machine: steady.Machine}
		var log []*raft.Log
		for range rapid.IntRange(1, 8).Draw(rt, "groups") {
			var group []*raft.Log
			var want []any
			for range rapid.IntRange(1, 5).Draw(rt, "entries") {
				b := gen.batch()
				if len(log) == 0 {
					b = gen.first()
				}
				e := entry(rt, uint64(len(log)+1), b)
				log, group = append(log, e), append(group, e)
				want = append(want, steady.Apply(e))
			}
			if got := moved.ApplyBatch(group); !reflect.DeepEqual(got, want) {
				rt.Fatalf("results of entries up to %d:\n got %+v\nwant %+v", len(log), got, want)
			}
			moved = disturb(rt, root, moved, log)
			compareRigs(rt, moved, steady)
		}
	})
}

func compareRigs(t *rapid.T, a, b *rig) {
	a.checkImage()
	b.checkImage()
	a.look(func(c *core) { checkInStep(t, c) })
	if x, y := a.hash(), b.hash(); x != y {
		t.Fatalf("hashes differ: %s and %s", x, y)
	}
	if x, y := a.events(a.since), b.events(a.since); !reflect.DeepEqual(x, y) {
		t.Fatalf("journals differ:\n%q\n%q", x, y)
	}
	if len(a.halts)+len(b.halts) > 0 {
		t.Fatalf("halted: %v %v", a.halts, b.halts)
	}
}

// disturb does something to a machine that must not change what it holds.
func disturb(t *rapid.T, root string, r *rig, log []*raft.Log) *rig {
	switch rapid.SampledFrom([]string{"nothing", "restart", "replay", "restore", "restore over itself"}).Draw(t, "disturbance") {
	case "restart":
		r.restart()
	case "replay":
		before := r.hash()
		for i, out := range r.ApplyBatch(log) {
			if out != nil {
				t.Fatalf("entry %d was applied again: %v", i+1, out)
			}
		}
		if r.hash() != before {
			t.Fatalf("replaying what was applied changed the state")
		}
	case "restore":
		fresh := newRig(t, root)
		check(t, fresh.Restore(io.NopCloser(bytes.NewReader(r.snapshot()))))
		fresh.since = uint64(len(log)) + 1
		r.close()
		return fresh
	case "restore over itself":
		check(t, r.Restore(io.NopCloser(bytes.NewReader(r.snapshot()))))
	}
	return r
}

// TestUnknownVersionHalts: a newer version or an unknown kind stops the node before anything of the
// entry is stored, and nothing that follows is applied or snapshotted.
func TestUnknownVersionHalts(t *testing.T) {
	tick := &fsmpb.Op{Kind: &fsmpb.Op_Tick{Tick: &fsmpb.Tick{}}}
	cases := map[string]struct {
		bad  *raft.Log
		want error
		says string
	}{
		"newer version": {entry(t, 2, &fsmpb.Batch{Version: Version + 1, LedgerTime: 5, Ops: []*fsmpb.Op{tick}}), ErrUnknownVersion, "this build knows 1 to 2"},
		"no version":    {entry(t, 2, &fsmpb.Batch{LedgerTime: 5, Ops: []*fsmpb.Op{tick}}), ErrUnknownVersion, "version 0"},
		"unknown kind":  {entry(t, 2, &fsmpb.Batch{Version: 1, LedgerTime: 5, Ops: []*fsmpb.Op{tick, {}}}), ErrUnknownVersion, "install the newer kvgate"},
		"damaged":       {&raft.Log{Index: 2, Term: 1, Type: raft.LogCommand, Data: []byte{0xff}}, ErrCorrupt, "cannot be decoded"},
	}
	for name, c := range cases {
		t.Run(name, func(t *testing.T) {
			r := newRig(t, t.TempDir())
			defer r.close()
			r.Apply(entry(t, 1, &fsmpb.Batch{Version: 1, LedgerTime: 1, Ops: []*fsmpb.Op{tick}}))
			before := r.hash()
			out := r.ApplyBatch([]*raft.Log{c.bad, entry(t, 3, &fsmpb.Batch{Version: 1, LedgerTime: 9, Ops: []*fsmpb.Op{tick}})})
			if len(r.halts) != 1 || !errors.Is(r.halts[0], c.want) || !strings.Contains(r.halts[0].Error(), c.says) ||
				!strings.Contains(r.halts[0].Error(), "log entry 2") {
				t.Fatalf("halted with %v, want one halt with %v that says %q", r.halts, c.want, c.says)
			}
			if out[0] != nil || out[1] != nil || r.hash() != before || r.applied.Load() != 1 {
				t.Errorf("results %v, applied %d: nothing must be applied", out, r.applied.Load())
			}
			if out := r.Apply(entry(t, 3, &fsmpb.Batch{Version: 1, LedgerTime: 9})); out != nil || r.hash() != before {
				t.Error("the entry after the one that failed was applied")
			}
			if _, err := r.Snapshot(); !errors.Is(err, c.want) {
				t.Errorf("snapshot of a halted machine: %v", err)
			}
		})
	}
}

// TestSnapshotCancels: a snapshot that cannot be written is cancelled, never closed.
func TestSnapshotCancels(t *testing.T) {
	r := newRig(t, t.TempDir())
	defer r.close()
	s, err := r.Snapshot()
	must(t, err)
	defer s.Release()
	sink := &memorySink{broken: true}
	if err := s.Persist(sink); err == nil || !sink.cancelled || sink.closed {
		t.Errorf("error %v, cancelled %v, closed %v", err, sink.cancelled, sink.closed)
	}
}

// TestTrap8RestoreSwaps: a damaged snapshot leaves the state as it was, since a restore builds a fresh state and
// swaps when it is whole [weaviate/weaviate#11993].
func TestTrap8RestoreSwaps(t *testing.T) {
	r := newRig(t, t.TempDir())
	defer r.close()
	update := updateOp(ledger.DefaultPool, ledger.Patch{Fields: []string{"modelId"}, Set: ledger.Settings{ModelID: "m"}})
	r.Apply(entry(t, 1, &fsmpb.Batch{Version: 1, LedgerTime: 1, Ops: []*fsmpb.Op{update}}))
	archive, before := r.snapshot(), r.hash()
	for _, damaged := range [][]byte{archive[:len(archive)-1], archive[:len(archive)/2], nil} {
		if err := r.Restore(io.NopCloser(bytes.NewReader(damaged))); err == nil {
			t.Errorf("%d of %d bytes were restored", len(damaged), len(archive))
		}
	}
	r.checkImage()
	if r.hash() != before {
		t.Error("a refused snapshot changed the state")
	}
}

// TestRestoreWakesReaders: who waits for an index hears of it also when a snapshot brings it.
func TestRestoreWakesReaders(t *testing.T) {
	from, to := newRig(t, t.TempDir()), newRig(t, t.TempDir())
	defer from.close()
	defer to.close()
	from.Apply(entry(t, 7, &fsmpb.Batch{Version: 1, LedgerTime: 1}))
	reached := make(chan error, 1)
	ctx, cancel := context.WithTimeout(t.Context(), patience)
	defer cancel()
	go func() { reached <- to.reach(ctx, 7) }()
	eventually(t, "the reader waits", func() bool {
		to.mu.Lock()
		defer to.mu.Unlock()
		return to.reached != nil
	})
	must(t, to.Restore(io.NopCloser(bytes.NewReader(from.snapshot()))))
	must(t, <-reached)
}

// checkInStep: the ledger and the table tell the same of every ticket of a session, and a session that is
// closing has nothing in the queue and is given nothing.
func checkInStep(t failer, c *core) {
	t.Helper()
	for _, pool := range c.ledger.Pools() {
		if b, _ := c.ledger.Budget(pool); int64(b.Pinned) != c.table.Pinned(pool) {
			t.Fatalf("pool %q: %d tokens are pinned, the ledger keeps %d out", pool, c.table.Pinned(pool), b.Pinned)
		}
		known := map[string]string{}
		list, _ := c.table.List(pool, sessions.Filter{}, "", 1000)
		for _, s := range list {
			for _, x := range s.Tickets {
				known[x.Ticket] = s.ID
				v, _ := c.ledger.Ticket(pool, x.Ticket)
				waits := v.Waiter != nil && v.Waiter.Session == s.ID
				leased := v.Lease != nil && v.Lease.Session == s.ID
				if x.Waiting != waits || !x.Waiting && !x.Bypassed != leased {
					t.Fatalf("ticket %+v of session %+v, the ledger has waiter %+v lease %+v", x, s.SessionRow, v.Waiter, v.Lease)
				}
				if x.Waiting && s.State != sessions.Open {
					t.Fatalf("session %q is %v and waits with %q", s.ID, s.State, x.Ticket)
				}
			}
		}
		waiters, _ := c.ledger.Waiters(pool, 1, 1000)
		for _, w := range waiters {
			if w.Session != "" && known[w.Ticket] != w.Session {
				t.Fatalf("ticket %q of session %q waits, and no open session knows it", w.Ticket, w.Session)
			}
		}
	}
}
