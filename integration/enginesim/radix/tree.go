package radix

import (
	"container/heap"
	"slices"
)

// Node is a run of tokens below its parent. Callers hold nodes only to lock, unlock and tag them;
// a node stays valid while it is locked.
type Node struct {
	key      []int32
	parent   *Node
	children map[int32]*Node
	locks    int
	access   uint64
	id       uint64
	slot     int  // index in the heap of evictable leaves, -1 when absent
	held     bool // an open session refers to it, and the tree cares
	tags     map[string]struct{}
}

// Tree is a radix tree over token ids. The zero value is not usable; call New.
type Tree struct {
	root      *Node
	leaves    leafHeap
	sessions  sessionIndex
	stamp     uint64 // logical clock: one tick per Match or Insert
	nextID    uint64
	evictable int
	protected int

	// KeepReferenced evicts leaves no open session refers to first, as SGLang does from 0.5.17 on.
	// Set it before the first Tag.
	KeepReferenced bool
}

// New returns an empty tree.
func New() *Tree {
	t := &Tree{sessions: newSessionIndex()}
	t.root = t.newNode(nil, nil)
	t.root.locks = 1
	return t
}

// Evictable is the number of tokens no lock holds.
func (t *Tree) Evictable() int { return t.evictable }

// Protected is the number of tokens under at least one lock.
func (t *Tree) Protected() int { return t.protected }

// Total is the number of tokens in the tree.
func (t *Tree) Total() int { return t.evictable + t.protected }

// Root is the node of the empty prefix. It is always locked and never counted.
func (t *Tree) Root() *Node { return t.root }

// Match finds the longest cached prefix of tokens, marks it as just used, and returns its last node
// with its length. A match that ends inside a node splits the node there.
func (t *Tree) Match(tokens []int32) (*Node, int) {
	t.stamp++
	n, matched := t.root, 0
	for matched < len(tokens) {
		child := n.children[tokens[matched]]
		if child == nil {
			break
		}
		common := commonPrefix(child.key, tokens[matched:])
		if common < len(child.key) {
			child = t.split(child, common)
		}
		t.touch(child)
		n, matched = child, matched+common
	}
	return n, matched
}

// Insert adds tokens as one path and returns its last node and how many of the tokens were cached
// before. The caller's own copies of those are duplicates it should free.
func (t *Tree) Insert(tokens []int32) (last *Node, existing int) {
	n, matched := t.Match(tokens)
	if matched == len(tokens) {
		return n, matched
	}
	leaf := t.newNode(n, slices.Clone(tokens[matched:]))
	leaf.access = t.stamp
	if n.children == nil {
		n.children = make(map[int32]*Node, 1)
	}
	n.children[leaf.key[0]] = leaf
	t.evictable += len(leaf.key)
	t.refile(n)
	t.refile(leaf)
	return leaf, matched
}

// Lock protects every token from the root to n. Locks nest.
func (t *Tree) Lock(n *Node) {
	for ; n != t.root; n = n.parent {
		if n.locks == 0 {
			t.evictable -= len(n.key)
			t.protected += len(n.key)
		}
		n.locks++
		t.refile(n)
	}
}

// Unlock undoes one Lock of n, or of the node that n was when it was locked: a split in between
// copies the lock to both halves.
func (t *Tree) Unlock(n *Node) {
	for ; n != t.root; n = n.parent {
		n.locks--
		if n.locks == 0 {
			t.evictable += len(n.key)
			t.protected -= len(n.key)
		}
		t.refile(n)
	}
}

// Evict removes least recently used leaves until at least want tokens are free or nothing
// evictable is left, and returns the number freed.
func (t *Tree) Evict(want int) int {
	freed := 0
	for freed < want && len(t.leaves) > 0 {
		freed += t.remove(t.leaves[0])
	}
	return freed
}

// split cuts n after the first at tokens and returns the new upper half. Locks go to both halves;
// tags stay below, where a request's path ended.
func (t *Tree) split(n *Node, at int) *Node {
	upper := t.newNode(n.parent, n.key[:at:at])
	upper.locks, upper.access = n.locks, n.access
	upper.children = map[int32]*Node{n.key[at]: n}
	n.parent.children[n.key[0]] = upper
	n.parent, n.key = upper, slices.Clone(n.key[at:])
	return upper
}

// remove takes an unlocked leaf out of the tree and returns its length.
func (t *Tree) remove(n *Node) int {
	t.sessions.drop(n)
	delete(n.parent.children, n.key[0])
	t.evictable -= len(n.key)
	if n.slot >= 0 {
		heap.Remove(&t.leaves, n.slot)
	}
	t.refile(n.parent)
	return len(n.key)
}

func (t *Tree) newNode(parent *Node, key []int32) *Node {
	t.nextID++
	return &Node{key: key, parent: parent, id: t.nextID, slot: -1}
}

func (t *Tree) touch(n *Node) {
	n.access = t.stamp
	t.refile(n)
}

// refile puts n into, moves it within, or takes it out of the heap of evictable leaves.
func (t *Tree) refile(n *Node) {
	leaf := n != t.root && n.locks == 0 && len(n.children) == 0
	switch {
	case leaf && n.slot < 0:
		heap.Push(&t.leaves, n)
	case leaf:
		heap.Fix(&t.leaves, n.slot)
	case n.slot >= 0:
		heap.Remove(&t.leaves, n.slot)
	}
}

func commonPrefix(a, b []int32) int {
	n := min(len(a), len(b))
	for i := range n {
		if a[i] != b[i] {
			return i
		}
	}
	return n
}
