package fsm

import (
	"errors"
	"strconv"
	"sync"
	"sync/atomic"
	"testing"

	"kvgate/ledger"
	"kvgate/store"
)

// TestFollowerWhoseWritesFailedCatchesUp under load, time and again: raft's pipelined replication to a
// follower may hang for good when that refuses an entry, while heartbeats go on [hashicorp/raft#612].
func TestFollowerWhoseWritesFailedCatchesUp(t *testing.T) {
	var failing atomic.Pointer[string]
	c := startCluster(t, func(o *Options) {
		node := o.NodeID
		o.BeforeWrite = func(op string) error {
			if f := failing.Load(); op == store.OpStoreLogs && f != nil && *f == node {
				return errors.New("no space left on device")
			}
			return nil
		}
	})
	leader, f := c.leader(), c.followers()[0]
	stop := make(chan struct{})
	var load sync.WaitGroup
	for i := range 8 {
		load.Go(func() {
			for n := 0; ; n++ {
				select {
				case <-stop:
					return
				default:
				}
				_, _ = leader.Cancel(t.Context(), ledger.Cancel{Pool: ledger.DefaultPool, Ticket: strconv.Itoa(i) + "-" + strconv.Itoa(n)})
			}
		})
	}
	defer load.Wait()
	defer close(stop)
	for range 10 {
		refused := leader.machine.applied.Load()
		failing.Store(&f.opts.NodeID)
		eventually(t, "entries are applied without the follower", func() bool { return leader.machine.applied.Load() > refused+50 })
		failing.Store(nil)
		want := leader.machine.applied.Load()
		eventually(t, "the follower has caught up", func() bool { return f.machine.applied.Load() >= want })
	}
}
