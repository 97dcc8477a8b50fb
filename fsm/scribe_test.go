package fsm

import (
	"context"
	"errors"
	"fmt"
	"os"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"

	"github.com/hashicorp/raft"

	"kvgate/fsm/fsmpb"
	"kvgate/ledger"
	"kvgate/store"
)

// turns returns log entries, the first of which makes room and each other of which lets a ticket in and the one
// before it out.
func turns(t failer, n int) []*raft.Log {
	log := []*raft.Log{entry(t, 1, &fsmpb.Batch{Version: Version, LedgerTime: 1, Ops: []*fsmpb.Op{
		updateOp(ledger.DefaultPool, ledger.Patch{}),
		reconcileOp(ledger.DefaultPool, ledger.Round{Fresh: true, Engines: []ledger.Engine{
			{URL: "http://127.0.0.1:30000", Healthy: true, Capacity: 1000},
		}}),
	}})}
	for i := range n {
		log = append(log, entry(t, uint64(i)+2, &fsmpb.Batch{Version: Version, LedgerTime: int64(i) + 2, Ops: []*fsmpb.Op{
			acquireOp(ledger.Acquire{Pool: ledger.DefaultPool, Ticket: fmt.Sprint("t", i), PromptTokens: 100, MaxWait: -1, Session: fmt.Sprint("s", i)}),
			releaseOp(ledger.Release{Pool: ledger.DefaultPool, Ticket: fmt.Sprint("t", i-1)}),
		}}))
	}
	return log
}

// TestScribeWritesOnce: what many entries changed is one page, and what came and went meanwhile is in none.
func TestScribeWritesOnce(t *testing.T) {
	r, steady := newRig(t, t.TempDir()), newRig(t, t.TempDir())
	defer r.close()
	defer steady.close()
	hold := make(chan struct{})
	var pages, leases int
	r.scribe.put = func(p *page) error {
		<-hold
		pages++
		for _, row := range p.rows {
			if row.Bucket == store.BucketLeases {
				leases++
			}
		}
		return r.persist(p)
	}
	for _, e := range turns(t, 30) {
		r.Apply(e)
		steady.Apply(e)
		steady.rest()
	}
	close(hold)
	r.checkImage()
	if r.hash() != steady.hash() || !equalEvents(r, steady) {
		t.Error("the disk differs from one that was written after each entry")
	}
	if pages > 2 || leases > 3 {
		t.Errorf("%d pages with %d rows of leases, want two: what was written first, and the rest", pages, leases)
	}
}

func equalEvents(a, b *rig) bool { return fmt.Sprint(a.events(0)) == fmt.Sprint(b.events(0)) }

// TestScribeHoldsApplyBack: the disk is never more than so many entries behind.
func TestScribeHoldsApplyBack(t *testing.T) {
	r := newRig(t, t.TempDir())
	defer r.close()
	log := turns(t, 3*maxUnwritten)
	hold := make(chan struct{})
	free := sync.OnceFunc(func() { close(hold) })
	defer free()
	r.scribe.put = func(p *page) error {
		<-hold
		return r.persist(p)
	}
	var applied atomic.Int64
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		for _, e := range log {
			r.Apply(e)
			applied.Add(1)
		}
	}()
	eventually(t, "Apply waits", func() bool {
		r.mu.RLock()
		defer r.mu.RUnlock()
		return r.scribe.done != nil
	})
	// A page may be under way besides what is collected.
	if n := applied.Load(); n >= 2*maxUnwritten {
		t.Errorf("%d entries were answered while the disk stood still", n)
	}
	free()
	<-ended
	r.checkImage()
	if got, want := r.applied.Load(), uint64(len(log)); got != want {
		t.Errorf("applied %d of %d", got, want)
	}
}

// TestScribeTriesAgain: a page that a full disk refused, or took in part, is written when there is room.
func TestScribeTriesAgain(t *testing.T) {
	r := newRig(t, t.TempDir())
	defer r.close()
	refused := 0
	r.scribe.put = func(p *page) error {
		switch refused++; refused {
		case 1:
			return fmt.Errorf("write: %w", store.ErrNoSpace)
		case 2: // the journal could not be trimmed, say
			return errors.Join(r.persist(p), store.ErrNoSpace)
		}
		return r.persist(p)
	}
	for _, e := range turns(t, 5) {
		r.Apply(e)
	}
	r.checkImage()
	if refused < 3 || len(r.halts) > 0 {
		t.Errorf("refused %v, halted %v", refused, r.halts)
	}
}

