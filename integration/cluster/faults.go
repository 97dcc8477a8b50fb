package cluster

import (
	"context"
	"math/rand/v2"
	"time"

	"connectrpc.com/connect"

	kvgatev1 "kvgate/rpc/kvgate/v1"
)

// Fault is something that strikes a cluster under load. Strike begins it, keeps it up for about as long as
// told, and ends it, apart from what Heal does. It runs on the test's goroutine.
type Fault struct {
	Name string
	// Network says that it needs namespaces, StepsClock that wall times mean nothing afterwards.
	Network, StepsClock bool
	Strike              func(e *Episode, hold time.Duration)
}

// Episode is a cluster under load, and a source of choices.
type Episode struct {
	*Cluster
	Load *Load
	Rng  *rand.Rand
	// Strikes are when a leader was killed while the others went on.
	Strikes []time.Time
}

// work lets the clients work for a while: the time is the load's, not a synchronisation.
func work(l *Load, d time.Duration) {
	select {
	case <-l.finish.Done():
	case <-time.After(d):
	}
}

// wait lets time pass, as part of what an episode is.
func (e *Episode) wait(d time.Duration) { work(e.Load, d) }

// pick returns a node that runs: the leader, or one that does not lead.
func (e *Episode) pick(leader bool) *Node {
	l := e.Leader()
	if leader {
		return l
	}
	others := e.others(l)
	return others[e.Rng.IntN(len(others))]
}

// any returns any node.
func (e *Episode) any() *Node { return e.nodes[e.Rng.IntN(len(e.nodes))] }

// Faults are all faults that random episodes are made of.
var allFaults = []Fault{
	{Name: "kill leader", Strike: killLeader},
	{Name: "kill follower", Strike: func(e *Episode, hold time.Duration) { e.killFor(e.pick(false), hold) }},
	{Name: "kill all", Strike: killAll},
	{Name: "pause leader", Strike: func(e *Episode, hold time.Duration) { e.pauseFor(e.pick(true), hold) }},
	{Name: "pause follower", Strike: func(e *Episode, hold time.Duration) { e.pauseFor(e.pick(false), hold) }},
	{Name: "rolling restart", Strike: rollingRestart},
	{Name: "wipe follower", Strike: func(e *Episode, hold time.Duration) { e.wipeFor(e.pick(false), hold) }},
	{Name: "wipe leader", Strike: func(e *Episode, hold time.Duration) { e.wipeFor(e.pick(true), hold) }},
	{Name: "transfer leadership", Strike: transfer},
	{Name: "slow disk", Strike: func(e *Episode, hold time.Duration) {
		e.faultsFor(e.any(), Faults{WriteDelay: 60 * time.Millisecond}, hold)
	}},
	{Name: "stall leader's disk", Strike: func(e *Episode, hold time.Duration) { e.faultsFor(e.pick(true), Faults{StallDisk: true}, hold) }},
	{Name: "stall follower's disk", Strike: func(e *Episode, hold time.Duration) { e.faultsFor(e.pick(false), Faults{StallDisk: true}, hold) }},
	{Name: "failing writes", Strike: func(e *Episode, hold time.Duration) {
		e.faultsFor(e.any(), Faults{WriteError: "no space left on device"}, hold)
	}},
	{Name: "clock an hour ahead", StepsClock: true, Strike: func(e *Episode, hold time.Duration) { e.faultsFor(e.any(), Faults{ClockOffset: time.Hour}, hold) }},
	{Name: "clock an hour behind", StepsClock: true, Strike: func(e *Episode, hold time.Duration) { e.faultsFor(e.any(), Faults{ClockOffset: -time.Hour}, hold) }},
	{Name: "isolate leader", Network: true, Strike: func(e *Episode, hold time.Duration) { e.linkFor(e.pick(true), Link{Cut: true}, both, hold) }},
	{Name: "isolate follower", Network: true, Strike: func(e *Episode, hold time.Duration) { e.linkFor(e.pick(false), Link{Cut: true}, both, hold) }},
	{Name: "leader is not heard", Network: true, Strike: func(e *Episode, hold time.Duration) { e.linkFor(e.pick(true), Link{Cut: true}, outward, hold) }},
	{Name: "leader does not hear", Network: true, Strike: func(e *Episode, hold time.Duration) { e.linkFor(e.pick(true), Link{Cut: true}, inward, hold) }},
	{Name: "follower does not hear", Network: true, Strike: func(e *Episode, hold time.Duration) { e.linkFor(e.pick(false), Link{Cut: true}, inward, hold) }},
	{Name: "one pair is cut", Network: true, Strike: cutPair},
	{Name: "flapping", Network: true, Strike: flap},
	{Name: "delay", Network: true, Strike: func(e *Episode, hold time.Duration) {
		e.linkFor(e.any(), Link{Delay: 40 * time.Millisecond, Jitter: 60 * time.Millisecond}, both, hold)
	}},
	{Name: "loss", Network: true, Strike: func(e *Episode, hold time.Duration) {
		e.linkFor(e.any(), Link{Loss: 0.2, Delay: time.Millisecond}, both, hold)
	}},
}

