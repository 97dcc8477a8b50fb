package enginesim

import (
	"net/http"
	"strings"
)

func (e *Engine) serveModels(w http.ResponseWriter, _ *http.Request) {
	writeJSON(w, http.StatusOK, map[string]any{
		"object": "list",
		"data": []any{map[string]any{
			"id": e.cfg.ModelName, "object": "model", "created": int64(e.current().startedAt),
			"owned_by": "sglang", "root": e.cfg.ModelName, "max_model_len": e.cfg.ContextLen,
		}},
	})
}

func (e *Engine) serveModelInfo(w http.ResponseWriter, _ *http.Request) {
	writeJSON(w, http.StatusOK, map[string]any{
		"model_path": e.cfg.ModelName, "tokenizer_path": e.cfg.ModelName, "is_generation": true,
		"served_model_name": e.cfg.ModelName, "weight_version": "default",
		"model_type": "sim", "architectures": []string{"SimForCausalLM"},
	})
}

func (e *Engine) serveServerInfo(w http.ResponseWriter, _ *http.Request) {
	states := make([]any, 0, e.cfg.DP)
	for _, s := range e.StatsByRank() {
		states = append(states, map[string]any{
			"memory_usage":                          map[string]any{"token_capacity": s.Capacity},
			"effective_max_running_requests_per_dp": e.cfg.MaxRunning,
			"last_gen_throughput":                   s.genThroughput,
		})
	}
	writeJSON(w, http.StatusOK, map[string]any{
		"model_path": e.cfg.ModelName, "served_model_name": e.cfg.ModelName, "version": Version,
		"tp_size": e.cfg.TP, "dp_size": e.cfg.DP, "pp_size": e.cfg.PP, "enable_dp_attention": e.cfg.DPAttention,
		"page_size": e.cfg.PageSize, "context_length": e.cfg.ContextLen,
		"chunked_prefill_size": e.cfg.ChunkedPrefill, "max_running_requests": e.cfg.MaxRunning,
		"disaggregation_mode":        e.disaggregation(),
		"enable_metrics":             e.cfg.EnableMetrics,
		"enable_session_radix_cache": e.cfg.SessionRadix, "enable_streaming_session": e.cfg.StreamingSessions,
		"max_total_num_tokens": e.cfg.PoolTokens, "max_req_input_len": min(e.cfg.PoolTokens, e.cfg.ContextLen) - 6,
		"status": "ready", "internal_states": states,
	})
}

func (e *Engine) disaggregation() string {
	if e.cfg.EngineType == "unified" {
		return "null"
	}
	return e.cfg.EngineType
}

// serveLoads answers GET /v1/loads, which reads the schedulers now and not when they last logged.
// Only the core section is simulated.
func (e *Engine) serveLoads(w http.ResponseWriter, r *http.Request) {
	for include := range strings.SplitSeq(r.URL.Query().Get("include"), ",") {
		if include != "" && include != "core" && include != "all" {
			writeError(w, http.StatusBadRequest, "include: "+include+", only core is simulated")
			return
		}
	}
	loads := make([]any, 0, e.cfg.DP)
	for i, s := range e.StatsByRank() {
		loads = append(loads, map[string]any{
			"dp_rank": i, "num_running_reqs": s.Running, "num_waiting_reqs": s.Queued,
			"num_total_reqs": s.Running + s.Queued, "num_used_tokens": s.Used,
			"max_total_num_tokens": s.Capacity, "token_usage": s.usage(), "max_running_requests": e.cfg.MaxRunning,
		})
	}
	sum := e.Stats()
	writeJSON(w, http.StatusOK, map[string]any{
		"timestamp": wallSeconds(), "version": Version, "dp_rank_count": e.cfg.DP, "loads": loads,
		"aggregate": map[string]any{
			"total_running_reqs": sum.Running, "total_waiting_reqs": sum.Queued,
			"total_reqs": sum.Running + sum.Queued, "avg_token_usage": sum.usage(),
		},
	})
}

func (e *Engine) serveGetLoad(w http.ResponseWriter, _ *http.Request) {
	loads := make([]any, 0, e.cfg.DP)
	for i, s := range e.StatsByRank() {
		loads = append(loads, map[string]any{
			"dp_rank": i, "num_reqs": s.Running + s.Queued, "num_waiting_reqs": s.Queued, "num_tokens": s.Used,
		})
	}
	writeJSON(w, http.StatusOK, loads)
}

// serveStats answers GET /_sim/stats with what only a simulator knows.
func (e *Engine) serveStats(w http.ResponseWriter, _ *http.Request) {
	writeJSON(w, http.StatusOK, map[string]any{
		"total": e.Stats(), "ranks": e.StatsByRank(),
		"closed_sessions": e.ClosedSessions(), "aborted_rids": e.AbortedRIDs(),
	})
}
