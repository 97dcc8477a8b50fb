package enginesim_test

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"kvgate/integration/enginesim"
)

// events are the data lines of a streamed answer, the last one left out after checking that it is [DONE].
func events(t *testing.T, body string) []string {
	t.Helper()
	var out []string
	lines := bufio.NewScanner(strings.NewReader(body))
	lines.Buffer(nil, 1<<20)
	for lines.Scan() {
		if data, ok := strings.CutPrefix(lines.Text(), "data: "); ok {
			out = append(out, data)
		}
	}
	if len(out) == 0 || out[len(out)-1] != "[DONE]" {
		t.Fatalf("the stream does not end with [DONE]: %q", body)
	}
	return out[:len(out)-1]
}

func TestGenerateStreamsCumulativeEvents(t *testing.T) {
	simulate(t, enginesim.Config{}, func(t *testing.T, b *bench) {
		body := turn("r", "", tokens(0, 10), 5)
		whole := b.generate(body)
		body["stream"] = true
		w := b.want(http.StatusOK, "POST", "/generate", body)
		got := events(t, w.Body.String())
		equal(t, "content type", w.Header().Get("Content-Type"), "text/event-stream; charset=utf-8")
		equal(t, "events", len(got), 5)
		for i, raw := range got {
			var a answer
			if err := json.Unmarshal([]byte(raw), &a); err != nil {
				t.Fatal(err)
			}
			equal(t, "tokens so far", len(a.OutputIDs), i+1)
			equal(t, "finished", a.Meta.Finish != nil, i == 4)
			equal(t, "text", a.Text, whole.Text[:4*(i+1)])
		}
	})
}

func TestStreamIntervalMakesFewerEvents(t *testing.T) {
	simulate(t, enginesim.Config{StreamInterval: 10}, func(t *testing.T, b *bench) {
		body := turn("r", "", tokens(0, 10), 25)
		body["stream"] = true
		got := events(t, b.want(http.StatusOK, "POST", "/generate", body).Body.String())
		equal(t, "events", len(got), 3)
	})
}

type chatAnswer struct {
	ID      string `json:"id"`
	Choices []struct {
		Message struct {
			Role    string `json:"role"`
			Content string `json:"content"`
		} `json:"message"`
		Delta struct {
			Content string `json:"content"`
		} `json:"delta"`
		FinishReason *string `json:"finish_reason"`
	} `json:"choices"`
	Usage struct {
		Prompt     int `json:"prompt_tokens"`
		Completion int `json:"completion_tokens"`
		Details    struct {
			Cached int `json:"cached_tokens"`
		} `json:"prompt_tokens_details"`
	} `json:"usage"`
}

func message(role, content string) fields { return fields{"role": role, "content": content} }

func TestChatTurnsExtendEachOther(t *testing.T) {
	simulate(t, enginesim.Config{}, func(t *testing.T, b *bench) {
		chat := func(messages ...any) (a chatAnswer) {
			w := b.want(http.StatusOK, "POST", "/v1/chat/completions", fields{"messages": messages, "max_tokens": 40, "ignore_eos": true})
			if err := json.Unmarshal(w.Body.Bytes(), &a); err != nil {
				t.Fatal(err)
			}
			return a
		}
		system, question := message("system", strings.Repeat("be brief. ", 30)), message("user", "what is 7 times 8?")
		first := chat(system, question)
		equal(t, "finish", *first.Choices[0].FinishReason, "length")
		equal(t, "completion", first.Usage.Completion, 40)
		second := chat(system, question, message("assistant", first.Choices[0].Message.Content), message("tool", "56"))
		equal(t, "cached of the second turn", second.Usage.Details.Cached, first.Usage.Prompt+39)
	})
}

