// Package sessions is the table of agent sessions: which are open, which tickets they have in the queue
// and in flight, what of a close is still owed to which engine, where sessions are bound, and what is pinned.
//
// # The table
//
// [Table] is pure, like the ledger: time enters with each call, and what follows leaves as values.
// Effects are what the ledger must do because of a session, events are for the journal, and changes are
// the rows that must survive; [Loader] builds the table from those. No file of the table may read a
// clock, use randomness, start a goroutine or let the order of a map decide anything.
//
// # The closer
//
// [Closer] runs on the leader only. It reads what must be told from the table through a [Source], talks
// to engines with a [Client], and reports back through a [Reporter], whose reports are commands. So a
// failover carries on with what is still owed. Files named closer… and client.go belong to it, and may
// use clocks and the network.
//
// DESIGN.md shows the close protocol in one picture.
package sessions
