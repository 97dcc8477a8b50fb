package enginesim_test

import (
	"math"
	"net/http"
	"os"
	"slices"
	"strings"
	"testing"
	"time"

	dto "github.com/prometheus/client_model/go"
	"github.com/prometheus/common/expfmt"
	"github.com/prometheus/common/model"

	"kvgate/integration/enginesim"
)

func parse(t *testing.T, text string) map[string]*dto.MetricFamily {
	t.Helper()
	parser := expfmt.NewTextParser(model.LegacyValidation)
	families, err := parser.TextToMetricFamilies(strings.NewReader(text))
	if err != nil {
		t.Fatal(err)
	}
	return families
}

func (b *bench) scrape() map[string]*dto.MetricFamily {
	b.t.Helper()
	return parse(b.t, b.want(http.StatusOK, "GET", "/metrics", nil).Body.String())
}

func labelNames(m *dto.Metric) string {
	names := make([]string, 0, len(m.GetLabel()))
	for _, l := range m.GetLabel() {
		names = append(names, l.GetName())
	}
	slices.Sort(names)
	return strings.Join(names, ",")
}

func label(m *dto.Metric, name string) string {
	for _, l := range m.GetLabel() {
		if l.GetName() == name {
			return l.GetValue()
		}
	}
	return ""
}

// value is the sum over the series of a family.
func value(f *dto.MetricFamily) float64 {
	sum := 0.0
	for _, m := range f.GetMetric() {
		sum += m.GetGauge().GetValue() + m.GetCounter().GetValue() + m.GetUntyped().GetValue()
	}
	return sum
}

// TestPageHasTheShapeOfARealOne compares with a capture of a real TP 2 engine: the families both
// have must agree in type, labels and number of series.
func TestPageHasTheShapeOfARealOne(t *testing.T) {
	capture, err := os.ReadFile("testdata/tp2_session_radix.txt")
	if err != nil {
		t.Fatal(err)
	}
	want := parse(t, string(capture))
	cfg := enginesim.Config{EnableMetrics: true, TP: 2, ModelName: "Qwen/Qwen3-Coder-30B-A3B-Instruct-FP8", PoolTokens: 2_340_338}
	simulate(t, cfg, func(t *testing.T, b *bench) {
		text := b.want(http.StatusOK, "GET", "/metrics", nil).Body.String()
		line := `sglang:max_total_num_tokens{engine_type="unified",model_name="Qwen/Qwen3-Coder-30B-A3B-Instruct-FP8",moe_ep_rank="0",pp_rank="0",tp_rank="1"} 2.340338e+06`
		if !strings.Contains(text, line+"\n") {
			t.Fatalf("the page lacks the line %s", line)
		}
		shared := 0
		for name, got := range parse(t, text) {
			captured := want[name]
			if captured == nil || name == "sglang:http_requests_total" {
				continue
			}
			shared++
			equal(t, name+" type", got.GetType(), captured.GetType())
			equal(t, name+" help", got.GetHelp(), captured.GetHelp())
			equal(t, name+" labels", labelNames(got.GetMetric()[0]), labelNames(captured.GetMetric()[0]))
			equal(t, name+" series", len(got.GetMetric()), len(captured.GetMetric()))
		}
		if shared < 30 {
			t.Fatalf("only %d families are shared with the real page", shared)
		}
	})
}

func TestSeriesPerRank(t *testing.T) {
	for _, c := range []struct {
		name              string
		cfg               enginesim.Config
		capacity, dynamic int    // series
		tpRanks           string // of the capacity series
	}{
		{"one", enginesim.Config{}, 1, 1, "0"},
		{"tp", enginesim.Config{TP: 4}, 4, 1, "0 1 2 3"},
		{"tp and pp", enginesim.Config{TP: 2, PP: 2}, 4, 1, "0 1 0 1"},
		{"dp", enginesim.Config{TP: 2, DP: 2}, 4, 2, "0 1 0 1"},
		{"dp attention", enginesim.Config{TP: 4, DP: 4, DPAttention: true}, 4, 4, "0 1 2 3"},
		{"dp attention in pairs", enginesim.Config{TP: 4, DP: 2, DPAttention: true}, 4, 2, "0 1 2 3"},
	} {
		t.Run(c.name, func(t *testing.T) {
			c.cfg.EnableMetrics = true
			simulate(t, c.cfg, func(t *testing.T, b *bench) {
				page := b.scrape()
				capacity := page["sglang:max_total_num_tokens"].GetMetric()
				equal(t, "capacity series", len(capacity), c.capacity)
				equal(t, "usage series", len(page["sglang:token_usage"].GetMetric()), c.dynamic)
				var ranks []string
				for _, m := range capacity {
					ranks = append(ranks, label(m, "tp_rank"))
					equal(t, "dp_rank is there", label(m, "dp_rank") != "", c.cfg.DP > 1)
				}
				equal(t, "tp ranks", strings.Join(ranks, " "), c.tpRanks)
			})
		})
	}
}

