package router

import (
	"encoding/json"
	"net/http"
	"strconv"
	"strings"
)

func (r *Router) routes() http.Handler {
	mux := http.NewServeMux()
	mux.HandleFunc("GET /list_workers", r.serveListWorkers)
	mux.HandleFunc("GET /workers", r.serveWorkers)
	mux.HandleFunc("POST /workers", r.serveAdd)
	mux.HandleFunc("DELETE /workers/{key...}", r.serveRemove)
	mux.HandleFunc("GET /health", func(w http.ResponseWriter, _ *http.Request) { w.WriteHeader(http.StatusOK) })
	mux.HandleFunc("POST /generate", r.proxy)
	mux.HandleFunc("POST /v1/chat/completions", r.proxy)
	mux.HandleFunc("GET /v1/models", r.proxy)
	mux.HandleFunc("/", func(w http.ResponseWriter, _ *http.Request) { w.WriteHeader(http.StatusNotFound) })
	return r.withKey(mux)
}

func (r *Router) withKey(next http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, req *http.Request) {
		if r.cfg.APIKey != "" && req.URL.Path != "/health" && req.Header.Get("Authorization") != "Bearer "+r.cfg.APIKey {
			writeJSON(w, http.StatusUnauthorized, map[string]any{"error": "Unauthorized"})
			return
		}
		next.ServeHTTP(w, req)
	})
}

func (r *Router) serveListWorkers(w http.ResponseWriter, _ *http.Request) {
	if r.cfg.Style == StyleGateway {
		w.WriteHeader(http.StatusNotFound)
		return
	}
	urls := []string{}
	for _, e := range r.listed() {
		urls = append(urls, e.url())
	}
	writeJSON(w, http.StatusOK, map[string]any{"urls": urls})
}

func (r *Router) serveWorkers(w http.ResponseWriter, _ *http.Request) {
	switch r.cfg.Style {
	case StyleLegacy:
		w.WriteHeader(http.StatusNotFound)
		return
	case StyleProxy:
		writeJSON(w, http.StatusNotFound, map[string]any{"detail": "Not Found"})
		return
	case StyleGateway, StyleURLIDs, StyleBare:
	}
	entries, count := r.listed(), map[string]int{}
	workers := make([]any, 0, len(entries))
	for _, e := range entries {
		count[e.Type]++
		workers = append(workers, e.json(r.cfg.Style))
	}
	writeJSON(w, http.StatusOK, map[string]any{
		"workers": workers, "total": len(workers),
		"stats": map[string]int{
			"prefill_count": count["prefill"], "decode_count": count["decode"], "regular_count": count["regular"],
		},
	})
}

// entry is one line of a listing: a worker, or one DP rank of it.
type entry struct {
	worker
	rank int // -1 without ranks
}

// listed is a copy of the workers in random order, as a router that keeps them in a hash map lists them.
func (r *Router) listed() []entry {
	r.mu.Lock()
	defer r.mu.Unlock()
	var out []entry
	for _, w := range r.workers {
		if !r.cfg.DPAware || w.DPSize == 1 {
			out = append(out, entry{*w, -1})
			continue
		}
		for rank := range w.DPSize {
			out = append(out, entry{*w, rank})
		}
	}
	r.rng.Shuffle(len(out), func(i, j int) { out[i], out[j] = out[j], out[i] })
	return out
}

func (e entry) url() string {
	if e.rank < 0 {
		return e.URL
	}
	return e.URL + "@" + strconv.Itoa(e.rank)
}

func (e entry) json(style Style) map[string]any {
	out := map[string]any{
		"url": e.url(), "priority": 50, "cost": 1.0, "worker_type": e.Type,
		"is_healthy": e.healthy, "load": e.load, "connection_mode": "Http",
	}
	if e.ModelID != "" {
		out["model_id"] = e.ModelID
	}
	if e.BootstrapPort != 0 {
		out["bootstrap_port"] = e.BootstrapPort
	}
	if style == StyleBare {
		return out
	}
	out["id"] = e.id
	if e.rank >= 0 {
		out["dp_base_url"], out["dp_rank"], out["dp_size"] = e.URL, e.rank, e.DPSize
	}
	if style == StyleGateway {
		out["connection_mode"] = "HTTP"
		out["metadata"] = e.metadata()
	} else {
		out["id"] = e.url()
	}
	return out
}

func (e entry) metadata() map[string]string {
	out := map[string]string{"served_model_name": e.ModelID, "model_path": e.ModelID}
	for k, v := range e.Labels {
		out[k] = v
	}
	return out
}

func (r *Router) serveAdd(w http.ResponseWriter, req *http.Request) {
	var body struct {
		URL           string            `json:"url"`
		ModelID       string            `json:"model_id"`
		Type          string            `json:"worker_type"`
		BootstrapPort int               `json:"bootstrap_port"`
		DPSize        int               `json:"dp_size"`
		Labels        map[string]string `json:"labels"`
	}
	if err := json.NewDecoder(req.Body).Decode(&body); err != nil {
		writeJSON(w, http.StatusBadRequest, map[string]any{"error": "body: " + err.Error()})
		return
	}
	id, err := r.Add(Worker{
		URL: strings.TrimSuffix(body.URL, "/"), ModelID: body.ModelID, Type: body.Type,
		BootstrapPort: body.BootstrapPort, DPSize: body.DPSize, Labels: body.Labels,
	})
	if err != nil {
		writeJSON(w, http.StatusBadRequest, map[string]any{"error": err.Error()})
		return
	}
	writeJSON(w, http.StatusAccepted, map[string]any{"status": "accepted", "worker_id": id, "url": body.URL})
}

func (r *Router) serveRemove(w http.ResponseWriter, req *http.Request) {
	if err := r.Remove(req.PathValue("key")); err != nil {
		writeJSON(w, http.StatusNotFound, map[string]any{"error": err.Error()})
		return
	}
	writeJSON(w, http.StatusAccepted, map[string]any{"status": "accepted", "worker_id": req.PathValue("key")})
}

func writeJSON(w http.ResponseWriter, status int, v any) {
	w.Header().Set("Content-Type", "application/json")
	w.WriteHeader(status)
	_ = json.NewEncoder(w).Encode(v)
}
