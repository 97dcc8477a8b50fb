package enginesim

import (
	"slices"
	"time"
)

const (
	decodeLogInterval = 40 // decode steps between gauge refreshes
	retractSteps      = 20 // steps a retraction plans ahead when it raises the new-token ratio
)

// reserveDecode allocates one token for every running request, and retracts requests while that is
// not possible even after eviction.
func (k *rank) reserveDecode() {
	if k.makeRoom(len(k.running)) {
		k.ratio = max(k.cfg.NewTokenRatioMin, k.ratio-k.decay())
	} else {
		k.retractUntilFits()
	}
	for _, q := range k.running {
		q.private++
	}
	k.private += len(k.running)
}

func (k *rank) decay() float64 {
	return (k.cfg.NewTokenRatio - k.cfg.NewTokenRatioMin) / float64(k.cfg.NewTokenDecay)
}

// retractUntilFits sends the requests with the least output (of those, the longest prompt) back to
// the end of the queue until one step fits. A last request that still does not fit is aborted.
func (k *rank) retractUntilFits() {
	for len(k.running) > 1 && !k.makeRoom(len(k.running)) {
		k.retract(slices.MinFunc(k.running, func(a, b *request) int {
			if d := a.generated() - b.generated(); d != 0 {
				return d
			}
			return b.prompt - a.prompt
		}))
	}
	if !k.makeRoom(len(k.running)) {
		k.abort(k.running[0], "out of memory even after retracting all other requests in the decode batch")
	}
	k.ratio = k.ratioAfterRetract()
}

// retract frees what only q holds. What of it is in the tree stays there, evictable.
func (k *rank) retract(q *request) {
	k.ghost.add(q.fill[:q.kv()])
	k.drop(q)
	k.running = without(k.running, q)
	k.waiting = append(k.waiting, q)
	k.count.retracted++
	k.count.retractedNow++
	q.mu.Lock()
	q.retractions++
	q.mu.Unlock()
}

// drop gives up the KV of q without caching it.
func (k *rank) drop(q *request) {
	k.private -= q.private
	if q.node != nil {
		k.tree.Unlock(q.node)
	}
	q.node, q.prefix, q.private = nil, 0, 0
	if q.slot != nil {
		q.slot.lent = false
	}
}

func (k *rank) ratioAfterRetract() float64 {
	written, limit := retractSteps*len(k.running), 1
	for _, q := range k.running {
		written += q.generated()
		limit += q.maxNew
	}
	return min(1, float64(written)/float64(limit))
}

// decodeTime is the duration of one step: a sequence alone runs at DecodeRate, each further one adds its share.
func (k *rank) decodeTime() time.Duration {
	step := float64(time.Second) / k.cfg.DecodeRate
	return time.Duration(step * (1 + k.cfg.DecodeSlowdown*float64(len(k.running)-1)))
}

func (k *rank) commitDecode() {
	batch := slices.Clone(k.running)
	k.count.decoded += len(batch)
	k.count.decodeSteps++
	for _, q := range batch {
		if q.emit(k.cfg.Seed, k.now) {
			k.finish(q)
		}
	}
	if k.count.decodeSteps%decodeLogInterval == 0 || k.cfg.LiveGauges {
		k.refresh()
	}
}

// finish ends a running request that wrote its last token: its KV becomes evictable cache, tagged
// with its session, or goes back to the slot of its streaming session.
func (k *rank) finish(q *request) {
	k.running = without(k.running, q)
	k.keep(q)
	k.count.completed++
	reason := &finishReason{Type: "length", Length: q.generated()}
	if !q.ignoreEOS && q.generated() < q.maxNew {
		reason = &finishReason{Type: "stop", Matched: endOfTurn}
	}
	k.later(func() { q.end(reason, nil, k.now) })
}

// keep caches the KV of a request that is over.
func (k *rank) keep(q *request) {
	if q.slot != nil && q.slot.keep(k, q) {
		return
	}
	tokens := q.fill[:q.kv()]
	k.ghost.add(tokens)
	node, _ := k.tree.Insert(tokens)
	k.private -= q.private
	k.tree.Unlock(q.node)
	if k.cfg.SessionRadix {
		k.tree.Tag(node, q.session)
	}
}

// abort ends a request wherever it is.
func (k *rank) abort(q *request, message string) {
	switch {
	case q == k.chunked:
		k.chunked = nil
		k.keep(q)
	case slices.Contains(k.running, q):
		k.running = without(k.running, q)
		k.keep(q)
	default:
		k.waiting = without(k.waiting, q)
		if q.slot != nil {
			q.slot.idle(k)
		}
	}
	k.count.aborted++
	k.later(func() { q.end(&finishReason{Type: "abort", Message: message}, nil, k.now) })
}

func without(list []*request, q *request) []*request {
	i := slices.Index(list, q)
	if i < 0 {
		return list
	}
	return slices.Delete(list, i, i+1)
}
