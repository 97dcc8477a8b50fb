package enginesim

import (
	"bytes"
	"encoding/json"
	"io"
	"net/http"
	"strconv"
	"strings"
)

// bodyLimit is the largest request body read, in bytes.
const bodyLimit = 256 << 20

// routes wires every endpoint. Outermost first: count the call, read the body, meet faults, check the key.
func (e *Engine) routes() http.Handler {
	mux := http.NewServeMux()
	for pattern, h := range map[string]http.HandlerFunc{
		"POST /generate":            e.serveGenerate,
		"POST /v1/chat/completions": e.serveChat,
		"POST /open_session":        e.recorded(e.serveOpenSession),
		"POST /close_session":       e.recorded(e.serveCloseSession),
		"POST /abort_request":       e.recorded(e.serveAbort),
		"POST /hicache/pin_prefix":  e.recorded(e.servePinPrefix),
		"POST /flush_cache":         e.serveFlush,
		"GET /flush_cache":          e.serveFlush,
		"GET /metrics":              e.serveMetrics,
		"GET /health":               serveEmpty,
		"GET /health_generate":      serveEmpty,
		"GET /v1/models":            e.serveModels,
		"GET /model_info":           e.serveModelInfo,
		"GET /get_model_info":       e.serveModelInfo,
		"GET /server_info":          e.serveServerInfo,
		"GET /get_server_info":      e.serveServerInfo,
		"GET /v1/loads":             e.serveLoads,
		"GET /get_load":             e.serveGetLoad,
		"/":                         func(w http.ResponseWriter, _ *http.Request) { notFound(w) },
	} {
		mux.HandleFunc(pattern, h)
	}
	served := e.withFaults(e.withKeys(mux))
	control := http.NewServeMux()
	control.HandleFunc("POST /_sim/fault", e.serveFault)
	control.HandleFunc("GET /_sim/stats", e.serveStats)
	control.Handle("/", e.counted(served))
	return control
}

// counted also reads the body whole: only then does the server notice that a client hangs up.
func (e *Engine) counted(next http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		e.calls.add(r.Method, r.URL.Path)
		body, err := io.ReadAll(http.MaxBytesReader(w, r.Body, bodyLimit))
		if err != nil {
			writeError(w, http.StatusBadRequest, "body: "+err.Error())
			return
		}
		r.Body = io.NopCloser(bytes.NewReader(body))
		next.ServeHTTP(w, r)
	})
}

// recorded remembers the body of a control call.
func (e *Engine) recorded(next http.HandlerFunc) http.HandlerFunc {
	return func(w http.ResponseWriter, r *http.Request) {
		body, err := io.ReadAll(r.Body)
		if err != nil {
			writeError(w, http.StatusBadRequest, "body: "+err.Error())
			return
		}
		e.calls.addBody(r.URL.Path, body)
		r.Body = io.NopCloser(bytes.NewReader(body))
		next(w, r)
	}
}

// withKeys checks the bearer token. /health and /metrics are open. The admin endpoints want the
// admin key once one is set, and then the API key does not do; without one they want the API key.
func (e *Engine) withKeys(next http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		want := e.cfg.APIKey
		switch path := r.URL.Path; {
		case strings.HasPrefix(path, "/health"), strings.HasPrefix(path, "/metrics"):
			want = ""
		case (path == "/abort_request" || path == "/flush_cache") && e.cfg.AdminKey != "":
			want = e.cfg.AdminKey
		}
		if want != "" && r.Header.Get("Authorization") != "Bearer "+want {
			writeJSON(w, http.StatusUnauthorized, map[string]any{"error": "Unauthorized"})
			return
		}
		next.ServeHTTP(w, r)
	})
}

func serveEmpty(w http.ResponseWriter, _ *http.Request) { w.WriteHeader(http.StatusOK) }

func notFound(w http.ResponseWriter) {
	writeJSON(w, http.StatusNotFound, map[string]any{"detail": "Not Found"})
}

func writeError(w http.ResponseWriter, status int, message string) {
	writeJSON(w, status, map[string]any{"error": map[string]any{"message": message}})
}

// writeJSON sets the length, so that an answer is whole even when the connection ends right after it.
func writeJSON(w http.ResponseWriter, status int, v any) {
	body, err := json.Marshal(v)
	if err != nil {
		http.Error(w, err.Error(), http.StatusInternalServerError)
		return
	}
	w.Header().Set("Content-Type", "application/json")
	w.Header().Set("Content-Length", strconv.Itoa(len(body)))
	w.WriteHeader(status)
	_, _ = w.Write(body)
}
