package enginesim

import (
	"encoding/binary"
	"hash/fnv"
)

// The simulated tokenizer maps four bytes of text to one token id and back without loss for ASCII,
// so that an answer sent back as the next turn's history has the very tokens that were generated
// and extends their cached prefix, as it does with a real tokenizer nearly always.
const (
	bytesPerToken = 4
	roleBase      = 1 << 29 // ids of chat markup
	hashedBit     = 1 << 30 // ids of text that is not ASCII
	endOfTurn     = roleBase
)

// tokenize appends the tokens of text.
func tokenize(dst []int32, text string) []int32 {
	for len(text) > 0 {
		n := min(bytesPerToken, len(text))
		dst = append(dst, tokenOf(text[:n]))
		text = text[n:]
	}
	return dst
}

func tokenOf(chunk string) int32 {
	var id int32
	for i := range len(chunk) {
		if chunk[i] >= 0x80 {
			return hashedBit | int32(hashBytes(chunk)&(hashedBit-1))
		}
		id |= int32(chunk[i]) << (7 * i)
	}
	return id
}

// detokenize is the text of generated tokens.
func detokenize(tokens []int32) string {
	out := make([]byte, 0, bytesPerToken*len(tokens))
	for _, id := range tokens {
		for i := range bytesPerToken {
			out = append(out, byte(id>>(7*i))&0x7f)
		}
	}
	return string(out)
}

// roleToken opens a chat message of the given role.
func roleToken(role string) int32 {
	return roleBase | 1 | int32(hashBytes(role)&0xffff)<<1
}

// outputToken is the i-th token of the answer to a prompt with the given hash: a space and three letters.
func outputToken(seed, prompt uint64, i int) int32 {
	h := mix(seed ^ mix(prompt+uint64(i)))
	word := [bytesPerToken]byte{' '}
	for k := 1; k < bytesPerToken; k++ {
		word[k] = 'a' + byte(h%26)
		h /= 26
	}
	return tokenOf(string(word[:]))
}

// outputLength is where the answer to a prompt would end by itself: log-uniform in [low, high], so
// that most answers are short and a few are long.
func outputLength(seed, prompt uint64, low, high int) int {
	h := mix(seed + mix(prompt))
	n := low
	for span := high / low; span > 1 && h&1 == 1; span /= 2 {
		h >>= 1
		n *= 2
	}
	return min(high, n+int((h>>8)%uint64(n)))
}

func hashTokens(tokens []int32) uint64 {
	h := uint64(len(tokens))
	for _, t := range tokens {
		h = mix(h ^ uint64(uint32(t)))
	}
	return h
}

// mix is the finaliser of SplitMix64: a fixed permutation that spreads every input bit.
func mix(x uint64) uint64 {
	x += 0x9e3779b97f4a7c15
	x = (x ^ x>>30) * 0xbf58476d1ce4e5b9
	x = (x ^ x>>27) * 0x94d049bb133111eb
	return x ^ x>>31
}

func hashBytes(s string) uint64 {
	h := fnv.New64a()
	h.Write([]byte(s))
	return mix(binary.BigEndian.Uint64(h.Sum(nil)))
}
