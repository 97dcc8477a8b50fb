package scrape

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/url"
	"strings"
)

// Errors that callers may match with errors.Is.
var (
	// ErrUnreachable: no HTTP answer came back. Every other error means that something answered.
	ErrUnreachable = errors.New("unreachable")
	// ErrUnauthorized: the other side refused the key, or wants one.
	ErrUnauthorized = errors.New("key refused")
	// ErrStatus: an HTTP status other than 200.
	ErrStatus = errors.New("unexpected status")
	// ErrTooLarge: the body is over the size limit.
	ErrTooLarge = errors.New("body too large")
	// ErrMalformed: the body is not what the endpoint is documented to answer.
	ErrMalformed = errors.New("malformed answer")
	// ErrNoList: the router answered, but has no endpoint that lists workers.
	ErrNoList = errors.New("router has neither /workers nor /list_workers")
	// ErrTooManyWorkers: the list is longer than MaxWorkers.
	ErrTooManyWorkers = errors.New("too many workers")
	// ErrBadURL: not an http or https URL that can be scraped.
	ErrBadURL = errors.New("not an http:// or https:// URL with a host")
	// ErrNoMetrics: the page holds no engine metrics.
	ErrNoMetrics = errors.New("no engine metrics on the page")
	// ErrNoCapacity: neither the page nor the engine's info endpoints tell the KV capacity.
	ErrNoCapacity = errors.New("capacity unknown")
	// ErrMergedPage: the page holds several engines' series and none is recognisably this engine's.
	ErrMergedPage = errors.New("page of several engines")
)

// errNotFound is the ErrStatus of a 404.
var errNotFound = fmt.Errorf("%w", ErrStatus)

// unreachable turns a transport error into an ErrUnreachable with a text that stays the same from poll to
// poll: no URL (the reader knows it, and it may hold secrets) and no ephemeral local port.
func unreachable(err error) error {
	var ue *url.Error
	if errors.As(err, &ue) {
		err = ue.Err
	}
	var oe *net.OpError
	switch {
	case errors.Is(err, context.DeadlineExceeded), isTimeout(err):
		return fmt.Errorf("%w: no answer in time", ErrUnreachable)
	case errors.Is(err, io.EOF), errors.Is(err, io.ErrUnexpectedEOF):
		return fmt.Errorf("%w: connection closed before the answer ended", ErrUnreachable)
	case errors.As(err, &oe):
		return fmt.Errorf("%w: %s: %s", ErrUnreachable, oe.Op, rootText(oe.Err))
	}
	return fmt.Errorf("%w: %s", ErrUnreachable, clip(err.Error()))
}

func isTimeout(err error) bool {
	var ne net.Error
	return errors.As(err, &ne) && ne.Timeout()
}

// rootText is the text of the innermost error: "connection refused" of "connect: connection refused".
func rootText(err error) string {
	for {
		inner := errors.Unwrap(err)
		if inner == nil {
			return clip(err.Error())
		}
		err = inner
	}
}

// maxErrorText bounds the texts that get replicated with every round.
const maxErrorText = 240

func clip(s string) string {
	if len(s) <= maxErrorText {
		return s
	}
	return strings.ToValidUTF8(s[:maxErrorText], "") + "…"
}
