package cluster

import (
	"testing"
	"time"
)

// strike runs faults one after the other on one cluster under load and verifies it.
func strike(t *testing.T, network bool, hold time.Duration, names ...string) (Result, *Episode, *History) {
	t.Helper()
	p := Plan{Seed: 11, Network: network, Clients: 12}
	for _, name := range names {
		p.Faults, p.Holds = append(p.Faults, fault(name)), append(p.Holds, hold)
	}
	res, e, h := p.Run(t, Options{})
	if res.Grants < minGrants {
		t.Errorf("only %d leases were granted", res.Grants)
	}
	t.Logf("%d attempts, %d grants, %d terms; leases expired late by %s", res.Ops, res.Grants, res.Leaders, quantiles(res.TTLErrors))
	return res, e, h
}

func TestKill9(t *testing.T) {
	res, e, h := strike(t, false, 700*time.Millisecond, "kill leader", "kill follower", "kill all", "kill leader")
	if res.Leaders < 3 {
		t.Errorf("%d terms, want at least 3: the leader was killed twice", res.Leaders)
	}
	t.Logf("first grant after a kill: %s", quantiles(failovers(e, h)))
}

func TestPauseAndContinue(t *testing.T) {
	res, _, _ := strike(t, false, 1300*time.Millisecond, "pause leader", "pause follower")
	if res.Leaders < 2 {
		t.Errorf("%d terms, want another leader while the first one is paused", res.Leaders)
	}
}

func TestPartitions(t *testing.T) {
	res, _, _ := strike(t, true, 1200*time.Millisecond, "isolate leader", "isolate follower", "one pair is cut")
	if res.Leaders < 2 {
		t.Errorf("%d terms, want another leader while the first one is cut off", res.Leaders)
	}
}

func TestOneWayPartitions(t *testing.T) {
	strike(t, true, 1200*time.Millisecond, "leader is not heard", "leader does not hear", "follower does not hear")
}

func TestFlappingNetwork(t *testing.T) { strike(t, true, 3*time.Second, "flapping") }

func TestDelayAndLoss(t *testing.T) { strike(t, true, 1200*time.Millisecond, "delay", "loss") }

func TestDisks(t *testing.T) {
	strike(t, false, 900*time.Millisecond, "slow disk", "stall follower's disk", "stall leader's disk", "failing writes", "failing writes")
}

// TestWallClocks: clocks that jump an hour change nothing that is decided.
func TestWallClocks(t *testing.T) {
	res, _, _ := strike(t, false, 800*time.Millisecond, "clock an hour ahead", "transfer leadership", "clock an hour behind", "clock an hour ahead")
	if res.Leaders < 2 {
		t.Errorf("%d terms, want a leader with another clock", res.Leaders)
	}
}

func TestRollingRestart(t *testing.T) {
	res, _, _ := strike(t, false, 900*time.Millisecond, "rolling restart", "transfer leadership")
	if res.Leaders < 2 {
		t.Errorf("%d terms, want at least 2", res.Leaders)
	}
}

func TestWipedNodesJoinAgain(t *testing.T) {
	strike(t, false, 700*time.Millisecond, "wipe follower", "wipe leader")
}

// TestMixedFaults strikes with several at once: the leader is paused while the network is bad, and a
// follower loses its data meanwhile.
func TestMixedFaults(t *testing.T) {
	c := Start(t, Options{Network: true, Seed: 12})
	e := &Episode{Cluster: c, Load: c.StartLoad(12, 12), Rng: newRng(12)}
	e.wait(300 * time.Millisecond)
	leader := e.Leader()
	victim := e.others(leader)[0]
	for _, n := range c.nodes {
		for _, o := range e.others(n) {
			e.link(n, o, Link{Delay: 5 * time.Millisecond, Jitter: 20 * time.Millisecond, Loss: 0.05}, outward)
		}
	}
	victim.SetFaults(Faults{WriteDelay: 20 * time.Millisecond, ClockOffset: -time.Hour})
	e.pauseFor(leader, time.Second)
	e.wait(700 * time.Millisecond)
	victim.Wipe()
	e.wait(500 * time.Millisecond)
	c.Heal()
	e.waitVoters()
	if res := verify(t, c, e.Load, false); res.Leaders < 2 {
		t.Errorf("%d terms, want at least 2", res.Leaders)
	}
}

// TestFailoverTime measures how long after the kill of a leader the first lease is granted.
// KVGATE_CHAOS_FAILOVERS is the number of kills.
func TestFailoverTime(t *testing.T) {
	kills := int(setting(t, "KVGATE_CHAOS_FAILOVERS", 2))
	names := make([]string, kills)
	for i := range names {
		names[i] = "kill leader"
	}
	_, e, h := strike(t, false, 2*time.Second, names...)
	times := failovers(e, h)
	if len(times) != kills {
		t.Errorf("leases were granted after %d of %d kills", len(times), kills)
	}
	t.Logf("first grant after a kill: %s", quantiles(times))
}
