package ledger

import "time"

// Acquire asks for a lease. Tokens are already bounded by MaxTokens when they come from the API; the
// ledger checks them again.
type Acquire struct {
	Pool, Ticket string
	PromptTokens Tokens
	MaxNewTokens Tokens
	// ReservationTokens, when above 0, is charged outright.
	ReservationTokens Tokens
	Mode              Mode
	Protected         bool
	Priority          int32
	Session           string
	Group             string
	Holder            string
	// RID is the request id the engine sees; empty means the ticket.
	RID string
	// MaxWait is how long the ticket may wait; negative means the pool's max_wait.
	MaxWait time.Duration
	// PoolWait says that MaxWait was filled in from the pool's max_wait on the way, for the journal.
	PoolWait bool
	// TTL of the lease; 0 means the pool's lease_ttl.
	TTL time.Duration
	// Call numbers the call, so that the same one can be told when it comes again; 0 means that it cannot.
	Call uint64
}

// Cancel ends whatever a ticket has.
type Cancel struct {
	Pool, Ticket string
	// Call numbers the Cancel, as in Acquire.
	Call uint64
	// Ended is the Call of the Acquire that is given up, of which copies may be under way; 0 means that the
	// next Acquire is meant, whoever asks.
	Ended uint64
}

// Decision answers an Acquire: at once, or later for a ticket that had to wait.
type Decision struct {
	Pool, Ticket string
	Action       Action
	Reason       Reason
	// Wait says what holds the ticket back when Action is ActionWait.
	Wait   WaitReason
	Tokens Tokens
	// Seq is the grant's number on admit, the waiter's on wait. For a decision on a ticket that had
	// waited, Waiter is the number it waited under.
	Seq    Seq
	Waiter Seq
	// Attempt numbers this answer among those given for the same waiter or lease; Detach carries it.
	Attempt uint32
	// Epoch is the lease's owner epoch.
	Epoch uint64
	// Waited is the time spent in the queue.
	Waited time.Duration
	// ExpiresIn is the time left of the lease.
	ExpiresIn time.Duration
	// Warnings for the caller, e.g. "unknown_pool".
	Warnings []string
	// Binding is where the ticket's session was placed, nil when it is not bound. SessionReused: an earlier
	// incarnation of the session was closed not long ago. The ledger knows no sessions and leaves both
	// empty; whoever does fills them in.
	Binding       *Binding
	SessionReused bool
}

// Binding is a placement that a router made for a session.
type Binding struct {
	Engine string
	DPRank int32
}

// Release ends a lease.
type Release struct {
	Pool, Ticket string
	// Epoch, when HasEpoch, must be the lease's owner epoch.
	Epoch    uint64
	HasEpoch bool
	// Grant, when above 0, must be the lease's number.
	Grant Seq
	// Usage is what the attempt really used; nil when it was not reported.
	Usage  *Usage
	Holder string
	// Ended is the Call of an Acquire that ends with the lease, and of which copies may be under way.
	Ended uint64
}

// Usage is what one attempt really used.
type Usage struct {
	PromptTokens     Tokens
	CompletionTokens Tokens
	CachedTokens     Tokens
	Engine           string
	Outcome          string
}

// LeaseRef names a lease to renew, with its fences.
type LeaseRef struct {
	Ticket   string
	Epoch    uint64
	HasEpoch bool
	Grant    Seq
}

// Renewed answers for one LeaseRef.
type Renewed struct {
	OK        bool
	ExpiresIn time.Duration
}

// Patch changes settings: Set holds the new values of the fields named in Fields (lowerCamel API
// names); the fields named in Clear go back to their defaults.
type Patch struct {
	Set    Settings
	Fields []string
	Clear  []string
	// By is who asks for it, for the journal.
	By string
}
