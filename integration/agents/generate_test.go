package agents

import (
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"net/http/httptest"
	"sync"
	"testing"
)

// flaky is a router that answers the first attempts of every turn as told, and then properly.
type flaky struct {
	first []func(http.ResponseWriter)

	mu    sync.Mutex
	tries map[string]int // by session and length of prompt
	rids  map[string]int
}

func (f *flaky) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	var body struct {
		SessionID string  `json:"session_id"`
		RID       string  `json:"rid"`
		InputIDs  []int32 `json:"input_ids"`
		Sampling  struct {
			MaxNew int `json:"max_new_tokens"`
		} `json:"sampling_params"`
	}
	if err := json.NewDecoder(r.Body).Decode(&body); err != nil || body.Sampling.MaxNew != small.MaxNewTokens {
		http.Error(w, fmt.Sprint(err), http.StatusBadRequest)
		return
	}
	key := fmt.Sprintf("%s/%d", body.SessionID, len(body.InputIDs))
	f.mu.Lock()
	try := f.tries[key]
	f.tries[key]++
	f.rids[body.RID]++
	f.mu.Unlock()
	if try < len(f.first) {
		f.first[try](w)
		return
	}
	fmt.Fprintf(w, `{"output_ids":[1,2,3],"meta_info":{"prompt_tokens":%d,"completion_tokens":3,"finish_reason":{"type":"stop"}}}`, len(body.InputIDs))
}

func (f *flaky) start(t *testing.T) string {
	f.tries, f.rids = map[string]int{}, map[string]int{}
	server := httptest.NewServer(f)
	t.Cleanup(server.Close)
	return server.URL
}

func says(status int, body string) func(http.ResponseWriter) {
	return func(w http.ResponseWriter) { w.WriteHeader(status); fmt.Fprint(w, body) }
}

func TestACallThatFailsIsMadeAgainWithTheSameHistory(t *testing.T) {
	f := &flaky{first: []func(http.ResponseWriter){
		says(http.StatusServiceUnavailable, `{"error":"no healthy worker"}`),
		says(http.StatusOK, `{"output_ids":[9],"meta_info":{"finish_reason":{"type":"abort","message":"out of memory"}}}`),
		says(http.StatusOK, `{"output_`),
		func(http.ResponseWriter) { panic(http.ErrAbortHandler) },
	}}
	gate := newTestGate(12)
	r := newTestRun(t, f.start(t), gate)
	if err := r.Do(t.Context()); err != nil {
		t.Fatal(err)
	}
	if res := r.Result(); res.Turns != 36 || res.Retries != 4*36 || res.Failed != 0 || res.Completion != 3*36 {
		t.Errorf("result %+v", res)
	}
	// A failed attempt that had changed the history would have shown up as a turn of its own.
	if len(f.tries) != 36 || len(f.rids) != 5*36 {
		t.Errorf("%d prompts and %d request ids, want 36 and %d", len(f.tries), len(f.rids), 5*36)
	}
	if gate.total != 5*36 || gate.inside != 0 {
		t.Errorf("%d permits released, %d left", gate.total, gate.inside)
	}
}

func TestASessionGivesUpInTheEnd(t *testing.T) {
	broken := says(http.StatusInternalServerError, "no")
	f := &flaky{first: []func(http.ResponseWriter){broken, broken, broken, broken, broken}}
	r := newTestRun(t, f.start(t), nil)
	if err := r.Do(t.Context()); !errors.Is(err, ErrGenerate) {
		t.Errorf("Do: %v, want ErrGenerate", err)
	}
	if res := r.Result(); res.Turns != 0 || res.Failed != 12 || res.Retries != 4*12 || res.TurnsPerSecond() != 0 {
		t.Errorf("result %+v", res)
	}
}
