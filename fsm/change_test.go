package fsm

import (
	"context"
	"errors"
	"log/slog"
	"os"
	"strings"
	"testing"
	"time"

	"github.com/hashicorp/raft"

	"kvgate/ledger"
	"kvgate/store"
)

// group is a few nodes in this process; the first made the cluster and the others joined it.
type group struct {
	t     *testing.T
	nodes map[string]*Replica
	dirs  map[string]string
	log   *logged
}

func startGroup(t *testing.T, ids ...string) *group {
	t.Helper()
	g := &group{t: t, nodes: map[string]*Replica{}, dirs: map[string]string{}, log: &logged{}}
	for _, id := range ids {
		g.dirs[id] = t.TempDir() // before the clean-up, so that it is removed after it
	}
	t.Cleanup(func() {
		for id := range g.nodes {
			g.stop(id)
		}
		if t.Failed() {
			t.Log(g.log)
		}
	})
	for i, id := range ids {
		g.open(id, func(o *Options) {
			if o.Bootstrap = i == 0; i > 0 {
				o.Join = []string{g.nodes[ids[0]].network.Address()}
			}
		})
	}
	eventually(t, "every node votes and all know each other", func() bool {
		for _, r := range g.nodes {
			s := r.Status()
			if !s.Ready || r.voters() != len(ids) || s.FailureTolerance != (len(ids)-1)/2 {
				return false
			}
		}
		return true
	})
	return g
}

func (g *group) open(id string, change func(*Options)) *Replica {
	g.t.Helper()
	o := Options{
		NodeID: id, DataDir: g.dirs[id], RaftListen: "127.0.0.1:0", APIAddress: "api-" + id + ":1", FreeSpaceFloor: 1,
		Log: slog.New(slog.NewTextHandler(g.log, nil)),
	}
	change(&o)
	r, err := Open(o)
	must(g.t, err)
	g.nodes[id] = r
	return r
}

func (g *group) stop(id string) {
	g.t.Helper()
	must(g.t, g.nodes[id].Close())
	delete(g.nodes, id)
}

// leader waits for a node that leads and that all nodes agree on.
func (g *group) leader() *Replica {
	g.t.Helper()
	var found *Replica
	eventually(g.t, "all agree on a leader", func() bool {
		found = nil
		said := map[string]bool{}
		for id, r := range g.nodes {
			said[r.Status().LeaderID] = true
			if r.leading() != nil {
				found = g.nodes[id]
			}
		}
		return found != nil && len(said) == 1
	})
	return found
}

// follower returns a node that does not lead.
func (g *group) follower() *Replica {
	g.t.Helper()
	leader := g.leader()
	for _, r := range g.nodes {
		if r != leader {
			return r
		}
	}
	g.t.Fatal("there is no follower")
	return nil
}

func (g *group) member(id string) (NodeStatus, bool) {
	g.t.Helper()
	for _, m := range g.leader().Status().Nodes {
		if m.ID == id {
			return m, true
		}
	}
	return NodeStatus{}, false
}

func refused(t *testing.T, what string, err, want error, says string) {
	t.Helper()
	if !errors.Is(err, want) || !strings.Contains(err.Error(), says) {
		t.Errorf("%s: %v, want %v with %q", what, err, want, says)
	}
}

func TestMembershipChangesThroughAFollower(t *testing.T) {
	g := startGroup(t, "n1", "n2", "n3")
	ctx := t.Context()
	f := g.follower()
	const later = "127.0.0.1:1" // nobody listens there
	must(t, f.AddNode(ctx, "n4", later))
	must(t, f.AddNode(ctx, "n4", later))
	if m, ok := g.member("n4"); !ok || m.Voter || m.Reachable || m.Address != later || m.Lag != 0 {
		t.Errorf("n4 is %+v, %t", m, ok)
	}
	refused(t, "an address twice", f.AddNode(ctx, "n5", later), ErrAddressTaken, later+" belongs to node n4")
	refused(t, "another node at the address", f.AddNode(ctx, "n5", f.network.Address()), ErrWrongNode, `calls itself "`+f.opts.NodeID+`"`)
	must(t, f.RemoveNode(ctx, "n4"))
	if _, ok := g.member("n4"); ok {
		t.Error("n4 is still a member")
	}
	refused(t, "removed already", f.RemoveNode(ctx, "n4"), ErrUnknownNode, `"n4"`)
	refused(t, "lead, stranger", f.TransferLeadership(ctx, "n9"), ErrUnknownNode, `"n9" is not a voter`)
}

