package rpc

import (
	"context"
	"errors"
	"math"
	"strings"
	"testing"
	"time"

	dto "github.com/prometheus/client_model/go"
	"github.com/prometheus/common/expfmt"
	"github.com/prometheus/common/model"

	"kvgate/fsm"
	"kvgate/ledger"
)

// scrape reads /metrics and returns the families by name.
func (r *running) scrape() map[string]*dto.MetricFamily {
	r.t.Helper()
	res, body := r.get("/metrics")
	if res.StatusCode != 200 {
		r.t.Fatalf("/metrics answered %d %s", res.StatusCode, body)
	}
	parser := expfmt.NewTextParser(model.UTF8Validation)
	families, err := parser.TextToMetricFamilies(strings.NewReader(body))
	if err != nil {
		r.t.Fatal(err)
	}
	return families
}

// value returns the series with exactly these labels, NaN when there is none.
func value(families map[string]*dto.MetricFamily, name string, labels map[string]string) float64 {
	for _, m := range families[name].GetMetric() {
		have := map[string]string{}
		for _, l := range m.GetLabel() {
			have[l.GetName()] = l.GetValue()
		}
		if len(have) != len(labels) {
			continue
		}
		same := true
		for k, v := range labels {
			same = same && have[k] == v
		}
		if same {
			return m.GetCounter().GetValue() + m.GetGauge().GetValue() + float64(m.GetHistogram().GetSampleCount())
		}
	}
	return math.NaN()
}

func TestMetrics(t *testing.T) {
	l := fleet(t)
	ask(t, l, "a", 600)
	ask(t, l, "b", 500)
	ask(t, l, "huge", 5000)
	l.Advance(ledger.Time(2*time.Second), 0)
	l.Release(ledger.Release{Pool: "default", Ticket: "a", Usage: &ledger.Usage{PromptTokens: 300, CompletionTokens: 100}})
	b := &fakeBackend{ledger: l, status: fsm.Status{State: "leader", LeaderID: "n1", Term: 4, AppliedIndex: 17, CommitIndex: 18, Writable: true}}
	r := start(t, b)
	families := r.scrape()
	pool := map[string]string{"pool": "default"}
	engine := map[string]string{"pool": "default", "engine": "http://e1:30000"}
	bypass := func(reason string) map[string]string { return map[string]string{"pool": "default", "reason": reason} }
	for _, c := range []struct {
		name   string
		labels map[string]string
		want   float64
	}{
		{"agentic_kv_admit_total", pool, 2},
		{"agentic_kv_wait_total", pool, 1},
		{"agentic_kv_waited_seconds_total", pool, 2},
		{"agentic_kv_bypass_total", bypass("oversized"), 1},
		{"agentic_kv_bypass_total", bypass("degraded"), 0},
		{"agentic_kv_cancelled_total", pool, 0},
		{"agentic_kv_lease_expired_total", pool, 0},
		{"agentic_kv_holder_expired_total", pool, 0},
		{"agentic_kv_abandoned_total", pool, 0},
		{"agentic_kv_unclaimed_total", pool, 0},
		{"agentic_kv_reported_reserved_tokens_total", pool, 600},
		{"agentic_kv_reported_used_tokens_total", pool, 400},
		{"agentic_kv_ceiling_tokens", pool, 1000},
		{"agentic_kv_reserved_tokens", pool, 500},
		{"agentic_kv_available_tokens", pool, 500},
		{"agentic_kv_leases", pool, 1},
		{"agentic_kv_waiting", pool, 0},
		{"agentic_kv_oldest_wait_seconds", pool, 0},
		{"agentic_kv_pressure", pool, 0.25},
		{"agentic_kv_epoch", pool, 1},
		{"agentic_kv_degraded", pool, 0},
		{"agentic_kv_snapshot_age_seconds", pool, 2},
		{"agentic_kv_engine_usage", engine, 0.25},
		{"agentic_kv_engine_healthy", engine, 1},
		{"agentic_kv_raft_term", nil, 4},
		{"agentic_kv_raft_applied_index", nil, 17},
		{"agentic_kv_raft_commit_index", nil, 18},
		{"agentic_kv_raft_is_leader", nil, 1},
	} {
		if got := value(families, c.name, c.labels); got != c.want {
			t.Errorf("%s%v is %v, want %v", c.name, c.labels, got, c.want)
		}
	}
	if families["go_goroutines"] == nil || families["process_start_time_seconds"] == nil {
		t.Error("the Go and process collectors are missing")
	}
}

