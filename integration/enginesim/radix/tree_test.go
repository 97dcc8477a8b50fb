package radix_test

import (
	"testing"

	"kvgate/integration/enginesim/radix"
)

func seq(from, n int) []int32 {
	out := make([]int32, n)
	for i := range out {
		out[i] = int32(from + i)
	}
	return out
}

func join(parts ...[]int32) []int32 {
	var out []int32
	for _, p := range parts {
		out = append(out, p...)
	}
	return out
}

func wantTotals(t *testing.T, tree *radix.Tree, evictable, protected int) {
	t.Helper()
	if tree.Evictable() != evictable || tree.Protected() != protected {
		t.Fatalf("evictable %d protected %d, want %d and %d",
			tree.Evictable(), tree.Protected(), evictable, protected)
	}
}

func cached(tree *radix.Tree, tokens []int32) int {
	_, n := tree.Match(tokens)
	return n
}

func TestSharedPrefixIsStoredOnce(t *testing.T) {
	tree, system := radix.New(), seq(0, 100)
	tree.Insert(join(system, seq(1000, 10)))
	_, existing := tree.Insert(join(system, seq(2000, 20)))
	if existing != 100 {
		t.Fatalf("existing %d, want 100", existing)
	}
	wantTotals(t, tree, 130, 0)
}

func TestMatchInsideANodeSplitsAndKeepsLocks(t *testing.T) {
	tree := radix.New()
	last, _ := tree.Insert(seq(0, 50))
	tree.Lock(last)
	if n := cached(tree, seq(0, 20)); n != 20 {
		t.Fatalf("match %d, want 20", n)
	}
	wantTotals(t, tree, 0, 50)
	tree.Unlock(last)
	wantTotals(t, tree, 50, 0)
}

func TestEvictTakesOldestLeafWholeAndSparesLocked(t *testing.T) {
	tree, system := radix.New(), seq(0, 40)
	locked, _ := tree.Insert(join(system, seq(1000, 10)))
	tree.Insert(join(system, seq(2000, 10)))
	tree.Insert(join(system, seq(3000, 10)))
	tree.Lock(locked)
	cached(tree, join(system, seq(2000, 10))) // now the youngest
	if got := tree.Evict(1); got != 10 {
		t.Fatalf("evicted %d, want the whole leaf of 10", got)
	}
	if n := cached(tree, join(system, seq(3000, 10))); n != 40 {
		t.Fatalf("third path still cached to %d, want 40", n)
	}
	if got := tree.Evict(1000); got != 10 {
		t.Fatalf("evicted %d, want 10: the rest is locked", got)
	}
	wantTotals(t, tree, 0, 50)
}

func TestReleaseFreesUpToTheBranch(t *testing.T) {
	tree, system := radix.New(), seq(0, 40)
	a1, _ := tree.Insert(join(system, seq(1000, 10)))
	tree.Tag(a1, "a")
	a2, _ := tree.Insert(join(system, seq(1000, 25)))
	tree.Tag(a2, "a")
	b, _ := tree.Insert(join(system, seq(2000, 10)))
	tree.Tag(b, "b")
	if freed := tree.Release("a"); freed != 25 {
		t.Fatalf("freed %d, want 25", freed)
	}
	if freed := tree.Release("b"); freed != 50 {
		t.Fatalf("freed %d, want 50: the system prompt has no other user left", freed)
	}
	wantTotals(t, tree, 0, 0)
}

func TestReleaseStopsAtAnotherSessionsTag(t *testing.T) {
	tree := radix.New()
	shared, _ := tree.Insert(seq(0, 30))
	tree.Tag(shared, "a")
	tree.Tag(shared, "b")
	if freed := tree.Release("a"); freed != 0 {
		t.Fatalf("freed %d, want 0 while b holds the node", freed)
	}
	if freed := tree.Release("b"); freed != 30 {
		t.Fatalf("freed %d, want 30 by the last holder", freed)
	}
}

func TestReleaseUnderALockFreesNothingNorDoesASecondOne(t *testing.T) {
	tree := radix.New()
	n, _ := tree.Insert(seq(0, 30))
	tree.Tag(n, "a")
	tree.Lock(n)
	first := tree.Release("a")
	tree.Unlock(n)
	if second := tree.Release("a"); first != 0 || second != 0 {
		t.Fatalf("freed %d then %d, want 0 and 0", first, second)
	}
	wantTotals(t, tree, 30, 0)
}

func TestTombstoneStopsTaggingUntilItAgesOut(t *testing.T) {
	tree := radix.New()
	n, _ := tree.Insert(seq(0, 10))
	tree.Release("never-seen")
	if tree.Tag(n, "never-seen") {
		t.Fatal("tagged a closed id")
	}
	for i := range radix.TombstoneLimit {
		tree.Release(string(rune('a'+i%26)) + string(rune(0x4e00+i)))
	}
	if tree.Tombstones() != radix.TombstoneLimit {
		t.Fatalf("%d tombstones, want %d", tree.Tombstones(), radix.TombstoneLimit)
	}
	if !tree.Tag(n, "never-seen") {
		t.Fatal("the oldest tombstone should have aged out")
	}
}

func TestForgetKeepsTokensButGivesThemUpFirst(t *testing.T) {
	tree := radix.New()
	tree.KeepReferenced = true
	a, _ := tree.Insert(seq(0, 10))
	tree.Tag(a, "a")
	b, _ := tree.Insert(seq(100, 10))
	tree.Tag(b, "b")
	tree.Forget("b")
	wantTotals(t, tree, 20, 0)
	tree.Evict(1)
	if cached(tree, seq(0, 10)) != 10 || cached(tree, seq(100, 10)) != 0 {
		t.Fatal("the older but referenced leaf should outlive the younger forgotten one")
	}
}
