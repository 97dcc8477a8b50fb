package fsm

import (
	"errors"
	"sync"
	"testing"
	"time"

	"kvgate/store"
)

// stalls holds the writes of one node's log.
type stalls struct {
	mu   sync.Mutex
	node string
	over chan struct{}
}

func (s *stalls) begin(node string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.node, s.over = node, make(chan struct{})
}

func (s *stalls) hook(o *Options) {
	node := o.NodeID
	o.DiskStallLimit = 300 * time.Millisecond
	o.BeforeWrite = func(op string) error {
		s.mu.Lock()
		over := s.over
		stalled := s.node == node && op == store.OpStoreLogs
		s.mu.Unlock()
		if stalled {
			<-over
		}
		return nil
	}
}

// TestStalledDiskLetsOthersLead while the write still hangs: heartbeats go over connections that are open
// already, and raft's own goroutine cannot step down.
func TestStalledDiskLetsOthersLead(t *testing.T) {
	s := &stalls{}
	c := startCluster(t, s.hook)
	c.budget(100)
	stalled, others := c.leader(), c.followers()
	s.begin(stalled.opts.NodeID)
	defer close(s.over)
	go func() { _, _ = stalled.Acquire(t.Context(), ask("a", 1)) }()
	eventually(t, "another node leads", func() bool { return others[0].leading() != nil || others[1].leading() != nil })
	if err := <-stalled.halts; !errors.Is(err, ErrDiskStalled) {
		t.Errorf("the node halted for %v, want %v", err, ErrDiskStalled)
	}
	admit(t, others[0].Replica, ask("b", 10))
}