// fault returns the fault of that name.
func fault(name string) Fault {
	for _, f := range allFaults {
		if f.Name == name {
			return f
		}
	}
	panic("no fault " + name)
}

func killLeader(e *Episode, hold time.Duration) {
	n := e.pick(true)
	e.Strikes = append(e.Strikes, time.Now())
	e.killFor(n, hold)
}

func (e *Episode) killFor(n *Node, hold time.Duration) {
	n.Kill9()
	e.wait(hold)
	n.Revive()
}

func killAll(e *Episode, hold time.Duration) {
	for _, n := range e.nodes {
		n.Kill9()
	}
	e.wait(hold / 4)
	for _, i := range e.Rng.Perm(len(e.nodes)) {
		e.nodes[i].Revive()
	}
	e.wait(hold)
}

func (e *Episode) pauseFor(n *Node, hold time.Duration) {
	n.Pause()
	e.wait(hold)
	n.Resume()
}

// rollingRestart stops one node after the other as an operator does, the leader last.
func rollingRestart(e *Episode, hold time.Duration) {
	leader := e.Leader()
	for _, n := range append(e.others(leader), leader) {
		n.Stop()
		n.Start()
		e.WaitReady()
		e.wait(hold / 6)
	}
}

// wipeFor kills a node, deletes its data and lets it join anew.
func (e *Episode) wipeFor(n *Node, hold time.Duration) {
	n.Wipe()
	e.wait(hold / 3)
	n.Revive()
	e.wait(hold)
	e.waitVoters()
}

// waitVoters waits until all nodes vote. A wiped one is a non-voter at first, and losing another node
// then would be more than the cluster can bear.
func (e *Episode) waitVoters() {
	e.Eventually("all nodes vote", func(ctx context.Context) error {
		return e.Leader().sees(ctx, 3)
	})
}

func transfer(e *Episode, hold time.Duration) {
	ctx, cancel := context.WithTimeout(context.Background(), 5*time.Second)
	defer cancel()
	// It may fail, for instance when the successor lags; the episode goes on either way.
	_, _ = e.any().admin.TransferLeadership(ctx, connect.NewRequest(&kvgatev1.TransferLeadershipRequest{}))
	e.wait(hold)
}

func (e *Episode) faultsFor(n *Node, f Faults, hold time.Duration) {
	n.SetFaults(f)
	e.wait(hold)
	n.SetFaults(Faults{})
	n.Revive()
}

// Directions of packets, seen from a node.
const (
	outward = 1
	inward  = 2
	both    = outward | inward
)

// linkFor changes the links between a node and the other two. Clients and engines stay connected.
func (e *Episode) linkFor(n *Node, l Link, direction int, hold time.Duration) {
	for _, o := range e.others(n) {
		e.link(n, o, l, direction)
	}
	e.wait(hold)
	for _, o := range e.others(n) {
		e.link(n, o, Link{}, direction)
	}
}

func (e *Episode) link(a, b *Node, l Link, direction int) {
	if direction&outward != 0 {
		e.wire.Set(a.ns.addr, b.ns.addr, l)
	}
	if direction&inward != 0 {
		e.wire.Set(b.ns.addr, a.ns.addr, l)
	}
}

func cutPair(e *Episode, hold time.Duration) {
	p := e.Rng.Perm(len(e.nodes))
	e.link(e.nodes[p[0]], e.nodes[p[1]], Link{Cut: true}, both)
	e.wait(hold)
	e.link(e.nodes[p[0]], e.nodes[p[1]], Link{}, both)
}

func flap(e *Episode, hold time.Duration) {
	n := e.pick(true)
	for end := time.Now().Add(hold); time.Now().Before(end); {
		e.linkFor(n, Link{Cut: true}, both, time.Duration(100+e.Rng.IntN(600))*time.Millisecond)
		e.wait(time.Duration(50+e.Rng.IntN(500)) * time.Millisecond)
	}
}
