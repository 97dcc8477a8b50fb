package fsm

import (
	"errors"
	"fmt"
	"strings"
	"testing"

	"github.com/hashicorp/raft"

	"kvgate/fsm/fsmpb"
	"kvgate/ledger"
)

// suffrages returns what a node's log says that a member was, over time: voter, nonvoter or absent.
func suffrages(t *testing.T, m *member, id string) (out []string) {
	t.Helper()
	first, err := m.disk.logs.FirstIndex()
	must(t, err)
	last, err := m.disk.logs.LastIndex()
	must(t, err)
	for i := first; i <= last; i++ {
		var entry raft.Log
		must(t, m.disk.logs.GetLog(i, &entry))
		if entry.Type != raft.LogConfiguration {
			continue
		}
		is := "absent"
		for _, s := range raft.DecodeConfiguration(entry.Data).Servers {
			if string(s.ID) == id {
				is = strings.ToLower(s.Suffrage.String())
			}
		}
		if len(out) == 0 || out[len(out)-1] != is {
			out = append(out, is)
		}
	}
	return out
}

// waitSuffrages waits until a member was what is wanted, in turn, and answers calls.
func (c *cluster) waitSuffrages(id, want string) {
	c.t.Helper()
	got := ""
	defer func() {
		if c.t.Failed() {
			c.t.Logf("%s was %s in turn, want %s", id, got, want)
		}
	}()
	eventually(c.t, id+" is what it should be", func() bool {
		got = fmt.Sprint(suffrages(c.t, c.leader(), id))
		return got == want && c.nodes[id].Status().Ready
	})
}

// TestJoinAndPromotion: a fourth node joins through a follower, catches up, votes, and holds the state.
func TestJoinAndPromotion(t *testing.T) {
	c := startCluster(t)
	c.budget(100)
	admit(t, c.leader().Replica, ask("a", 10))
	through := c.followers()[0].network.Address()
	own := freeAddr(t)
	n4 := c.start("n4", func(o *Options) { o.RaftListen, o.Join = own, []string{through} })
	c.waitSuffrages("n4", "[absent nonvoter voter]")
	must(t, n4.View(t.Context(), false, func(l *ledger.Ledger) {
		if v, _ := l.Ticket(ledger.DefaultPool, "a"); v.Lease == nil {
			t.Error("the new node does not know the lease")
		}
	}))
	admit(t, n4.Replica, ask("b", 10))
	c.hashesAgree()
	c.stop(n4)
	n4.open(t) // it knows its cluster now, whatever it was started with
	admit(t, n4.Replica, ask("c", 10))
}

// TestWipedVoterStartsOverAsNonVoter: under its old id it might vote twice in one term.
func TestWipedVoterStartsOverAsNonVoter(t *testing.T) {
	c := startCluster(t)
	c.budget(100)
	admit(t, c.leader().Replica, ask("a", 10))
	lost := c.followers()[0]
	id := lost.opts.NodeID
	c.lose(lost)
	admit(t, c.leader().Replica, ask("b", 10))
	lost.open(t)
	c.waitSuffrages(id, "[voter absent nonvoter voter]")
	must(t, lost.View(t.Context(), false, func(l *ledger.Ledger) {
		for _, ticket := range []string{"a", "b"} {
			if v, _ := l.Ticket(ledger.DefaultPool, ticket); v.Lease == nil {
				t.Errorf("the lease of %s is not known to the node that lost its data", ticket)
			}
		}
	}))
	c.hashesAgree()
}

