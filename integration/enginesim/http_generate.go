package enginesim

import (
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"sync"
)

// generateBody is the part of a POST /generate body that the simulator understands.
type generateBody struct {
	Text           *string `json:"text"`
	InputIDs       []int32 `json:"input_ids"`
	SamplingParams struct {
		MaxNewTokens *int `json:"max_new_tokens"`
		IgnoreEOS    bool `json:"ignore_eos"`
		N            *int `json:"n"`
	} `json:"sampling_params"`
	SessionID     string `json:"session_id"`
	SessionParams *struct {
		ID string `json:"id"`
	} `json:"session_params"`
	RID          string `json:"rid"`
	Stream       bool   `json:"stream"`
	RoutedDPRank *int   `json:"routed_dp_rank"`
	DataParallel *int   `json:"data_parallel_rank"`
}

const defaultMaxNew = 128 // of /generate, when max_new_tokens is absent

func (b *generateBody) request(e *Engine) (*request, int, error) {
	q := newRequest()
	q.rid, q.session, q.stream = b.RID, b.SessionID, b.Stream
	if q.rid == "" {
		q.rid = e.newRID()
	}
	if b.SessionParams != nil {
		q.slotID = b.SessionParams.ID
	}
	switch {
	case b.Text != nil && b.InputIDs != nil:
		return nil, 0, fmt.Errorf("%w: text and input_ids: want one of them, got both", ErrBadRequest)
	case b.Text != nil:
		q.input = tokenize(nil, *b.Text)
	default:
		q.input = b.InputIDs
	}
	q.maxNew, q.ignoreEOS = defaultMaxNew, b.SamplingParams.IgnoreEOS
	if m := b.SamplingParams.MaxNewTokens; m != nil {
		q.maxNew = *m
	}
	if q.maxNew < 1 {
		return nil, 0, fmt.Errorf("%w: max_new_tokens %d, want at least 1", ErrBadRequest, q.maxNew)
	}
	if n := b.SamplingParams.N; n != nil && *n != 1 {
		return nil, 0, fmt.Errorf("%w: n %d, only 1 is simulated", ErrBadRequest, *n)
	}
	dpRank, err := chosenRank(b.RoutedDPRank, b.DataParallel)
	return q, dpRank, err
}

// chosenRank is the DP rank a client asked for under either name, or -1.
func chosenRank(names ...*int) (int, error) {
	for _, rank := range names {
		if rank == nil {
			continue
		}
		if *rank < 0 {
			return 0, fmt.Errorf("%w: routed_dp_rank %d, want 0 or more", ErrBadRequest, *rank)
		}
		return *rank, nil
	}
	return -1, nil
}

func (e *Engine) serveGenerate(w http.ResponseWriter, r *http.Request) {
	var body generateBody
	if !decode(w, r, &body) {
		return
	}
	q, dpRank, err := body.request(e)
	if err != nil {
		writeError(w, http.StatusBadRequest, err.Error())
		return
	}
	e.run(w, r, q, dpRank, &generateFormat{engine: e, q: q})
}

// format renders a request's progress the way its endpoint does.
type format interface {
	whole(p progress) any              // the answer to a call that does not stream
	events(p progress, sent int) []any // the events for output from token sent on; with p.reason the last ones
	fail(message string) any           // the body of status 400
}

// run sends q to a scheduler, waits, and answers. A client that hangs up aborts its request.
func (e *Engine) run(w http.ResponseWriter, r *http.Request, q *request, dpRank int, f format) {
	meters := e.current().meters
	record := sync.OnceFunc(func() { meters.record(q.stream, q.progress()) })
	defer record()
	k, err := e.submit(q, dpRank)
	if err != nil {
		e.refuseRequest(w, err, f)
		return
	}
	if q.stream {
		e.streamEvents(w, r, q, k, f, record)
		return
	}
	if !k.await(r, q.done, q) {
		return
	}
	p := q.progress()
	if p.err != nil {
		e.refuseRequest(w, p.err, f)
		return
	}
	record()
	writeJSON(w, http.StatusOK, f.whole(p))
}

func (e *Engine) refuseRequest(w http.ResponseWriter, err error, f format) {
	if errors.Is(err, ErrStopped) {
		panic(http.ErrAbortHandler) // the process is gone, and with it the connection
	}
	writeJSON(w, http.StatusBadRequest, f.fail(err.Error()))
}

// await waits for c; when the client goes first it aborts q, waits for its end and reports false.
func (k *rank) await(r *http.Request, c <-chan struct{}, q *request) bool {
	select {
	case <-c:
		return true
	case <-r.Context().Done():
		if k.post(func() { k.abortOne(q) }) {
			<-q.done
		}
		return false
	}
}

// streamEvents answers as the output comes. It calls over before the last event leaves.
func (e *Engine) streamEvents(w http.ResponseWriter, r *http.Request, q *request, k *rank, f format, over func()) {
	out := http.NewResponseController(w)
	for sent, started := 0, false; ; {
		if !k.await(r, q.updated, q) {
			return
		}
		p := q.progress()
		if p.err != nil && (started || errors.Is(p.err, ErrStopped)) {
			panic(http.ErrAbortHandler)
		}
		if p.err != nil {
			e.refuseRequest(w, p.err, f)
			return
		}
		if p.reason == nil && len(p.output)-sent < e.cfg.StreamInterval {
			continue
		}
		if !started {
			w.Header().Set("Content-Type", "text/event-stream; charset=utf-8")
			started = true
		}
		if p.reason != nil {
			over()
		}
		for _, event := range f.events(p, sent) {
			writeEvent(w, event)
		}
		sent = len(p.output)
		if p.reason != nil {
			_, _ = w.Write([]byte("data: [DONE]\n\n"))
			return
		}
		_ = out.Flush()
	}
}

func writeEvent(w http.ResponseWriter, event any) {
	body, err := json.Marshal(event)
	if err != nil {
		return
	}
	_, _ = fmt.Fprintf(w, "data: %s\n\n", body)
}

// newRID is the id of a request that came without one.
func (e *Engine) newRID() string {
	n := e.ridSeq.Add(1)
	return fmt.Sprintf("%016x%016x", mix(e.cfg.Seed^hashBytes(e.cfg.Name)), mix(n))
}

// generateFormat is the native API. Its events are cumulative: each has the whole text so far.
type generateFormat struct {
	engine *Engine
	q      *request
}

func (f *generateFormat) whole(p progress) any {
	meta := map[string]any{
		"id": f.q.rid, "finish_reason": p.reason, "prompt_tokens": p.prompt,
		"completion_tokens": len(p.output), "cached_tokens": p.cached,
		"weight_version": "default", "num_retractions": p.retractions,
	}
	if p.reason != nil {
		meta["e2e_latency"] = max(0, (p.finished - p.arrived).Seconds())
	}
	ids := p.output
	if ids == nil {
		ids = []int32{}
	}
	return map[string]any{"text": detokenize(p.output), "output_ids": ids, "meta_info": meta}
}

func (f *generateFormat) events(p progress, _ int) []any { return []any{f.whole(p)} }

func (f *generateFormat) fail(message string) any {
	return map[string]any{"error": map[string]any{"message": message}}
}
