package enginesim

const (
	ghostBlock = 64      // tokens whose computation is remembered together
	ghostLimit = 1 << 17 // blocks of one generation: 8 million tokens
)

// ghost remembers which prefixes were ever computed, by block hash, so that a prefill of something
// that was cached once and is gone can be counted as recomputed. Two generations bound its size:
// what was not computed again while a whole generation filled is forgotten.
type ghost struct {
	recent, old map[uint64]struct{}
}

func newGhost() *ghost {
	return &ghost{recent: map[uint64]struct{}{}}
}

// add remembers every whole block of tokens.
func (g *ghost) add(tokens []int32) {
	g.walk(tokens, func(h uint64) bool {
		if len(g.recent) >= ghostLimit {
			g.recent, g.old = map[uint64]struct{}{}, g.recent
		}
		g.recent[h] = struct{}{}
		return true
	})
}

// match is the number of leading tokens that were computed before, in whole blocks.
func (g *ghost) match(tokens []int32) int {
	n := 0
	g.walk(tokens, func(h uint64) bool {
		_, recent := g.recent[h]
		_, old := g.old[h]
		if !recent && !old {
			return false
		}
		n += ghostBlock
		return true
	})
	return n
}

func (g *ghost) walk(tokens []int32, visit func(uint64) bool) {
	h := uint64(0)
	for len(tokens) >= ghostBlock {
		h = mix(h) ^ hashTokens(tokens[:ghostBlock])
		if !visit(h) {
			return
		}
		tokens = tokens[ghostBlock:]
	}
}
