// Package recording makes journals for tests and for trying out what reads them: a real ledger runs in virtual
// time, and its events become what a node would answer to ReadJournal. [Recorder] takes single operations;
// [Night] is half an hour of agents on four engines in which three things go wrong.
package recording
