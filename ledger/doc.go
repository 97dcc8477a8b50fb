// Package ledger is the admission logic: budgets, leases, the FIFO, ageing and holders of every pool.
//
// It is pure. The same sequence of calls gives the same state, decisions and events on every node:
// there is no I/O, goroutine, clock, randomness or map iteration here, and only the standard library
// is imported. Time enters through [Ledger.Advance]; effects leave as values:
//
//   - the return value of a call is the answer to its caller,
//   - [Ledger.Decisions] holds what was decided meanwhile on tickets that waited,
//   - [Ledger.Events] holds what happened, for the journal,
//   - [Ledger.Changes] holds the rows that changed, for the durable image.
//
// A Ledger is not safe for concurrent use; the state machine that owns it serialises calls.
package ledger
