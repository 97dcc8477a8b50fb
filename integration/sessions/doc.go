// Package sessions tests the close of sessions from outside: the real binary, simulated engines with
// the traps of SGLang 0.5.15.post1, and faults of nodes and engines.
//
//   - memory_test.go: the KV of closed sessions is freed; a close that is sent too early frees nothing.
//   - faults_test.go: a leader killed at each step of a close, and engines that fail in all ways; every
//     engine hears every close at least once, or is reported.
//   - scale_test.go: one group of 1,000 sessions on 64 engines, with admission at work.
//   - kinds_test.go: streaming sessions, placements, pins, aborts and idle timeouts on engines that know them.
//   - input_test.go: what the API answers to bad input, as curl would send it.
package sessions