func TestLeadershipGoesWhereItIsSent(t *testing.T) {
	g := startGroup(t, "n1", "n2", "n3")
	f := g.follower()
	must(t, f.TransferLeadership(t.Context(), f.opts.NodeID))
	if g.leader() != f {
		t.Errorf("%s leads", g.leader().opts.NodeID)
	}
	must(t, f.TransferLeadership(t.Context(), f.opts.NodeID)) // it leads already
	must(t, f.TransferLeadership(t.Context(), ""))
	if id := f.Status().LeaderID; id == f.opts.NodeID || id == "" {
		t.Errorf("%q leads after the transfer", id)
	}
}

func TestTheLeaderIsRemovedThroughAFollower(t *testing.T) {
	g := startGroup(t, "n1", "n2", "n3")
	leader := g.leader().opts.NodeID
	f := g.follower()
	must(t, f.RemoveNode(t.Context(), leader))
	g.stop(leader)
	if _, ok := g.member(leader); ok {
		t.Errorf("%s is still a member", leader)
	}
}

func TestTheLastVoterStays(t *testing.T) {
	s := startSingle(t)
	refused(t, "remove", s.RemoveNode(t.Context(), "n1"), ErrLastVoter, `"n1"`)
	refused(t, "transfer", s.TransferLeadership(t.Context(), ""), ErrNotTransferred, "")
	must(t, s.TransferLeadership(t.Context(), "n1"))
	s.HandOver()
	if !s.Status().Ready {
		t.Error("a node alone gave up leadership")
	}
}

func TestANodeOfAnotherClusterDoesNotCount(t *testing.T) {
	g := startGroup(t, "n1")
	r := g.leader()
	other := startSingle(t, func(o *Options) { o.NodeID = "other" })
	// It refuses to talk, so it is added as a node that is down.
	must(t, r.AddNode(t.Context(), "other", other.network.Address()))
	if m, _ := g.member("other"); m.Reachable {
		t.Error("a node of another cluster counts as reachable")
	}
}

func TestStatusTellsLagAndAPI(t *testing.T) {
	g := startGroup(t, "n1", "n2")
	budget(t, g.leader(), 100)
	for _, r := range g.nodes {
		eventually(t, "nobody is behind", func() bool {
			for _, n := range r.Status().Nodes {
				if n.Lag != 0 || n.APIAddress != "api-"+n.ID+":1" || n.AppliedIndex == 0 {
					return false
				}
			}
			return true
		})
	}
	r := g.leader()
	d := described{lag: 7, at: r.now()}
	d.DescribeResponse = r.describe()
	r.peers.mu.Lock()
	for id := range r.peers.seen {
		r.peers.seen[id] = d
	}
	r.peers.mu.Unlock()
	for _, n := range r.Status().Nodes {
		if want := map[bool]uint64{true: 0, false: 7}[n.ID == r.opts.NodeID]; n.Lag != want {
			t.Errorf("%s is %d behind, want %d", n.ID, n.Lag, want)
		}
	}
}

