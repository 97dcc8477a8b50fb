// Package procs runs real kvgate processes in tests: it builds the binary once, starts nodes, waits
// until they are ready, and kills, pauses, stops and restarts them.
//
// A process never outlives its test: a cleanup kills it, and the kernel kills it when the test process
// itself dies. When a test fails, the logs of its nodes are printed.
//
// A test package that uses it calls [Main] from TestMain, which removes the binary at the end and
// fails when goroutines are left.
package procs
