package sessions

import (
	"strconv"
	"time"
)

// Time is ledger time in nanoseconds, as in package ledger. The table imports nothing of the module.
type Time int64

// Add returns t + d.
func (t Time) Add(d time.Duration) Time { return t + Time(d) }

// Sub returns t - u.
func (t Time) Sub(u Time) time.Duration { return time.Duration(t - u) }

// Kind says what a session is to the engines. The zero value means Radix.
type Kind uint8

// The kinds.
const (
	KindUnspecified Kind = iota
	// Radix sessions tag KV by the session id of each request; a close goes to every engine.
	Radix
	// Streaming sessions hold KV in a slot of one engine.
	Streaming
	// Bind sessions are affinity records only: engines never hear of them.
	Bind
)

// String returns the name used in the journal.
func (k Kind) String() string {
	return nameOf([]string{"unspecified", "radix", "streaming", "bind"}, int(k))
}

// State is where a session is in its life.
type State uint8

// The states.
const (
	StateUnspecified State = iota
	Open
	Closing
	Closed
	ClosedWithFailures
)

// String returns the name used in the journal.
func (s State) String() string {
	return nameOf([]string{"unspecified", "open", "closing", "closed", "closed_with_failures"}, int(s))
}

// Mode says what a close does with tickets in flight. The zero value means Join.
type Mode uint8

// The modes.
const (
	ModeUnspecified Mode = iota
	// Join waits for them, for a while, then aborts them.
	Join
	// Abort aborts them at once.
	Abort
)

// String returns the name used in the journal.
func (m Mode) String() string { return nameOf([]string{"unspecified", "join", "abort"}, int(m)) }

// Phase is the step that a closing session is in.
type Phase uint8

// The phases of a close.
const (
	NotClosing Phase = iota
	// Joining waits for tickets in flight.
	Joining
	// Aborting asks engines to abort them and waits for the releases.
	Aborting
	// Telling tells engines to free the KV.
	Telling
)

// String returns the name used in the journal.
func (p Phase) String() string {
	return nameOf([]string{"none", "joining", "aborting", "telling"}, int(p))
}

// Debt is the state of one engine's close.
type Debt uint8

// The states of a debt. Acked and Left are final, so that no row holds them: see Tally.
const (
	DebtUnspecified Debt = iota
	// Owed: the engine has not acknowledged the close.
	Owed
	// Failed: the engine had not acknowledged it by the close deadline.
	Failed
)

// String returns the name used in the journal.
func (d Debt) String() string { return nameOf([]string{"unspecified", "owed", "failed"}, int(d)) }

func nameOf(names []string, i int) string {
	if i < len(names) {
		return names[i]
	}
	return "unknown_" + strconv.Itoa(i)
}

// Rules are the settings and facts of a pool that sessions follow.
type Rules struct {
	// Lifecycle off: engines hear nothing of sessions, and a close is over at once.
	Lifecycle     bool
	JoinTimeout   time.Duration
	AbortTimeout  time.Duration
	CloseDeadline time.Duration
	// ServedOnly tells only the engines that releases reported.
	ServedOnly bool
	// Discovers: the pool has a router or a list of engines, so that its engines will be known some time.
	// A close that ends its wait for tickets before then is owed by engines without a name.
	Discovers bool
	// PinRatio is the share of Ceiling, in tokens, that may be pinned; 0 turns pins off.
	PinRatio float64
	Ceiling  int64
}

// Engine is one engine that the pool's discovery lists. URL is its identity, see [EngineURL];
// Incarnation changes when its process was restarted, and is empty while that is not known.
type Engine struct{ URL, Incarnation string }

// Flight is one attempt that the ledger let through.
type Flight struct {
	Ticket string
	// RID is the request id that the engine knows; empty means the one it queued with, else the ticket.
	RID    string
	Holder string
	// Bypassed attempts hold no lease.
	Bypassed bool
	// TTL ends a bypassed attempt without a holder; the pool's lease_ttl. 0 means 600 s.
	TTL time.Duration
}

// Turn is what the release of a ticket reported. The zero value is an end that reported nothing.
type Turn struct {
	Engine string
	Tokens int64
}

// maxDuration keeps sums of times far from overflow.
const maxDuration = 365 * 24 * time.Hour

func clampDuration(d time.Duration) time.Duration { return min(max(d, 0), maxDuration) }
