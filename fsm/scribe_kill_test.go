package fsm

import (
	"bytes"
	"errors"
	"io"
	"os"
	"testing"

	"github.com/hashicorp/raft"
	"pgregory.net/rapid"

	"kvgate/fsm/fsmpb"
)

// killed copies a machine's files at one moment of its writing: what a kill leaves.
type killed struct {
	*rig
	step func(done int)
	// newest is the newest snapshot.
	newest []byte
}

// write is persist in steps, each of which may be the last.
func (k *killed) write(p *page) error {
	for done, step := range []func() error{
		func() error { return k.trail.Append(p.events...) },
		func() error { return k.state.Apply(p.at, p.term, p.rows) },
		func() error { return k.persist(p) }, // what is left: trimming
	} {
		k.step(done)
		if err := step(); err != nil {
			return err
		}
	}
	k.step(3)
	return nil
}

// leave copies the files to path.
func (k *killed) leave(path string) *killed {
	check(k.t, os.CopyFS(path, os.DirFS(k.path)))
	return &killed{rig: &rig{t: k.t, path: path, boot: k.boot}, newest: k.newest}
}

// open starts on what a kill left. When the host went down, too, nothing that was not flushed is trusted: what is left is
// the newest snapshot.
func (k *killed) open(hostWentDown bool) {
	if hostWentDown {
		k.boot += "next"
	}
	k.rig.open()
	if applied, _ := k.state.Applied(); hostWentDown && applied != 0 {
		k.t.Fatalf("state of entry %d is trusted", applied)
	}
	if hostWentDown && k.newest != nil {
		check(k.t, k.Restore(io.NopCloser(bytes.NewReader(k.newest))))
	}
}

// TestKilledAtAnyMoment: whatever of a page is on disk when a node is killed, alone or with its host, the log leads to the
// same state and the same journal from there, also when the node is killed once more meanwhile.
func TestKilledAtAnyMoment(t *testing.T) {
	root := t.TempDir()
	rapid.Check(t, func(rt *rapid.T) {
		steady, victim := newRig(rt, root), &killed{rig: newRig(rt, root)}
		defer steady.close()
		gen := &batches{t: rt, machine: steady.Machine}
		log := []*raft.Log{entry(rt, 1, gen.first())}
		steady.Apply(log[0])
		for i := range rapid.IntRange(1, 25).Draw(rt, "entries") {
			log = append(log, entry(rt, uint64(i)+2, gen.batch()))
			steady.Apply(log[i+1])
		}
		for range rapid.IntRange(1, 3).Draw(rt, "kills") {
			victim = killDuring(rt, root, victim, log)
		}
		defer victim.close()
		from := rapid.Uint64Range(0, victim.applied.Load()).Draw(rt, "replayed from")
		feed(rt, victim, log[from:])
		compareRigs(rt, victim.rig, steady)
	})
}

// feed applies entries in groups.
func feed(t *rapid.T, r *killed, log []*raft.Log) {
	for len(log) > 0 {
		n := rapid.IntRange(1, len(log)).Draw(t, "group")
		r.ApplyBatch(log[:n])
		log = log[n:]
		switch rapid.SampledFrom([]string{"nothing", "rest", "snapshot"}).Draw(t, "after a group") {
		case "rest":
			r.rest()
		case "snapshot":
			r.newest = r.snapshot()
		}
	}
}

// killDuring feeds a machine and returns what was left of it at some moment.
func killDuring(t *rapid.T, root string, r *killed, log []*raft.Log) (left *killed) {
	at, page := rapid.IntRange(0, 3).Draw(t, "step"), rapid.IntRange(0, 4).Draw(t, "page")
	path, err := os.MkdirTemp(root, "left-")
	check(t, err)
	r.step = func(done int) {
		if page == 0 && done == at {
			left = r.leave(path)
		}
		if done == 3 {
			page--
		}
	}
	r.scribe.put = r.write
	feed(t, r, log[rapid.Uint64Range(0, r.applied.Load()).Draw(t, "from"):])
	r.rest()
	if left == nil {
		left = r.leave(path)
	}
	r.close()
	left.open(rapid.Bool().Draw(t, "host went down"))
	return left
}

// TestTrimAfterAKill: a trim that a kill cut off is made up for when the node starts.
func TestTrimAfterAKill(t *testing.T) {
	r := newRig(t, t.TempDir())
	for _, e := range turns(t, 5) {
		r.Apply(e)
	}
	r.scribe.put = func(p *page) error {
		return errors.Join(r.trail.Append(p.events...), r.state.Apply(p.at, p.term, p.rows)) // and no more
	}
	op := &fsmpb.Op{Kind: &fsmpb.Op_TrimJournal{TrimJournal: &fsmpb.TrimJournal{FirstIndex: 4}}}
	r.Apply(entry(t, 7, &fsmpb.Batch{Version: Version, LedgerTime: 7, Ops: []*fsmpb.Op{op}}))
	r.restart()
	defer r.close()
	if first := r.trail.First(); first != 4 {
		t.Errorf("the journal begins at %d, the state says 4", first)
	}
}
