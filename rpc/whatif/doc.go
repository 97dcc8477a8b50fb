// Package whatif runs a recorded journal once more through the real ledger, in virtual time and under other
// settings, and compares what was decided. With unchanged settings it decides as recorded.
//
// What came from outside is taken from the recording: arrivals with what they asked for, how long each lease was
// held, retries, cancels, calls and holders that went away, closing sessions, what the engines reported, changes of
// settings and leaders. What the ledger decided is decided anew. [Run] says in its notes what a replay cannot know.
//
// The recording is read twice. What a caller does with a lease must be known when it is granted, maybe earlier than it was
// recorded, so the first reading puts the story of each ticket on disk, and the second takes it from there when the ticket
// arrives. A replay holds what is open at a time, and about 65 bytes of each ticket.
package whatif
