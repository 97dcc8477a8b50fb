package cluster

import (
	"context"
	"errors"
	"fmt"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"connectrpc.com/connect"
	"google.golang.org/protobuf/types/known/durationpb"

	kvgatev1 "kvgate/rpc/kvgate/v1"
)

// grant asks any of the nodes for a lease until it gets one.
func (c *Cluster) grant(ticket string, tokens int64, ttl time.Duration, holder string) (got *kvgatev1.AcquireResponse) {
	c.t.Helper()
	c.Eventually("a lease for "+ticket, func(ctx context.Context) error {
		for _, n := range c.nodes {
			if !n.answers() {
				continue
			}
			res, err := n.admission.Acquire(ctx, connect.NewRequest(&kvgatev1.AcquireRequest{
				TicketId: ticket, ReservationTokens: &tokens, MaxWait: durationpb.New(time.Second), Ttl: durationpb.New(ttl), HolderId: holder,
			}))
			if err == nil && res.Msg.Action == kvgatev1.Action_ACTION_ADMIT {
				got = res.Msg
				return nil
			}
		}
		return fmt.Errorf("not granted")
	})
	return got
}

// renew moves a lease's deadline, through a node.
func (c *Cluster) renew(n *Node, l *kvgatev1.AcquireResponse, ttl time.Duration) {
	c.t.Helper()
	c.Eventually("the lease of "+l.TicketId+" is renewed", func(ctx context.Context) error {
		res, err := n.admission.Renew(ctx, connect.NewRequest(&kvgatev1.RenewRequest{
			LeaseIds: []string{l.LeaseId}, Grants: []uint64{l.Grant}, Ttl: durationpb.New(ttl),
		}))
		if err == nil && !res.Msg.Leases[0].Renewed {
			c.t.Fatalf("the lease of %s is gone", l.TicketId)
		}
		return err
	})
}

// waitEvent waits until a node's journal has an event of the ticket and kind, and returns it.
func (c *Cluster) waitEvent(n *Node, kind, ticket string) (found *kvgatev1.JournalEvent) {
	c.t.Helper()
	c.Eventually(kind+" of "+ticket, func(ctx context.Context) error {
		res, err := n.observe.ReadJournal(ctx, connect.NewRequest(&kvgatev1.ReadJournalRequest{TicketId: ticket, Kinds: []string{kind}}))
		if err == nil && len(res.Msg.Events) == 0 {
			err = fmt.Errorf("no such event")
		}
		if err == nil {
			found = res.Msg.Events[0]
		}
		return err
	})
	return found
}

// TestTrap3StalledLeaderExpiresNothing: a leader that sleeps past a deadline, which its successor has moved
// meanwhile, wakes and lets go nothing.
func TestTrap3StalledLeaderExpiresNothing(t *testing.T) {
	c := Start(t, Options{})
	l := c.grant("a", 100, 2*time.Second, "")
	old := c.Leader()
	old.Pause()
	next := c.Leader()
	c.renew(next, l, 30*time.Second)
	witness := c.grant("witness", 100, 2*time.Second, "")
	c.waitEvent(next, "lease_expired", witness.TicketId) // the first deadline of a has passed as well
	old.Resume()
	c.WaitReady()
	c.renew(old, l, 30*time.Second) // through the old leader, which has caught up
	events, err := c.Journal()
	if err != nil {
		t.Fatal(err)
	}
	if _, err := Check(nil, events, true); err != nil {
		t.Error(err)
	}
	for _, e := range events {
		if e.TicketId == "a" && e.Kind != "admitted" && e.Kind != "renewed" {
			t.Errorf("the lease was ended: %v", e.JournalEvent)
		}
	}
	c.checkStates()
}

// TestTrap4ThreeFailoversInsideOneTTL: elections neither renew a lease nor shorten it. How late it
// expires in real time is printed: what no leader led, and at most a tick of each failover.
func TestTrap4ThreeFailoversInsideOneTTL(t *testing.T) {
	const ttl = 9 * time.Second
	c := Start(t, Options{})
	first := c.grant("a", 100, ttl, "")
	for range 3 {
		old := c.Leader()
		old.Kill9()
		next := c.Leader()
		c.grant("alive-"+next.id, 100, time.Second, "") // it leads for a while, not only in name
		old.Start()
		c.WaitReady()
	}
	node := c.Leader()
	expired := c.waitEvent(node, "lease_expired", "a")
	admitted := c.waitEvent(node, "admitted", "a")
	if expired.Grant != first.Grant || expired.LedgerTime != admitted.LedgerTime+int64(ttl) {
		t.Errorf("granted at %v for %v of led time, but expired at %v", time.Duration(admitted.LedgerTime), ttl, time.Duration(expired.LedgerTime))
	}
	late := expired.WallTime.AsTime().Sub(admitted.WallTime.AsTime()) - ttl
	if late < -earliest {
		t.Errorf("expired %v before its time", -late)
	}
	t.Logf("the lease expired %v late after three failovers", late.Round(time.Millisecond))
	events, err := c.Journal()
	if err != nil {
		t.Fatal(err)
	}
	res, err := Check(nil, events, true)
	if err != nil {
		t.Error(err)
	}
	if res.Leaders < 4 {
		t.Errorf("%d terms, want 4", res.Leaders)
	}
	c.checkStates()
}

