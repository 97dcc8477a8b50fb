package cluster

import (
	"fmt"
	"math/rand/v2"
	"os"
	"slices"
	"strconv"
	"testing"
	"time"
)

// setting reads a number from the environment.
func setting(t *testing.T, name string, otherwise uint64) uint64 {
	t.Helper()
	s := os.Getenv(name)
	if s == "" {
		return otherwise
	}
	v, err := strconv.ParseUint(s, 10, 64)
	if err != nil {
		t.Fatalf("%s: %q is not allowed: use a whole number", name, s)
	}
	return v
}

// fixedSeeds are the episodes of a plain `go test`: ones that found something.
var fixedSeeds = []uint64{1011, 1003}

// seeds returns the seeds of the episodes to run, and when to begin no more.
func seeds(t *testing.T) ([]uint64, time.Duration) {
	episodes := setting(t, "KVGATE_CHAOS_EPISODES", 0)
	limit := time.Duration(setting(t, "KVGATE_CHAOS_DURATION", 600)) * time.Second
	if episodes == 0 {
		return fixedSeeds, limit
	}
	first := setting(t, "KVGATE_CHAOS_SEED", rand.Uint64N(1<<32))
	out := make([]uint64, episodes)
	for i := range out {
		out[i] = first + uint64(i)
	}
	return out, limit
}

// TestChaos runs random episodes. KVGATE_CHAOS_EPISODES says how many; KVGATE_CHAOS_SEED is the seed of the
// first one, and the others count up from it; no episode begins after KVGATE_CHAOS_DURATION seconds.
func TestChaos(t *testing.T) {
	list, limit := seeds(t)
	begin := time.Now()
	var total summary
	for _, seed := range list {
		if time.Since(begin) > limit {
			break
		}
		t.Run(fmt.Sprintf("seed=%d", seed), func(t *testing.T) {
			p := NewPlan(seed)
			t.Log(p)
			t.Cleanup(func() {
				if t.Failed() {
					t.Logf("to run this episode again: KVGATE_CHAOS_EPISODES=1 KVGATE_CHAOS_SEED=%d go test -run TestChaos ./integration/cluster", seed)
				}
			})
			res, e, h := p.Run(t, Options{})
			total.add(res, e, h)
			t.Logf("%d attempts, %d known, %d grants, %d expired, %d terms", res.Ops, res.Known, res.Grants, res.Expired, res.Leaders)
		})
	}
	t.Log(total.String())
}

// summary adds up what episodes measured.
type summary struct {
	episodes, ops, grants, expired int
	ttl, failover                  []time.Duration
}

func (s *summary) add(r Result, e *Episode, h *History) {
	s.episodes++
	s.ops += r.Ops
	s.grants += r.Grants
	s.expired += r.Expired
	s.ttl = append(s.ttl, r.TTLErrors...)
	s.failover = append(s.failover, failovers(e, h)...)
}

// failovers returns how long after each kill the first lease was granted to an Acquire made after it.
func failovers(e *Episode, h *History) (out []time.Duration) {
	for _, at := range e.Strikes {
		first := time.Duration(-1)
		for _, o := range h.Ops() {
			if o.Kind == OpAcquire && o.Grant != 0 && o.Start.After(at) && (first < 0 || o.End.Sub(at) < first) {
				first = o.End.Sub(at)
			}
		}
		if first >= 0 {
			out = append(out, first)
		}
	}
	return out
}

func (s *summary) String() string {
	return fmt.Sprintf("%d episodes, %d attempts, %d grants, %d expired; leases expired late by %s; first grant after a kill: %s",
		s.episodes, s.ops, s.grants, s.expired, quantiles(s.ttl), quantiles(s.failover))
}

func quantiles(list []time.Duration) string {
	if len(list) == 0 {
		return "(none)"
	}
	slices.Sort(list)
	at := func(q float64) time.Duration { return list[int(q*float64(len(list)-1))].Round(time.Millisecond) }
	return fmt.Sprintf("p0 %v, p50 %v, p90 %v, p99 %v, p100 %v of %d", at(0), at(.5), at(.9), at(.99), at(1), len(list))
}