// TestReadersOfADiskThatRefuses get what is on it, and do not wait for it to take more.
func TestReadersOfADiskThatRefuses(t *testing.T) {
	for name, stuck := range map[string]func(free <-chan struct{}) error{
		"full":  func(<-chan struct{}) error { return store.ErrNoSpace },
		"hangs": func(free <-chan struct{}) error { <-free; return nil },
	} {
		t.Run(name, func(t *testing.T) {
			r := newRig(t, t.TempDir())
			defer r.close()
			free := make(chan struct{})
			release := sync.OnceFunc(func() { close(free) })
			defer release()
			log := turns(t, 3)
			r.Apply(log[0])
			r.rest()
			r.scribe.put = func(p *page) error {
				select {
				case <-free:
				default:
					if err := stuck(free); err != nil {
						return err
					}
				}
				return r.persist(p)
			}
			for _, e := range log[1:] {
				r.Apply(e)
			}
			must(t, r.catchUp(t.Context()))
			if page, err := readJournal(r.trail, store.JournalQuery{Limit: 100}); err != nil || page.Last != 1 {
				t.Errorf("the journal ends at %d (%v), want what was written before", page.Last, err)
			}
			ctx, cancel := context.WithCancel(t.Context())
			cancel()
			if err := r.flush(ctx); !errors.Is(err, context.Canceled) {
				t.Errorf("who must have all of it got %v", err)
			}
			release()
			must(t, r.flush(t.Context()))
			must(t, r.catchUp(t.Context()))
			if page, err := readJournal(r.trail, store.JournalQuery{Limit: 100}); err != nil || page.Last != uint64(len(log)) {
				t.Errorf("then it ends at %d (%v), want %d", page.Last, err, len(log))
			}
		})
	}
}

// TestScribeThatFailsHalts: nothing is applied or snapshotted after a page was lost, and who waits hears why.
func TestScribeThatFailsHalts(t *testing.T) {
	r := newRig(t, t.TempDir())
	defer r.close()
	broken := errors.New("the disk is broken")
	r.scribe.put = func(*page) error { return broken }
	log := turns(t, 2)
	r.Apply(log[0])
	if err := r.flush(t.Context()); !errors.Is(err, broken) {
		t.Errorf("flush answers %v", err)
	}
	r.rest()
	if len(r.halts) != 1 || !errors.Is(r.halts[0], broken) {
		t.Errorf("halted with %v", r.halts)
	}
	if out := r.Apply(log[1]); out != nil || r.applied.Load() != 1 {
		t.Errorf("applied up to %d: %v", r.applied.Load(), out)
	}
	if _, err := r.Snapshot(); !errors.Is(err, broken) {
		t.Errorf("snapshot: %v", err)
	}
}

// TestKilledBehindItsLog: a node that is killed before its disk has caught up carries on from the log. The copy of
// its files is what a kill leaves.
func TestKilledBehindItsLog(t *testing.T) {
	r := newRig(t, t.TempDir())
	defer r.close()
	log := turns(t, 40)
	for _, e := range log[:20] {
		r.Apply(e)
	}
	r.rest()
	hold := make(chan struct{})
	r.scribe.put = func(p *page) error {
		<-hold
		return r.persist(p)
	}
	for _, e := range log[20:] {
		r.Apply(e)
	}
	left := &rig{t: t, path: t.TempDir()}
	must(t, os.CopyFS(left.path, os.DirFS(r.path)))
	close(hold)
	left.open()
	defer left.close()
	if got := left.applied.Load(); got != 20 {
		t.Fatalf("the disk is at entry %d, want 20", got)
	}
	left.ApplyBatch(log)
	if left.hash() != r.hash() || !equalEvents(left, r) {
		t.Error("the log leads elsewhere")
	}
	left.checkImage()
}

// TestHalfABatchIsNotWritten: an entry that cannot be applied halts the node while it is still to write what came
// before. Nothing of the batch may be on disk then: its entries are applied again by a build that knows them all.
func TestHalfABatchIsNotWritten(t *testing.T) {
	root := t.TempDir()
	synctest.Test(t, func(t *testing.T) {
		r, steady := newRig(t, root), newRig(t, root)
		defer func() { r.close() }()
		defer steady.close()
		log := turns(t, 6)
		r.Apply(log[0])
		r.rest()
		select {
		case <-r.scribe.hurry: // what rest left
		default:
		}
		r.Apply(log[1])
		synctest.Wait() // more is being waited for, to be written with it
		newer := entry(t, 4, &fsmpb.Batch{Version: Version + 1, LedgerTime: 50})
		r.ApplyBatch([]*raft.Log{log[2], newer})
		r.rest()
		if at, _ := r.state.Applied(); at != 1 || len(r.halts) != 1 {
			t.Errorf("the image is of entry %d, want 1; halted with %v", at, r.halts)
		}
		r.restart()
		r.ApplyBatch(log)
		steady.ApplyBatch(log)
		if r.hash() != steady.hash() || !equalEvents(r, steady) {
			t.Error("the log leads elsewhere than without the halt")
		}
	})
}

// TestRecoveryTellsOfAFullDisk: who reads or mends a directory by hand hears of it, and waits for nothing.
func TestRecoveryTellsOfAFullDisk(t *testing.T) {
	s := startSingle(t)
	s.close()
	r, err := OpenRecovery(s.opts.DataDir, quiet)
	must(t, err)
	defer func() { must(t, r.Close()) }()
	putWith(r.machine, func(*page) error { return store.ErrNoSpace })
	r.machine.Apply(entry(t, r.machine.applied.Load()+1, &fsmpb.Batch{Version: Version}))
	ctx, cancel := context.WithTimeout(t.Context(), patience)
	defer cancel()
	if err := r.machine.flush(ctx); !errors.Is(err, store.ErrNoSpace) {
		t.Errorf("got %v", err)
	}
}
