// Package whatif runs a recorded journal once more through the real ledger, in virtual time and under other
// settings, and compares what was decided. With unchanged settings it decides as recorded.
//
// What came from outside is taken from the recording: arrivals with what they asked for, how long each lease was
// held, retries, cancels, calls and holders that went away, closing sessions, what the engines reported, changes of
// settings and leaders. What the ledger decided is decided anew. [Run] says in its notes what a replay cannot know.
package whatif
