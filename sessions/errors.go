package sessions

import (
	"errors"
	"fmt"
)

// Errors of the table. Callers may match them with errors.Is.
var (
	// ErrClosing: the session is closing or closed and takes no tickets.
	ErrClosing = errors.New("session is closing")
	// ErrUnknown: no such session.
	ErrUnknown = errors.New("unknown session")
	// ErrUnknownPin: no such pin.
	ErrUnknownPin = errors.New("unknown pin")
	// ErrKind: the session is open as another kind.
	ErrKind = errors.New("session is open as another kind")
	// ErrUnknownEngine: the engine is not one that the pool's discovery lists.
	ErrUnknownEngine = errors.New("engine is not in the pool")
	// ErrPinsDisabled: the pool's pin_ratio is 0.
	ErrPinsDisabled = errors.New("pins are disabled")
	// ErrPinBudget: the pin would take the pool's pinned tokens beyond pin_ratio of the ceiling.
	ErrPinBudget = errors.New("pin budget is exhausted")
	// ErrInvalid is wrapped by every *FieldError.
	ErrInvalid = errors.New("invalid argument")
	// ErrCorrupt: rows contradict each other.
	ErrCorrupt = errors.New("rows of the session table contradict each other")
)

// Errors of calls to engines. Callers may match them with errors.Is.
var (
	// ErrUnauthorized: the engine refused the key, or wants one.
	ErrUnauthorized = errors.New("key refused")
	// ErrUnreachable: no HTTP answer came back.
	ErrUnreachable = errors.New("unreachable")
	// ErrStatus: an HTTP status that the call does not expect.
	ErrStatus = errors.New("unexpected status")
	// ErrStreamingOff: the engine runs without --enable-streaming-session [sglang 19531].
	ErrStreamingOff = errors.New("engine has streaming sessions switched off")
	// ErrRefused: the engine understood the call and refused it.
	ErrRefused = errors.New("engine refused")
)

// FieldError says which field of a command is out of range.
type FieldError struct {
	// Field is the API's name of the field, lowerCamel.
	Field   string
	Value   any
	Allowed string
}

func (e *FieldError) Error() string {
	return fmt.Sprintf("%s is %v, allowed is %s", e.Field, e.Value, e.Allowed)
}

// Unwrap makes errors.Is(err, ErrInvalid) true.
func (e *FieldError) Unwrap() error { return ErrInvalid }

func fieldError(field string, value any, allowed string) error {
	return &FieldError{Field: field, Value: value, Allowed: allowed}
}
