package agents

import (
	"sync"
	"time"
)

// Phase is what a session does at the moment.
type Phase int

// The phases of a session.
const (
	Tool     Phase = iota // its tool runs
	AtGate                // it asks for a permit
	AtEngine              // its call is with the router and an engine
	phases
)

// turnRecord is one turn that is over. Engine time; tokens.
type turnRecord struct {
	latency time.Duration // from wanting to call to the answer, gate and failed attempts included
	call    time.Duration // of the successful generate call as the session saw it
	engine  time.Duration // of the same call as the engine saw it
	queued  time.Duration // in the coordinator's queue
	asking  time.Duration // at the gate besides

	prompt, completion, cached int
}

// recorder counts what sessions do. Safe for concurrent use.
type recorder struct {
	mu       sync.Mutex
	in       [phases]int
	turns    []turnRecord
	retries  int
	failed   int
	over     int // sessions
	contexts int // tokens of their histories
}

// Progress is a run as it stands.
type Progress struct {
	Tools, AtGate, AtEngine int // sessions by what they do now
	Turns                   int // completed
	Retries                 int // attempts that failed and were made again
	Failed                  int // sessions that gave up
}

// move counts a session that goes from one phase to another; a negative phase is outside of all.
func (r *recorder) move(from, to Phase) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if from >= 0 {
		r.in[from]--
	}
	if to >= 0 {
		r.in[to]++
	}
}

func (r *recorder) retry() {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.retries++
}

func (r *recorder) turn(t turnRecord) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.turns = append(r.turns, t)
}

// end counts a session that is over, with the tokens of its history.
func (r *recorder) end(context int, failed bool) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.over++
	r.contexts += context
	if failed {
		r.failed++
	}
}

func (r *recorder) progress() Progress {
	r.mu.Lock()
	defer r.mu.Unlock()
	return Progress{
		Tools: r.in[Tool], AtGate: r.in[AtGate], AtEngine: r.in[AtEngine],
		Turns: len(r.turns), Retries: r.retries, Failed: r.failed,
	}
}
