package ledger

import (
	"strconv"
	"time"
)

// Time is ledger time: nanoseconds that pass only while some leader leads. It is the only clock the
// ledger knows, and it never goes backwards.
type Time int64

// Add returns t + d.
func (t Time) Add(d time.Duration) Time { return t + Time(d) }

// Sub returns t - u.
func (t Time) Sub(u Time) time.Duration { return time.Duration(t - u) }

// Tokens counts KV-cache tokens.
type Tokens int64

// MaxTokens bounds every token count that a caller may send, so that sums cannot overflow.
const MaxTokens Tokens = 1_000_000_000_000

// Seq numbers waiters and grants. It is unique over the life of a ledger: a grant's number fences
// late releases and renewals of an older grant of the same ticket.
type Seq uint64

// DefaultPool is the name of the unnamed pool. It always exists.
const DefaultPool = "default"

// LeaseID returns the readable id of a lease. It repeats when a ticket is granted twice in one epoch,
// so it does not fence by itself; Seq does.
func LeaseID(epoch uint64, ticket string) string {
	return strconv.FormatUint(epoch, 10) + ":" + ticket
}

// Mode says what an attempt is for.
type Mode uint8

// The modes. The zero value means ModeTrain.
const (
	ModeUnspecified Mode = iota
	ModeTrain
	ModeEval
)

// Action is what the caller should do now.
type Action uint8

// The actions.
const (
	ActionUnspecified Action = iota
	ActionAdmit
	ActionBypass
	ActionWait
)

// Reason explains an Action. The numbers are those of the API's enum.
type Reason uint8

// The reasons.
const (
	ReasonUnspecified Reason = iota
	CapacityAvailable
	Protected
	Degraded
	Aged
	Cancelled
	Oversized
	Disabled
	OutOfScope
	SessionClosing
	Abandoned
	reasonCount
)

var reasonNames = [reasonCount]string{
	"unspecified", "capacity_available", "protected", "degraded", "aged", "cancelled",
	"oversized", "disabled", "out_of_scope", "session_closing", "abandoned",
}

// String returns the name used in metric keys and the journal.
func (r Reason) String() string { return nameOf(reasonNames[:], int(r)) }

// WaitReason says what holds a waiter back.
type WaitReason uint8

// The wait reasons.
const (
	WaitUnspecified WaitReason = iota
	PressureGuard
	CapacityExhausted
	OlderWaiter
)

var waitReasonNames = []string{"unspecified", "pressure_guard", "capacity_exhausted", "older_waiter"}

// String returns the name used in the journal.
func (r WaitReason) String() string { return nameOf(waitReasonNames, int(r)) }

// CancelState says what a ticket was when Cancel reached it.
type CancelState uint8

// The cancel states.
const (
	CancelUnspecified CancelState = iota
	CancelWaiting
	CancelLeased
	CancelUnknown
)

// Scope says which modes are admitted. The zero value means ScopeTrain.
type Scope uint8

// The scopes.
const (
	ScopeUnspecified Scope = iota
	ScopeTrain
	ScopeAll
)

// String returns the name used on the command line and in the journal.
func (s Scope) String() string { return nameOf([]string{"train", "train", "all"}, int(s)) }

// String returns the name used on the command line and in the journal.
func (o Oversize) String() string { return nameOf([]string{"bypass", "bypass", "wait"}, int(o)) }

// String returns the name used on the command line and in the journal.
func (r CapacityRoles) String() string {
	return nameOf([]string{"auto", "auto", "regular", "decode", "prefill"}, int(r))
}

// String returns the name used on the command line and in the journal.
func (s CloseScope) String() string {
	return nameOf([]string{"broadcast", "broadcast", "served"}, int(s))
}

// Oversize says what happens to a reservation that can never fit. The zero value means OversizeBypass.
type Oversize uint8

// The oversize policies.
const (
	OversizeUnspecified Oversize = iota
	OversizeBypass
	OversizeWait
)

// Role is what an engine does in a disaggregated fleet.
type Role uint8

// The roles. The zero value means RoleRegular.
const (
	RoleUnspecified Role = iota
	RoleRegular
	RolePrefill
	RoleDecode
	RoleEncode
)

// CapacityRoles says which engine roles make the ceiling. The zero value means RolesAuto: the decode
// engines where there are any, else the regular ones.
type CapacityRoles uint8

// The capacity roles.
const (
	RolesUnspecified CapacityRoles = iota
	RolesAuto
	RolesRegular
	RolesDecode
	RolesPrefill
)

// CloseScope says which engines hear a session's close. The zero value means CloseBroadcast.
type CloseScope uint8

// The close scopes.
const (
	CloseScopeUnspecified CloseScope = iota
	CloseBroadcast
	CloseServed
)

func nameOf(names []string, i int) string {
	if i < len(names) {
		return names[i]
	}
	return "unknown_" + strconv.Itoa(i)
}
