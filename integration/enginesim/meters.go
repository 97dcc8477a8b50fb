package enginesim

import (
	"slices"
	"strconv"
	"sync"
)

// meters are what the engine's tokenizer process counts: per request, without ranks.
type meters struct {
	mu         sync.Mutex
	byStream   map[bool]*requestTotals
	cached     int
	aborted    int
	histograms map[string]*histogram
}

type requestTotals struct{ requests, prompt, generated int }

// histogram is a cumulative Prometheus histogram with fixed upper bounds.
type histogram struct {
	bounds []float64
	counts []int // per bound, not cumulative; the last is +Inf
	sum    float64
}

var (
	secondBounds = []float64{0.001, 0.005, 0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1, 2, 5, 10, 20, 40, 60, 80, 100, 200, 400, 600, 1200, 2400}
	tokenBounds  = []float64{10, 30, 100, 300, 500, 700, 1000, 1500, 2000, 3000, 4000, 5000, 7000, 9000, 12000, 15000, 20000, 30000, 40000, 60000, 100000, 200000}
)

// requestHistograms are the families with observations, in the order they print.
var requestHistograms = []struct {
	name, help string
	bounds     []float64
}{
	{"sglang:time_to_first_token_seconds", "Histogram of time to first token in seconds.", secondBounds},
	{"sglang:inter_token_latency_seconds", "Histogram of inter-token latency in seconds.", secondBounds},
	{"sglang:e2e_request_latency_seconds", "Histogram of End-to-end request latency in seconds", secondBounds},
	{"sglang:queue_time_seconds", "Histogram of queueing time in seconds.", secondBounds},
	{"sglang:prompt_tokens_histogram", "Histogram of prompt token length.", tokenBounds},
	{"sglang:generation_tokens_histogram", "Histogram of generation token length.", tokenBounds},
}

func newMeters() *meters {
	m := &meters{
		byStream:   map[bool]*requestTotals{false: {}, true: {}},
		histograms: map[string]*histogram{},
	}
	for _, h := range requestHistograms {
		m.histograms[h.name] = newHistogram(h.bounds)
	}
	return m
}

func newHistogram(bounds []float64) *histogram {
	return &histogram{bounds: bounds, counts: make([]int, len(bounds)+1)}
}

func (h *histogram) observe(v float64) {
	i, _ := slices.BinarySearch(h.bounds, v)
	h.counts[i]++
	h.sum += v
}

// write prints the histogram's series with the given labels.
func (h *histogram) write(p *promText, name string, l labels) {
	total := 0
	for i, n := range h.counts {
		total += n
		bound := "+Inf"
		if i < len(h.bounds) {
			bound = boundText(h.bounds[i])
		}
		p.sample(name+"_bucket", l.with("le", bound), float64(total))
	}
	p.sample(name+"_count", l, float64(total))
	p.sample(name+"_sum", l, h.sum)
}

func boundText(b float64) string {
	s := strconv.FormatFloat(b, 'f', -1, 64)
	if b == float64(int(b)) {
		s += ".0"
	}
	return s
}

// record counts a request that ended.
func (m *meters) record(stream bool, p progress) {
	m.mu.Lock()
	defer m.mu.Unlock()
	if p.reason == nil {
		return
	}
	if p.reason.Type == "abort" {
		m.aborted++
	}
	t := m.byStream[stream]
	t.requests++
	t.prompt += p.prompt
	t.generated += len(p.output)
	m.cached += p.cached
	m.observe("sglang:prompt_tokens_histogram", float64(p.prompt))
	m.observe("sglang:generation_tokens_histogram", float64(len(p.output)))
	if len(p.output) == 0 {
		return
	}
	m.observe("sglang:queue_time_seconds", (p.started - p.arrived).Seconds())
	m.observe("sglang:time_to_first_token_seconds", (p.first - p.arrived).Seconds())
	m.observe("sglang:e2e_request_latency_seconds", (p.finished - p.arrived).Seconds())
	if n := len(p.output); n > 1 {
		m.observe("sglang:inter_token_latency_seconds", (p.finished-p.first).Seconds()/float64(n-1))
	}
}

func (m *meters) observe(name string, v float64) { m.histograms[name].observe(max(v, 0)) }
