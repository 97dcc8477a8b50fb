// Package bench measures kvgate over its API, in processes of its own, beside a peer that does less.
// There is nothing in it but benchmarks; `make bench` runs them and they print tables.
//
// BenchmarkUnary has one durable kvgate node and an echo server (package echo) that speaks the same
// protocol with the same messages and neither decides nor writes anything. The echo is what unary calls
// can reach on the machine, so the ratio tells what the coordinator itself costs. A pair is an acquire
// and a release; both servers run in processes of their own, the callers share one HTTP/2 connection of
// the test process, nothing is compressed.
//
// BenchmarkThreeNodes has three durable nodes beside three members of etcd, which is built from a module
// of its own (package etcd); that takes minutes the first time, and the network. BenchmarkMultiplexed compares a process
// whose tickets share a stream with one that makes a call for each operation, BenchmarkLibrary such a process with
// one that uses etcd's client.
//
// Rounds of both sides alternate, so that a machine whose speed drifts slows both. A round in which the
// host took more than a twentieth of the processors' time is repeated, within bounds, and the medians of
// the rounds are compared. Absolute rates do not carry over between machines. Busy and steal are shares of
// the whole of a row; what is not busy was spent waiting for the disk. The servers' processor time per call
// says on a machine shared with others what the rates cannot.
//
// The node's directory is below TMPDIR, which must be on a disk for the flushes to cost what they cost.
package bench