// TestAskingToJoinAgain, because an answer was lost, changes nothing for a non-voter; and what a voter
// said before it lost its data counts no more.
func TestAskingToJoinAgain(t *testing.T) {
	c := startCluster(t)
	leader := c.leader()
	newcomer := &fsmpb.JoinRequest{NodeId: "n9", Address: freeAddr(t), CommandVersion: Version, Empty: true}
	for range 3 {
		must(t, leader.admit(newcomer))
	}
	if got := fmt.Sprint(suffrages(t, leader, "n9")); got != "[absent nonvoter]" {
		t.Errorf("a node that asked three times was %s in turn", got)
	}
	lost := c.followers()[0]
	id := lost.opts.NodeID
	eventually(t, "the leader knows what the voter says", func() bool { _, ok := leader.peers.known(id); return ok })
	address := lost.network.Address()
	c.lose(lost)
	must(t, leader.admit(&fsmpb.JoinRequest{NodeId: id, Address: address, CommandVersion: Version, Empty: true}))
	if said, ok := leader.peers.known(id); ok {
		t.Errorf("the leader still goes by %v", said)
	}
}

// TestWipedVoterDoesNotVote: a node that lost its data and one that lags are no majority. An empty log
// grants its vote to anybody, so the wiped node must not be asked before it has joined anew: together they
// would elect the one that lags, and what the others had acknowledged would be gone.
func TestWipedVoterDoesNotVote(t *testing.T) {
	c := startCluster(t)
	c.budget(100)
	wiped, lagging, whole := c.leader(), c.followers()[0], c.followers()[1]
	c.stop(lagging)
	admit(t, wiped.Replica, ask("a", 10))
	c.stop(whole)
	c.lose(wiped)
	wiped.open(t)
	lagging.open(t)
	eventually(t, "the node that lags has asked for votes", func() bool {
		return strings.Count(lagging.log.String(), "restarting election") > 1 || lagging.leading() != nil
	})
	whole.open(t)
	c.waitSuffrages(wiped.opts.NodeID, "[voter absent nonvoter voter]")
	for _, m := range c.up() {
		must(t, m.View(t.Context(), false, func(l *ledger.Ledger) {
			if v, _ := l.Ticket(ledger.DefaultPool, "a"); v.Lease == nil {
				t.Errorf("node %s does not know the lease", m.opts.NodeID)
			}
		}))
	}
	c.hashesAgree()
}

// TestWrongPeerName: a node that finds another name at a peer's address stops with both.
func TestWrongPeerName(t *testing.T) {
	c := &cluster{t: t, clock: &clock{}, full: &fakeDisk{}, nodes: map[string]*member{}}
	t.TempDir()
	t.Cleanup(c.close)
	a, b := freeAddr(t), freeAddr(t)
	peers := func(second string) []raft.Server {
		return []raft.Server{{ID: "n1", Address: raft.ServerAddress(a)}, {ID: raft.ServerID(second), Address: raft.ServerAddress(b)}}
	}
	first := c.start("n1", func(o *Options) { o.RaftListen, o.Peers = a, peers("n2") })
	c.start("other", func(o *Options) { o.RaftListen, o.Peers = b, peers("other") })
	eventually(t, "the node halts", func() bool { return len(first.halts) > 0 })
	err := <-first.halts
	if !strings.Contains(err.Error(), `calls itself "other", the peer list says "n2"`) {
		t.Errorf("halted with %v", err)
	}
	if st := first.Status(); st.Ready || !strings.Contains(st.Health, "other") {
		t.Errorf("ready %v, health %q", st.Ready, st.Health)
	}
	if _, err := first.Acquire(t.Context(), ask("a", 1)); !errors.Is(err, ErrShutdown) {
		t.Errorf("a call on a node that halted: %v", err)
	}
}

// TestForeignClusterIsRefused: nodes of two clusters do not talk, and say why.
func TestForeignClusterIsRefused(t *testing.T) {
	one, other := startSingle(t), startSingle(t)
	for _, s := range []*single{one, other} {
		eventually(t, "the cluster has an id", func() bool { return s.disk.dir.Node().ClusterID != "" })
	}
	_, err := one.peers.describe(t.Context(), other.network.Address())
	if err == nil || !strings.Contains(err.Error(), "belongs to cluster "+one.clusterID()) {
		t.Errorf("a call to a node of another cluster: %v", err)
	}
	eventually(t, "the other node logs the refusal", func() bool { return other.log.has("connection of another node refused") })
}
