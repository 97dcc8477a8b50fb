package deploy

import (
	"maps"
	"slices"
	"strings"
	"testing"

	dto "github.com/prometheus/client_model/go"
	"github.com/prometheus/common/expfmt"
	"github.com/prometheus/common/model"

	"kvgate/integration/procs"
)

// exports are the labels of each series that the nodes export, by name.
type exports map[string]map[string]bool

// collect reads /metrics of all nodes.
func (c *cluster) collect() exports {
	c.t.Helper()
	all := exports{}
	for i := range c.nodes {
		status, body := c.get(i, "/metrics")
		parser := expfmt.NewTextParser(model.UTF8Validation)
		families, err := parser.TextToMetricFamilies(strings.NewReader(body))
		if status != 200 || err != nil {
			c.t.Fatalf("metrics of node %d: %d, %v", i, status, err)
		}
		for name, family := range families {
			all.add(name, family)
		}
	}
	return all
}

func (all exports) add(name string, family *dto.MetricFamily) {
	names := []string{name}
	if family.GetType() == dto.MetricType_HISTOGRAM {
		names = []string{name + "_bucket", name + "_sum", name + "_count"}
	}
	for _, n := range names {
		if all[n] == nil {
			all[n] = map[string]bool{"job": true, "instance": true} // from Prometheus
		}
		if strings.HasSuffix(n, "_bucket") {
			all[n]["le"] = true
		}
		for _, m := range family.Metric {
			for _, l := range m.Label {
				all[n][l.GetName()] = true
			}
		}
	}
}

// use has a cluster do a bit of everything that leaves a series behind.
func use(c *cluster) {
	c.t.Helper()
	procs.Eventually(c.t, patience, func() bool {
		return strings.Contains(c.do("acquire", "a:0", "--tokens", "100", "--session", "agent-1"), "admit")
	}, func() string { return "nothing is admitted:\n" + c.do("engines") })
	c.do("release", "a:0")
	c.do("session", "close", "agent-1", "--wait")
	if _, err := kvgate(c.t, c.env, "session", "show", "nobody"); err == nil {
		c.t.Error("a session that nobody opened can be shown")
	}
}

// checkMetrics checks that each series and label which rules and dashboard name is there on a cluster in use, and that
// what every node knows of the replicated state is not added up.
func checkMetrics(t *testing.T, c *cluster) {
	t.Helper()
	use(c)
	known := c.collect()
	known["up"] = map[string]bool{"job": true, "instance": true}
	rules := readRules(t)
	for _, g := range rules.Groups {
		for _, r := range g.Rules {
			if r.Record != "" {
				known[r.Record] = map[string]bool{"job": true, "pool": true, "reason": true}
			}
		}
	}
	texts := append(rules.expressions(), dashboardExpressions()...)
	var selectors [][]selector
	answer(t, &selectors, texts, "promql")
	for i, text := range texts {
		for _, s := range selectors[i] {
			checkSelector(t, known, text, s)
		}
	}
}

type selector struct {
	Metric         string
	Labels, Around []string
}

func checkSelector(t *testing.T, known exports, text string, s selector) {
	t.Helper()
	labels, ok := known[s.Metric]
	if !ok {
		t.Errorf("%s: no node exports %s", text, s.Metric)
		return
	}
	for _, l := range s.Labels {
		if !labels[l] {
			t.Errorf("%s: %s has no label %s, only %v", text, s.Metric, l, slices.Sorted(maps.Keys(labels)))
		}
	}
	if !labels["pool"] || strings.HasPrefix(s.Metric, "kvgate:") {
		return
	}
	inner := ""
	for _, around := range s.Around { // from the outside in
		if around == "max" || around == "min" || around == "sum" || around == "count" {
			inner = around
		}
	}
	if inner != "max" {
		t.Errorf("%s: every node exports %s, so the nodes' maximum counts, not their %q", text, s.Metric, inner)
	}
}
