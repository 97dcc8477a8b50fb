package enginesim

import (
	"math"
	"net/http"
	"strconv"
)

// rankGauge is a gauge that only the first tp and pp rank of each DP rank writes.
type rankGauge struct {
	name, help string
	value      func(*Snapshot) float64
}

func zero(*Snapshot) float64 { return 0 }

var rankGauges = []rankGauge{
	{"num_running_reqs", "The number of running requests.", func(s *Snapshot) float64 { return float64(s.Running) }},
	{"num_queue_reqs", "The number of requests in the waiting queue.", func(s *Snapshot) float64 { return float64(s.Queued) }},
	{"num_grammar_queue_reqs", "The number of requests in the grammar waiting queue.", zero},
	{"gen_throughput", "The generation throughput (token/s).", func(s *Snapshot) float64 { return s.genThroughput }},
	{"cache_hit_rate", "The prefix cache hit rate.", func(s *Snapshot) float64 { return s.hitRate }},
	{"decode_sum_seq_lens", "The sum of all sequence lengths in decode.", func(s *Snapshot) float64 { return float64(s.sumSeqLens) }},
	{"token_usage", "The token usage.", (*Snapshot).usage},
	{"full_token_usage", "The token usage for full attention layers.", (*Snapshot).usage},
	{"swa_token_usage", "The token usage for SWA layers.", zero},
	{"mamba_usage", "The token usage for Mamba layers.", zero},
	{"num_used_tokens", "The number of used tokens.", func(s *Snapshot) float64 { return float64(s.Used) }},
	{"kv_available_tokens", "Number of free token slots in the KV cache pool.", func(s *Snapshot) float64 { return float64(s.Available) }},
	{"kv_evictable_tokens", "Number of evictable (radix-cached) token slots in the KV cache pool.", func(s *Snapshot) float64 { return float64(s.Evictable) }},
	{"kv_used_tokens", "Number of actively used token slots in the KV cache pool.", func(s *Snapshot) float64 { return float64(s.Used - s.Held) }},
	{"swa_available_tokens", "Number of free token slots in the SWA pool (hybrid-SWA only).", zero},
	{"swa_evictable_tokens", "Number of evictable (radix-cached) token slots in the SWA pool.", zero},
	{"swa_used_tokens", "Number of actively used token slots in the SWA pool.", zero},
	{"mamba_available_tokens", "Number of free state slots in the mamba SSM pool (hybrid-SSM only).", zero},
	{"mamba_evictable_tokens", "Number of evictable (radix-cached) state slots in the mamba SSM pool.", zero},
	{"mamba_used_tokens", "Number of actively used state slots in the mamba SSM pool.", zero},
}

var streamingGauges = []rankGauge{
	{"num_streaming_sessions", "The number of streaming sessions.", func(s *Snapshot) float64 { return float64(s.StreamingSessions) }},
	{"streaming_session_held_tokens", "The number of KV tokens currently held by streaming session slots.", func(s *Snapshot) float64 { return float64(s.Held) }},
}

// usage is the used share of the pool. Evictable tokens are not used: a pool full of cached
// prefixes reads 0. Two decimals, as the engine rounds it.
func (s *Snapshot) usage() float64 {
	return math.Round(float64(s.Used)/float64(s.Capacity)*100) / 100
}

// serveMetrics answers GET /metrics, or 404 when the engine runs without --enable-metrics.
func (e *Engine) serveMetrics(w http.ResponseWriter, _ *http.Request) {
	if !e.cfg.EnableMetrics || e.faults.has(FaultMetricsGone) {
		notFound(w)
		return
	}
	w.Header().Set("Content-Type", "text/plain; version=0.0.4; charset=utf-8")
	_, _ = w.Write([]byte(e.metricsText()))
}

func (e *Engine) metricsText() string {
	p, inc := &promText{}, e.current()
	e.writeConstants(p)
	gauges := rankGauges
	if e.cfg.StreamingSessions {
		gauges = append(gauges[:len(gauges):len(gauges)], streamingGauges...)
	}
	nan := e.faults.has(FaultNaNUsage)
	for _, g := range gauges {
		p.family("sglang:"+g.name, "gauge", g.help)
		for i, k := range inc.ranks {
			value := g.value(k.shown.Load())
			if nan && (g.name == "token_usage" || g.name == "full_token_usage") {
				value = math.NaN()
			}
			p.sample("sglang:"+g.name, e.rankLabels(i, 0, 0), value)
		}
	}
	e.writeHTTPCounts(p)
	e.writeRankCounters(p, inc)
	inc.meters.write(p, e.engineLabels())
	p.family("process_start_time_seconds", "gauge", "Start time of the process since unix epoch in seconds.")
	p.sample("process_start_time_seconds", nil, inc.startedAt)
	e.pad(p)
	return p.b.String()
}

// writeConstants prints what every tp and pp rank writes once, when it starts.
func (e *Engine) writeConstants(p *promText) {
	for _, c := range []struct {
		name, help string
		value      float64
	}{
		{"max_total_num_tokens", "Maximum total number of tokens in the KV cache pool.", float64(e.cfg.PoolTokens)},
		{"page_size", "KV cache page size in tokens.", float64(e.cfg.PageSize)},
		{"num_pages", "Number of KV cache pages.", float64(e.cfg.PoolTokens / e.cfg.PageSize)},
		{"context_len", "Maximum context length.", float64(e.cfg.ContextLen)},
	} {
		p.family("sglang:"+c.name, "gauge", c.help)
		for dp := range e.cfg.DP {
			for pp := range e.cfg.PP {
				for tp := range e.tpPerRank() {
					p.sample("sglang:"+c.name, e.rankLabels(dp, pp, tp), c.value)
				}
			}
		}
	}
}

