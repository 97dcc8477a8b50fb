package sessions

import "container/heap"

// due is one deadline, embedded in what it belongs to. Its order is total: numbers are never shared.
type due struct {
	at  Time
	seq uint64
	// pos is 1 + the index in the heap; 0 when not armed.
	pos int
}

func (d *due) slot() *due { return d }

// timed is a session, a ticket or a pin.
type timed interface{ slot() *due }

// arm sets the deadline of x, whether or not it has one.
func (t *Table) arm(x timed, at Time) {
	d := x.slot()
	switch {
	case d.pos == 0:
		d.at = at
		heap.Push(&t.due, x)
	case d.at != at:
		d.at = at
		heap.Fix(&t.due, d.pos-1)
	}
}

func (t *Table) disarm(x timed) {
	if d := x.slot(); d.pos > 0 {
		heap.Remove(&t.due, d.pos-1)
	}
}

type dueHeap []timed

func (h dueHeap) Len() int { return len(h) }

func (h dueHeap) Less(i, j int) bool {
	a, b := h[i].slot(), h[j].slot()
	return a.at < b.at || a.at == b.at && a.seq < b.seq
}

func (h dueHeap) Swap(i, j int) {
	h[i], h[j] = h[j], h[i]
	h[i].slot().pos, h[j].slot().pos = i+1, j+1
}

func (h *dueHeap) Push(x any) {
	*h = append(*h, x.(timed))
	x.(timed).slot().pos = len(*h)
}

func (h *dueHeap) Pop() any {
	old := *h
	x := old[len(old)-1]
	old[len(old)-1] = nil
	*h = old[:len(old)-1]
	x.slot().pos = 0
	return x
}
