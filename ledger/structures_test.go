package ledger

import (
	"container/heap"
	"slices"
	"testing"

	"pgregory.net/rapid"
)

// TestQueue compares the queue with a sorted slice.
func TestQueue(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		var q queue
		var want []*waiter
		seq := Seq(0)
		t.Repeat(map[string]func(*rapid.T){
			"push": func(t *rapid.T) {
				seq += Seq(rapid.IntRange(1, 1000).Draw(t, "gap"))
				w := &waiter{WaiterRow: WaiterRow{Seq: seq, Priority: rapid.Int32Range(-2, 2).Draw(t, "priority")}}
				q.push(w)
				want = append(want, w)
				slices.SortFunc(want, func(a, b *waiter) int {
					if a.Priority != b.Priority {
						return int(b.Priority - a.Priority)
					}
					return int(a.Seq) - int(b.Seq)
				})
			},
			"remove": func(t *rapid.T) {
				if len(want) == 0 {
					return
				}
				i := rapid.IntRange(0, len(want)-1).Draw(t, "which")
				q.remove(want[i])
				want = slices.Delete(want, i, i+1)
			},
			"": func(t *rapid.T) { checkQueueOrder(t, &q, want) },
		})
	})
}

func checkQueueOrder(t *rapid.T, q *queue, want []*waiter) {
	if q.len() != len(want) || !slices.Equal(q.all(), want) {
		t.Fatalf("queue of %d differs from %d sorted", q.len(), len(want))
	}
	for i, w := range want {
		if q.position(w) != i+1 || q.at(i+1) != w {
			t.Fatalf("place %d: position %d, at gives seq %d", i+1, q.position(w), q.at(i+1).Seq)
		}
	}
	if q.at(0) != nil || q.at(len(want)+1) != nil {
		t.Fatal("a waiter outside the queue")
	}
	if head := q.head(); (head == nil) != (len(want) == 0) || head != nil && head != want[0] {
		t.Fatalf("head %v", head)
	}
	stopped := 0
	q.each(func(*waiter) bool { stopped++; return stopped < 2 })
	if stopped != min(2, len(want)) {
		t.Fatalf("each went on to %d", stopped)
	}
}

// TestQueueDepth: the tree stays shallow for numbers that come in order, so that recursion is bounded.
func TestQueueDepth(t *testing.T) {
	var q queue
	for i := range 100_000 {
		q.push(&waiter{WaiterRow: WaiterRow{Seq: Seq(i + 1)}})
	}
	if d := depth(q.root); d > 64 {
		t.Errorf("depth %d for 100000 waiters", d)
	}
}

func depth(w *waiter) int {
	if w == nil {
		return 0
	}
	return 1 + max(depth(w.left), depth(w.right))
}

func (s *seqListItem) number() Seq { return Seq(*s) }

type seqListItem Seq

// TestSeqList compares the list with a slice, over enough items to make it compact itself.
func TestSeqList(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		var list seqList[*seqListItem]
		var want []*seqListItem
		last := Seq(0)
		push := func(n int) {
			for range n {
				last += Seq(rapid.IntRange(1, 3).Draw(t, "gap"))
				x := seqListItem(last)
				list.push(&x)
				want = append(want, &x)
			}
		}
		t.Repeat(map[string]func(*rapid.T){
			"push": func(t *rapid.T) { push(rapid.IntRange(1, 40).Draw(t, "n")) },
			"remove": func(t *rapid.T) {
				for range rapid.IntRange(1, 40).Draw(t, "n") {
					if len(want) == 0 {
						return
					}
					i := rapid.IntRange(0, len(want)-1).Draw(t, "which")
					list.remove(want[i])
					list.remove(want[i]) // a second time does nothing
					want = slices.Delete(want, i, i+1)
				}
			},
			"": func(t *rapid.T) {
				from := Seq(rapid.Uint64Range(0, uint64(last)+2).Draw(t, "from"))
				rest := slices.DeleteFunc(slices.Clone(want), func(x *seqListItem) bool { return x.number() <= from })
				if got := slices.Collect(list.after(from)); !slices.Equal(got, rest) {
					t.Fatalf("after %d: %d items, want %d", from, len(got), len(rest))
				}
				if list.len() != len(want) || !slices.Equal(list.all(), want) {
					t.Fatalf("%d items, want %d", list.len(), len(want))
				}
			},
		})
		stranger := seqListItem(last + 1)
		if list.remove(&stranger); list.len() != len(want) {
			t.Fatal("removed what was not there")
		}
	})
}

// nothing owns a timer of the heap test.
type nothing struct{}

func (nothing) expire(*Ledger) {}

// TestTimerOrder: whatever the order in which timers were armed, moved and disarmed, they go off by
// time, rank, number and name.
func TestTimerOrder(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		l := New()
		timers := make([]*timer, 12)
		for i := range timers {
			timers[i] = &timer{rank: uint8(i % 4), seq: Seq(i / 6), name: string(rune('a' + i)), owner: nothing{}}
		}
		t.Repeat(map[string]func(*rapid.T){
			"arm": func(t *rapid.T) {
				l.arm(rapid.SampledFrom(timers).Draw(t, "timer"), Time(rapid.IntRange(0, 3).Draw(t, "at")))
			},
			"disarm": func(t *rapid.T) { l.disarm(rapid.SampledFrom(timers).Draw(t, "timer")) },
			"":       func(t *rapid.T) { checkTimers(t, l, timers) },
		})
	})
}

func checkTimers(t *rapid.T, l *Ledger, timers []*timer) {
	var want []*timer
	pending := 0
	for _, tm := range timers {
		if tm.pos > 0 {
			want = append(want, tm)
		}
		if tm.pos > 0 && tm.rank != rankStale {
			pending++
		}
	}
	slices.SortFunc(want, func(a, b *timer) int {
		switch {
		case a.before(b):
			return -1
		case b.before(a):
			return 1
		}
		return 0
	})
	var got []*timer
	copied := make(timerHeap, len(l.due))
	for i, tm := range l.due {
		if tm.pos != i+1 {
			t.Fatalf("timer at %d believes that it is at %d", i, tm.pos-1)
		}
		c := *tm
		copied[i] = &c
	}
	for len(copied) > 0 {
		got = append(got, heap.Pop(&copied).(*timer))
	}
	if l.Pending() != pending || len(got) != len(want) {
		t.Fatalf("%d pending, %d in the heap, want %d and %d", l.Pending(), len(got), pending, len(want))
	}
	for i := range want {
		if got[i].name != want[i].name {
			t.Fatalf("timer %d to go off is %s, want %s", i, got[i].name, want[i].name)
		}
	}
}

// TestTimerBefore states the order outright.
func TestTimerBefore(t *testing.T) {
	ordered := []timer{
		{at: 1, rank: rankStale, seq: 9, name: "z"},
		{at: 2, rank: rankLease, seq: 5},
		{at: 2, rank: rankLease, seq: 6},
		{at: 2, rank: rankWaiter, seq: 1},
		{at: 2, rank: rankMark, seq: 0},
		{at: 2, rank: rankStale, name: "a"},
		{at: 2, rank: rankStale, name: "b"},
	}
	for i := range ordered {
		for j := range ordered {
			if got := ordered[i].before(&ordered[j]); got != (i < j) {
				t.Errorf("%d before %d is %v", i, j, got)
			}
		}
	}
}
