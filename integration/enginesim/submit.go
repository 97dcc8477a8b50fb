package enginesim

import (
	"fmt"
	"slices"
	"strings"
)

// submit hands q to a rank. It checks what the engine's tokenizer process checks before any
// scheduler hears of the request.
func (e *Engine) submit(q *request, dpRank int) (*rank, error) {
	if len(q.input) == 0 {
		return nil, fmt.Errorf("%w: the prompt is empty", ErrBadRequest)
	}
	longest := min(e.cfg.ContextLen, e.cfg.PoolTokens) - 1
	if len(q.input) >= longest-5 {
		return nil, fmt.Errorf("%w: the input (%d tokens) is longer than the model's context length or the KV pool allows (%d tokens)",
			ErrBadRequest, len(q.input), longest-5)
	}
	q.maxNew = min(q.maxNew, longest-len(q.input)-1)
	ranks := e.current().ranks
	k, err := e.route(ranks, q, dpRank)
	if err != nil {
		return nil, err
	}
	q.arrived = k.clock.Now()
	if q.slotID != "" {
		for _, other := range ranks {
			other.post(func() { other.touchSlot(q.slotID) })
		}
	}
	if !k.post(func() { k.enqueue(q) }) {
		return nil, ErrStopped
	}
	return k, nil
}

// route picks the DP rank: the one asked for, the home of an opened session, else the next in turn.
// Round robin is the engine's default and knows nothing of prefixes.
func (e *Engine) route(ranks []*rank, q *request, dpRank int) (*rank, error) {
	switch {
	case dpRank >= len(ranks):
		return nil, fmt.Errorf("%w: routed_dp_rank %d, want less than dp_size %d", ErrBadRequest, dpRank, len(ranks))
	case dpRank >= 0:
		return ranks[dpRank], nil
	case q.slotID != "":
		return ranks[hashBytes(q.slotID)%uint64(len(ranks))], nil
	default:
		return ranks[e.turn.Add(1)%uint64(len(ranks))], nil
	}
}

// enqueue runs on the rank's goroutine.
func (k *rank) enqueue(q *request) {
	if err := k.attach(q); err != nil {
		k.later(func() { q.end(nil, err, k.now) })
		return
	}
	if k.cfg.CloseMode == CloseForgets {
		k.tree.Revive(q.session)
	}
	q.prompt = len(q.fill)
	q.hash = hashTokens(q.fill)
	q.limit = q.maxNew
	if !q.ignoreEOS {
		q.limit = min(q.maxNew, outputLength(k.cfg.Seed, q.hash, k.cfg.OutputMin, k.cfg.OutputMax))
	}
	q.mu.Lock()
	q.promptLen = q.prompt
	q.mu.Unlock()
	k.waiting = append(k.waiting, q)
}

// attach sets the full prompt: the conversation of the opened session, if one is named, and the input.
func (k *rank) attach(q *request) error {
	if q.slotID == "" {
		q.fill = q.input
		return nil
	}
	s := k.slots[q.slotID]
	switch {
	case s == nil || s.closing:
		return fmt.Errorf("%w: %q", ErrUnknownSession, q.slotID)
	case s.busy:
		return fmt.Errorf("%w: session %q has a request in flight", ErrBadRequest, q.slotID)
	case len(s.tokens)+len(q.input)+q.maxNew >= min(k.cfg.ContextLen, k.cfg.PoolTokens):
		return fmt.Errorf("%w: session %q with %d more tokens is longer than the context", ErrBadRequest, q.slotID, len(q.input))
	}
	s.busy, s.touched = true, k.now
	q.slot = s
	q.fill = append(append(make([]int32, 0, len(s.tokens)+len(q.input)+q.maxNew), s.tokens...), q.input...)
	return nil
}

// abortPrefix ends every request whose rid starts with prefix. An empty prefix therefore ends all.
func (k *rank) abortPrefix(prefix string) {
	for _, q := range k.all() {
		if strings.HasPrefix(q.rid, prefix) {
			k.abort(q, "Aborted by AbortReq.")
		}
	}
}

// abortOne ends q if it has not ended.
func (k *rank) abortOne(q *request) {
	if slices.Contains(k.all(), q) {
		k.abort(q, "Client disconnected.")
	}
}
