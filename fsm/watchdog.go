package fsm

import (
	"context"
	"errors"
	"fmt"
	"sync/atomic"
	"time"

	"kvgate/store"
)

// ErrDiskStalled: a write to raft's log did not come back for too long.
var ErrDiskStalled = errors.New("disk stalled")

// watchdog stops a leader whose disk hangs. Such a leader goes on sending heartbeats, so nobody else is
// elected, but nothing is applied any more [hashicorp/raft#503]; and raft's own goroutine is blocked in
// the write, so leadership cannot be handed over from inside. Cutting the network lets others elect.
type watchdog struct {
	limit time.Duration
	now   func() time.Time
	// since is when the write in progress began, in nanoseconds of monotonic time from start; 0: none.
	since atomic.Int64
	start time.Time
}

// watchEvery is how often the watchdog looks.
const watchEvery = 250 * time.Millisecond

func newWatchdog(limit time.Duration, now func() time.Time) *watchdog {
	return &watchdog{limit: limit, now: now, start: now()}
}

// before is called before a write of raft's log, after when it came back. Only the log counts: raft
// writes it from one goroutine, beside reads and deletions of others.
func (w *watchdog) before(op string) {
	if op == store.OpStoreLogs {
		w.since.Store(max(1, int64(w.now().Sub(w.start))))
	}
}

func (w *watchdog) after(op string, _ time.Duration, _ error) {
	if op == store.OpStoreLogs {
		w.since.Store(0)
	}
}

// stalled returns how long the write in progress has taken, when that is above the limit.
func (w *watchdog) stalled() (time.Duration, bool) {
	since := w.since.Load()
	if since == 0 {
		return 0, false
	}
	took := w.now().Sub(w.start) - time.Duration(since)
	return took, took > w.limit
}

// run ends with ctx, or when it has stopped the node.
func (w *watchdog) run(ctx context.Context, r *Replica) {
	ticker := time.NewTicker(watchEvery)
	defer ticker.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case <-ticker.C:
		}
		took, stalled := w.stalled()
		if !stalled || r.leading() == nil || r.voters() < 2 {
			continue
		}
		r.abandon()
		r.halt(fmt.Errorf("%w: a write of the log has taken %v: check the disk, then start the node again", ErrDiskStalled, took.Round(time.Millisecond)))
		return
	}
}