// TestTTLsSurviveAFullRestart: all nodes are killed; the lease is there afterwards, with the time it had.
func TestTTLsSurviveAFullRestart(t *testing.T) {
	c := Start(t, Options{})
	l := c.grant("a", 100, 5*time.Second, "")
	for _, n := range c.nodes {
		n.Kill9()
	}
	for _, n := range c.nodes {
		n.Start()
	}
	c.WaitReady()
	if held, err := c.nodes[1].heldLeases(t.Context()); err != nil || held[l.Grant] != "a" {
		t.Fatalf("leases after the restart are %v (%v)", held, err)
	}
	e := c.waitEvent(c.nodes[0], "lease_expired", "a")
	if e.LedgerTime != e.Deadline {
		t.Errorf("expired at %v, the deadline is %v", time.Duration(e.LedgerTime), time.Duration(e.Deadline))
	}
	c.checkStates()
}

// TestTrap7FullDisk: the disk of every node fills up to the last byte under load. Callers go on without a
// lease meanwhile, nothing is damaged, and it all goes on once there is room.
func TestTrap7FullDisk(t *testing.T) {
	needNetwork(t) // mounting needs root, too
	dir := t.TempDir()
	if out, err := exec.Command("mount", "-t", "tmpfs", "-o", "size=160m", "kvgate-test", dir).CombinedOutput(); err != nil {
		t.Fatalf("a file system to fill needs mount: %v\n%s", err, out)
	}
	t.Cleanup(func() { _ = exec.Command("umount", "-l", dir).Run() })
	c := Start(t, Options{DataDir: dir})
	e := &Episode{Cluster: c, Load: c.StartLoad(7, 12), Rng: newRng(7)}
	e.wait(500 * time.Millisecond)
	ballast := filepath.Join(dir, "ballast")
	out, err := exec.Command("dd", "if=/dev/zero", "of="+ballast, "bs=64k").CombinedOutput()
	if err == nil || !strings.Contains(string(out), "No space left") {
		t.Fatalf("the disk did not fill up: %v\n%s", err, out)
	}
	c.Eventually("a node says that it refuses writes, or has stopped", func(ctx context.Context) error {
		for _, n := range c.nodes {
			if n.ended() {
				return nil
			}
			if s, err := n.status(ctx); err == nil && !s.Writable {
				return nil
			}
		}
		return fmt.Errorf("all nodes say that they can be written")
	})
	e.wait(time.Second)
	if err := exec.Command("rm", ballast).Run(); err != nil {
		t.Fatal(err)
	}
	c.Heal()
	e.wait(1500 * time.Millisecond)
	verify(t, c, e.Load, true)
}

// TestTrap7StalledDiskStepsDown: a leader whose disk hangs goes on with heartbeats, so it must stop by itself.
func TestTrap7StalledDiskStepsDown(t *testing.T) {
	c := Start(t, Options{})
	e := &Episode{Cluster: c, Load: c.StartLoad(8, 8), Rng: newRng(8)}
	old := c.Leader()
	old.SetFaults(Faults{StallDisk: true})
	c.Eventually("another node leads", func(ctx context.Context) error {
		for _, n := range c.others(old) {
			if s, err := n.status(ctx); err == nil && s.State == "leader" {
				return nil
			}
		}
		return fmt.Errorf("none does")
	})
	if !strings.Contains(old.logs(), "disk stalled") {
		t.Error("the node does not say why it stopped")
	}
	c.Heal()
	e.wait(500 * time.Millisecond)
	verify(t, c, e.Load, true)
}

