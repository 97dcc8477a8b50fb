package main

import (
	"fmt"
	"math"
)

const (
	// sameWithin is the relative difference below which one run each says nothing.
	sameWithin = 0.05
	// lagLimit is the lag above which a comparison is about this machine.
	lagLimit = 0.10
)

// words interprets the results. Every statement is computed from the numbers, in either direction.
func (all *demoResults) words() []string {
	var out []string
	for _, p := range all.pairs {
		if p.complete() {
			out = append(out, p.words()...)
		}
	}
	if len(out) == 0 {
		return []string{"No regime ran to its end both with admission off and on, so there is nothing to compare."}
	}
	out = append(out, all.verdict())
	if share := all.asking(); share > sameWithin {
		out = append(out, fmt.Sprintf("NOTE: asking kvgate took up to %s of the turn latency, because --speed multiplies the real time of its answers; at a speed of 1 it would be %s.",
			percent(share), percent(share/(share+all.options.speed*(1-share)))))
	}
	if lag := all.lag(); lag > lagLimit {
		out = append(out, fmt.Sprintf("WARNING: the simulation lagged by %s at worst (more than %s): this machine was too busy, and ratios of what lagged cannot be trusted. Use a lower --speed or fewer --agents.",
			percent(lag), percent(lagLimit)))
	}
	return out
}

// asking is the largest share of the turn latency that asking kvgate took, queues aside.
func (all *demoResults) asking() float64 {
	worst := 0.0
	for _, p := range all.pairs {
		if p.on != nil && p.on.run.MeanLatency > 0 {
			worst = math.Max(worst, p.on.run.MeanAsking.Seconds()/p.on.run.MeanLatency.Seconds())
		}
	}
	return worst
}

func (all *demoResults) lag() float64 {
	worst := 0.0
	for _, p := range all.pairs {
		worst = math.Max(worst, p.lag())
	}
	return worst
}

func (p *pairResult) lag() float64 {
	worst := 0.0
	for _, a := range []*armResult{p.off, p.on} {
		if a != nil {
			worst = math.Max(worst, a.run.Lag)
		}
	}
	return worst
}

// words says what admission did to the speed of one regime, and what it did to its engines.
func (p *pairResult) words() []string {
	off, on := &p.off.run, &p.on.run
	return []string{
		fmt.Sprintf("%s (histories add up to %.2f× the pools): %s; turns per second with admission are %s those without, mean turn latency is %s and p95 %s.",
			p.regime.name, p.oversubscribed(), p.outcome(), ratio(p.speedup(), 1),
			ratio(on.MeanLatency.Seconds(), off.MeanLatency.Seconds()), ratio(on.P95Latency.Seconds(), off.P95Latency.Seconds())),
		p.cause(),
	}
}

func (p *pairResult) speedup() float64 {
	return p.on.run.TurnsPerSecond() / p.off.run.TurnsPerSecond()
}

// outcome words whether request-level admission paid.
func (p *pairResult) outcome() string {
	change := p.speedup() - 1
	switch {
	case p.lag() > lagLimit:
		return fmt.Sprintf("whether request-level admission pays cannot be told, for this machine was too busy (lag %s)", percent(p.lag()))
	case change > sameWithin:
		return fmt.Sprintf("request-level admission pays here, with %s more turns in the same time", percent(change))
	case change < -sameWithin:
		return fmt.Sprintf("request-level admission does not pay here, it costs %s of the throughput", percent(-change))
	case p.on.gate.Waited == 0:
		return "no call had to wait for a lease, and admission costs nothing that one run can show"
	default:
		return fmt.Sprintf("request-level admission neither pays nor costs beyond the %s that one run can show", percent(sameWithin))
	}
}

// cause words what happened to the engines, and what the gate did.
func (p *pairResult) cause() string {
	off, on := p.off.fleet, p.on.fleet
	engines := fmt.Sprintf("Recomputed tokens went from %s to %s, retractions from %s to %s, the cache hit rate from %s to %s",
		short(off.Recomputed), short(on.Recomputed), number(int64(off.Retractions)), number(int64(on.Retractions)),
		percent(off.HitRate()), percent(on.HitRate()))
	if off.Recomputed+on.Recomputed+off.Retractions+on.Retractions == 0 {
		engines = "Nothing was recomputed or retracted either way"
	}
	g, calls := p.on.gate, p.on.gate.Admitted+bypassed(p.on)
	gate := fmt.Sprintf("%s of %s calls waited for a lease, %.1f s on average over all turns", number(g.Waited), number(calls), p.on.run.MeanQueued.Seconds())
	if g.Waited == 0 {
		gate = fmt.Sprintf("all %s calls were decided at once", number(calls))
	}
	if bypassed(p.on) > 0 {
		gate += fmt.Sprintf(", and %s went ahead without one (%s)", number(bypassed(p.on)), bypasses(g))
	}
	return engines + "; " + gate + "."
}

func bypassed(a *armResult) int64 {
	n := int64(0)
	for _, count := range a.gate.Bypassed {
		n += count
	}
	return n
}

// verdict says what the regimes that thrashed without admission have to say about it.
func (all *demoResults) verdict() string {
	thrashed, saved, told := 0, 0, 0
	for _, p := range all.pairs {
		if !p.complete() || p.lag() > lagLimit {
			continue
		}
		told++
		if p.off.fleet.Recomputed == 0 {
			continue
		}
		thrashed++
		if float64(p.on.fleet.Recomputed) < (1-sameWithin)*float64(p.off.fleet.Recomputed) {
			saved++
		}
	}
	switch {
	case told == 0:
		return "Nothing can be concluded about admission from this run."
	case thrashed == 0:
		return "No regime made the engines recompute anything without admission, so there was nothing for it to save."
	case saved == thrashed:
		return "Where the engines recomputed evicted prefixes, admission made them recompute less."
	case saved > 0:
		return "Admission made the engines recompute less in some of the regimes that had them recompute at all, and not in others."
	default:
		return "Where the engines recomputed evicted prefixes, admission did not make them recompute less: a lease ends with its call, so what a session keeps cached between turns is as evictable as before. Holding sessions rather than calls is what would change that."
	}
}
