package ledger

import (
	"iter"
	"slices"
	"sort"
)

// numbered is anything with a Seq that grows with the order of insertion.
type numbered interface {
	comparable
	number() Seq
}

// seqList holds items in the order of their numbers: append at the end, remove anywhere and find by
// number, all O(log n) amortised. Removed places stay empty until half of the list is empty.
type seqList[T numbered] struct {
	items []entry[T]
	live  int
}

type entry[T numbered] struct {
	seq  Seq
	item T
	live bool
}

func (s *seqList[T]) len() int { return s.live }

// push appends an item whose number is above all numbers in the list.
func (s *seqList[T]) push(item T) {
	s.items = append(s.items, entry[T]{item.number(), item, true})
	s.live++
}

func (s *seqList[T]) search(seq Seq) int {
	return sort.Search(len(s.items), func(i int) bool { return s.items[i].seq >= seq })
}

func (s *seqList[T]) remove(item T) {
	i := s.search(item.number())
	if i == len(s.items) || !s.items[i].live || s.items[i].item != item {
		return
	}
	s.items[i] = entry[T]{seq: s.items[i].seq}
	s.live--
	if len(s.items) > 32 && s.live < len(s.items)/2 {
		s.items = slices.DeleteFunc(s.items, func(e entry[T]) bool { return !e.live })
	}
}

// after yields the items with numbers above seq, in order. The list must not change meanwhile, except
// that the item just yielded may be removed by a caller that collected it first.
func (s *seqList[T]) after(seq Seq) iter.Seq[T] {
	return func(yield func(T) bool) {
		for i := s.search(seq + 1); i < len(s.items); i++ {
			if s.items[i].live && !yield(s.items[i].item) {
				return
			}
		}
	}
}

// all returns a copy of the items, in order.
func (s *seqList[T]) all() []T {
	return slices.AppendSeq(make([]T, 0, s.live), s.after(0))
}
