package router

import (
	"bytes"
	"encoding/json"
	"io"
	"net/http"
	"net/http/httputil"
	"net/url"
)

const (
	bodyLimit     = 256 << 20 // bytes of a proxied body
	affinityLimit = 1 << 16   // sessions whose worker is remembered
)

// proxy sends a call to the worker of its session, or to the least loaded healthy one.
func (r *Router) proxy(w http.ResponseWriter, req *http.Request) {
	body, err := io.ReadAll(http.MaxBytesReader(w, req.Body, bodyLimit))
	if err != nil {
		writeJSON(w, http.StatusBadRequest, map[string]any{"error": "body: " + err.Error()})
		return
	}
	target := r.pick(sessionOf(body))
	if target == nil {
		writeJSON(w, http.StatusServiceUnavailable, map[string]any{"error": "no healthy worker"})
		return
	}
	defer r.done(target)
	base, err := url.Parse(target.URL)
	if err != nil {
		writeJSON(w, http.StatusBadGateway, map[string]any{"error": err.Error()})
		return
	}
	req.Body, req.ContentLength = io.NopCloser(bytes.NewReader(body)), int64(len(body))
	forward := &httputil.ReverseProxy{
		Transport:     r.transport,
		FlushInterval: -1,
		Rewrite: func(p *httputil.ProxyRequest) {
			p.SetURL(base)
			if r.cfg.WorkerKey != "" {
				p.Out.Header.Set("Authorization", "Bearer "+r.cfg.WorkerKey)
			}
		},
		ErrorHandler: func(w http.ResponseWriter, _ *http.Request, err error) {
			writeJSON(w, http.StatusBadGateway, map[string]any{"error": err.Error()})
		},
	}
	forward.ServeHTTP(w, req)
}

// sessionOf is the session a body names, or "".
func sessionOf(body []byte) string {
	var fields struct {
		SessionID     string `json:"session_id"`
		SessionParams struct {
			ID string `json:"id"`
		} `json:"session_params"`
	}
	if json.Unmarshal(body, &fields) != nil {
		return ""
	}
	if fields.SessionID != "" {
		return fields.SessionID
	}
	return fields.SessionParams.ID
}

// pick chooses a worker and counts the call, or returns nil when none is healthy. Prefill workers
// take no calls of their own.
func (r *Router) pick(session string) *worker {
	r.mu.Lock()
	defer r.mu.Unlock()
	chosen := r.affinity[session]
	if session == "" || chosen == nil || !r.usable(chosen) {
		if chosen = r.leastLoaded(); chosen == nil {
			return nil
		}
		r.remember(session, chosen)
	}
	chosen.load++
	chosen.calls++
	return chosen
}

// usable needs the lock, as do the functions below.
func (r *Router) usable(w *worker) bool {
	if !w.healthy || w.Type == "prefill" {
		return false
	}
	for _, known := range r.workers {
		if known == w {
			return true
		}
	}
	return false
}

func (r *Router) leastLoaded() *worker {
	var best *worker
	for _, w := range r.workers {
		if !r.usable(w) {
			continue
		}
		if best == nil || w.load < best.load || (w.load == best.load && w.calls < best.calls) {
			best = w
		}
	}
	return best
}

func (r *Router) remember(session string, w *worker) {
	if session == "" {
		return
	}
	if _, known := r.affinity[session]; !known {
		r.order = append(r.order, session)
	}
	r.affinity[session] = w
	if len(r.order) > affinityLimit {
		delete(r.affinity, r.order[0])
		r.order = r.order[1:]
	}
}

func (r *Router) done(w *worker) {
	r.mu.Lock()
	defer r.mu.Unlock()
	w.load--
}
