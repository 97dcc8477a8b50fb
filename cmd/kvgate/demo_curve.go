package main

import (
	"fmt"
	"io"
	"strings"
	"time"
)

// curvePoints is how many readings of a curve are shown.
const curvePoints = 48

// bars are the heights of a curve, an eighth each.
var bars = []rune(" ▁▂▃▄▅▆▇█")

func (d *demo) printActIntro(a *act) {
	fmt.Fprintf(d.out, "\nSecond act: %d agents of %d turns, %d of them at work at once; each that ends closes its session, and another follows.\n",
		a.plan.Workload.Agents, a.plan.Workload.Turns, a.parallel)
}

// complete reports that both runs made all turns.
func (a *act) complete() bool {
	return a != nil && a.off != nil && a.on != nil && a.off.run.Complete() && a.on.run.Complete()
}

// longest is the time of the longer run.
func (a *act) longest() time.Duration { return max(a.off.run.Elapsed, a.on.run.Elapsed) }

// write prints the second act: both curves on one scale, and what was counted.
func (a *act) write(w io.Writer) error {
	if !a.complete() {
		return nil
	}
	fmt.Fprintf(w, "\nResident KV tokens while agents end and others follow, 0 to %s, over %.0f s:\n\n", short(a.off.fleet.Capacity), a.longest().Seconds())
	for _, r := range []*actResult{a.off, a.on} {
		fmt.Fprintf(w, "  lifecycle %-4s|%s| ends at %s\n", onOff(r.lifecycle), a.sparkline(r), short(r.curve.last()))
	}
	fmt.Fprintln(w)
	rows := make([][]string, len(actMeasures))
	for i, m := range actMeasures {
		rows[i] = []string{m.name, m.show(m.value(a.off)), m.show(m.value(a.on)), m.ratio(a)}
	}
	err := writeTable(w, "", []column{left("measure"), right("lifecycle off"), right("lifecycle on"), right("on/off")}, rows)
	if err != nil {
		return err
	}
	fmt.Fprintln(w)
	for _, sentence := range a.words() {
		fmt.Fprintln(w, sentence)
	}
	return nil
}

// sparkline draws the resident tokens of a run; the width is the longer run's time.
func (a *act) sparkline(r *actResult) string {
	var b strings.Builder
	for _, n := range a.readings(r) {
		share := float64(n) / float64(r.fleet.Capacity)
		b.WriteRune(bars[min(len(bars)-1, int(share*float64(len(bars)-1)+0.5))])
	}
	return b.String()
}

// readings returns the resident tokens of a run at equal distances.
func (a *act) readings(r *actResult) []int {
	out := make([]int, curvePoints)
	for i := range out {
		out[i] = r.curve.at(a.longest() * time.Duration(i+1) / curvePoints)
	}
	return out
}

// mean is the mean of the resident tokens over the run's own time.
func (r *actResult) mean() float64 {
	sum := 0
	for i := range curvePoints {
		sum += r.curve.at(r.run.Elapsed * time.Duration(i+1) / curvePoints)
	}
	return float64(sum) / curvePoints
}

// actMeasure is one line of the second act's table.
type actMeasure struct {
	key, name string
	value     func(*actResult) float64
	show      func(float64) string
	alone     bool // a ratio of it says nothing
}

var actMeasures = []actMeasure{
	{"meanResidentTokens", "resident tokens, mean", (*actResult).mean, whole, false},
	{"finalResidentTokens", "resident tokens, at the end", func(r *actResult) float64 { return float64(r.curve.last()) }, whole, false},
	{"releasedTokens", "tokens freed by closes", func(r *actResult) float64 { return float64(r.fleet.Released) }, whole, true},
	{"sessionsClosed", "sessions closed", func(r *actResult) float64 { return float64(r.closed) }, whole, false},
	{"closesAcknowledged", "closes acknowledged by engines", func(r *actResult) float64 { return float64(r.acknowledged) }, whole, true},
	{"closesOwed", "closes still owed", func(r *actResult) float64 { return float64(r.owed) }, whole, true},
	{"evictedTokens", "evicted tokens", func(r *actResult) float64 { return float64(r.fleet.Evicted) }, whole, false},
	{"recomputedTokens", "recomputed tokens", func(r *actResult) float64 { return float64(r.fleet.Recomputed) }, whole, false},
	{"cacheHitRate", "cache hit rate", func(r *actResult) float64 { return r.fleet.HitRate() }, percent, false},
	{"meanLatencySeconds", "turn latency, mean", func(r *actResult) float64 { return r.run.MeanLatency.Seconds() }, seconds, false},
	{"elapsedSeconds", "time for all turns", func(r *actResult) float64 { return r.run.Elapsed.Seconds() }, seconds, false},
	{"lag", "lag of the simulation", func(r *actResult) float64 { return r.run.Lag }, percent, true},
}

func (m *actMeasure) ratio(a *act) string {
	if m.alone {
		return ""
	}
	return ratio(m.value(a.on), m.value(a.off))
}

// words says what closing sessions did, computed from the numbers in either direction.
func (a *act) words() []string {
	if !a.complete() {
		return nil
	}
	off, on := a.off, a.on
	out := []string{fmt.Sprintf("With lifecycle on, %s closes of %s sessions were acknowledged and freed %s tokens; %s stay resident at the end instead of %s.",
		number(int64(on.acknowledged)), number(int64(on.closed)), short(on.fleet.Released), short(on.curve.last()), short(off.curve.last()))}
	out = append(out, fmt.Sprintf("Evicted tokens went from %s to %s, recomputed tokens from %s to %s, the mean turn latency from %.1f s to %.1f s.",
		short(off.fleet.Evicted), short(on.fleet.Evicted), short(off.fleet.Recomputed), short(on.fleet.Recomputed),
		off.run.MeanLatency.Seconds(), on.run.MeanLatency.Seconds()))
	if off.fleet.Recomputed+on.fleet.Recomputed == 0 && off.fleet.Evicted > on.fleet.Evicted {
		out = append(out, "The engines evicted what finished agents had left first, so nothing that went was needed again: here closing saves evictions and room, not work.")
	}
	if lag := max(off.run.Lag, on.run.Lag); lag > lagLimit {
		out = append(out, fmt.Sprintf("WARNING: the simulation of the second act lagged by %s: what it says of times cannot be trusted.", percent(lag)))
	}
	return out
}

// The JSON form of the second act. Durations are seconds of engine time.
type (
	jsonAct struct {
		Agents     int      `json:"agents"`
		Parallel   int      `json:"parallel"`
		PoolTokens int      `json:"poolTokens"`
		Off        *jsonRun `json:"off"`
		On         *jsonRun `json:"on"`
	}
	jsonRun struct {
		Complete bool               `json:"complete"`
		Measures map[string]float64 `json:"measures"`
		Resident []int              `json:"residentTokens"` // at equal distances
	}
)

func (a *act) json() *jsonAct {
	if !a.complete() {
		return nil
	}
	run := func(r *actResult) *jsonRun {
		out := &jsonRun{Complete: r.run.Complete(), Measures: map[string]float64{}, Resident: a.readings(r)}
		for _, m := range actMeasures {
			out.Measures[m.key] = m.value(r)
		}
		return out
	}
	return &jsonAct{Agents: a.plan.Workload.Agents, Parallel: a.parallel, PoolTokens: a.pool, Off: run(a.off), On: run(a.on)}
}
