// Package radix is the prefix cache of a simulated engine: a radix tree over token ids with lock
// references, least-recently-used eviction of leaves, and session tags.
//
// It keeps the books of a KV pool and holds no KV. A caller matches a prompt, locks the node it
// got, computes the rest, inserts the whole and moves its lock to the longer node. Tokens under a
// lock are used; all others are evictable. Evict removes whole leaves, oldest access first, as
// SGLang's RadixCache does, so it may free more than it was asked for.
//
// Session tags follow SGLang pull request 27058 (release on close) and 29173 (close only drops
// references); see [Tree.Release] and [Tree.Forget].
//
// A Tree belongs to one goroutine. Nothing here knows time, requests or pools.
package radix