func TestIDsAreNeverLabels(t *testing.T) {
	l := fleet(t)
	ask(t, l, "secret-ticket", 10)
	_, body := start(t, &fakeBackend{ledger: l}).get("/metrics")
	for _, id := range []string{"secret-ticket", "h1", "s1"} {
		if strings.Contains(body, `"`+id+`"`) || strings.Contains(body, ":"+id) {
			t.Errorf("%s is a label", id)
		}
	}
}

func TestCallsAreMeasured(t *testing.T) {
	b := &fakeBackend{release: func(_ context.Context, op ledger.Release) (bool, error) {
		if op.Ticket == "bad" {
			return false, ledger.ErrUnknownPool
		}
		return true, nil
	}}
	r := start(t, b)
	r.post("AdmissionService/Release", `{"ticketId":"t"}`).ok(t)
	r.post("AdmissionService/Release", `{"ticketId":"bad"}`)
	r.post("AdmissionService/Release", `{}`)
	families := r.scrape()
	for _, c := range []struct {
		name   string
		labels map[string]string
		want   float64
	}{
		{"agentic_kv_rpc_seconds", map[string]string{"method": "Release"}, 3},
		{"agentic_kv_rpc_seconds", map[string]string{"method": "Acquire"}, 0},
		{"agentic_kv_rpc_errors_total", map[string]string{"method": "Release", "code": "not_found"}, 1},
		{"agentic_kv_rpc_errors_total", map[string]string{"method": "Release", "code": "invalid_argument"}, 1},
	} {
		if got := value(families, c.name, c.labels); got != c.want {
			t.Errorf("%s%v is %v, want %v", c.name, c.labels, got, c.want)
		}
	}
}

func TestUntrackedBypassesAreCounted(t *testing.T) {
	r := start(t, &fakeBackend{acquire: func(context.Context, ledger.Acquire) (ledger.Decision, error) {
		return ledger.Decision{}, fsm.ErrNoLeader
	}})
	families := r.scrape()
	for _, cause := range []string{CodeNoLeader, CodeTimeout, CodeReadOnly, CodeShutdown, CodeInternal} {
		if got := value(families, "agentic_kv_untracked_bypass_total", map[string]string{"cause": cause}); got != 0 {
			t.Errorf("%s begins with %v, want a series of 0: a rate does not see the first increase of one that appears", cause, got)
		}
	}
	for range 3 {
		r.post("AdmissionService/Acquire", oneTicket).ok(t)
	}
	if got := value(r.scrape(), "agentic_kv_untracked_bypass_total", map[string]string{"cause": CodeNoLeader}); got != 3 {
		t.Errorf("counted %v, want 3", got)
	}
}

func TestMetricsWithoutALedgerStillTellWhy(t *testing.T) {
	b := &fakeBackend{
		view:   func(context.Context, bool) error { return errors.New("stopping") },
		status: fsm.Status{State: "shutdown"},
	}
	families := start(t, b).scrape()
	if got := value(families, "agentic_kv_raft_has_leader", nil); got != 0 {
		t.Errorf("has_leader is %v", got)
	}
	if families["agentic_kv_ceiling_tokens"] != nil {
		t.Error("pools were invented")
	}
}

// A label that is not UTF-8 costs that series, not the scrape.
func TestOddEngineNameDoesNotBreakTheScrape(t *testing.T) {
	l := fleet(t)
	l.Reconcile(ledger.DefaultPool, ledger.Round{Fresh: true, Engines: []ledger.Engine{{URL: "http://\xff", Healthy: true, Capacity: 10}}})
	families := start(t, &fakeBackend{ledger: l}).scrape()
	if got := value(families, "agentic_kv_raft_term", nil); got != 0 {
		t.Errorf("term is %v", got)
	}
}