func TestChatStreamsIncrementsAndUsage(t *testing.T) {
	simulate(t, enginesim.Config{}, func(t *testing.T, b *bench) {
		body := fields{
			"messages": []any{fields{"role": "user", "content": []any{fields{"type": "text", "text": "hello"}}}},
			"rid":      "my-rid", "max_completion_tokens": 6, "ignore_eos": true,
		}
		var whole chatAnswer
		if err := json.Unmarshal(b.want(http.StatusOK, "POST", "/v1/chat/completions", body).Body.Bytes(), &whole); err != nil {
			t.Fatal(err)
		}
		body["stream"], body["stream_options"] = true, fields{"include_usage": true}
		var text strings.Builder
		var last chatAnswer
		for _, raw := range events(t, b.want(http.StatusOK, "POST", "/v1/chat/completions", body).Body.String()) {
			last = chatAnswer{}
			if err := json.Unmarshal([]byte(raw), &last); err != nil {
				t.Fatal(err)
			}
			for _, c := range last.Choices {
				text.WriteString(c.Delta.Content)
			}
		}
		equal(t, "text", text.String(), whole.Choices[0].Message.Content)
		equal(t, "id", last.ID, "my-rid")
		equal(t, "usage of the last event", last.Usage.Completion, 6)
	})
}

func TestBadGenerateBodies(t *testing.T) {
	for name, c := range map[string]struct{ path, body, want string }{
		"not json":        {"/generate", `{`, "body"},
		"no prompt":       {"/generate", `{}`, "empty"},
		"two prompts":     {"/generate", `{"text":"a","input_ids":[1]}`, "both"},
		"text list":       {"/generate", `{"text":["a","b"]}`, "text"},
		"huge token":      {"/generate", `{"input_ids":[99999999999]}`, "input_ids"},
		"no room":         {"/generate", `{"text":"a","sampling_params":{"max_new_tokens":0}}`, "max_new_tokens 0"},
		"n":               {"/generate", `{"text":"a","sampling_params":{"n":2}}`, "n 2"},
		"rank":            {"/generate", `{"text":"a","routed_dp_rank":7}`, "less than dp_size 1"},
		"negative rank":   {"/generate", `{"text":"a","data_parallel_rank":-1}`, "0 or more"},
		"unknown session": {"/generate", `{"text":"a","session_params":{"id":"nobody"}}`, "nobody"},
		"unknown stream":  {"/generate", `{"text":"a","stream":true,"session_params":{"id":"nobody"}}`, "nobody"},
		"no messages":     {"/v1/chat/completions", `{"messages":[]}`, "at least one"},
		"no role":         {"/v1/chat/completions", `{"messages":[{"content":"x"}]}`, "role"},
		"odd content":     {"/v1/chat/completions", `{"messages":[{"role":"user","content":7}]}`, "content"},
		"chat n":          {"/v1/chat/completions", `{"n":3,"messages":[{"role":"user","content":"x"}]}`, "n 3"},
	} {
		t.Run(name, func(t *testing.T) {
			simulate(t, enginesim.Config{}, func(t *testing.T, b *bench) {
				w := b.want(http.StatusBadRequest, "POST", c.path, c.body)
				if !strings.Contains(w.Body.String(), c.want) {
					t.Fatalf("answer %s does not mention %q", w.Body, c.want)
				}
			})
		})
	}
}

func TestClientThatHangsUpAbortsItsRequest(t *testing.T) {
	simulate(t, enginesim.Config{}, func(t *testing.T, b *bench) {
		ctx, hangUp := context.WithCancel(t.Context())
		raw, err := json.Marshal(turn("r", "", tokens(0, 10), 5000))
		if err != nil {
			t.Fatal(err)
		}
		over := make(chan struct{})
		go func() {
			defer close(over)
			r := httptest.NewRequestWithContext(ctx, http.MethodPost, "/generate", strings.NewReader(string(raw)))
			b.Handler().ServeHTTP(httptest.NewRecorder(), r)
		}()
		time.Sleep(time.Second)
		equal(t, "running", b.Stats().Running, 1)
		hangUp()
		<-over
		b.settle()
		equal(t, "running", b.Stats().Running, 0)
		equal(t, "aborted", b.Stats().Aborted, 1)
	})
}

