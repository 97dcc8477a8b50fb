package agents

import (
	"slices"
	"time"
)

// Result sums up a run. Engine time; tokens unless said otherwise.
type Result struct {
	Turns    int           // completed
	Planned  int           // turns of the plan
	Elapsed  time.Duration // from the start to the end, or until now
	Retries  int           // attempts that failed and were made again
	Failed   int           // sessions that gave up
	Contexts int           // histories of the sessions that are over, the shared prompt counted once

	MeanLatency time.Duration // of a turn: from wanting to call to the answer, the gate included
	P95Latency  time.Duration
	MeanQueued  time.Duration // part of it spent in the coordinator's queue
	MeanAsking  time.Duration // part of it spent at the gate besides: a real cost, which Speed multiplies

	Prompt, Completion, Cached int // sums over turns

	// Lag is the share, 0 to 1, of the time that sessions waited for their calls which the engines did
	// not account for: transport, and how far the simulation fell behind its clock. A result with a
	// large lag says more about this machine than about the engines.
	Lag float64
}

// Complete reports that all planned turns were made.
func (r *Result) Complete() bool { return r.Turns == r.Planned }

// TurnsPerSecond is the rate over the whole run, per second of engine time.
func (r *Result) TurnsPerSecond() float64 {
	if r.Elapsed <= 0 {
		return 0
	}
	return float64(r.Turns) / r.Elapsed.Seconds()
}

// Result is the sum of the run so far.
func (r *Run) Result() Result {
	out := Result{Planned: r.plan.Turns(), Elapsed: r.Elapsed()}
	r.rec.mu.Lock()
	turns := slices.Clone(r.rec.turns)
	out.Retries, out.Failed = r.rec.retries, r.rec.failed
	out.Contexts = r.rec.contexts
	if r.rec.over > 0 {
		out.Contexts -= (r.rec.over - 1) * len(r.plan.system)
	}
	r.rec.mu.Unlock()
	out.sum(turns)
	return out
}

func (r *Result) sum(turns []turnRecord) {
	r.Turns = len(turns)
	if len(turns) == 0 {
		return
	}
	latencies := make([]time.Duration, len(turns))
	var latency, queued, asking, call, engine time.Duration
	for i, t := range turns {
		latencies[i] = t.latency
		latency += t.latency
		queued += t.queued
		asking += t.asking
		call += t.call
		engine += t.engine
		r.Prompt += t.prompt
		r.Completion += t.completion
		r.Cached += t.cached
	}
	n := time.Duration(len(turns))
	r.MeanLatency, r.MeanQueued, r.MeanAsking = latency/n, queued/n, asking/n
	r.P95Latency = percentile(latencies, 0.95)
	if call > 0 {
		r.Lag = max(0, 1-float64(engine)/float64(call))
	}
}

// percentile is the smallest value that at least share of all values do not exceed. It sorts values.
func percentile(values []time.Duration, share float64) time.Duration {
	slices.Sort(values)
	at := int(share*float64(len(values))+0.999999) - 1
	return values[min(max(at, 0), len(values)-1)]
}
