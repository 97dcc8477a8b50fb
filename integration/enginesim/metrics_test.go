package enginesim

import (
	"math"
	"testing"
)

func TestFloatsPrintAsPythonPrintsThem(t *testing.T) {
	for _, c := range []struct {
		value float64
		want  string
	}{
		{0, "0.0"},
		{1, "1.0"},
		{0.28, "0.28"},
		{2231, "2231.0"},
		{317641, "317641.0"},
		{2340338, "2.340338e+06"},
		{2000000, "2e+06"},
		{102030062, "1.02030062e+08"},
		{12345678901, "1.2345678901e+010"},
		{53.56610870361328, "53.56610870361328"},
		{1796022361.5, "1.7960223615e+09"},
		{-5, "-5.0"},
		{0.00001, "1e-05"},
		{math.NaN(), "NaN"},
		{math.Inf(1), "+Inf"},
		{math.Inf(-1), "-Inf"},
	} {
		if got := pythonFloat(c.value); got != c.want {
			t.Errorf("%v prints as %s, want %s", c.value, got, c.want)
		}
	}
}

func TestOutputTextTokenizesToTheTokensThatWereGenerated(t *testing.T) {
	var ids []int32
	for i := range 200 {
		ids = append(ids, outputToken(7, 42, i))
	}
	back := tokenize(nil, detokenize(ids))
	for i := range ids {
		if back[i] != ids[i] {
			t.Fatalf("token %d: %d, want %d", i, back[i], ids[i])
		}
	}
}

func TestTextBeyondASCIIStillTokenizes(t *testing.T) {
	ids := tokenize(nil, "größer als 7 × 8")
	for i, id := range ids {
		if id < 0 {
			t.Fatalf("token %d is negative: %d", i, id)
		}
	}
	if len(ids) != 5 {
		t.Fatalf("%d tokens, want 5 for 19 bytes", len(ids))
	}
}

func TestGhostForgetsWholeGenerations(t *testing.T) {
	g := newGhost()
	first := make([]int32, ghostBlock)
	g.add(first)
	if got := g.match(first); got != ghostBlock {
		t.Fatalf("match %d, want %d", got, ghostBlock)
	}
	for i := range 2*ghostLimit + 1 {
		block := make([]int32, ghostBlock)
		block[0] = int32(i + 1)
		g.add(block)
	}
	if got := g.match(first); got != 0 {
		t.Fatalf("match %d after two generations, want 0", got)
	}
	if n := len(g.recent) + len(g.old); n > 2*ghostLimit {
		t.Fatalf("%d blocks remembered, want at most %d", n, 2*ghostLimit)
	}
}
