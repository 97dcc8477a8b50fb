package rpc

import (
	"cmp"
	"context"
	"errors"
	"time"

	"connectrpc.com/connect"
	"google.golang.org/protobuf/types/known/durationpb"

	"kvgate/fsm"
	"kvgate/ledger"
	kvgatev1 "kvgate/rpc/kvgate/v1"
	"kvgate/sessions"
)

// Values of ErrorInfo.code: stable names that clients may match.
const (
	CodeInvalidArgument  = "invalid_argument"
	CodeNotFound         = "not_found"
	CodeTicketMismatch   = "ticket_mismatch"
	CodeTooManyWaiters   = "too_many_waiters"
	CodeTooManyInFlight  = "too_many_in_flight"
	CodeDefaultPool      = "default_pool"
	CodeNoLeader         = "no_leader"
	CodeTimeout          = "timeout"
	CodeReadOnly         = "read_only"
	CodeShutdown         = "shutdown"
	CodeCanceled         = "canceled"
	CodeDeadlineExceeded = "deadline_exceeded"
	CodeInternal         = "internal"
	CodeLastVoter        = "last_voter"
	CodeUnknownNode      = "unknown_node"
	CodeAddressTaken     = "address_taken"
	CodeOldNode          = "old_node"
	CodeWrongNode        = "wrong_node"
	CodeNotTransferred   = "not_transferred"
	CodeUnauthenticated  = "unauthenticated"
	CodePermissionDenied = "permission_denied"
	CodeWrongCluster     = "wrong_cluster"
	CodeNewerState       = "newer_state"
	CodeBadArchive       = "bad_archive"
	CodeReadOnlySnapshot = "read_only_snapshot"
	CodeSessionClosing   = "session_closing"
	CodeSessionKind      = "session_kind"
	CodePinsDisabled     = "pins_disabled"
	CodePinBudget        = "pin_budget_exhausted"
	CodeEngineKey        = "engine_key_refused"
	CodeEngineDown       = "engine_unreachable"
	CodeEngineRefused    = "engine_refused"
)

// ErrDefaultPool: the default pool always exists, so it cannot be deleted. Clearing its settings is
// what a caller who wants it fresh is after.
var ErrDefaultPool = errors.New("the default pool cannot be deleted")

// ErrTooManyInFlight: one stream, or one holder that uses Submit, has as many tickets waiting as a node
// keeps for it.
var ErrTooManyInFlight = errors.New("too many tickets wait for one caller")

// A fault is one row of the error table.
type fault struct {
	is   error
	code connect.Code
	// name is the ErrorInfo's code.
	name string
	// field is the request field at fault where the error itself does not say.
	field string
	// retryAfter is 0 where a retry is pointless, unless elsewhere.
	retryAfter time.Duration
	// elsewhere: another node will do, at once.
	elsewhere bool
	// ours: the coordinator's trouble, not the caller's. An Acquire fails open on it.
	ours bool
}

