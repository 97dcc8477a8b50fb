// Package story reads a journal and tells what happened: the life of each ticket, why it waited and what let it
// go, and what went wrong meanwhile. It reads events of the API only, so it works on a running cluster and on a
// snapshot alike, and it knows no clock: all times come from the events.
//
// A [Reader] takes events in the order of the journal and keeps, per pool, what the events before make known:
// who holds what, who waits, what the engines report. [Tell] words one life, [Incidents] lists what an operator
// wants to be told first. Durations are ledger time, which stands still while nobody leads; times of day are the
// wall time of the leader that wrote the event.
package story
