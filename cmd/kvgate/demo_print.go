package main

import (
	"encoding/json"
	"fmt"

	"kvgate/integration/agents"
)

// pairResult is what one regime measured with admission off and on; nil for a run that did not begin.
type pairResult struct {
	regime  regime
	off, on *armResult
}

func (p *pairResult) add(a *armResult) {
	if a.admission {
		p.on = a
	} else {
		p.off = a
	}
}

// complete reports that both runs made all of their turns, so that their totals compare.
func (p *pairResult) complete() bool {
	return p.off != nil && p.on != nil && p.off.run.Complete() && p.on.run.Complete()
}

// oversubscribed is how many times the histories would fill the pools, by the run that is complete; 0
// when none is.
func (p *pairResult) oversubscribed() float64 {
	for _, a := range []*armResult{p.off, p.on} {
		if a != nil && a.run.Complete() {
			return float64(a.run.Contexts) / float64(a.fleet.Capacity)
		}
	}
	return 0
}

// demoResults is all that a demo measured.
type demoResults struct {
	options demoOptions
	compare bool
	pairs   []*pairResult
	act     *act   // nil without a second act
	partial string // why it stopped early; "" when it did not
}

// measure is one line of the comparison.
type measure struct {
	key   string // in JSON
	name  string
	value func(*armResult) float64
	show  func(float64) string
	alone bool // a ratio of it says nothing
}

var measures = []measure{
	{"turnsPerSecond", "turns per second", func(a *armResult) float64 { return a.run.TurnsPerSecond() }, decimals2, false},
	{"meanLatencySeconds", "turn latency, mean", func(a *armResult) float64 { return a.run.MeanLatency.Seconds() }, seconds, false},
	{"p95LatencySeconds", "turn latency, p95", func(a *armResult) float64 { return a.run.P95Latency.Seconds() }, seconds, false},
	{"meanQueuedSeconds", "  of it waiting in kvgate, mean", func(a *armResult) float64 { return a.run.MeanQueued.Seconds() }, seconds, true},
	{"meanAskingSeconds", "  of it asking kvgate, mean", func(a *armResult) float64 { return a.run.MeanAsking.Seconds() }, seconds2, true},
	{"recomputedTokens", "recomputed tokens", func(a *armResult) float64 { return float64(a.fleet.Recomputed) }, whole, false},
	{"evictedTokens", "evicted tokens", func(a *armResult) float64 { return float64(a.fleet.Evicted) }, whole, false},
	{"retractions", "retractions", func(a *armResult) float64 { return float64(a.fleet.Retractions) }, whole, false},
	{"cacheHitRate", "cache hit rate", func(a *armResult) float64 { return a.fleet.HitRate() }, percent, false},
	{"turns", "turns completed", func(a *armResult) float64 { return float64(a.run.Turns) }, whole, false},
	{"promptTokens", "prompt tokens", func(a *armResult) float64 { return float64(a.run.Prompt) }, whole, false},
	{"completionTokens", "completion tokens", func(a *armResult) float64 { return float64(a.run.Completion) }, whole, false},
	{"retries", "calls made again", func(a *armResult) float64 { return float64(a.run.Retries) }, whole, false},
	{"elapsedSeconds", "time for all turns", func(a *armResult) float64 { return a.run.Elapsed.Seconds() }, seconds, false},
	{"lag", "lag of the simulation", func(a *armResult) float64 { return a.run.Lag }, percent, true},
}

func decimals2(f float64) string { return fmt.Sprintf("%.2f", f) }
func seconds(f float64) string   { return fmt.Sprintf("%.1f s", f) }
func seconds2(f float64) string  { return fmt.Sprintf("%.2f s", f) }
func whole(f float64) string     { return number(int64(f)) }

func (m *measure) ratio(p *pairResult) string {
	if m.alone {
		return ""
	}
	return ratio(m.value(p.on), m.value(p.off))
}

// ratio words on ÷ off. Without an off to divide by there is none.
func ratio(on, off float64) string {
	if off == 0 {
		return "–"
	}
	return fmt.Sprintf("%.2f×", on/off)
}

func (d *demo) printIntro(regimes []regime) {
	w := d.plan.Workload
	fmt.Fprintf(d.out, "kvgate demo: one node, a simulated router with %d engines, %d agents with %d turns each, seed %d\n\n",
		d.engines, d.agents, d.turns, d.seed)
	fmt.Fprintf(d.out, "  web page   %s/\n  metrics    %s/metrics\n\n", d.node.url(), d.node.url())
	server := ""
	if d.node.url() != defaultServer {
		server = " --server " + d.node.url()
	}
	fmt.Fprintf(d.out, "Try meanwhile, in another terminal:\n  kvgate status%s\n  kvgate queue%s\n  kvgate engines%s\n", server, server, server)
	fmt.Fprintf(d.out, "  curl -s -H 'Content-Type: application/json' -d '{}' %s/kvgate.v1.ObserveService/GetBudget\n\n", d.node.url())
	fmt.Fprintf(d.out, "Engine time runs %gx as fast as the clock; all durations and rates below are engine time.\n", d.speed)
	fmt.Fprintf(d.out, "Each call reserves its prompt + up to %d new tokens. Pool settings are the defaults, in engine time: max wait %s and poll interval %s of the clock.\n",
		w.MaxNewTokens, demoMaxWait(d.speed), demoPollInterval(d.speed))
	for _, r := range regimes {
		fmt.Fprintf(d.out, "Regime %q: engines with %s tokens each.\n", r.name, number(int64(r.pool)))
	}
}

