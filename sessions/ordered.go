package sessions

import (
	"iter"
	"slices"
)

// chunkMax is the most elements that a chunk of an ordered list holds: an insert moves that many
// pointers at worst.
const chunkMax = 256

// ordered is a sorted list. Its order depends on its elements only, never on how they came and went, so
// that a table that was loaded from rows walks it as the one that wrote them. No two elements may
// compare equal.
type ordered[T any] struct {
	compare func(a, b T) int
	chunks  [][]T
	n       int
}

func newOrdered[T any](compare func(a, b T) int) *ordered[T] { return &ordered[T]{compare: compare} }

func (o *ordered[T]) len() int {
	if o == nil {
		return 0
	}
	return o.n
}

// chunk returns the chunk that x is in or belongs into.
func (o *ordered[T]) chunk(x T) int {
	i, _ := slices.BinarySearchFunc(o.chunks, x, func(c []T, x T) int { return o.compare(c[len(c)-1], x) })
	return i
}

func (o *ordered[T]) insert(x T) {
	o.n++
	if len(o.chunks) == 0 {
		o.chunks = append(o.chunks, []T{x})
		return
	}
	i := min(o.chunk(x), len(o.chunks)-1)
	c := o.chunks[i]
	at, _ := slices.BinarySearchFunc(c, x, o.compare)
	c = slices.Insert(c, at, x)
	o.chunks[i] = c
	if len(c) > chunkMax {
		half := len(c) / 2
		o.chunks[i] = slices.Clone(c[:half])
		o.chunks = slices.Insert(o.chunks, i+1, slices.Clone(c[half:]))
	}
}

// remove takes x out and reports whether it was there.
func (o *ordered[T]) remove(x T) bool {
	i := o.chunk(x)
	if i == len(o.chunks) {
		return false
	}
	at, found := slices.BinarySearchFunc(o.chunks[i], x, o.compare)
	if !found {
		return false
	}
	o.n--
	o.chunks[i] = slices.Delete(o.chunks[i], at, at+1)
	if len(o.chunks[i]) == 0 {
		o.chunks = slices.Delete(o.chunks, i, i+1)
	}
	return true
}

// from walks the elements for which in is true. in must be false for a prefix of the list and true for
// the rest. The list must not change meanwhile.
func (o *ordered[T]) from(in func(T) bool) iter.Seq[T] {
	return func(yield func(T) bool) {
		if o == nil {
			return
		}
		first := func(inside bool) int {
			if inside {
				return 0
			}
			return -1
		}
		i, _ := slices.BinarySearchFunc(o.chunks, true, func(c []T, _ bool) int { return first(in(c[len(c)-1])) })
		for ; i < len(o.chunks); i++ {
			at, _ := slices.BinarySearchFunc(o.chunks[i], true, func(x T, _ bool) int { return first(in(x)) })
			for _, x := range o.chunks[i][at:] {
				if !yield(x) {
					return
				}
			}
		}
	}
}

func (o *ordered[T]) all() iter.Seq[T] { return o.from(func(T) bool { return true }) }

// list returns a copy, for walks that change the list.
func (o *ordered[T]) list() []T {
	if o == nil {
		return nil
	}
	return slices.AppendSeq(make([]T, 0, o.n), o.all())
}
