package fsm

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"
	"testing"

	"github.com/hashicorp/raft"

	"kvgate/ledger"
)

// bustle admits, waits and releases from several goroutines until the context ends.
func bustle(ctx context.Context, t *testing.T, r *Replica, workers int) *sync.WaitGroup {
	var wg sync.WaitGroup
	for w := range workers {
		wg.Go(func() {
			for n := 0; ctx.Err() == nil; n++ {
				ticket := fmt.Sprintf("w%d-%d", w, n)
				if _, err := r.Acquire(ctx, ask(ticket, 30)); err != nil {
					if ctx.Err() == nil {
						t.Errorf("acquire %s: %v", ticket, err)
					}
					return
				}
				_, err := r.Release(ctx, ledger.Release{Pool: ledger.DefaultPool, Ticket: ticket})
				if err != nil && ctx.Err() == nil {
					t.Errorf("release %s: %v", ticket, err)
				}
			}
		})
	}
	return &wg
}

// TestSaveUnderLoad: snapshots saved under full load are the state that the log leads to at their index, with
// the journal up to there, and decisions go on while they are written.
func TestSaveUnderLoad(t *testing.T) {
	s := startSingle(t)
	budget(t, s.Replica, 100)
	ctx, stop := context.WithCancel(t.Context())
	defer stop()
	load := bustle(ctx, t, s.Replica, 8)
	var files []string
	for len(files) < 5 {
		before := s.machine.applied.Load()
		eventually(t, "more is decided", func() bool { return s.machine.applied.Load() > before+20 })
		path, _ := saved(t, s.Replica)
		files = append(files, path)
	}
	stop()
	load.Wait()
	all := liveEvents(t, s.Replica)
	replayed := newRig(t, t.TempDir())
	defer func() { replayed.close() }()
	for _, path := range files {
		o := offline(t, path)
		for index := replayed.applied.Load() + 1; index <= o.Header.Index; index++ {
			var entry raft.Log
			must(t, s.disk.logs.GetLog(index, &entry))
			replayed.Apply(&entry)
		}
		got, err := o.Hash()
		must(t, err)
		if want := replayed.hash(); got != want {
			t.Errorf("state saved at entry %d has hash %s, the log leads to %s", o.Header.Index, got, want)
		}
		events := offlineEvents(t, o)
		if len(events) == 0 || !slices.Equal(events, all[:len(events)]) {
			t.Errorf("the %d events saved at entry %d are not the first of the node's", len(events), o.Header.Index)
		}
		if !slices.Equal(events, replayed.events(0)) {
			t.Errorf("%d events are saved at entry %d, the log leads to %d", len(events), o.Header.Index, len(replayed.events(0)))
		}
	}
}

// TestSaveStops when its context ends.
func TestSaveStops(t *testing.T) {
	s := startSingle(t)
	ctx, cancel := context.WithCancelCause(t.Context())
	enough := errors.New("enough")
	cancel(enough)
	if _, err := s.Save(ctx, &memorySink{}); !errors.Is(err, enough) {
		t.Errorf("save: %v", err)
	}
}
