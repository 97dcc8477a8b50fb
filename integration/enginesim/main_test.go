package enginesim_test

import (
	"encoding/json"
	"fmt"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"testing/synctest"

	"go.uber.org/goleak"

	"kvgate/integration/enginesim"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// bench is an engine inside a synctest bubble, so its time is virtual and every run is the same.
type bench struct {
	t *testing.T
	*enginesim.Engine
}

// simulate runs f with an engine of the given configuration.
func simulate(t *testing.T, cfg enginesim.Config, f func(t *testing.T, b *bench)) {
	t.Helper()
	synctest.Test(t, func(t *testing.T) {
		e, err := enginesim.New(cfg)
		if err != nil {
			t.Fatal(err)
		}
		defer func() {
			if err := e.Close(); err != nil {
				t.Error(err)
			}
		}()
		f(t, &bench{t: t, Engine: e})
	})
}

type answer struct {
	Text      string  `json:"text"`
	OutputIDs []int32 `json:"output_ids"`
	Meta      struct {
		ID          string  `json:"id"`
		Prompt      int     `json:"prompt_tokens"`
		Completion  int     `json:"completion_tokens"`
		Cached      int     `json:"cached_tokens"`
		Latency     float64 `json:"e2e_latency"`
		Retractions int     `json:"num_retractions"`
		Finish      *struct {
			Type string `json:"type"`
		} `json:"finish_reason"`
	} `json:"meta_info"`
}

// call is a request straight to the handler.
func (b *bench) call(method, path string, body any, header ...string) *httptest.ResponseRecorder {
	var text string
	switch body := body.(type) {
	case nil:
	case string:
		text = body
	default:
		raw, err := json.Marshal(body)
		if err != nil {
			b.t.Fatal(err)
		}
		text = string(raw)
	}
	r := httptest.NewRequest(method, path, strings.NewReader(text))
	if len(header) == 1 {
		r.Header.Set("Authorization", "Bearer "+header[0])
	}
	w := httptest.NewRecorder()
	b.Handler().ServeHTTP(w, r)
	return w
}

// want fails unless the call answers with the status.
func (b *bench) want(status int, method, path string, body any, header ...string) *httptest.ResponseRecorder {
	b.t.Helper()
	w := b.call(method, path, body, header...)
	if w.Code != status {
		b.t.Fatalf("%s %s: status %d, want %d: %s", method, path, w.Code, status, w.Body)
	}
	return w
}

type fields map[string]any

// turn is the body of a generate call that ends after exactly n tokens.
func turn(rid, session string, prompt []int32, n int) fields {
	return fields{
		"rid": rid, "session_id": session, "input_ids": prompt,
		"sampling_params": fields{"max_new_tokens": n, "ignore_eos": true},
	}
}

func (b *bench) generate(body fields) answer {
	b.t.Helper()
	var a answer
	w := b.want(http.StatusOK, http.MethodPost, "/generate", body)
	if err := json.Unmarshal(w.Body.Bytes(), &a); err != nil {
		b.t.Fatal(err)
	}
	return a
}

// begin sends a generate call and returns a channel for its answer, once nothing else can happen at this time.
func (b *bench) begin(body fields) <-chan answer {
	b.t.Helper()
	out := make(chan answer, 1)
	go func() {
		var a answer
		w := b.call(http.MethodPost, "/generate", body)
		if err := json.Unmarshal(w.Body.Bytes(), &a); err != nil {
			b.t.Errorf("status %d: %v", w.Code, err)
		}
		out <- a
	}()
	synctest.Wait()
	return out
}

// settle waits until the schedulers have taken in every control call.
func (b *bench) settle() {
	b.t.Helper()
	if err := b.Sync(b.t.Context()); err != nil {
		b.t.Fatal(err)
	}
}

func (b *bench) closeSession(id string) {
	b.t.Helper()
	w := b.want(http.StatusOK, http.MethodPost, "/close_session", fields{"session_id": id})
	if w.Body.Len() != 0 {
		b.t.Fatalf("close answered %q, want nothing", w.Body)
	}
	b.settle()
}

func tokens(from, n int) []int32 {
	out := make([]int32, n)
	for i := range out {
		out[i] = int32(from + i)
	}
	return out
}

func join(parts ...[]int32) []int32 {
	var out []int32
	for _, p := range parts {
		out = append(out, p...)
	}
	return out
}

func equal[T comparable](t *testing.T, what string, got, want T) {
	t.Helper()
	if got != want {
		t.Fatalf("%s: %v, want %v", what, got, want)
	}
}

func rid(i int) string { return fmt.Sprintf("r%d", i) }