// faults maps sentinels to codes; the first row that matches wins.
var faults = []fault{
	{is: ledger.ErrInvalid, code: connect.CodeInvalidArgument, name: CodeInvalidArgument},
	{is: ledger.ErrTicketMismatch, code: connect.CodeFailedPrecondition, name: CodeTicketMismatch},
	{is: ledger.ErrTooManyWaiters, code: connect.CodeResourceExhausted, name: CodeTooManyWaiters, retryAfter: time.Second},
	{is: ErrTooManyInFlight, code: connect.CodeResourceExhausted, name: CodeTooManyInFlight, retryAfter: time.Second},
	{is: ledger.ErrUnknownPool, code: connect.CodeNotFound, name: CodeNotFound},
	{is: sessions.ErrInvalid, code: connect.CodeInvalidArgument, name: CodeInvalidArgument},
	{is: sessions.ErrUnknownEngine, code: connect.CodeInvalidArgument, name: CodeInvalidArgument, field: "engineUrl"},
	{is: sessions.ErrClosing, code: connect.CodeFailedPrecondition, name: CodeSessionClosing},
	{is: sessions.ErrKind, code: connect.CodeFailedPrecondition, name: CodeSessionKind},
	{is: sessions.ErrUnknown, code: connect.CodeNotFound, name: CodeNotFound},
	{is: sessions.ErrUnknownPin, code: connect.CodeNotFound, name: CodeNotFound},
	{is: sessions.ErrPinsDisabled, code: connect.CodeFailedPrecondition, name: CodePinsDisabled},
	{is: sessions.ErrPinBudget, code: connect.CodeResourceExhausted, name: CodePinBudget},
	// Engines answer within calls that open streaming sessions.
	{is: sessions.ErrUnauthorized, code: connect.CodeFailedPrecondition, name: CodeEngineKey},
	{is: sessions.ErrStreamingOff, code: connect.CodeFailedPrecondition, name: CodeEngineRefused},
	{is: sessions.ErrRefused, code: connect.CodeFailedPrecondition, name: CodeEngineRefused},
	{is: sessions.ErrStatus, code: connect.CodeFailedPrecondition, name: CodeEngineRefused},
	{is: sessions.ErrUnreachable, code: connect.CodeAborted, name: CodeEngineDown, retryAfter: time.Second},
	{is: ErrDefaultPool, code: connect.CodeFailedPrecondition, name: CodeDefaultPool},
	{is: ErrUnauthenticated, code: connect.CodeUnauthenticated, name: CodeUnauthenticated},
	{is: ErrDenied, code: connect.CodePermissionDenied, name: CodePermissionDenied},
	{is: fsm.ErrReadOnlySnapshot, code: connect.CodeFailedPrecondition, name: CodeReadOnlySnapshot},
	{is: fsm.ErrWrongCluster, code: connect.CodeFailedPrecondition, name: CodeWrongCluster},
	{is: fsm.ErrNewerState, code: connect.CodeFailedPrecondition, name: CodeNewerState},
	{is: fsm.ErrBadArchive, code: connect.CodeInvalidArgument, name: CodeBadArchive},
	{is: fsm.ErrLastVoter, code: connect.CodeFailedPrecondition, name: CodeLastVoter},
	{is: fsm.ErrUnknownNode, code: connect.CodeNotFound, name: CodeUnknownNode},
	{is: fsm.ErrAddressTaken, code: connect.CodeFailedPrecondition, name: CodeAddressTaken},
	{is: fsm.ErrOldNode, code: connect.CodeFailedPrecondition, name: CodeOldNode},
	{is: fsm.ErrWrongNode, code: connect.CodeFailedPrecondition, name: CodeWrongNode},
	{is: fsm.ErrNotTransferred, code: connect.CodeFailedPrecondition, name: CodeNotTransferred},
	{is: fsm.ErrNoLeader, code: connect.CodeUnavailable, name: CodeNoLeader, retryAfter: 500 * time.Millisecond, ours: true},
	{is: fsm.ErrNotLeader, code: connect.CodeUnavailable, name: CodeNoLeader, retryAfter: 100 * time.Millisecond, ours: true},
	{is: fsm.ErrLeadershipLost, code: connect.CodeUnavailable, name: CodeNoLeader, retryAfter: 500 * time.Millisecond, ours: true},
	{is: fsm.ErrTimeout, code: connect.CodeUnavailable, name: CodeTimeout, retryAfter: 500 * time.Millisecond, ours: true},
	{is: fsm.ErrReadOnly, code: connect.CodeUnavailable, name: CodeReadOnly, retryAfter: 5 * time.Second, ours: true},
	{is: fsm.ErrShutdown, code: connect.CodeUnavailable, name: CodeShutdown, elsewhere: true, ours: true},
	{is: context.DeadlineExceeded, code: connect.CodeDeadlineExceeded, name: CodeDeadlineExceeded},
	{is: context.Canceled, code: connect.CodeCanceled, name: CodeCanceled},
}

// internal is what no row matches.
var internal = fault{code: connect.CodeInternal, name: CodeInternal, ours: true}

// untrackedCauses lists the names of what an Acquire fails open on.
func untrackedCauses() []string {
	causes := []string{internal.name}
	for _, f := range faults {
		if f.ours {
			causes = append(causes, f.name)
		}
	}
	return causes
}

func faultOf(err error) fault {
	for _, f := range faults {
		if errors.Is(err, f.is) {
			return f
		}
	}
	return internal
}

// invalid reports a field that is out of range in the same form as the ledger does.
func invalid(field string, value any, allowed string) error {
	return &ledger.FieldError{Field: field, Value: value, Allowed: allowed}
}

// fieldOf returns the request field that an error names, "" when it names none.
func fieldOf(err error) string {
	if e := (*ledger.FieldError)(nil); errors.As(err, &e) {
		return e.Field
	}
	if e := (*sessions.FieldError)(nil); errors.As(err, &e) {
		return e.Field
	}
	return ""
}

// newError returns err as a Connect error with its ErrorInfo. status is asked only when another
// node may do better.
func newError(err error, status func() fsm.Status) *connect.Error {
	f := faultOf(err)
	info := &kvgatev1.ErrorInfo{Code: f.name, Field: cmp.Or(fieldOf(err), f.field)}
	if f.retryAfter > 0 || f.elsewhere {
		info.RetryAfter = durationpb.New(f.retryAfter)
	}
	if f.name == CodeNoLeader || f.elsewhere {
		info.LeaderHint = leaderHint(err, status())
	}
	out := connect.NewError(f.code, err)
	if detail, err := connect.NewErrorDetail(info); err == nil {
		out.AddDetail(detail)
	}
	return out
}
