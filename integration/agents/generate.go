package agents

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"strconv"
	"time"
)

// answerLimit bounds the body of an answer, bytes.
const answerLimit = 64 << 20

// caller makes generate calls.
type caller struct {
	url  string
	http *http.Client
}

// newCaller keeps a connection for each session: they all call at once.
func newCaller(url string, sessions int) *caller {
	return &caller{url: url, http: &http.Client{Transport: &http.Transport{
		Proxy: nil, MaxIdleConns: 0, MaxIdleConnsPerHost: sessions, DisableCompression: true,
	}}}
}

func (c *caller) close() { c.http.CloseIdleConnections() }

// answer is the part of a generate call's answer that a session looks at.
type answer struct {
	OutputIDs []int32 `json:"output_ids"`
	Meta      struct {
		Prompt      int     `json:"prompt_tokens"`
		Completion  int     `json:"completion_tokens"`
		Cached      int     `json:"cached_tokens"`
		Latency     float64 `json:"e2e_latency"` // seconds of engine time
		Retractions int     `json:"num_retractions"`
		Finish      *struct {
			Type    string `json:"type"`
			Message string `json:"message"`
		} `json:"finish_reason"`
	} `json:"meta_info"`
}

func (a *answer) engineTime() time.Duration {
	return time.Duration(a.Meta.Latency * float64(time.Second))
}

// generate sends one call with the encoded history and returns its complete answer, or an error that
// wraps [ErrGenerate] unless ctx ended.
func (c *caller) generate(ctx context.Context, call Call, history []byte) (*answer, error) {
	req, err := http.NewRequestWithContext(ctx, http.MethodPost, c.url+"/generate", bytes.NewReader(body(call, history)))
	if err != nil {
		return nil, fmt.Errorf("%w: %w", ErrGenerate, err)
	}
	req.Header.Set("Content-Type", "application/json")
	resp, err := c.http.Do(req)
	if err != nil {
		return nil, generateError(ctx, err)
	}
	defer resp.Body.Close()
	raw, err := io.ReadAll(io.LimitReader(resp.Body, answerLimit))
	if err != nil {
		return nil, generateError(ctx, err)
	}
	if resp.StatusCode != http.StatusOK {
		return nil, fmt.Errorf("%w: status %d: %.200s", ErrGenerate, resp.StatusCode, raw)
	}
	var a answer
	if err := json.Unmarshal(raw, &a); err != nil {
		return nil, fmt.Errorf("%w: %w", ErrGenerate, err)
	}
	if a.Meta.Finish == nil || a.Meta.Finish.Type == "abort" {
		return nil, fmt.Errorf("%w: the engine gave up on it: %.200s", ErrGenerate, raw)
	}
	return &a, nil
}

func generateError(ctx context.Context, err error) error {
	if ctx.Err() != nil {
		return ctx.Err()
	}
	return fmt.Errorf("%w: %w", ErrGenerate, err)
}

// body writes the request by hand: a history of tens of thousands of ids is encoded once per token and
// not once per turn.
func body(call Call, history []byte) []byte {
	out := make([]byte, 0, len(history)+256)
	out = append(out, `{"session_id":`...)
	out = strconv.AppendQuote(out, call.Session)
	out = append(out, `,"rid":`...)
	out = strconv.AppendQuote(out, call.Ticket)
	out = append(out, `,"sampling_params":{"max_new_tokens":`...)
	out = strconv.AppendInt(out, int64(call.MaxNewTokens), 10)
	out = append(out, `},"input_ids":[`...)
	out = append(out, history...)
	return append(out, "]}"...)
}

// appendIDs adds token ids to an encoded history.
func appendIDs(history []byte, ids []int32) []byte {
	for _, id := range ids {
		if len(history) > 0 {
			history = append(history, ',')
		}
		history = strconv.AppendInt(history, int64(id), 10)
	}
	return history
}
