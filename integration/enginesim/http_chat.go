package enginesim

import (
	"encoding/json"
	"fmt"
	"net/http"
	"strings"
)

// chatBody is the part of a POST /v1/chat/completions body that the simulator understands.
type chatBody struct {
	Model         string        `json:"model"`
	Messages      []chatMessage `json:"messages"`
	MaxTokens     *int          `json:"max_tokens"`
	MaxCompletion *int          `json:"max_completion_tokens"`
	IgnoreEOS     bool          `json:"ignore_eos"`
	N             *int          `json:"n"`
	Stream        bool          `json:"stream"`
	StreamOptions *struct {
		IncludeUsage bool `json:"include_usage"`
	} `json:"stream_options"`
	SessionID     string `json:"session_id"`
	SessionParams *struct {
		ID string `json:"id"`
	} `json:"session_params"`
	RID          string `json:"rid"`
	RoutedDPRank *int   `json:"routed_dp_rank"`
	DataParallel *int   `json:"data_parallel_rank"`
}

type chatMessage struct {
	Role      string          `json:"role"`
	Content   json.RawMessage `json:"content"`
	ToolCalls json.RawMessage `json:"tool_calls"`
}

// text is the content of a message: a string, or the texts of its parts; then its tool calls.
func (m chatMessage) text() (string, error) {
	var out strings.Builder
	var plain string
	var parts []struct {
		Text string `json:"text"`
	}
	switch {
	case len(m.Content) == 0:
	case json.Unmarshal(m.Content, &plain) == nil:
		out.WriteString(plain)
	case json.Unmarshal(m.Content, &parts) == nil:
		for _, p := range parts {
			out.WriteString(p.Text)
		}
	default:
		return "", fmt.Errorf("%w: content of a %q message, want a string or a list of text parts", ErrBadRequest, m.Role)
	}
	out.Write(m.ToolCalls)
	return out.String(), nil
}

// chatTokens applies the chat template: a role token, the text, an end token; then the assistant's
// role token. A next turn with the answer appended extends the same tokens.
func chatTokens(messages []chatMessage) ([]int32, error) {
	var tokens []int32
	for i, m := range messages {
		if m.Role == "" {
			return nil, fmt.Errorf("%w: messages[%d].role: missing", ErrBadRequest, i)
		}
		text, err := m.text()
		if err != nil {
			return nil, fmt.Errorf("messages[%d]: %w", i, err)
		}
		tokens = append(tokenize(append(tokens, roleToken(m.Role)), text), endOfTurn)
	}
	if len(tokens) == 0 {
		return nil, fmt.Errorf("%w: messages: want at least one", ErrBadRequest)
	}
	return append(tokens, roleToken("assistant")), nil
}

func (b *chatBody) request(e *Engine) (*request, int, error) {
	q := newRequest()
	q.rid, q.session, q.stream, q.ignoreEOS = b.RID, b.SessionID, b.Stream, b.IgnoreEOS
	if q.rid == "" {
		q.rid = e.newRID()
	}
	if b.SessionParams != nil {
		q.slotID = b.SessionParams.ID
	}
	q.maxNew = e.cfg.ContextLen
	for _, limit := range []*int{b.MaxTokens, b.MaxCompletion} {
		if limit != nil {
			q.maxNew = *limit
		}
	}
	if q.maxNew < 1 {
		return nil, 0, fmt.Errorf("%w: max_completion_tokens %d, want at least 1", ErrBadRequest, q.maxNew)
	}
	if b.N != nil && *b.N != 1 {
		return nil, 0, fmt.Errorf("%w: n %d, only 1 is simulated", ErrBadRequest, *b.N)
	}
	var err error
	if q.input, err = chatTokens(b.Messages); err != nil {
		return nil, 0, err
	}
	dpRank, err := chosenRank(b.RoutedDPRank, b.DataParallel)
	return q, dpRank, err
}

func (e *Engine) serveChat(w http.ResponseWriter, r *http.Request) {
	var body chatBody
	f := &chatFormat{engine: e, created: int64(wallSeconds())}
	if err := json.NewDecoder(r.Body).Decode(&body); err != nil {
		writeJSON(w, http.StatusBadRequest, f.fail("body: "+err.Error()))
		return
	}
	q, dpRank, err := body.request(e)
	if err != nil {
		writeJSON(w, http.StatusBadRequest, f.fail(err.Error()))
		return
	}
	f.q, f.usage = q, body.StreamOptions != nil && body.StreamOptions.IncludeUsage
	e.run(w, r, q, dpRank, f)
}

// chatFormat is the OpenAI API. Its events are increments.
type chatFormat struct {
	engine  *Engine
	q       *request
	usage   bool // a last event with the usage
	created int64
}

func (f *chatFormat) frame(object string, choices []any) map[string]any {
	return map[string]any{
		"id": f.q.rid, "object": object, "created": f.created, "model": f.engine.cfg.ModelName, "choices": choices,
	}
}

func (f *chatFormat) whole(p progress) any {
	answer := f.frame("chat.completion", []any{map[string]any{
		"index": 0, "message": map[string]any{"role": "assistant", "content": detokenize(p.output)},
		"finish_reason": p.reason.Type,
	}})
	answer["usage"] = usageOf(p)
	return answer
}

func usageOf(p progress) map[string]any {
	return map[string]any{
		"prompt_tokens": p.prompt, "completion_tokens": len(p.output), "total_tokens": p.prompt + len(p.output),
		"prompt_tokens_details": map[string]any{"cached_tokens": p.cached},
	}
}

func (f *chatFormat) events(p progress, sent int) []any {
	var out []any
	chunk := func(delta map[string]any, finish any) {
		out = append(out, f.frame("chat.completion.chunk", []any{map[string]any{"index": 0, "delta": delta, "finish_reason": finish}}))
	}
	if sent == 0 {
		chunk(map[string]any{"role": "assistant", "content": ""}, nil)
	}
	if len(p.output) > sent {
		chunk(map[string]any{"content": detokenize(p.output[sent:])}, nil)
	}
	if p.reason == nil {
		return out
	}
	chunk(map[string]any{}, p.reason.Type)
	if f.usage {
		last := f.frame("chat.completion.chunk", []any{})
		last["usage"] = usageOf(p)
		out = append(out, last)
	}
	return out
}

func (f *chatFormat) fail(message string) any {
	return map[string]any{"object": "error", "message": message, "type": "BadRequestError", "param": nil, "code": http.StatusBadRequest}
}
