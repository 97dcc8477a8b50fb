package enginesim

import "time"

// piece is a part of a prompt computed in one prefill batch.
type piece struct {
	q     *request
	size  int
	whole bool // the prompt is complete with it
}

// budget is what SGLang's PrefillAdder counts down while it fills a batch.
type budget struct {
	reserved int // tokens the batch's own requests may still write
	input    int // prompt tokens that may enter yet
	chunk    int // prompt tokens until the chunk is full
}

// planPrefill picks the next prefill batch, first come first served, and allocates its KV. It stops
// at the first request that does not fit: nothing overtakes the head of the queue.
func (k *rank) planPrefill() []piece {
	if k.chunked == nil && (len(k.waiting) == 0 || len(k.running) >= k.cfg.MaxRunning) {
		return nil
	}
	b := budget{input: k.cfg.MaxPrefill, chunk: k.cfg.ChunkedPrefill}
	var batch []piece
	if k.chunked != nil {
		p := k.continueChunk(&b)
		if p.size == 0 {
			return nil
		}
		batch = append(batch, p)
	}
	for k.chunked == nil && len(k.waiting) > 0 && len(k.running)+len(batch) < k.cfg.MaxRunning {
		p, ok := k.admit(k.waiting[0], &b, len(batch) == 0)
		if !ok {
			break
		}
		k.waiting = k.waiting[1:]
		batch = append(batch, p)
	}
	return batch
}

// unreserved is what admission may give away: free and evictable tokens, less the share of what
// the running requests may still write. Tokens of the batch being filled are allocated and locked
// already, so they are out of it.
func (k *rank) unreserved() int {
	n := k.available() + k.tree.Evictable()
	for _, q := range k.running {
		n -= int(float64(q.reserve()) * k.ratio)
	}
	return n
}

func (k *rank) continueChunk(b *budget) piece {
	q := k.chunked
	p := piece{q: q, size: min(len(q.fill)-q.kv(), b.chunk)}
	if !k.makeRoom(p.size) {
		return piece{}
	}
	p.whole = q.kv()+p.size == len(q.fill)
	k.take(p, b)
	if p.whole {
		k.chunked = nil
	}
	return p
}

// admit tries to put q into the batch. On false q is as it was.
func (k *rank) admit(q *request, b *budget, empty bool) (piece, bool) {
	k.match(q)
	extend := len(q.fill) - q.kv()
	fits := extend+q.reserve() < k.unreserved()-b.reserved && b.chunk > 0 && (extend < b.input || empty)
	p := piece{q: q, size: min(extend, b.chunk), whole: extend <= b.chunk}
	if !fits || !k.makeRoom(p.size) {
		k.unmatch(q)
		return piece{}, false
	}
	k.noteAdmission(q, extend)
	if !p.whole {
		k.chunked = q
	}
	k.take(p, b)
	return p, true
}

// match locks the cached prefix of q. At least one token is always left to compute, for the logits.
func (k *rank) match(q *request) {
	if q.slot != nil && q.slot.holds() {
		q.slot.lend(q)
		return
	}
	q.node, q.prefix = k.tree.Match(q.fill[:len(q.fill)-1])
	k.tree.Lock(q.node)
}

func (k *rank) unmatch(q *request) {
	if q.slot != nil && q.slot.lent {
		q.slot.takeBack(q)
		return
	}
	k.tree.Unlock(q.node)
	q.node, q.prefix = nil, 0
}

func (k *rank) noteAdmission(q *request, extend int) {
	k.count.prefillCached += q.kv()
	k.count.recomputed += min(extend, max(0, k.ghost.match(q.fill)-q.kv()))
	q.mu.Lock()
	defer q.mu.Unlock()
	if q.retractions == 0 {
		q.cached, q.started = q.kv(), k.now
	}
}

// take allocates the piece and charges the batch for it; a last piece also for the output to come.
func (k *rank) take(p piece, b *budget) {
	p.q.private += p.size
	k.private += p.size
	b.input -= p.size
	b.chunk -= p.size
	if p.whole {
		b.reserved += p.q.reserve()
	}
	k.count.prefillComputed += p.size
}

func (k *rank) prefillTime(batch []piece) time.Duration {
	n := 0
	for _, p := range batch {
		n += p.size
	}
	return k.cfg.PrefillCost + time.Duration(float64(n)/k.cfg.PrefillRate*float64(time.Second))
}

// commitPrefill ends the batch: its KV enters the tree, and every complete prompt has its first token.
func (k *rank) commitPrefill(batch []piece) {
	for _, p := range batch {
		k.cacheUnfinished(p.q)
		if !p.whole {
			continue
		}
		k.count.decoded++
		k.running = append(k.running, p.q)
		if p.q.emit(k.cfg.Seed, k.now) {
			k.finish(p.q)
		}
	}
	k.refresh()
}

// cacheUnfinished moves what q computed into the tree, where others can share it, and locks it
// there. Later turns of a streaming session stay outside the tree [sglang 19171].
func (k *rank) cacheUnfinished(q *request) {
	computed := q.fill[:q.kv()]
	k.ghost.add(computed)
	if q.slot != nil && q.slot.lent {
		return
	}
	node, _ := k.tree.Insert(computed)
	k.tree.Lock(node)
	k.tree.Unlock(q.node)
	k.private -= q.private
	q.node, q.prefix, q.private = node, len(computed), 0
}