// TestTrap9ConflictingTail: a leader cut off with entries that nobody confirmed is far behind when it
// comes back. It gets a snapshot, not one after the other for ever, and carries on.
func TestTrap9ConflictingTail(t *testing.T) {
	c := Start(t, Options{Network: true, SnapshotThreshold: 50})
	e := &Episode{Cluster: c, Load: c.StartLoad(9, 12), Rng: newRng(9)}
	e.wait(300 * time.Millisecond)
	old := c.Leader()
	for _, o := range c.others(old) {
		e.link(old, o, Link{Cut: true}, both)
	}
	c.Eventually("the others have cut their logs beyond what it has", func(ctx context.Context) error {
		for _, o := range c.others(old) {
			if first, err := filepath.Glob(filepath.Join(o.spec.DataDir, "snapshots", "*-*")); err != nil || len(first) == 0 {
				return errors.Join(err, fmt.Errorf("node %s has no snapshot yet", o.id))
			}
			s, err := o.status(ctx)
			if err != nil || s.AppliedIndex < 400 {
				return errors.Join(err, fmt.Errorf("node %s is at entry %d", o.id, s.GetAppliedIndex()))
			}
		}
		return nil
	})
	e.wait(4 * time.Second) // raft looks every two to four seconds whether a snapshot is due
	before := strings.Count(old.logs(), snapshotInstalled)
	e.Load.Stop() // or the logs may be cut again before the node has caught up, and it rightly gets another one
	c.Heal()
	verify(t, c, e.Load, true)
	// The leader may have begun to send one while the node was cut off; by now its log begins after that.
	if n := strings.Count(old.logs(), snapshotInstalled) - before; n < 1 || n > 2 {
		t.Errorf("the node installed %d snapshots, want 1, or 2 when one was on its way", n)
	}
}

// TestTrap11ReturningNodeDoesNotDisturb: pre-vote keeps a node that was cut off from ending the term.
func TestTrap11ReturningNodeDoesNotDisturb(t *testing.T) {
	c := Start(t, Options{Network: true})
	e := &Episode{Cluster: c, Load: c.StartLoad(10, 8), Rng: newRng(10)}
	leader := c.Leader()
	before, err := leader.status(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	e.linkFor(c.others(leader)[0], Link{Cut: true}, both, 2500*time.Millisecond)
	c.WaitReady()
	after, err := c.Leader().status(t.Context())
	if err != nil || after.Term != before.Term || after.LeaderId != before.LeaderId {
		t.Errorf("term %d of %s became term %d of %s (%v)", before.Term, before.LeaderId, after.GetTerm(), after.GetLeaderId(), err)
	}
	verify(t, c, e.Load, true)
}

// TestTrap11MixedVersions: nodes are upgraded one by one across a command version under load. The new
// version is written once all know it; then a node of the old one stops rather than skip what it does not know.
func TestTrap11MixedVersions(t *testing.T) {
	c := Start(t, Options{CommandVersion: 1})
	e := &Episode{Cluster: c, Load: c.StartLoad(14, 8), Rng: newRng(14)}
	leader := c.Leader()
	for _, n := range append(c.others(leader), leader) {
		n.Stop()
		n.setVersion(2)
		n.Start()
		c.WaitReady()
	}
	e.wait(3 * time.Second) // every node asks the others each second what they know
	old := e.pick(false)
	old.Stop()
	c.grant("new", 100, time.Second, "")
	old.setVersion(1)
	old.Start()
	c.Eventually("the old version stops", func(context.Context) error {
		if !old.ended() {
			return fmt.Errorf("it runs")
		}
		return nil
	})
	if !strings.Contains(old.logs(), "install the newer kvgate") {
		t.Error("the node does not say why it stopped")
	}
	old.setVersion(2)
	c.Heal()
	verify(t, c, e.Load, true)
}

// TestTrap12LiveHoldersAreNotReaped: failovers and stalls do not make holders that heartbeat look dead.
func TestTrap12LiveHoldersAreNotReaped(t *testing.T) {
	c := Start(t, Options{})
	e := &Episode{Cluster: c, Load: c.StartLoad(13, 9), Rng: newRng(13)}
	for _, name := range []string{"kill leader", "pause leader", "kill leader"} {
		fault(name).Strike(e, 1200*time.Millisecond)
	}
	c.Heal()
	e.wait(1500 * time.Millisecond)
	events, err := c.Journal()
	if err != nil {
		t.Fatal(err)
	}
	for _, ev := range events {
		if ev.Kind == "holder_expired" {
			t.Errorf("a live holder lost what it had: %v", ev.JournalEvent)
		}
	}
	verify(t, c, e.Load, true)
}
