// Package enginesim simulates an SGLang 0.5.15.post1 engine well enough to test a coordinator of
// KV memory against it without a GPU: the KV pool with its prefix cache, the scheduler that admits,
// evicts and retracts, sessions with their traps, the HTTP endpoints, and the text of /metrics.
//
// A request goes from an HTTP handler (http_*.go, routes.go) through submit.go to the goroutine of
// one DP rank (rank.go), which computes prefill batches (prefill.go) and decode steps (decode.go) in
// virtual time over a radix tree (package radix), and comes back as progress that the handler
// renders. Session control reaches the rank between two steps (slot.go). What ranks publish
// (stats.go) becomes /metrics (metrics.go, meters.go, promtext.go) and the info endpoints.
// Things go wrong on demand (fault.go, listen.go). Package router puts a simulated router in front.
//
// It belongs to tests and demonstrations only: nothing outside integration may import it.
// DESIGN.md says what is modelled, what is not, and where each fact comes from.
package enginesim