func TestDPRanksTakeTurnsAndHaveTheirOwnCaches(t *testing.T) {
	simulate(t, enginesim.Config{DP: 2}, func(t *testing.T, b *bench) {
		b.generate(turn("a", "", tokens(0, 100), 1))
		equal(t, "cached on the other rank", b.generate(turn("b", "", tokens(0, 100), 1)).Meta.Cached, 0)
		equal(t, "cached on the first again", b.generate(turn("c", "", tokens(0, 100), 1)).Meta.Cached, 99)
		routed := turn("d", "", tokens(5000, 50), 1)
		routed["routed_dp_rank"] = 1
		b.generate(routed)
		equal(t, "cached on the chosen rank", b.generate(routed).Meta.Cached, 49)
		equal(t, "resident", b.Stats().Resident, 250)
	})
}

func TestInfoEndpoints(t *testing.T) {
	simulate(t, enginesim.Config{TP: 2, DP: 2, PoolTokens: 1234}, func(t *testing.T, b *bench) {
		get := func(path string) map[string]any {
			var out map[string]any
			if err := json.Unmarshal(b.want(http.StatusOK, "GET", path, nil).Body.Bytes(), &out); err != nil {
				t.Fatal(err)
			}
			return out
		}
		for _, path := range []string{"/server_info", "/get_server_info"} {
			info := get(path)
			equal[any](t, path+" capacity", info["max_total_num_tokens"], 1234.0)
			equal[any](t, path+" version", info["version"], "0.5.15.post1")
			equal[any](t, path+" dp", info["dp_size"], 2.0)
			equal(t, path+" states", len(info["internal_states"].([]any)), 2)
		}
		equal[any](t, "model", get("/model_info")["model_path"], "sim/Agent-30B")
		equal[any](t, "model", get("/get_model_info")["served_model_name"], "sim/Agent-30B")
		equal[any](t, "models", get("/v1/models")["object"], "list")
		loads := get("/v1/loads?include=core")["loads"].([]any)
		equal[any](t, "capacity of a load", loads[1].(map[string]any)["max_total_num_tokens"], 1234.0)
		b.want(http.StatusOK, "GET", "/get_load", nil)
		b.want(http.StatusOK, "GET", "/health", nil)
		b.want(http.StatusOK, "GET", "/health_generate", nil)
		b.want(http.StatusNotFound, "GET", "/list_workers", nil)
		b.want(http.StatusBadRequest, "GET", "/v1/loads?include=lora", nil)
	})
}

func TestFlushRefusesWhileBusy(t *testing.T) {
	simulate(t, enginesim.Config{}, func(t *testing.T, b *bench) {
		call := b.begin(turn("a", "", tokens(0, 100), 50))
		b.want(http.StatusBadRequest, "POST", "/flush_cache", nil)
		<-call
		b.want(http.StatusOK, "POST", "/flush_cache", nil)
		b.settle()
		equal(t, "resident", b.Stats().Resident, 0)
	})
}

func TestConfigErrorsNameTheField(t *testing.T) {
	for field, cfg := range map[string]enginesim.Config{
		"EngineType":     {EngineType: "router"},
		"PageSize":       {PageSize: 16},
		"PoolTokens":     {PoolTokens: -1},
		"Speed":          {Speed: -1},
		"TP 3":           {TP: 3, DP: 2, DPAttention: true},
		"OutputMax":      {OutputMin: 100, OutputMax: 10},
		"NewTokenRatio ": {NewTokenRatio: 2},
		"CloseMode":      {CloseMode: "maybe"},
		"MetricsBytes":   {MetricsBytes: -1},
	} {
		_, err := enginesim.New(cfg)
		if !errors.Is(err, enginesim.ErrConfig) || !strings.Contains(err.Error(), field) {
			t.Errorf("error %v, want one that names %s", err, field)
		}
	}
}

func TestCloseFailsWhatIsInFlight(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		e, err := enginesim.New(enginesim.Config{})
		if err != nil {
			t.Fatal(err)
		}
		b := &bench{t: t, Engine: e}
		cut := make(chan any, 1)
		go func() {
			defer func() { cut <- recover() }()
			b.call("POST", "/generate", turn("a", "", tokens(0, 10), 5000))
		}()
		synctest.Wait()
		if err := e.Close(); err != nil {
			t.Fatal(err)
		}
		equal(t, "how the handler ended", <-cut, any(http.ErrAbortHandler))
	})
}