// tpPerRank is how many tensor-parallel ranks share one KV pool. With DP attention the tp ranks are
// divided among the dp ranks.
func (e *Engine) tpPerRank() int {
	if e.cfg.DPAttention {
		return e.cfg.TP / e.cfg.DP
	}
	return e.cfg.TP
}

func (e *Engine) engineLabels() labels {
	return labels{"engine_type": e.cfg.EngineType, "model_name": e.cfg.ModelName}
}

func (e *Engine) rankLabels(dp, pp, tp int) labels {
	l := e.engineLabels()
	if e.cfg.DPAttention {
		tp += dp * e.tpPerRank()
	}
	l["moe_ep_rank"], l["pp_rank"], l["tp_rank"] = "0", strconv.Itoa(pp), strconv.Itoa(tp)
	if e.cfg.DP > 1 {
		l["dp_rank"] = strconv.Itoa(dp)
	}
	return l
}

func (e *Engine) writeRankCounters(p *promText, inc *incarnation) {
	p.family("sglang:evicted_tokens_total", "counter", "The number of tokens evicted from GPU to CPU.")
	evicted := labels{"cache_type": "UnifiedRadixCache"}
	p.sample("sglang:evicted_tokens_total", evicted, float64(e.Stats().Evicted))
	p.family("sglang:realtime_tokens_total", "counter",
		"Total number of tokens processed (updated on each log interval). mode: prefill_compute, prefill_cache, decode.")
	for i, k := range inc.ranks {
		s, l := k.shown.Load(), e.rankLabels(i, 0, 0)
		p.sample("sglang:realtime_tokens_total", l.with("mode", "prefill_compute"), float64(s.PrefillComputed))
		p.sample("sglang:realtime_tokens_total", l.with("mode", "decode"), float64(s.Decoded))
		p.sample("sglang:realtime_tokens_total", l.with("mode", "prefill_cache"), float64(s.PrefillCached))
	}
	p.family("sglang:num_retracted_reqs", "gauge", "The number of retracted requests.")
	for i, k := range inc.ranks {
		l := e.rankLabels(i, 0, 0).with("pid", strconv.Itoa(150+i))
		p.sample("sglang:num_retracted_reqs", l, float64(k.shown.Load().retractedNow))
	}
	p.family("sglang:num_retracted_requests_total", "counter", "Total number of retracted requests.")
	for i, k := range inc.ranks {
		p.sample("sglang:num_retracted_requests_total", e.rankLabels(i, 0, 0), float64(k.live.Load().Retracted))
	}
}

func (m *meters) write(p *promText, l labels) {
	m.mu.Lock()
	defer m.mu.Unlock()
	for _, c := range []struct {
		name, help string
		value      func(*requestTotals) int
	}{
		{"prompt_tokens_total", "Number of prefill tokens processed.", func(t *requestTotals) int { return t.prompt }},
		{"generation_tokens_total", "Number of generation tokens processed.", func(t *requestTotals) int { return t.generated }},
		{"num_requests_total", "Number of requests processed.", func(t *requestTotals) int { return t.requests }},
	} {
		p.family("sglang:"+c.name, "counter", c.help)
		for _, stream := range []bool{false, true} {
			p.sample("sglang:"+c.name, l.with("is_streaming", strconv.FormatBool(stream)), float64(c.value(m.byStream[stream])))
		}
	}
	p.family("sglang:cached_tokens_total", "counter", "Number of cached prompt tokens by source (device/host/storage).")
	p.sample("sglang:cached_tokens_total", l.with("cache_source", "device"), float64(m.cached))
	p.family("sglang:num_aborted_requests_total", "counter", "Number of requests aborted.")
	p.sample("sglang:num_aborted_requests_total", l, float64(m.aborted))
	for _, h := range requestHistograms {
		p.family(h.name, "histogram", h.help)
		m.histograms[h.name].write(p, h.name, l)
	}
}

func (e *Engine) writeHTTPCounts(p *promText) {
	counts := e.calls.counts()
	p.family("sglang:http_requests_total", "counter", "Total number of HTTP requests by endpoint and method")
	for _, c := range counts {
		p.sample("sglang:http_requests_total", labels{"endpoint": c.path, "method": c.method}, float64(c.count))
	}
}

// pad fills the page up to Config.MetricsBytes with empty histograms of request stages, which is
// what most of a real page is.
func (e *Engine) pad(p *promText) {
	const name = "sglang:per_stage_req_latency_seconds"
	if p.b.Len() >= e.cfg.MetricsBytes {
		return
	}
	p.family(name, "histogram", "The latency of each stage of requests.")
	empty := newHistogram(secondBounds)
	for stage := 0; p.b.Len() < e.cfg.MetricsBytes; stage++ {
		empty.write(p, name, e.rankLabels(0, 0, 0).with("stage", "stage_"+strconv.Itoa(stage)))
	}
}
