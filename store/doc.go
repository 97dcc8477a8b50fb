// Package store keeps everything that one node has on disk.
//
// What lives here: the data directory with its lock and identity ([OpenDir]), the image of the replicated
// state in bbolt ([State]), the journal of events in segments of its own ([Journal]), the archive format of
// snapshots ([NewArchiveWriter], [NewArchiveReader]), raft's log and stable store behind hooks for faults and
// latency ([OpenRaft]), raft's snapshot directory ([SnapshotStore]) and the guard against a full or read-only
// disk ([Guard]).
//
// What may not live here: any knowledge of leases, waiters or sessions. Rows, keys and events are opaque bytes;
// the machine that owns their meaning is package fsm, which calls Apply and Append once for each log entry.
//
// The raft log is the truth and the only thing that is flushed before an answer. State and the active journal
// segment are written without flushing, and trusted at the next start only when that is safe; otherwise they
// are set aside and rebuilt from snapshot and log. DESIGN.md says why.
package store