// A ticket that waits on a leader that hands over keeps its place, and its caller is answered.
func TestHandOverKeepsWaiters(t *testing.T) {
	g := startGroup(t, "n1", "n2", "n3")
	old := g.leader()
	budget(t, old, 100)
	admit(t, old, ask("first", 100))
	decided := make(chan ledger.Decision, 1)
	go func() {
		a := ask("second", 60)
		a.MaxWait = time.Hour
		d, err := old.Acquire(context.WithoutCancel(t.Context()), a)
		if err != nil {
			t.Error(err)
		}
		decided <- d
	}()
	attached := func(r *Replica) (yes bool) {
		r.machine.view(func(l *ledger.Ledger) {
			v, _ := l.Ticket(ledger.DefaultPool, "second")
			yes = v.Waiter != nil && v.Waiter.Attached
		})
		return yes
	}
	eventually(t, "the second ticket waits", func() bool { return attached(old) })
	old.HandOver()
	next := g.leader()
	if next == old {
		t.Fatal("the same node leads")
	}
	eventually(t, "its caller follows the new leader", func() bool { return attached(next) })
	_, err := next.Release(t.Context(), ledger.Release{Pool: ledger.DefaultPool, Ticket: "first"})
	must(t, err)
	if d := <-decided; d.Action != ledger.ActionAdmit || d.Tokens != 60 {
		t.Errorf("decided %+v", d)
	}
}

func TestRecoverFromOneOfThree(t *testing.T) {
	g := startGroup(t, "n1", "n2", "n3")
	r := g.leader()
	budget(t, r, 100)
	admit(t, r, ask("a", 30))
	admit(t, r, ask("b", 40))
	before := pictureOf(r)
	if _, err := OpenRecovery(g.dirs["n2"], quiet); !errors.Is(err, store.ErrLocked) {
		t.Fatalf("recovery of a running node: %v", err)
	}
	eventually(t, "n2 has caught up", func() bool { return g.nodes["n2"].machine.applied.Load() >= r.machine.applied.Load() })
	address := g.nodes["n2"].network.Address()
	for _, id := range []string{"n1", "n2", "n3"} {
		g.stop(id)
	}
	rec, err := OpenRecovery(g.dirs["n2"], quiet)
	must(t, err)
	index, term := rec.Last()
	if len(rec.Members()) != 3 || rec.NodeID() != "n2" || rec.ClusterID() != before.Cluster || index == 0 || term == 0 {
		t.Errorf("members %+v of cluster %s, entry %d of term %d", rec.Members(), rec.ClusterID(), index, term)
	}
	if err := rec.Rewrite([]raft.Server{{ID: "n1", Address: raft.ServerAddress(address)}}); !errors.Is(err, ErrNotMember) {
		t.Errorf("a cluster without the node: %v", err)
	}
	must(t, rec.Rewrite([]raft.Server{{ID: "n2", Address: raft.ServerAddress(address)}}))
	must(t, rec.Close())
	must(t, rec.Close())

	back := g.open("n2", func(o *Options) { o.RaftListen = address })
	eventually(t, "n2 leads alone", func() bool { return back.Status().Ready && back.leading() != nil })
	if got := back.Status().Nodes; len(got) != 1 || got[0].ID != "n2" || !got[0].Voter {
		t.Errorf("members %+v", got)
	}
	after := pictureOf(back)
	if len(after.Leases) != 2 || after.Cluster != before.Cluster || after.Epoch != before.Epoch {
		t.Errorf("recovered %+v, want %+v", after, before)
	}
	if d := admit(t, back, ask("c", 30)); d.Action != ledger.ActionAdmit {
		t.Errorf("a new ticket: %+v", d)
	}
	// A node with an empty directory joins it.
	must(t, os.RemoveAll(g.dirs["n1"]))
	g.open("n1", func(o *Options) { o.Join = []string{address} })
	eventually(t, "n1 votes", func() bool { return back.voters() == 2 })
}

func TestNothingToRecover(t *testing.T) {
	if _, err := OpenRecovery(t.TempDir(), quiet); err == nil {
		t.Error("an empty directory was accepted")
	}
	dir, err := store.OpenDir(t.TempDir(), "n1")
	must(t, err)
	must(t, dir.Close())
	if _, err := OpenRecovery(dir.Path(), quiet); !errors.Is(err, ErrNothingToRecover) {
		t.Errorf("a directory without history: %v", err)
	}
}
