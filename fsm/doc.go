// Package fsm is the replicated machine: the ledger of every pool behind a raft log.
//
// A request passes through it like this. [Replica] takes the call and hands it to the proposer of the
// current term, which collects what is waiting into one versioned batch, stamps it with ledger time
// and gives it to raft. [Machine] applies each committed batch to the ledger and returns one result per
// operation; changed rows and events follow on disk a moment later, those of several batches together. The
// proposer hands every caller its own result; a ticket that must wait stays registered until a later batch
// decides it.
//
// [Offline] answers the reads of a replica from an archive or a stopped node's directory, and
// [DirectoryRestore] makes a directory from an archive; [Replica.Restore] replaces a running cluster's state.
//
// Everything that Apply does is a pure function of the state and the command. Clocks live in the
// replica: it measures monotonic time since the term began and stamps commands with it.
package fsm