func (d *demo) printResults(all *demoResults) error {
	if d.output == outputJSON {
		return all.writeJSON(d)
	}
	fmt.Fprintln(d.m.stdout)
	if all.partial != "" {
		fmt.Fprintf(d.m.stdout, "PARTIAL comparison: %s. Runs that were cut short did less work than their counterparts.\n\n", all.partial)
	}
	if err := all.writeTable(d); err != nil {
		return err
	}
	fmt.Fprintln(d.m.stdout)
	for _, sentence := range all.words() {
		fmt.Fprintln(d.m.stdout, sentence)
	}
	return all.act.write(d.m.stdout)
}

// writeTable writes all measures of all regimes side by side.
func (all *demoResults) writeTable(d *demo) error {
	columns := []column{left("measure")}
	for _, p := range all.pairs {
		if p.off != nil {
			columns = append(columns, right(p.regime.name+": off"+cut(p.off)))
		}
		if p.on != nil {
			columns = append(columns, right(p.regime.name+": on"+cut(p.on)))
		}
		if p.off != nil && p.on != nil {
			columns = append(columns, right("on/off"))
		}
	}
	var rows [][]string
	for _, m := range measures {
		rows = append(rows, all.row(m))
	}
	return writeTable(d.m.stdout, "nothing was measured", columns, rows)
}

func cut(a *armResult) string {
	if a.run.Complete() {
		return ""
	}
	return " (partial)"
}

func (all *demoResults) row(m measure) []string {
	cells := []string{m.name}
	for _, p := range all.pairs {
		if p.off != nil {
			cells = append(cells, m.show(m.value(p.off)))
		}
		if p.on != nil {
			cells = append(cells, m.show(m.value(p.on)))
		}
		if p.off != nil && p.on != nil {
			cells = append(cells, m.ratio(p))
		}
	}
	return cells
}

// The JSON form of the results. Durations are seconds of engine time.
type (
	jsonResults struct {
		Partial string       `json:"partial"` // why it stopped early
		Agents  int          `json:"agents"`
		Engines int          `json:"engines"`
		Turns   int          `json:"turns"`
		Seed    uint64       `json:"seed"`
		Speed   float64      `json:"speed"`
		Regimes []jsonRegime `json:"regimes"`
		Act     *jsonAct     `json:"sessions"` // null without the second act
		Words   []string     `json:"words"`
	}
	jsonRegime struct {
		Name           string             `json:"name"`
		PoolTokens     int                `json:"poolTokens"`
		Oversubscribed float64            `json:"oversubscribed"`
		Off            *jsonArm           `json:"off"`
		On             *jsonArm           `json:"on"`
		Ratios         map[string]float64 `json:"ratios"` // on ÷ off where off is not 0
	}
	jsonArm struct {
		Complete bool               `json:"complete"`
		Measures map[string]float64 `json:"measures"`
		Fleet    agents.FleetStats  `json:"fleet"`
		Admitted int64              `json:"admitted"`
		Waited   int64              `json:"waited"`
		Bypassed map[string]int64   `json:"bypassed"`
	}
)

func (all *demoResults) writeJSON(d *demo) error {
	out := jsonResults{
		Partial: all.partial, Agents: d.agents, Engines: d.engines, Turns: d.turns, Seed: d.seed, Speed: d.speed,
		Regimes: []jsonRegime{}, Words: append(all.words(), all.act.words()...),
		Act: all.act.json(),
	}
	for _, p := range all.pairs {
		out.Regimes = append(out.Regimes, p.json())
	}
	raw, err := json.Marshal(out)
	if err != nil {
		return err
	}
	return writeIndented(d.m.stdout, raw)
}

func (p *pairResult) json() jsonRegime {
	r := jsonRegime{
		Name: p.regime.name, PoolTokens: p.regime.pool, Oversubscribed: p.oversubscribed(),
		Off: p.off.json(), On: p.on.json(), Ratios: map[string]float64{},
	}
	if p.off == nil || p.on == nil {
		return r
	}
	for _, m := range measures {
		if off := m.value(p.off); off != 0 && !m.alone {
			r.Ratios[m.key] = m.value(p.on) / off
		}
	}
	return r
}

func (a *armResult) json() *jsonArm {
	if a == nil {
		return nil
	}
	out := &jsonArm{
		Complete: a.run.Complete(), Measures: map[string]float64{}, Fleet: a.fleet,
		Admitted: a.gate.Admitted, Waited: a.gate.Waited, Bypassed: map[string]int64{},
	}
	for _, m := range measures {
		out.Measures[m.key] = m.value(a)
	}
	for reason, n := range a.gate.Bypassed {
		out.Bypassed[word(reason)] = n
	}
	return out
}
