package cluster

import (
	"testing"
	"time"
)

// minGrants is how many grants an episode must have seen to prove anything.
const minGrants = 20

func verify(t *testing.T, c *Cluster, l *Load, clocks bool) Result {
	t.Helper()
	res := c.Verify(l.Stop(), clocks)
	t.Logf("%d attempts, %d known, %d tickets, %d events, %d grants, %d expired, %d terms",
		res.Ops, res.Known, res.Tickets, res.Events, res.Grants, res.Expired, res.Leaders)
	if res.Grants < minGrants {
		t.Errorf("only %d leases were granted", res.Grants)
	}
	return res
}

func TestWithoutFaults(t *testing.T) {
	for name, network := range map[string]bool{"loopback": false, "network": true} {
		t.Run(name, func(t *testing.T) {
			c := Start(t, Options{Network: network, Seed: 1})
			l := c.StartLoad(1, 12)
			work(l, 2*time.Second)
			verify(t, c, l, true)
		})
	}
}
