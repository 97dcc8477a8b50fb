// Package reservation computes how many tokens to reserve for one generate call. Names and results are
// those of the Python module kvgate.reservation.
//
// A reservation is the processor-expanded prompt plus the generation limit; the pool may cap what it
// counts of the limit (expected_decode_cap). Reserve what the engine will hold: too little lets the
// engines run out of KV and evict, too much makes others wait.
//
//	r, err := reservation.FromTokenIDs(ids, reservation.Sampling{MaxNewTokens: 4096, ContextLength: 32768})
//	…
//	grant, err := c.Acquire(ctx, r.Request(client.Request{Ticket: "req-17:0", Session: "req-17"}))
package reservation

import (
	"fmt"

	"connectrpc.com/connect"

	"kvgate/rpc/client"
)

const (
	// DefaultMaxNewTokens is what an engine generates at most when a request does not say: SGLang's own
	// default.
	DefaultMaxNewTokens = 128
	// MaxTokens is the most that any amount may be.
	MaxTokens = 1_000_000_000_000
	// NoNewTokens as a limit asks for none, as a call that only fills the cache does.
	NoNewTokens = -1
)

// Reservation is the tokens of one attempt. The pool charges PromptTokens + min(MaxNewTokens,
// expected_decode_cap).
type Reservation struct {
	PromptTokens, MaxNewTokens int64
}

// Sampling is what bounds how much is generated. The zero value is a request that does not say.
type Sampling struct {
	// MaxNewTokens is the generation limit, in tokens; 0 means not said, NoNewTokens none.
	MaxNewTokens int64
	// N is the number of completions, each of which holds KV of its own while the prompt is shared; 0
	// means 1.
	N int64
	// ContextLength bounds prompt and limit together as the engine does, in tokens; 0 means unknown.
	ContextLength int64
}

// Tokens is the most that may be charged.
func (r Reservation) Tokens() int64 { return r.PromptTokens + r.MaxNewTokens }

// Capped is what a pool with this expected_decode_cap charges.
func (r Reservation) Capped(expectedDecodeCap int64) int64 {
	return r.PromptTokens + min(r.MaxNewTokens, max(expectedDecodeCap, 0))
}

// Remaining is the same attempt continued after completed tokens, as partial rollout does. They move
// from the limit to the prompt; beyond the limit they only lengthen the prompt.
func (r Reservation) Remaining(completed int64) Reservation {
	completed = max(completed, 0)
	return Reservation{r.PromptTokens + completed, max(r.MaxNewTokens-completed, 0)}
}

// Request returns req with the reservation in it.
func (r Reservation) Request(req client.Request) client.Request {
	req.PromptTokens, req.MaxNewTokens, req.ReservationTokens = r.PromptTokens, r.MaxNewTokens, 0
	return req
}

// FromTokenIDs is the reservation for one prompt that is tokenised, and expanded by its processor,
// already. The error wraps client.ErrInvalid and names the field.
func FromTokenIDs[T any](tokenIDs []T, s Sampling) (Reservation, error) {
	return FromPromptLength(int64(len(tokenIDs)), s)
}

// FromPromptLength is the reservation for a prompt of so many tokens.
func FromPromptLength(promptTokens int64, s Sampling) (Reservation, error) {
	if err := check("promptTokens", promptTokens, 0); err != nil {
		return Reservation{}, err
	}
	limit, err := s.limit(promptTokens)
	return Reservation{promptTokens, limit}, err
}

// limit is the most that is generated after a prompt, over all completions.
func (s Sampling) limit(promptTokens int64) (int64, error) {
	if err := check("maxNewTokens", s.MaxNewTokens, NoNewTokens); err != nil {
		return 0, err
	}
	if err := check("n", s.N, 0); err != nil {
		return 0, err
	}
	if err := check("contextLength", s.ContextLength, 0); err != nil {
		return 0, err
	}
	room := max(s.ContextLength-promptTokens, 0)
	limit := s.MaxNewTokens
	switch {
	case limit == NoNewTokens:
		return 0, nil
	case limit == 0 && s.ContextLength > 0:
		limit = room
	case limit == 0:
		limit = DefaultMaxNewTokens
	case s.ContextLength > 0:
		limit = min(limit, room)
	}
	n := max(s.N, 1)
	if limit > MaxTokens/n {
		return 0, check("maxNewTokens", MaxTokens+1, 0)
	}
	return limit * n, nil
}

// FromMultimodal is the reservation for a multimodal prompt from what its processor expands each item to.
// textTokens counts the tokenised text with its placeholders, placeholderTokens of them for each item (0
// when the text has none); itemTokens are the expanded lengths of the images, videos and sounds.
func FromMultimodal(textTokens int64, itemTokens []int64, placeholderTokens int64, s Sampling) (Reservation, error) {
	if err := check("textTokens", textTokens, 0); err != nil {
		return Reservation{}, err
	}
	if err := check("placeholderTokens", placeholderTokens, 0); err != nil {
		return Reservation{}, err
	}
	prompt := textTokens
	for _, n := range itemTokens {
		if err := check("itemTokens", n, 0); err != nil {
			return Reservation{}, err
		}
		if prompt += n; prompt > 2*MaxTokens {
			break // refused below, before it overflows
		}
	}
	replaced := int64(len(itemTokens)) * min(placeholderTokens, MaxTokens/max(int64(len(itemTokens)), 1))
	if replaced > textTokens {
		return Reservation{}, invalid("textTokens", textTokens, fmt.Sprintf("%d or more: %d items with %d placeholder tokens each",
			replaced, len(itemTokens), placeholderTokens))
	}
	return FromPromptLength(prompt-replaced, s)
}

func check(field string, tokens, least int64) error {
	if tokens >= least && tokens <= MaxTokens {
		return nil
	}
	return invalid(field, tokens, fmt.Sprintf("an integer from %d to %d", least, int64(MaxTokens)))
}

func invalid(field string, value any, allowed string) error {
	return &client.Error{
		Code: connect.CodeInvalidArgument, Field: field,
		Err: fmt.Errorf("%w: %s is %v, allowed is %s", client.ErrInvalid, field, value, allowed),
	}
}
