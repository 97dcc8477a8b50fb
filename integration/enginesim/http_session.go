package enginesim

import (
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"time"
)

// decode reads a JSON body of a control call; extra fields are ignored, as the engine ignores them.
func decode(w http.ResponseWriter, r *http.Request, into any) bool {
	if err := json.NewDecoder(r.Body).Decode(into); err != nil {
		writeError(w, http.StatusBadRequest, "body: "+err.Error())
		return false
	}
	return true
}

// serveCloseSession answers 200 and an empty body whatever the id: the process that answers only
// passes the close on, and never learns what the schedulers made of it.
func (e *Engine) serveCloseSession(w http.ResponseWriter, r *http.Request) {
	var body struct {
		SessionID *string `json:"session_id"`
	}
	if !decode(w, r, &body) {
		return
	}
	if body.SessionID == nil {
		writeError(w, http.StatusBadRequest, "session_id: missing, want a string")
		return
	}
	e.postAll(func(k *rank) { k.closeSession(*body.SessionID) })
	w.WriteHeader(http.StatusOK)
}

// serveOpenSession answers with the id as a JSON string, or 400 for an id that is open and for a
// streaming session the engine was not started for [sglang 19531].
func (e *Engine) serveOpenSession(w http.ResponseWriter, r *http.Request) {
	var body struct {
		Capacity  *int     `json:"capacity_of_str_len"`
		SessionID string   `json:"session_id"`
		Streaming bool     `json:"streaming"`
		Timeout   *float64 `json:"timeout"`
	}
	if !decode(w, r, &body) {
		return
	}
	timeout, err := sessionTimeout(body.Timeout)
	switch {
	case err != nil:
		writeError(w, http.StatusBadRequest, err.Error())
		return
	case body.Capacity == nil:
		writeError(w, http.StatusBadRequest, "capacity_of_str_len: missing, want an integer")
		return
	case body.Streaming && !e.cfg.StreamingSessions:
		writeError(w, http.StatusBadRequest, "streaming: the engine runs without --enable-streaming-session")
		return
	}
	id := body.SessionID
	if id == "" {
		id = e.newRID()
	}
	err = e.askAll(r.Context(), func(k *rank) error { return k.openSlot(id, body.Streaming, timeout) })
	if err != nil {
		e.refuseOpen(w, err)
		return
	}
	writeJSON(w, http.StatusOK, id)
}

func (e *Engine) refuseOpen(w http.ResponseWriter, err error) {
	if errors.Is(err, ErrSessionExists) {
		writeError(w, http.StatusBadRequest, err.Error())
		return
	}
	panic(http.ErrAbortHandler) // the process went away under the call
}

func sessionTimeout(seconds *float64) (time.Duration, error) {
	const longest = 365 * 24 * 3600
	switch {
	case seconds == nil:
		return 0, nil
	case !(*seconds > 0 && *seconds <= longest):
		return 0, fmt.Errorf("timeout: %v, want more than 0 and at most %d seconds", *seconds, longest)
	}
	return time.Duration(*seconds * float64(time.Second)), nil
}

// serveAbort answers 200 always. The rid is a prefix: r-1 ends r-1, r-10 and r-1:0, and "" ends all.
func (e *Engine) serveAbort(w http.ResponseWriter, r *http.Request) {
	var body struct {
		RID      string `json:"rid"`
		AbortAll bool   `json:"abort_all"`
	}
	if !decode(w, r, &body) {
		return
	}
	if body.AbortAll {
		body.RID = ""
	}
	e.postAll(func(k *rank) { k.abortPrefix(body.RID) })
	w.WriteHeader(http.StatusOK)
}

// servePinPrefix is there only with Config.PinPrefix: upstream had it for a month and took it back.
func (e *Engine) servePinPrefix(w http.ResponseWriter, r *http.Request) {
	if !e.cfg.PinPrefix {
		notFound(w)
		return
	}
	var body struct {
		TokenIDs   []int32 `json:"token_ids"`
		TTLSeconds int     `json:"ttl_seconds"`
	}
	if !decode(w, r, &body) {
		return
	}
	const longest = 24 * 3600
	if len(body.TokenIDs) == 0 || body.TTLSeconds <= 0 || body.TTLSeconds > longest {
		writeError(w, http.StatusBadRequest, fmt.Sprintf(
			"token_ids (%d) and ttl_seconds (%d): want at least one token and 1 to %d seconds", len(body.TokenIDs), body.TTLSeconds, longest))
		return
	}
	pinned, ttl := 0, time.Duration(body.TTLSeconds)*time.Second
	err := e.askAll(r.Context(), func(k *rank) error {
		pinned += k.pinPrefix(body.TokenIDs, ttl)
		return nil
	})
	if err != nil {
		panic(http.ErrAbortHandler)
	}
	writeJSON(w, http.StatusOK, map[string]any{"success": pinned > 0, "pinned_tokens": pinned})
}

func (e *Engine) serveFlush(w http.ResponseWriter, r *http.Request) {
	busy := errors.New("cache not flushed: requests are in flight")
	err := e.askAll(r.Context(), func(k *rank) error {
		if !k.flush() {
			return busy
		}
		return nil
	})
	if err != nil {
		http.Error(w, err.Error(), http.StatusBadRequest)
		return
	}
	_, _ = w.Write([]byte("Cache flushed.\n"))
}
