package deploy

import (
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"go.yaml.in/yaml/v3"
)

// ruleFile is what the tests look at of deploy/prometheus/rules.yml.
type ruleFile struct {
	Groups []struct {
		Name  string
		Rules []struct {
			Record, Alert, Expr string
			Labels, Annotations map[string]string
		}
	}
}

func readRules(t testing.TB) (f ruleFile) {
	t.Helper()
	if err := yaml.Unmarshal([]byte(read(t, "prometheus/rules.yml")), &f); err != nil {
		t.Fatal(err)
	}
	return f
}

func (f ruleFile) expressions() (all []string) {
	for _, g := range f.Groups {
		for _, r := range g.Rules {
			all = append(all, r.Expr)
		}
	}
	return all
}

func TestPromtool(t *testing.T) {
	dir := filepath.Join(root, "deploy", "prometheus")
	for _, args := range [][]string{
		{"check", "rules", "--lint-fatal", filepath.Join(dir, "rules.yml")},
		{"check", "config", "--syntax-only", filepath.Join(dir, "prometheus.yml"), filepath.Join(root, "deploy", "compose", "prometheus.yml")},
		{"test", "rules", filepath.Join(dir, "rules_test.yml")},
	} {
		if out, err := exec.Command(tool(t, "promtool"), args...).CombinedOutput(); err != nil {
			t.Errorf("promtool %s: %v\n%s", strings.Join(args, " "), err, out)
		}
	}
}

// Every alert is explained, and has a case in which it fires and series in the case in which all is well.
func TestAlertsAreExplainedAndTested(t *testing.T) {
	var cases struct {
		Tests []struct {
			Name        string
			InputSeries []struct{ Series string } `yaml:"input_series"`
			Expressions []struct {
				Samples []struct{ Labels string } `yaml:"exp_samples"`
			} `yaml:"promql_expr_test"`
		}
	}
	if err := yaml.Unmarshal([]byte(read(t, "prometheus/rules_test.yml")), &cases); err != nil {
		t.Fatal(err)
	}
	fires, healthy := map[string]bool{}, map[string]bool{}
	for _, c := range cases.Tests {
		for _, e := range c.Expressions {
			for _, s := range e.Samples {
				fires[s.Labels] = true
			}
		}
		if c.Name == "healthy" {
			for _, s := range c.InputSeries {
				name, _, _ := strings.Cut(s.Series, "{")
				healthy[name] = true
			}
		}
	}
	name := regexp.MustCompile(`\b(agentic_kv|process)_\w+|\bup\b`)
	for _, g := range readRules(t).Groups {
		for _, r := range g.Rules {
			for _, metric := range name.FindAllString(r.Expr, -1) {
				if !healthy[metric] {
					t.Errorf("%s%s: the healthy case has no %s", r.Record, r.Alert, metric)
				}
			}
			if r.Alert == "" {
				continue
			}
			if !fires[`{alertname="`+r.Alert+`"}`] {
				t.Errorf("%s fires in no case of rules_test.yml", r.Alert)
			}
			if r.Labels["severity"] == "" || r.Annotations["summary"] == "" || r.Annotations["description"] == "" || r.Annotations["runbook"] == "" {
				t.Errorf("%s: severity, summary, description and runbook say what to do", r.Alert)
			}
		}
	}
}
