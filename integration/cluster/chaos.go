package cluster

import (
	"fmt"
	"math/rand/v2"
	"strings"
	"testing"
	"time"
)

// Plan is what happens in a random episode; all of it follows from a seed.
type Plan struct {
	Seed    uint64
	Network bool
	Faults  []Fault
	Holds   []time.Duration
	Clients int
}

// String names the faults in order.
func (p Plan) String() string {
	names := make([]string, len(p.Faults))
	for i, f := range p.Faults {
		names[i] = fmt.Sprintf("%s %v", f.Name, p.Holds[i].Round(10*time.Millisecond))
	}
	return fmt.Sprintf("seed %d, network %t, %d clients: %s", p.Seed, p.Network, p.Clients, strings.Join(names, ", "))
}

// NewPlan makes the plan of a seed.
func NewPlan(seed uint64) Plan {
	rng := rand.New(rand.NewPCG(seed, 7))
	p := Plan{Seed: seed, Network: rng.IntN(2) == 0, Clients: 6 + rng.IntN(12)}
	for range 1 + rng.IntN(3) {
		f := allFaults[rng.IntN(len(allFaults))]
		for f.Network && !p.Network {
			f = allFaults[rng.IntN(len(allFaults))]
		}
		p.Faults = append(p.Faults, f)
		p.Holds = append(p.Holds, time.Duration(300+rng.IntN(1700))*time.Millisecond)
	}
	return p
}

// Run plays an episode and verifies it.
func (p Plan) Run(t *testing.T, o Options) (Result, *Episode, *History) {
	t.Helper()
	o.Network, o.Seed = p.Network, p.Seed
	c := Start(t, o)
	e := &Episode{Cluster: c, Load: c.StartLoad(p.Seed, p.Clients), Rng: newRng(p.Seed)}
	e.wait(300 * time.Millisecond)
	clocks := true
	for i, f := range p.Faults {
		f.Strike(e, p.Holds[i])
		e.wait(time.Duration(e.Rng.IntN(300)) * time.Millisecond)
		clocks = clocks && !f.StepsClock
	}
	c.Heal()
	e.wait(200 * time.Millisecond)
	h := e.Load.Stop()
	res := c.Verify(h, clocks)
	for _, late := range res.TTLErrors {
		if late < -earliest {
			t.Errorf("a lease expired %v before its time", -late)
		}
	}
	return res, e, h
}

func newRng(seed uint64) *rand.Rand { return rand.New(rand.NewPCG(seed, 8)) }
