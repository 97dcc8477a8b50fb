package main

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"syscall"

	"connectrpc.com/connect"
	"github.com/spf13/pflag"

	kvgatev1 "kvgate/rpc/kvgate/v1"
)

// Exit codes of every command. `acquire --exec` answers with the child's code instead, 128 + n when
// signal n ended it, 127 when there is no such command and 126 when it cannot be run.
const (
	exitOK          = 0
	exitFailed      = 1
	exitUsage       = 2
	exitUnavailable = 3
	exitCannotRun   = 126
	exitNotFound    = 127
)

var (
	// errInterrupted ends a command that a signal stopped.
	errInterrupted = errors.New("interrupted")
	// errNoLeader ends `status` when it reached a node of a cluster that cannot decide.
	errNoLeader = errors.New("no_leader: the cluster has no leader and decides nothing until it has one")
	// errNotAdmitted ends `acquire --exec --require-admission` on a bypass.
	errNotAdmitted = errors.New("not admitted")
	// errLeaseGone ends `renew` when a lease could not be renewed.
	errLeaseGone = errors.New("gone")
)

// usageError is a mistake in the command line, the environment or the configuration file.
type usageError struct {
	key     string // flag, variable or file key; empty when the mistake has no single place
	value   string
	allowed string // what would have been accepted
	text    string // the whole message when there is no key
}

func (e *usageError) Error() string {
	if e.key == "" {
		return e.text
	}
	return fmt.Sprintf("%s: %q is not allowed: use %s", e.key, e.value, e.allowed)
}

// usagef makes a usage error that is not about a value.
func usagef(format string, args ...any) error {
	return &usageError{text: fmt.Sprintf(format, args...)}
}

// badValue makes a usage error that names the key, its value and what is allowed.
func badValue(key, value, allowed string) error {
	return &usageError{key: key, value: value, allowed: allowed}
}

// exitError carries the exit code of a child process; its cause, if any, has been worded for people.
type exitError struct {
	code  int
	cause error
}

func (e *exitError) Error() string {
	if e.cause == nil {
		return fmt.Sprintf("exit status %d", e.code)
	}
	return e.cause.Error()
}

func (e *exitError) Unwrap() error { return e.cause }

// runError marks an error that a command's own code returned, as opposed to one that cobra found
// while it read the command line.
type runError struct{ err error }

func (e *runError) Error() string { return e.err.Error() }
func (e *runError) Unwrap() error { return e.err }

// exitCode maps the outcome of a command line to the code of the process.
func exitCode(err error) int {
	var (
		child *exitError
		usage *usageError
		run   *runError
	)
	switch {
	case err == nil:
		return exitOK
	case errors.As(err, &child):
		return child.code
	case errors.As(err, &usage), !errors.As(err, &run):
		return exitUsage
	case errors.Is(err, errNoLeader), unreachable(err):
		return exitUnavailable
	default:
		return exitFailed
	}
}

// unreachable reports that no server answered, or that none can decide.
func unreachable(err error) bool {
	if errors.Is(err, errInterrupted) {
		return false
	}
	switch connect.CodeOf(err) {
	case connect.CodeUnavailable, connect.CodeDeadlineExceeded:
		return true
	default:
		return errors.Is(err, context.DeadlineExceeded)
	}
}

// canceled reports that a call ended because its context was cancelled.
func canceled(err error) bool {
	return errors.Is(err, context.Canceled) || connect.CodeOf(err) == connect.CodeCanceled
}

// errorLine words an error in one line: code, message and, where the server named it, the field.
// It is empty when there is nothing left to say.
func errorLine(err error) string {
	var child *exitError
	if errors.As(err, &child) && child.cause == nil {
		return ""
	}
	if errors.Is(err, syscall.EPIPE) {
		return "" // whoever read the output has seen enough
	}
	var answer *connect.Error
	if errors.As(err, &answer) && !errors.Is(err, errInterrupted) {
		return oneLine(answerLine(answer))
	}
	return oneLine(err.Error())
}

func answerLine(answer *connect.Error) string {
	code, field := answer.Code().String(), ""
	if info := errorInfo(answer); info != nil {
		if info.GetCode() != "" {
			code = info.GetCode()
		}
		field = info.GetField()
	}
	line := code + ": " + answer.Message()
	if field != "" {
		line += " (field " + field + ")"
	}
	return line
}

// errorInfo returns the typed detail of an error answer, nil when it has none.
func errorInfo(err error) *kvgatev1.ErrorInfo {
	var answer *connect.Error
	if !errors.As(err, &answer) {
		return nil
	}
	for _, detail := range answer.Details() {
		value, err := detail.Value()
		if err != nil {
			continue
		}
		if info, ok := value.(*kvgatev1.ErrorInfo); ok {
			return info
		}
	}
	return nil
}

// oneLine folds a message into a single line and makes what a terminal would act on visible.
func oneLine(s string) string {
	return clean(strings.Join(strings.Fields(s), " "))
}

// flagError words what pflag found wrong with a command line.
func flagError(err error) error {
	var (
		invalid *pflag.InvalidValueError
		missing *pflag.ValueRequiredError
		unknown *pflag.NotExistError
	)
	switch {
	case errors.As(err, &invalid):
		return badValue(invalid.GetFlag().Name, invalid.GetValue(), allowedValues(invalid.GetFlag()))
	case errors.As(err, &missing):
		return usagef("%s: a value is missing: use %s", missing.GetFlag().Name, allowedValues(missing.GetFlag()))
	case errors.As(err, &unknown):
		return usagef("%s: unknown flag; --help lists the flags", unknown.GetSpecifiedName())
	default:
		return usagef("%s", err)
	}
}