func TestGaugesLagAsTheRealOnesDo(t *testing.T) {
	simulate(t, enginesim.Config{EnableMetrics: true, PoolTokens: 1000, DecodeRate: 100}, func(t *testing.T, b *bench) {
		running := func() float64 { return value(b.scrape()["sglang:num_running_reqs"]) }
		used := func() float64 { return value(b.scrape()["sglang:kv_used_tokens"]) }
		call := b.begin(turn("a", "", tokens(0, 100), 60))
		time.Sleep(300 * time.Millisecond)
		equal(t, "used before 40 steps: still as of the prefill", used(), 100)
		time.Sleep(200 * time.Millisecond)
		equal(t, "used after 40 steps", used(), 140)
		<-call
		equal(t, "running just after the end", running(), 1)
		time.Sleep(31 * time.Second)
		equal(t, "running 31 s later", running(), 0)
		equal(t, "usage excludes the cache", value(b.scrape()["sglang:token_usage"]), 0)
		equal(t, "evictable", value(b.scrape()["sglang:kv_evictable_tokens"]), 159)
	})
}

func TestUsageIsRoundedToTwoDecimals(t *testing.T) {
	simulate(t, enginesim.Config{EnableMetrics: true, PoolTokens: 1000, LiveGauges: true}, func(t *testing.T, b *bench) {
		call := b.begin(turn("a", "", tokens(0, 234), 60))
		time.Sleep(50 * time.Millisecond)
		equal(t, "usage", value(b.scrape()["sglang:token_usage"]), 0.24)
		<-call
	})
}

func TestCountersAndHistogramsFollowTheRequests(t *testing.T) {
	simulate(t, enginesim.Config{EnableMetrics: true, PoolTokens: 1000, StreamingSessions: true}, func(t *testing.T, b *bench) {
		for i := range 4 {
			b.generate(turn(rid(i), "", tokens(1000*i, 300), 10))
		}
		b.generate(turn("again", "", tokens(3000, 300), 10))
		page := b.scrape()
		equal(t, "prompt", value(page["sglang:prompt_tokens_total"]), 1500)
		equal(t, "generated", value(page["sglang:generation_tokens_total"]), 50)
		equal(t, "cached", value(page["sglang:cached_tokens_total"]), 299)
		equal(t, "evicted", value(page["sglang:evicted_tokens_total"]), float64(b.Stats().Evicted))
		if b.Stats().Evicted == 0 {
			t.Fatal("nothing was evicted")
		}
		equal(t, "requests", value(page["sglang:num_requests_total"]), 5)
		h := page["sglang:e2e_request_latency_seconds"].GetMetric()[0].GetHistogram()
		equal(t, "latencies", h.GetSampleCount(), 5)
		equal(t, "streaming sessions", value(page["sglang:num_streaming_sessions"]), 0)
	})
}

func TestPageIsPaddedToTheSizeOfARealOne(t *testing.T) {
	simulate(t, enginesim.Config{EnableMetrics: true, MetricsBytes: 120_000}, func(t *testing.T, b *bench) {
		text := b.want(http.StatusOK, "GET", "/metrics", nil).Body.String()
		if len(text) < 120_000 || len(text) > 130_000 {
			t.Fatalf("%d bytes, want about 120000", len(text))
		}
		parse(t, text)
	})
}

func TestMetricsOff(t *testing.T) {
	simulate(t, enginesim.Config{}, func(t *testing.T, b *bench) {
		b.want(http.StatusNotFound, "GET", "/metrics", nil)
	})
}

func TestNaNAndMissingMetricsOnDemand(t *testing.T) {
	simulate(t, enginesim.Config{EnableMetrics: true}, func(t *testing.T, b *bench) {
		b.want(http.StatusOK, "POST", "/_sim/fault", fields{"kind": "nan_usage"})
		if v := value(b.scrape()["sglang:token_usage"]); !math.IsNaN(v) {
			t.Fatalf("usage %v, want NaN", v)
		}
		b.want(http.StatusOK, "POST", "/_sim/fault", fields{"kind": "metrics_gone"})
		b.want(http.StatusNotFound, "GET", "/metrics", nil)
		b.want(http.StatusOK, "POST", "/_sim/fault", fields{"kind": "heal"})
		equal(t, "usage", value(b.scrape()["sglang:token_usage"]), 0)
	})
}
