package scrape

import (
	"bytes"
	"fmt"
	"math"
	"strings"

	dto "github.com/prometheus/client_model/go"
	"github.com/prometheus/common/expfmt"
	"github.com/prometheus/common/model"
)

// family numbers the metric families in use.
type family int

const (
	capacity family = iota
	tokenUsage
	fullTokenUsage
	swaTokenUsage
	mambaUsage
	usedTokens
	kvUsed
	kvAvailable
	kvEvictable
	running
	queued
	evicted
	promptTokens
	generationTokens
	requests
	families
)

// familyNames are the names without the prefix "sglang:".
var familyNames = map[string]family{
	"max_total_num_tokens":    capacity,
	"token_usage":             tokenUsage,
	"full_token_usage":        fullTokenUsage,
	"swa_token_usage":         swaTokenUsage,
	"mamba_usage":             mambaUsage,
	"num_used_tokens":         usedTokens,
	"kv_used_tokens":          kvUsed,
	"kv_available_tokens":     kvAvailable,
	"kv_evictable_tokens":     kvEvictable,
	"num_running_reqs":        running,
	"num_queue_reqs":          queued,
	"evicted_tokens_total":    evicted,
	"prompt_tokens_total":     promptTokens,
	"generation_tokens_total": generationTokens,
	"num_requests_total":      requests,
}

// counters are the families that only grow while an engine lives.
var counters = [...]family{evicted, promptTokens, generationTokens, requests}

// maxValue bounds what one series may say, so that sums stay finite and exact.
const maxValue = 1e15

const startTime = "process_start_time_seconds"

// series is one line of a page.
type series struct {
	// addr is the engine, on a page that a router merged.
	addr string
	// dp is the data-parallel rank; each has its own pool.
	dp string
	// rank is the rest of the rank: such series repeat one pool.
	rank  [4]string
	value float64
}

// page is what one /metrics body says.
type page struct {
	series [families][]series
	// start is the process's start time in Unix seconds, 0 if the page does not tell.
	start float64
	// engineType is the last engine_type label seen.
	engineType map[string]string
}

// parse reads a page. Errors: ErrMalformed, ErrNoMetrics.
func parse(body []byte) (*page, error) {
	text, any := sift(body)
	if !any {
		return nil, fmt.Errorf("%w: is the engine started with --enable-metrics?", ErrNoMetrics)
	}
	parser := expfmt.NewTextParser(model.UTF8Validation)
	found, err := parser.TextToMetricFamilies(bytes.NewReader(text))
	if err != nil {
		return nil, fmt.Errorf("%w: %s", ErrMalformed, clip(err.Error()))
	}
	p := &page{engineType: map[string]string{}}
	for name, mf := range found {
		if name == startTime {
			p.readStart(mf)
			continue
		}
		if f, ok := familyOf([]byte(name)); ok {
			for _, m := range mf.GetMetric() {
				p.add(f, m)
			}
		}
	}
	return p, nil
}

// sift blanks every line that is not a sample of a family in use. The lines stay, so that the parser
// counts as the page does. It reports whether the page is an engine's at all.
func sift(body []byte) (text []byte, any bool) {
	text = make([]byte, 0, 16<<10)
	for len(body) > 0 {
		line, rest, ended := bytes.Cut(body, []byte{'\n'})
		body = rest
		line = bytes.TrimSpace(line)
		name := metricName(line)
		if hasPrefix(name) {
			any = true
		}
		if _, ok := familyOf(name); ok || string(name) == startTime {
			text = append(text, line...)
		} else if !ended {
			break
		}
		// A page cut within a line in use keeps its missing line end, which the parser refuses.
		if ended {
			text = append(text, '\n')
		}
	}
	return text, any
}

func metricName(line []byte) []byte {
	if end := bytes.IndexAny(line, "{ \t"); end >= 0 {
		return line[:end]
	}
	return line
}

// hasPrefix accepts "sglang_" too: a router's merged page rewrites the colon (smg 813).
func hasPrefix(name []byte) bool {
	return len(name) > 7 && string(name[:6]) == "sglang" && (name[6] == ':' || name[6] == '_')
}

func familyOf(name []byte) (family, bool) {
	if !hasPrefix(name) {
		return 0, false
	}
	f, ok := familyNames[string(name[7:])]
	return f, ok
}

func (p *page) readStart(mf *dto.MetricFamily) {
	for _, m := range mf.GetMetric() {
		if v := m.GetUntyped().GetValue(); v > 0 && !math.IsInf(v, 1) {
			p.start = max(p.start, v)
		}
	}
}

// add takes one sample. NaN is no measurement; neither is an infinite count. With priority scheduling the
// total is the series whose priority is empty, so the others are not looked at.
func (p *page) add(f family, m *dto.Metric) {
	s := series{value: m.GetUntyped().GetValue()}
	if math.IsNaN(s.value) || math.IsInf(s.value, 0) && !isRatio(f) {
		return
	}
	s.value = min(s.value, maxValue)
	var engineType string
	for _, l := range m.GetLabel() {
		v := l.GetValue()
		switch l.GetName() {
		case "worker_addr":
			s.addr = v
		case "dp_rank":
			s.dp = v
		case "tp_rank":
			s.rank[0] = v
		case "pp_rank":
			s.rank[1] = v
		case "moe_ep_rank", "ep_rank":
			s.rank[2] = v
		case "pid":
			s.rank[3] = v
		case "engine_type":
			engineType = v
		case "priority":
			if v != "" {
				return
			}
		}
	}
	if addr, rank := cutRank(s.addr); rank != "" {
		s.addr = addr
		if s.dp == "" {
			s.dp = rank
		}
	}
	if engineType != "" {
		p.engineType[s.addr] = strings.ToLower(engineType)
	}
	p.series[f] = append(p.series[f], s)
}

func isRatio(f family) bool {
	return f == tokenUsage || f == fullTokenUsage || f == swaTokenUsage || f == mambaUsage
}
