package radix

// leafHeap orders evictable leaves for eviction: oldest access first, then oldest node, so that
// eviction is deterministic. Session tags play no part (tagged KV is LRU-neutral [sglang 27058])
// unless the tree prefers to keep what an open session refers to [sglang 29173].
type leafHeap []*Node

func (h leafHeap) Len() int { return len(h) }

func (h leafHeap) Less(i, j int) bool {
	a, b := h[i], h[j]
	if a.held != b.held {
		return b.held
	}
	if a.access != b.access {
		return a.access < b.access
	}
	return a.id < b.id
}

func (h leafHeap) Swap(i, j int) {
	h[i], h[j] = h[j], h[i]
	h[i].slot, h[j].slot = i, j
}

// Push implements heap.Interface.
func (h *leafHeap) Push(x any) {
	n, ok := x.(*Node)
	if !ok {
		return
	}
	n.slot = len(*h)
	*h = append(*h, n)
}

// Pop implements heap.Interface.
func (h *leafHeap) Pop() any {
	last := len(*h) - 1
	n := (*h)[last]
	(*h)[last] = nil
	*h = (*h)[:last]
	n.slot = -1
	return n
}
