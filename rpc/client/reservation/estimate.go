package reservation

import (
	"bytes"
	"encoding/json"
	"math"
	"sync"

	lru "github.com/hashicorp/golang-lru/v2"
)

// What a request is taken to be before usage tells better.
const (
	// bytesPerToken of ordinary text in UTF-8.
	bytesPerToken = 3.0
	// messageOverhead and requestOverhead are tokens that a chat template puts around a message, and
	// around a whole request.
	messageOverhead, requestOverhead = 6, 8
	// defaultSessions and defaultItemTokens are those of NewRequestEstimator.
	defaultSessions, defaultItemTokens = 10_000, 1024
)

// RequestEstimator estimates reservations for OpenAI-style requests, whose prompts are text, and learns
// from usage. Within a session the prompt of a turn is mostly that of the turn before and its answer, so
// the estimate is what the engine reported last plus what the request has grown by since. Safe for
// concurrent use.
type RequestEstimator struct {
	itemTokens, contextLength int64

	mu       sync.Mutex
	sessions *lru.Cache[string, seen]
	// rate is bytes to a token, the mean of the requests seen lately.
	rate float64
}

// EstimatorOptions change an estimator; the zero value of a field means its default.
type EstimatorOptions struct {
	// Sessions is how many sessions, those used last, are remembered. Default 10,000.
	Sessions int
	// ItemTokens is what an image, video or sound counts before usage is known. Default 1024.
	ItemTokens int64
	// ContextLength bounds prompts and limits, in tokens.
	ContextLength int64
}

// seen is the request of a session that usage is known of.
type seen struct {
	size   size
	tokens int64
}

// NewRequestEstimator returns an estimator that has learnt nothing yet.
func NewRequestEstimator(o EstimatorOptions) (*RequestEstimator, error) {
	if o.Sessions == 0 {
		o.Sessions = defaultSessions
	}
	if o.ItemTokens == 0 {
		o.ItemTokens = defaultItemTokens
	}
	for _, f := range []struct {
		name  string
		value int64
		least int64
	}{{"sessions", int64(o.Sessions), 1}, {"itemTokens", o.ItemTokens, 0}, {"contextLength", o.ContextLength, 0}} {
		if err := check(f.name, f.value, f.least); err != nil {
			return nil, err
		}
	}
	sessions, err := lru.New[string, seen](o.Sessions)
	if err != nil {
		return nil, err
	}
	return &RequestEstimator{itemTokens: o.ItemTokens, contextLength: o.ContextLength, sessions: sessions, rate: bytesPerToken}, nil
}

// Estimate is a reservation for the JSON body of one request: messages or prompt, tools, and the
// generation limit. An empty session is one of its own. The error wraps client.ErrInvalid.
func (e *RequestEstimator) Estimate(request []byte, session string) (Reservation, error) {
	body, err := parse(request)
	if err != nil {
		return Reservation{}, err
	}
	sampling, err := body.sampling(e.contextLength)
	if err != nil {
		return Reservation{}, err
	}
	prompt := e.prompt(body.size(), session)
	if e.contextLength > 0 {
		prompt = min(prompt, e.contextLength)
	}
	return FromPromptLength(min(prompt, MaxTokens), sampling)
}

func (e *RequestEstimator) prompt(s size, session string) int64 {
	e.mu.Lock()
	defer e.mu.Unlock()
	before, known := e.sessions.Get(session)
	if session == "" || !known || s.bytes < before.size.bytes || s.items < before.size.items {
		return ceil(s.bytes, e.rate) + s.fixed + s.items*e.itemTokens
	}
	return before.tokens + ceil(s.bytes-before.size.bytes, e.rate) + max(s.fixed-before.size.fixed, 0) +
		(s.items-before.size.items)*e.itemTokens
}

func ceil(bytes int64, rate float64) int64 { return int64(math.Ceil(float64(bytes) / rate)) }

// Learn notes what the engine counted for a request's prompt. A request that cannot be read teaches
// nothing.
func (e *RequestEstimator) Learn(request []byte, promptTokens int64, session string) error {
	if err := check("promptTokens", promptTokens, 0); err != nil {
		return err
	}
	body, err := parse(request)
	if err != nil {
		return err
	}
	s := body.size()
	if promptTokens == 0 || s.bytes == 0 {
		return nil
	}
	e.mu.Lock()
	defer e.mu.Unlock()
	if text := promptTokens - s.fixed; s.items == 0 && text > 0 {
		rate := min(max(float64(s.bytes)/float64(text), 0.25), 16)
		e.rate += 0.1 * (rate - e.rate)
	}
	if session != "" {
		e.sessions.Add(session, seen{s, promptTokens})
	}
	return nil
}

// Forget drops what was learnt of a session that is over.
func (e *RequestEstimator) Forget(session string) {
	e.mu.Lock()
	defer e.mu.Unlock()
	e.sessions.Remove(session)
}

// body is a request that was read.
type body map[string]any

func parse(request []byte) (body, error) {
	decoder := json.NewDecoder(bytes.NewReader(request))
	decoder.UseNumber()
	var out body
	if err := decoder.Decode(&out); err != nil || out == nil {
		return nil, invalid("request", "no JSON object", "the body of an OpenAI-style request")
	}
	return out, nil
}

// sampling reads the limit under whichever name it has.
func (b body) sampling(contextLength int64) (s Sampling, err error) {
	s.ContextLength = contextLength
	if s.N, _, err = b.integer("n"); err != nil {
		return s, err
	}
	for _, name := range []string{"max_new_tokens", "max_completion_tokens", "max_tokens"} {
		limit, said, err := b.integer(name)
		if err != nil || said {
			if said && limit == 0 {
				limit = NoNewTokens
			}
			s.MaxNewTokens = limit
			return s, err
		}
	}
	return s, nil
}

func (b body) integer(name string) (value int64, said bool, err error) {
	if b[name] == nil {
		return 0, false, nil
	}
	n, ok := b[name].(json.Number)
	if value, err = n.Int64(); !ok || err != nil || value < 0 || value > MaxTokens {
		return 0, false, invalid(name, b[name], "an integer from 0 to 1000000000000")
	}
	return value, true, nil
}

// size is that of a request without a tokenizer: bytes of text, tokens that are known, and items that
// are no text.
type size struct{ bytes, fixed, items int64 }

func (b body) size() (s size) {
	s.fixed = requestOverhead
	if messages, ok := b["messages"].([]any); ok {
		s.fixed += messageOverhead * int64(len(messages))
		for _, m := range messages {
			s.add(m)
		}
	}
	s.add(b["prompt"])
	s.add(b["tools"])
	return s
}

func (s *size) add(part any) {
	switch x := part.(type) {
	case string:
		s.bytes += int64(len(x))
	case []any:
		if ids := numbers(x); ids > 0 {
			s.fixed += ids // a prompt of token ids
			return
		}
		for _, v := range x {
			s.add(v)
		}
	case map[string]any:
		if kind, _ := x["type"].(string); item[kind] {
			s.items++
			return
		}
		for key, v := range x {
			if key != "role" {
				s.add(v)
			}
		}
	}
}

// numbers returns how many a list has when it has nothing else.
func numbers(list []any) int64 {
	for _, v := range list {
		if _, ok := v.(json.Number); !ok {
			return 0
		}
	}
	return int64(len(list))
}

// item are the types of parts that are no text.
var item = map[string]bool{
	"image_url": true, "image": true, "video_url": true, "video": true, "audio_url": true, "input_audio": true, "audio": true,
}
