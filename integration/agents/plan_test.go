package agents

import (
	"errors"
	"reflect"
	"strings"
	"testing"
	"time"
)

func newTestPlan(t *testing.T, w Workload) *Plan {
	t.Helper()
	p, err := NewPlan(w)
	if err != nil {
		t.Fatal(err)
	}
	return p
}

func TestPlanDependsOnTheSeedAlone(t *testing.T) {
	a, b := newTestPlan(t, Workload{Seed: 7}), newTestPlan(t, Workload{Seed: 7})
	if !reflect.DeepEqual(a, b) {
		t.Error("two plans of one seed differ")
	}
	if c := newTestPlan(t, Workload{Seed: 8}); reflect.DeepEqual(a.sessions, c.sessions) {
		t.Error("plans of different seeds are equal")
	}
}

func TestMoreAgentsLeaveTheFirstOnesAsTheyAre(t *testing.T) {
	few, many := newTestPlan(t, Workload{Agents: 3}), newTestPlan(t, Workload{Agents: 5})
	if !reflect.DeepEqual(few.sessions, many.sessions[:3]) {
		t.Error("the first three sessions changed")
	}
}

func TestPlanHasWhatTheWorkloadAsksFor(t *testing.T) {
	p := newTestPlan(t, Workload{Agents: 400, Turns: 3, ToolPause: time.Second})
	if p.Turns() != 1200 || len(p.sessions) != 400 || len(p.system) != 800 {
		t.Errorf("%d turns, %d sessions, %d system tokens", p.Turns(), len(p.sessions), len(p.system))
	}
	below, all := 0, 0
	for _, s := range p.sessions {
		for _, step := range s.turns {
			if step.pause < time.Second/10 || step.pause > 10*time.Second || len(step.tokens) == 0 {
				t.Fatalf("pause %v, %d tokens", step.pause, len(step.tokens))
			}
			all++
			if step.pause < time.Second {
				below++
			}
		}
	}
	if share := float64(below) / float64(all); share < 0.45 || share > 0.55 {
		t.Errorf("%.2f of the pauses are below the median", share)
	}
}

func TestBadConfigurationNamesTheField(t *testing.T) {
	for field, w := range map[string]Workload{
		"Agents": {Agents: -1}, "Turns": {Turns: 1 << 30}, "SystemTokens": {SystemTokens: -5}, "Sigma": {Sigma: 4},
		"ToolPause": {ToolPause: -time.Second}, "MaxNewTokens": {MaxNewTokens: -1},
	} {
		if _, err := NewPlan(w); !errors.Is(err, ErrConfig) || !strings.Contains(err.Error(), field) {
			t.Errorf("%s: %v", field, err)
		}
	}
	plan := newTestPlan(t, Workload{})
	for field, c := range map[string]Config{
		"Plan": {RouterURL: "http://127.0.0.1:1", Speed: 1}, "Speed": {Plan: plan, RouterURL: "http://127.0.0.1:1"},
		"RouterURL": {Plan: plan, RouterURL: "127.0.0.1:1", Speed: 1},
	} {
		if _, err := New(c); !errors.Is(err, ErrConfig) || !strings.Contains(err.Error(), field) {
			t.Errorf("%s: %v", field, err)
		}
	}
	if _, err := StartFleet(FleetConfig{Engines: -1}); !errors.Is(err, ErrConfig) || !strings.Contains(err.Error(), "Engines") {
		t.Errorf("Engines: %v", err)
	}
	if _, err := StartFleet(FleetConfig{PoolTokens: -1}); err == nil || !strings.Contains(err.Error(), "PoolTokens") {
		t.Errorf("PoolTokens: %v", err)
	}
}

func TestPercentileIsTheNearestRank(t *testing.T) {
	var hundred []time.Duration
	for i := 100; i > 0; i-- {
		hundred = append(hundred, time.Duration(i))
	}
	for _, test := range []struct {
		values []time.Duration
		share  float64
		want   time.Duration
	}{
		{[]time.Duration{7}, 0.95, 7}, {[]time.Duration{2, 1}, 0.5, 1}, {[]time.Duration{1, 3, 2}, 0.95, 3},
		{hundred, 0.95, 95}, {hundred, 0.5, 50}, {hundred, 0.951, 96},
	} {
		if got := percentile(test.values, test.share); got != test.want {
			t.Errorf("%d values at %v: %d, want %d", len(test.values), test.share, got, test.want)
		}
	}
}
