package cluster

import (
	"context"
	"errors"
	"testing"
	"time"
)

// TestTrap10AllAddressesChange: nodes are known by their ids and found by name, so three nodes that come back
// on other addresses are the same cluster [hashicorp/raft#532, hashicorp/vault#8489].
func TestTrap10AllAddressesChange(t *testing.T) {
	c := Start(t, Options{Network: true, Names: true})
	lease := c.grant("before", 100, 30*time.Second, "")
	for _, n := range c.nodes {
		n.Kill9()
	}
	for _, n := range c.nodes {
		n.move()
	}
	c.nameNodes()
	for _, n := range c.nodes {
		n.Start()
	}
	c.WaitReady()
	if held, err := c.nodes[0].heldLeases(t.Context()); err != nil || held[lease.Grant] != "before" {
		t.Fatalf("leases after the move are %v (%v)", held, err)
	}
	e := &Episode{Cluster: c, Load: c.StartLoad(15, 8), Rng: newRng(15)}
	e.wait(500 * time.Millisecond)
	killLeader(e, time.Second)
	c.Heal()
	e.wait(500 * time.Millisecond)
	verify(t, c, e.Load, true)
}

// TestTrap10OneAddressAfterTheOther: the others find a node that moves while they run.
func TestTrap10OneAddressAfterTheOther(t *testing.T) {
	c := Start(t, Options{Network: true, Names: true})
	lease := c.grant("before", 100, 60*time.Second, "")
	for _, n := range c.nodes {
		n.Kill9()
		n.move()
		c.nameNodes()
		n.Start()
		c.WaitReady()
		c.Eventually("all nodes vote", func(ctx context.Context) error { return c.Leader().sees(ctx, 3) })
	}
	c.renew(c.nodes[2], lease, 60*time.Second)
	c.checkStates()
}

// TestTrap11CertificateRotation: authority and certificates of both ports are exchanged under load, and then
// every connection is made anew.
func TestTrap11CertificateRotation(t *testing.T) {
	certs := newCertificates(t)
	old, next := certs.authority("old"), certs.authority("next")
	certs.trust(old)
	certs.issue(old, "n1", "n2", "n3")
	c := Start(t, Options{Certificates: certs})
	e := &Episode{Cluster: c, Load: c.StartLoad(16, 8), Rng: newRng(16)}
	e.wait(300 * time.Millisecond)
	if err := certs.handshake(c.nodes[0].spec.Listen, "n1", next); err == nil {
		t.Fatal("the new authority is in use before it was introduced")
	}
	certs.trust(old, next)
	certs.issue(next, "n1", "n2", "n3")
	for _, n := range c.nodes {
		c.Eventually("node "+n.id+" shows its new certificate", func(context.Context) error {
			return errors.Join(certs.handshake(n.spec.Listen, n.id, next), certs.handshake(n.spec.RaftListen, n.id, next))
		})
	}
	certs.trust(next)
	e.wait(300 * time.Millisecond)
	rotated := time.Now()
	killLeader(e, 700*time.Millisecond)
	killLeader(e, 700*time.Millisecond)
	c.Heal()
	e.wait(500 * time.Millisecond)
	for _, o := range e.Load.History.Ops() {
		if o.End.Before(rotated) && !o.Known && o.Code != codeLeft {
			t.Errorf("a caller notices the rotation: %v", o)
		}
	}
	verify(t, c, e.Load, true)
}
