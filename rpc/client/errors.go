package client

import (
	"errors"
	"fmt"
	"net"
	"strings"
	"time"

	"buf.build/go/protovalidate"
	"connectrpc.com/connect"
	"google.golang.org/protobuf/proto"

	kvgatev1 "kvgate/rpc/kvgate/v1"
	"kvgate/rpc/rules"
)

// Errors that callers may match with errors.Is. Acquire returns only these and the error of its
// context; see the package comment.
var (
	// ErrInvalid: the request can never be accepted. It is wrapped by an *Error whose Field says why.
	ErrInvalid = errors.New("invalid argument")
	// ErrTicketMismatch: the ticket already waits with another reservation.
	ErrTicketMismatch = errors.New("ticket waits with another reservation")
	// ErrSessionClosing: the session is closing or closed and takes no more tickets.
	ErrSessionClosing = errors.New("session is closing or closed")
	// ErrClosed: the client was closed.
	ErrClosed = errors.New("client is closed")
	// ErrLeaseGone: the lease expired, was released or was reclaimed.
	ErrLeaseGone = errors.New("lease is gone")
)

// What Grant.Cause wraps when the client had to decide by itself.
var (
	errNoDecision = errors.New("no decision from the coordinator")
	errNonsense   = errors.New("answer makes no sense")
)

// Error is what a call that was refused, or that reached no coordinator, returns.
type Error struct {
	// Code is the Connect code, e.g. connect.CodeInvalidArgument.
	Code connect.Code
	// Name is the coordinator's machine-readable name, e.g. "ticket_mismatch"; empty when the error
	// was not made by kvgate.
	Name string
	// Field is the request field at fault, in lowerCamel, for invalid arguments.
	Field string
	// Err is the cause. It wraps one of the sentinels above where one fits.
	Err error

	retryAfter time.Duration
	leaderHint string
	// notSent: the connection was never made, so nobody has seen the request.
	notSent bool
}

func (e *Error) Error() string {
	var b strings.Builder
	b.WriteString("kvgate: ")
	b.WriteString(e.Code.String())
	for _, part := range []string{e.Name, e.Field} {
		if part != "" {
			b.WriteString(" " + part)
		}
	}
	return fmt.Sprintf("%s: %v", b.String(), e.Err)
}

// Unwrap returns the cause.
func (e *Error) Unwrap() error { return e.Err }

// verdict says what an error means for the call that got it.
type verdict int

const (
	// retryable: another try, perhaps elsewhere, may succeed.
	retryable verdict = iota
	// refused: the coordinator understood and said no. Trying again at once is pointless.
	refused
	// misuse: the caller's mistake; it must hear about it.
	misuse
)

// asError turns what a Connect client returned into an *Error. It returns nil for nil.
func asError(err error) *Error {
	if err == nil {
		return nil
	}
	var own *Error
	if errors.As(err, &own) {
		return own
	}
	e := &Error{Code: connect.CodeOf(err), Err: err}
	var dial *net.OpError
	e.notSent = errors.As(err, &dial) && dial.Op == "dial"
	var wire *connect.Error
	if !errors.As(err, &wire) {
		return e
	}
	e.Err = wire.Unwrap()
	if !connect.IsWireError(err) {
		return e
	}
	if info := errorInfo(wire); info != nil {
		e.Name, e.Field, e.leaderHint = info.GetCode(), info.GetField(), info.GetLeaderHint()
		e.retryAfter = info.GetRetryAfter().AsDuration()
	}
	if sentinel := e.sentinel(); sentinel != nil {
		e.Err = fmt.Errorf("%w: %s", sentinel, wire.Message())
	}
	return e
}

func errorInfo(wire *connect.Error) *kvgatev1.ErrorInfo {
	for _, detail := range wire.Details() {
		if value, err := detail.Value(); err == nil {
			if info, ok := value.(*kvgatev1.ErrorInfo); ok {
				return info
			}
		}
	}
	return nil
}

func (e *Error) sentinel() error {
	switch {
	case e.Code == connect.CodeInvalidArgument:
		return ErrInvalid
	case e.Name == "ticket_mismatch":
		return ErrTicketMismatch
	case e.Name == "session_closing":
		return ErrSessionClosing
	}
	return nil
}

// verdict classifies e. A refusal by code alone is believed even without an ErrorInfo: interceptors
// and proxies (authentication) refuse without one.
func (e *Error) verdict() verdict {
	if e.sentinel() != nil {
		return misuse
	}
	switch e.Code {
	case connect.CodeResourceExhausted, connect.CodeUnauthenticated, connect.CodePermissionDenied,
		connect.CodeNotFound, connect.CodeFailedPrecondition, connect.CodeOutOfRange, connect.CodeAlreadyExists,
		connect.CodeAborted: // an engine did not answer
		return refused
	}
	return retryable
}

// validate checks msg against the rules in its proto, so that a programming error is reported even
// while no coordinator can be reached.
func validate(msg proto.Message) error {
	err := rules.Validate(protovalidate.GlobalValidator, msg)
	if err == nil {
		return nil
	}
	var invalid *protovalidate.ValidationError
	if !errors.As(err, &invalid) || len(invalid.Violations) == 0 {
		return &Error{Code: connect.CodeInvalidArgument, Err: fmt.Errorf("%w: %w", ErrInvalid, err)}
	}
	v := invalid.Violations[0]
	path := protovalidate.FieldPathString(v.Proto.GetField())
	detail := v.Proto.GetMessage()
	switch {
	case path == "":
		// A rule about several fields is named "<field>.<rule>".
		path, _, _ = strings.Cut(v.Proto.GetRuleId(), ".")
	case v.FieldValue.IsValid():
		detail = fmt.Sprintf("%.64q: %s", v.FieldValue.String(), detail)
	}
	return &Error{
		Code:  connect.CodeInvalidArgument,
		Field: lowerCamel(path),
		Err:   fmt.Errorf("%w: %s", ErrInvalid, detail),
	}
}

// lowerCamel is the API's spelling of a proto field path.
func lowerCamel(path string) string {
	words := strings.Split(path, "_")
	for i, word := range words[1:] {
		if word != "" {
			words[i+1] = strings.ToUpper(word[:1]) + word[1:]
		}
	}
	return strings.Join(words, "")
}
