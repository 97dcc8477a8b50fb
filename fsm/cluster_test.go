package fsm

import (
	"log/slog"
	"net"
	"os"
	"slices"
	"sync"
	"testing"

	"github.com/hashicorp/raft"

	"kvgate/ledger"
)

// cluster is replicas in one process that talk over loopback.
type cluster struct {
	t     *testing.T
	clock *clock
	// full is why no node can write its disk, nil when all can.
	full  *fakeDisk
	peers []raft.Server
	nodes map[string]*member
}

// member is one node of a cluster; Replica is nil while it is down.
type member struct {
	*Replica
	opts  Options
	log   *logged
	halts chan error
}

// startCluster forms a cluster of three and waits until all of them know the leader.
func startCluster(t *testing.T, change ...func(*Options)) *cluster {
	t.Helper()
	c := &cluster{t: t, clock: &clock{}, full: &fakeDisk{}, nodes: map[string]*member{}}
	t.TempDir() // directories must outlive the nodes, so they are made, and removed, around them
	for _, id := range []string{"n1", "n2", "n3"} {
		c.peers = append(c.peers, raft.Server{ID: raft.ServerID(id), Address: raft.ServerAddress(freeAddr(t)), Suffrage: raft.Voter})
	}
	t.Cleanup(c.close)
	for _, p := range c.peers {
		c.start(string(p.ID), func(o *Options) {
			o.RaftListen, o.Peers = string(p.Address), c.peers
			for _, f := range change {
				f(o)
			}
		})
	}
	c.ready()
	return c
}

// freeAddr returns an address of loopback on which nothing listens.
func freeAddr(t *testing.T) string {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	must(t, err)
	defer l.Close()
	return l.Addr().String()
}

// start opens a new node.
func (c *cluster) start(id string, change func(*Options)) *member {
	c.t.Helper()
	m := &member{log: &logged{}, halts: make(chan error, 16)}
	m.opts = Options{
		NodeID: id, DataDir: c.t.TempDir(), CheckDisk: c.full.check, Now: c.clock.Now,
		Log: slog.New(slog.NewTextHandler(m.log, &slog.HandlerOptions{Level: slog.LevelDebug})), Halt: func(err error) { m.halts <- err },
	}
	change(&m.opts)
	c.nodes[id] = m
	m.open(c.t)
	return m
}

func (m *member) open(t *testing.T) {
	t.Helper()
	r, err := Open(m.opts)
	must(t, err)
	m.Replica = r
}

// close stops all nodes at once, so that no two are left to elect each other in turn.
func (c *cluster) close() {
	var wg sync.WaitGroup
	for id, m := range c.nodes {
		if m.Replica == nil {
			continue
		}
		wg.Go(func() {
			if err := m.Close(); err != nil {
				c.t.Errorf("close %s: %v", id, err)
			}
			m.Replica = nil
		})
	}
	wg.Wait()
	if c.t.Failed() {
		for id, m := range c.nodes {
			c.t.Logf("log of %s:\n%s", id, m.log)
		}
	}
}

// stop closes one node.
func (c *cluster) stop(m *member) {
	c.t.Helper()
	must(c.t, m.Close())
	m.Replica = nil
}

// up returns the running nodes in the order of their names.
func (c *cluster) up() (out []*member) {
	for _, m := range c.nodes {
		if m.Replica != nil {
			out = append(out, m)
		}
	}
	slices.SortFunc(out, func(a, b *member) int {
		if a.opts.NodeID < b.opts.NodeID {
			return -1
		}
		return 1
	})
	return out
}

// ready waits until one node leads and all running nodes know it, and belong to the cluster.
func (c *cluster) ready() {
	c.t.Helper()
	eventually(c.t, "all nodes know the leader", func() bool {
		leads := ""
		for _, m := range c.up() {
			if m.leading() != nil {
				leads = m.opts.NodeID
			}
		}
		for _, m := range c.up() {
			if st := m.Status(); leads == "" || !st.Ready || st.LeaderID != leads || m.disk.dir.Node().ClusterID == "" {
				return false
			}
		}
		return true
	})
}

func (c *cluster) leader() *member {
	c.t.Helper()
	var found *member
	eventually(c.t, "a node leads", func() bool {
		for _, m := range c.up() {
			if m.leading() != nil {
				found = m
			}
		}
		return found != nil
	})
	return found
}

// followers returns the running nodes that do not lead.
func (c *cluster) followers() (out []*member) {
	c.t.Helper()
	leader := c.leader()
	for _, m := range c.up() {
		if m != leader {
			out = append(out, m)
		}
	}
	return out
}

// budget gives the default pool a budget, on the leader.
func (c *cluster) budget(tokens ledger.Tokens) {
	c.t.Helper()
	budget(c.t, c.leader().Replica, tokens, setting("holderTtl", func(s *ledger.Settings) { s.HolderTTL = 1000 * 3600e9 }))
}

// lose closes a node and empties its directory.
func (c *cluster) lose(m *member) {
	c.t.Helper()
	c.stop(m)
	must(c.t, os.RemoveAll(m.opts.DataDir))
}

// hashesAgree waits until all running nodes have the same state at the same index.
func (c *cluster) hashesAgree() {
	c.t.Helper()
	eventually(c.t, "all nodes have the same state", func() bool {
		seen := map[any]bool{}
		for _, m := range c.up() {
			digest, index := m.disk.state.Digest()
			seen[[2]any{digest, index}] = true
		}
		return len(seen) == 1
	})
}
