package radix_test

import (
	"testing"

	"pgregory.net/rapid"

	"kvgate/integration/enginesim/radix"
)

// model is the naive prefix store the tree is compared with: every cached prefix as a string of
// token bytes, with the number of locks on it. A prefix is cached when it is in the map; the
// number of cached tokens is the number of prefixes.
type model struct {
	locks map[string]int
	held  []hold
}

type hold struct {
	node *radix.Node
	path string
}

func (m *model) match(path string) int {
	n := 0
	for n < len(path) && m.has(path[:n+1]) {
		n++
	}
	return n
}

func (m *model) has(prefix string) bool {
	_, ok := m.locks[prefix]
	return ok
}

func (m *model) insert(path string) {
	for i := range path {
		m.locks[path[:i+1]] += 0
	}
}

func (m *model) lock(path string, by int) {
	for i := range path {
		m.locks[path[:i+1]] += by
	}
}

func (m *model) counts() (evictable, protected int) {
	for _, n := range m.locks {
		if n == 0 {
			evictable++
		} else {
			protected++
		}
	}
	return evictable, protected
}

// sync drops from the model what the tree evicted, and returns how much that was. It asks the tree
// in its own words, so the tree may only forget ends of paths, never a locked one.
func (m *model) sync(t *rapid.T, tree *radix.Tree) int {
	gone := 0
	for prefix, locks := range m.locks {
		if cached(tree, tokens(prefix)) == len(prefix) {
			continue
		}
		if locks > 0 {
			t.Fatalf("locked prefix %q is gone", prefix)
		}
		delete(m.locks, prefix)
		gone++
	}
	for prefix := range m.locks {
		if m.match(prefix) != len(prefix) {
			t.Fatalf("prefix %q outlived its own beginning", prefix)
		}
	}
	return gone
}

func tokens(path string) []int32 {
	out := make([]int32, len(path))
	for i := range path {
		out[i] = int32(path[i])
	}
	return out
}

func TestTreeAgreesWithNaivePrefixStore(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		tree, m := radix.New(), &model{locks: map[string]int{}}
		path := rapid.StringMatching(`[abc]{1,12}`)
		session := rapid.SampledFrom([]string{"s1", "s2", "s3"})
		t.Repeat(map[string]func(*rapid.T){
			"match": func(t *rapid.T) {
				p := path.Draw(t, "path")
				if got, want := cached(tree, tokens(p)), m.match(p); got != want {
					t.Fatalf("match %q: %d, want %d", p, got, want)
				}
			},
			"insert": func(t *rapid.T) {
				p := path.Draw(t, "path")
				want := m.match(p)
				if _, got := tree.Insert(tokens(p)); got != want {
					t.Fatalf("insert %q: existing %d, want %d", p, got, want)
				}
				m.insert(p)
			},
			"lock": func(t *rapid.T) {
				p := path.Draw(t, "path")
				n, matched := tree.Match(tokens(p))
				tree.Lock(n)
				m.lock(p[:matched], 1)
				m.held = append(m.held, hold{n, p[:matched]})
			},
			"unlock": func(t *rapid.T) {
				if len(m.held) == 0 {
					return
				}
				i := rapid.IntRange(0, len(m.held)-1).Draw(t, "which")
				tree.Unlock(m.held[i].node)
				m.lock(m.held[i].path, -1)
				m.held = append(m.held[:i], m.held[i+1:]...)
			},
			"evict": func(t *rapid.T) {
				want := rapid.IntRange(1, 20).Draw(t, "want")
				before, _ := m.counts()
				got := tree.Evict(want)
				if gone := m.sync(t, tree); gone != got {
					t.Fatalf("evict said %d, %d are gone", got, gone)
				}
				if got < min(want, before) {
					t.Fatalf("evicted %d of %d, %d were evictable", got, want, before)
				}
			},
			"tag": func(t *rapid.T) {
				n, matched := tree.Match(tokens(path.Draw(t, "path")))
				sid := session.Draw(t, "session")
				if tree.Tag(n, sid) && matched == 0 {
					t.Fatal("tagged the root")
				}
				tree.Revive(sid)
			},
			"release": func(t *rapid.T) {
				sid := session.Draw(t, "session")
				got := tree.Release(sid)
				if gone := m.sync(t, tree); gone != got {
					t.Fatalf("release said %d, %d are gone", got, gone)
				}
				if tree.Tagged(sid) != 0 {
					t.Fatalf("session %s still has tags", sid)
				}
				tree.Revive(sid)
			},
			"": func(t *rapid.T) {
				evictable, protected := m.counts()
				if tree.Evictable() != evictable || tree.Protected() != protected {
					t.Fatalf("evictable %d protected %d, want %d and %d",
						tree.Evictable(), tree.Protected(), evictable, protected)
				}
			},
		})
	})
}
