package ledger

import (
	"errors"
	"fmt"
)

// Errors that callers may match with errors.Is.
var (
	// ErrTicketMismatch: the ticket already waits with another reservation.
	ErrTicketMismatch = errors.New("ticket waits with another reservation")
	// ErrTooManyWaiters: the pool's queue is as long as max_waiters allows.
	ErrTooManyWaiters = errors.New("queue is full")
	// ErrUnknownPool: no such pool.
	ErrUnknownPool = errors.New("unknown pool")
	// ErrStepDrained: a smaller step than the last drained one.
	ErrStepDrained = errors.New("step was already drained")
	// ErrInvalid is wrapped by every *FieldError.
	ErrInvalid = errors.New("invalid argument")
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
