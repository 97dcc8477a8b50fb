package ledger

// queue orders waiters by priority, higher first, and by number within a priority. It is a treap with
// subtree sizes: push, remove, head and position cost O(log n). Its shape depends only on the numbers
// of its members, so it is the same on every node.
type queue struct{ root *waiter }

// links are a waiter's place in the queue.
type links struct {
	left, right *waiter
	size        int
	weight      uint64
}

func (q *queue) len() int { return q.root.count() }

func (w *waiter) count() int {
	if w == nil {
		return 0
	}
	return w.size
}

func (w *waiter) resize() { w.size = 1 + w.left.count() + w.right.count() }

// ahead reports whether a is served before b.
func ahead(a, b *waiter) bool {
	if a.Priority != b.Priority {
		return a.Priority > b.Priority
	}
	return a.Seq < b.Seq
}

// head returns the waiter that is served next, or nil.
func (q *queue) head() *waiter {
	w := q.root
	for w != nil && w.left != nil {
		w = w.left
	}
	return w
}

func (q *queue) push(w *waiter) {
	w.links = links{size: 1, weight: scatter(uint64(w.Seq))}
	q.root = insert(q.root, w)
}

func (q *queue) remove(w *waiter) {
	q.root = removeFrom(q.root, w)
	w.links = links{}
}

// position returns the waiter's place, 1 for the head.
func (q *queue) position(w *waiter) int {
	pos := 1
	for n := q.root; n != nil && n != w; {
		if ahead(w, n) {
			n = n.left
		} else {
			pos += 1 + n.left.count()
			n = n.right
		}
	}
	return pos + w.left.count()
}

// at returns the waiter at a position, or nil.
func (q *queue) at(pos int) *waiter {
	n := q.root
	for n != nil {
		switch left := n.left.count(); {
		case pos <= left:
			n = n.left
		case pos == left+1:
			return n
		default:
			pos -= left + 1
			n = n.right
		}
	}
	return nil
}

// each calls fn in queue order until it returns false. The queue must not change meanwhile.
func (q *queue) each(fn func(*waiter) bool) { walk(q.root, fn) }

// all returns the waiters in queue order.
func (q *queue) all() []*waiter {
	out := make([]*waiter, 0, q.len())
	q.each(func(w *waiter) bool { out = append(out, w); return true })
	return out
}

func walk(n *waiter, fn func(*waiter) bool) bool {
	return n == nil || walk(n.left, fn) && fn(n) && walk(n.right, fn)
}

func insert(n, w *waiter) *waiter {
	if n == nil {
		return w
	}
	if w.weight > n.weight {
		w.left, w.right = split(n, w)
		w.resize()
		return w
	}
	if ahead(w, n) {
		n.left = insert(n.left, w)
	} else {
		n.right = insert(n.right, w)
	}
	n.resize()
	return n
}

// split parts the tree into what is served before w and what is served after it.
func split(n, w *waiter) (before, after *waiter) {
	if n == nil {
		return nil, nil
	}
	if ahead(n, w) {
		n.right, after = split(n.right, w)
		n.resize()
		return n, after
	}
	before, n.left = split(n.left, w)
	n.resize()
	return before, n
}

func removeFrom(n, w *waiter) *waiter {
	switch {
	case n == nil:
		return nil
	case n == w:
		return merge(w.left, w.right)
	case ahead(w, n):
		n.left = removeFrom(n.left, w)
	default:
		n.right = removeFrom(n.right, w)
	}
	n.resize()
	return n
}

func merge(a, b *waiter) *waiter {
	switch {
	case a == nil:
		return b
	case b == nil:
		return a
	case a.weight > b.weight:
		a.right = merge(a.right, b)
		a.resize()
		return a
	}
	b.left = merge(a, b.left)
	b.resize()
	return b
}

// scatter is the finaliser of SplitMix64: a fixed permutation that spreads consecutive numbers.
func scatter(x uint64) uint64 {
	x += 0x9e3779b97f4a7c15
	x = (x ^ x>>30) * 0xbf58476d1ce4e5b9
	x = (x ^ x>>27) * 0x94d049bb133111eb
	return x ^ x>>31
}
