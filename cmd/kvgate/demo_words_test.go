package main

import (
	"strings"
	"testing"
	"time"

	"kvgate/integration/agents"
	kvgatev1 "kvgate/rpc/kvgate/v1"
)

// madeUp is a regime in which 100 turns took the given seconds with admission off and on.
func madeUp(name string, off, on time.Duration) *pairResult {
	arm := func(admission bool, elapsed time.Duration) *armResult {
		return &armResult{admission: admission, fleet: agents.FleetStats{Capacity: 1000}, run: agents.Result{
			Turns: 100, Planned: 100, Contexts: 2500, Elapsed: elapsed, MeanLatency: elapsed / 10, P95Latency: elapsed / 5,
		}}
	}
	p := &pairResult{regime: regime{name: name}, off: arm(false, off), on: arm(true, on)}
	p.on.gate.Admitted = 100
	return p
}

func thrash(p *pairResult, off, on int) *pairResult {
	p.off.fleet.Recomputed, p.on.fleet.Recomputed = off, on
	return p
}

func TestDemoWordsFollowTheNumbers(t *testing.T) {
	waited := madeUp("r", 100*time.Second, 100*time.Second)
	waited.on.gate.Waited = 40
	aged := madeUp("r", 100*time.Second, 100*time.Second)
	aged.on.gate.Admitted, aged.on.gate.Bypassed = 93, map[kvgatev1.Reason]int64{kvgatev1.Reason_REASON_AGED: 7}
	lagging := madeUp("r", 100*time.Second, 100*time.Second)
	lagging.off.run.Lag = 0.2
	slow := thrash(madeUp("r", 80*time.Second, 100*time.Second), 1000, 2000)
	slow.on.run.Lag = 0.2
	asking := madeUp("r", 100*time.Second, 100*time.Second)
	asking.on.run.MeanAsking = time.Second
	retracting := madeUp("r", 100*time.Second, 100*time.Second)
	retracting.off.fleet.Retractions, retracting.on.fleet.Retractions = 12, 3
	partial := madeUp("r", 100*time.Second, 50*time.Second)
	partial.on.run.Turns = 50
	for name, test := range map[string]struct {
		pair      *pairResult
		want, not string
	}{
		"faster":            {madeUp("r", 100*time.Second, 80*time.Second), "admission pays here, with 25.0% more turns", "does not pay"},
		"slower":            {madeUp("r", 80*time.Second, 100*time.Second), "does not pay here, it costs 20.0% of the throughput", "pays here, with"},
		"slower by latency": {madeUp("r", 80*time.Second, 100*time.Second), "with admission are 0.80× those without, mean turn latency is 1.25× and p95 1.25×", ""},
		"the same":          {madeUp("r", 100*time.Second, 98*time.Second), "no call had to wait for a lease, and admission costs nothing", "pay"},
		"the same, waited":  {waited, "neither pays nor costs beyond the 5.0%", "no call had to wait"},
		"sizes":             {waited, "r (histories add up to 2.50× the pools)", ""},
		"nothing lost":      {waited, "so there was nothing for it to save", "did not make them recompute less"},
		"not saved":         {thrash(madeUp("r", 1e9, 1e9), 1000, 990), "did not make them recompute less", "nothing for it to save"},
		"worse":             {thrash(madeUp("r", 1e9, 1e9), 1000, 2000), "did not make them recompute less", "admission made them"},
		"saved":             {thrash(madeUp("r", 1e9, 1e9), 1000, 500), "admission made them recompute less", "did not"},
		"retractions":       {retracting, "retractions from 12 to 3", "Nothing was recomputed"},
		"aged":              {aged, "7 went ahead without one (7 aged)", ""},
		"lag":               {lagging, "WARNING: the simulation lagged by 20.0%", ""},
		"lag, slower":       {slow, "cannot be told, for this machine was too busy (lag 20.0%)", "costs"},
		"lag, no verdict":   {slow, "Nothing can be concluded", "recompute less"},
		"no lag":            {waited, "", "WARNING"},
		"asking":            {asking, "NOTE: asking kvgate took up to 10.0% of the turn latency", "WARNING"},
		"partial":           {partial, "nothing to compare", "pay"},
	} {
		all := &demoResults{options: demoOptions{speed: 15}, pairs: []*pairResult{test.pair}}
		got := strings.Join(all.words(), "\n")
		if !strings.Contains(got, test.want) || test.not != "" && strings.Contains(got, test.not) {
			t.Errorf("%s: want %q and not %q in\n%s", name, test.want, test.not, got)
		}
	}
}

func TestDemoWordsOfTwoRegimesThatDiffer(t *testing.T) {
	all := &demoResults{options: demoOptions{speed: 15}, pairs: []*pairResult{
		thrash(madeUp("a", 1e9, 1e9), 1000, 500), thrash(madeUp("b", 1e9, 1e9), 1000, 1000),
	}}
	got := all.words()
	if len(got) != 5 || !strings.Contains(got[4], "in some of the regimes") {
		t.Errorf("%q", got)
	}
}

func TestDemoWaitersAreCountedByReason(t *testing.T) {
	waiters := []*kvgatev1.Waiter{
		{WaitReason: kvgatev1.WaitReason_WAIT_REASON_CAPACITY_EXHAUSTED},
		{WaitReason: kvgatev1.WaitReason_WAIT_REASON_OLDER_WAITER}, {WaitReason: kvgatev1.WaitReason_WAIT_REASON_OLDER_WAITER},
	}
	if got := waitWords(waiters); got != "1 capacity_exhausted, 2 older_waiter" {
		t.Errorf("%q", got)
	}
	if got := waitWords(nil); got != "0" {
		t.Errorf("%q", got)
	}
}
