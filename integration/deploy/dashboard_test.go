package deploy

import (
	"flag"
	"os"
	"path/filepath"
	"strings"
	"testing"
)

var rewrite = flag.Bool("rewrite", false, "write deploy/grafana/kvgate.json anew")

// inPromQL replaces Grafana's variables by what they may stand for.
var inPromQL = strings.NewReplacer("$__rate_interval", "1m", "$job", "kvgate", "$pool", "default")

func dashboardExpressions() (all []string) {
	for _, r := range dashboardRows {
		for _, p := range r.panels {
			for _, q := range p.queries {
				all = append(all, inPromQL.Replace(q.expr))
			}
		}
	}
	return all
}

func TestDashboard(t *testing.T) {
	want, err := render(dashboardRows)
	if err != nil {
		t.Fatal(err)
	}
	path := filepath.Join(root, "deploy", "grafana", "kvgate.json")
	if *rewrite {
		if err := os.WriteFile(path, want, 0o644); err != nil {
			t.Fatal(err)
		}
	}
	if read(t, "grafana/kvgate.json") != string(want) {
		t.Error("deploy/grafana/kvgate.json is not current: go test ./integration/deploy -run TestDashboard -rewrite")
	}
	for _, r := range dashboardRows {
		for _, p := range r.panels {
			if p.title == "" || p.help == "" || p.unit == "" || len(p.queries) == 0 {
				t.Errorf("%s: a panel has a title, a unit, queries, and says what a value means: %+v", r.title, p)
			}
		}
	}
}
