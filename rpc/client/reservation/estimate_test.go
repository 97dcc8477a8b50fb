package reservation

import (
	"encoding/json"
	"strings"
	"testing"

	"pgregory.net/rapid"
)

func chat(t interface{ Fatal(...any) }, limit int, texts ...string) []byte {
	var messages []map[string]any
	for _, text := range texts {
		messages = append(messages, map[string]any{"role": "user", "content": text})
	}
	out, err := json.Marshal(map[string]any{"model": "m", "messages": messages, "max_tokens": limit})
	if err != nil {
		t.Fatal(err)
	}
	return out
}

func estimator(t interface{ Fatal(...any) }, o EstimatorOptions) *RequestEstimator {
	e, err := NewRequestEstimator(o)
	if err != nil {
		t.Fatal(err)
	}
	return e
}

func TestEstimate(t *testing.T) {
	const base = requestOverhead
	for body, want := range map[string]Reservation{
		`{"prompt":"abcdef","max_tokens":7}`:                                                              {base + 2, 7},
		`{"prompt":[1,2,3],"max_completion_tokens":7}`:                                                    {base + 3, 7},
		`{"messages":[{"role":"user","content":"abcdef"}],"n":3,"max_tokens":7}`:                          {base + messageOverhead + 2, 21},
		`{"messages":[{"role":"user","content":[{"type":"image_url","image_url":{"url":"data:xxxx"}}]}]}`: {base + messageOverhead + defaultItemTokens, DefaultMaxNewTokens},
		`{"tools":[{"name":"abc"}],"max_new_tokens":0}`:                                                   {base + 1, 0},
		`{}`: {base, DefaultMaxNewTokens},
	} {
		got, err := estimator(t, EstimatorOptions{}).Estimate([]byte(body), "")
		if err != nil || got != want {
			t.Errorf("%s: %+v, %v, want %+v", body, got, err, want)
		}
	}
	for body, field := range map[string]string{
		``: "request", `[]`: "request", `null`: "request", `{"max_tokens":-1}`: "max_tokens", `{"max_tokens":"many"}`: "max_tokens", `{"n":1.5}`: "n",
	} {
		if _, err := estimator(t, EstimatorOptions{}).Estimate([]byte(body), ""); fieldOf(err) != field {
			t.Errorf("%s: %v, want an error of %s", body, err, field)
		}
	}
	for field, o := range map[string]EstimatorOptions{
		"sessions": {Sessions: -1}, "itemTokens": {ItemTokens: -1}, "contextLength": {ContextLength: -1},
	} {
		if _, err := NewRequestEstimator(o); fieldOf(err) != field {
			t.Errorf("%+v: %v", o, err)
		}
	}
}

// TestLearn: the next turn of a session is what was counted last, plus what it has grown by.
func TestLearn(t *testing.T) {
	e := estimator(t, EstimatorOptions{Sessions: 1})
	first := chat(t, 1, strings.Repeat("x", 3000))
	if err := e.Learn(first, 5000, "s"); err != nil {
		t.Fatal(err)
	}
	if got, err := e.Estimate(first, "s"); err != nil || got.PromptTokens != 5000 {
		t.Errorf("the same turn: %+v, %v", got, err)
	}
	second := chat(t, 1, strings.Repeat("x", 3000), "abc")
	if got, err := e.Estimate(second, "s"); err != nil || got.PromptTokens < 5000+messageOverhead+1 || got.PromptTokens > 5000+messageOverhead+2 {
		t.Errorf("the next turn: %+v, %v", got, err)
	}
	if got, err := e.Estimate(chat(t, 1, "abc"), "s"); err != nil || got.PromptTokens > 50 {
		t.Errorf("a session that starts anew: %+v, %v", got, err)
	}
	if err := e.Learn(first, 10, "other"); err != nil {
		t.Fatal(err)
	}
	if got, _ := e.Estimate(first, "s"); got.PromptTokens == 5000 {
		t.Error("the session used least lately is still remembered")
	}
	e.Forget("other")
	if got, _ := e.Estimate(first, "other"); got.PromptTokens == 10 {
		t.Error("a forgotten session is still remembered")
	}
	if err := e.Learn(first, -1, ""); fieldOf(err) != "promptTokens" {
		t.Errorf("%v", err)
	}
	if err := e.Learn([]byte("x"), 1, ""); fieldOf(err) != "request" {
		t.Errorf("%v", err)
	}
}

// TestEstimatesStayInRange for any text and any usage, however far from each other.
func TestEstimatesStayInRange(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		context := rapid.Int64Range(0, 4096).Draw(t, "context")
		e := estimator(t, EstimatorOptions{Sessions: 2, ContextLength: context})
		for range rapid.IntRange(1, 10).Draw(t, "turns") {
			body := chat(t, rapid.IntRange(0, 500).Draw(t, "limit"), rapid.SliceOfN(rapid.String(), 0, 5).Draw(t, "texts")...)
			session := rapid.SampledFrom([]string{"", "a", "b", "c"}).Draw(t, "session")
			got, err := e.Estimate(body, session)
			if err != nil || got.PromptTokens < 1 || got.MaxNewTokens < 0 || context > 0 && got.Tokens() > context {
				t.Fatalf("%s: %+v, %v", body, got, err)
			}
			if err := e.Learn(body, rapid.Int64Range(0, MaxTokens).Draw(t, "usage"), session); err != nil {
				t.Fatal(err)
			}
		}
	})
}
