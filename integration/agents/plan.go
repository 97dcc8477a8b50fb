package agents

import (
	"math"
	"math/rand/v2"
	"strconv"
	"time"
)

// vocabulary bounds the ids of tokens that sessions make up: three digits at most keep bodies short.
const vocabulary = 1000

// Plan is what every session of a workload is going to do. It is the same for the same workload.
type Plan struct {
	Workload Workload // with its defaults filled in
	system   []int32
	sessions []script
}

// script is what one session adds to its history turn by turn. What the engine answers comes in between.
type script struct {
	turns []step
}

type step struct {
	pause  time.Duration // before the turn
	tokens []int32       // added to the history before the call
}

// NewPlan draws the sessions of w.
func NewPlan(w Workload) (*Plan, error) {
	w = w.withDefaults()
	if err := w.validate(); err != nil {
		return nil, err
	}
	p := &Plan{Workload: w, system: words(newRand(w.Seed, 0), w.SystemTokens)}
	for i := range w.Agents {
		p.sessions = append(p.sessions, newScript(&w, newRand(w.Seed, uint64(i)+1)))
	}
	return p, nil
}

func newRand(seed, stream uint64) *rand.Rand { return rand.New(rand.NewPCG(seed, stream)) }

// newScript begins with a pause too: sessions of a rollout start together, but their tools and
// environments need different times until the first prompt is there.
func newScript(w *Workload, rng *rand.Rand) script {
	var s script
	for turn := range w.Turns {
		median := w.ToolTokens
		if turn == 0 {
			median = w.TaskTokens
		}
		pause := time.Duration(lognormal(rng, float64(w.ToolPause), w.PauseSigma))
		size := int(lognormal(rng, float64(median), w.Sigma))
		s.turns = append(s.turns, step{pause: pause, tokens: words(rng, max(size, 1))})
	}
	return s
}

// lognormal draws a value whose logarithm is normal, within a factor of ten of the median.
func lognormal(rng *rand.Rand, median, sigma float64) float64 {
	return median * min(10, max(0.1, math.Exp(sigma*rng.NormFloat64())))
}

func words(rng *rand.Rand, n int) []int32 {
	out := make([]int32, n)
	for i := range out {
		out[i] = int32(rng.IntN(vocabulary))
	}
	return out
}

// Turns is the number of generate calls that all sessions make together.
func (p *Plan) Turns() int { return p.Workload.Agents * p.Workload.Turns }

// LargestContext bounds the tokens of a session's history at its end.
func (p *Plan) LargestContext() int {
	largest := 0
	for _, s := range p.sessions {
		largest = max(largest, s.bound(p))
	}
	return largest
}

// AllContexts bounds the tokens that all histories have at their ends, the shared prompt counted once:
// a pool that holds this many never has to evict.
func (p *Plan) AllContexts() int {
	sum := len(p.system)
	for _, s := range p.sessions {
		sum += s.bound(p) - len(p.system)
	}
	return sum
}

func (s *script) bound(p *Plan) int {
	n := len(p.system) + len(s.turns)*p.Workload.MaxNewTokens
	for _, t := range s.turns {
		n += len(t.tokens)
	}
	return n
}

// sessionName is the id of session i; prefix keeps runs apart.
func sessionName(prefix string, i int) string { return prefix + "agent-" + strconv.Itoa(i) }
