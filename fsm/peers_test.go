package fsm

import (
	"context"
	"errors"
	"fmt"
	"testing"
	"time"

	"connectrpc.com/connect"
)

// TestUnreachedIsNotTheCallersDeadline: what ended a call between nodes, such as the limit of a dial, must not
// look as if the caller's own time were over, nor be answered as the other node's error.
func TestUnreachedIsNotTheCallersDeadline(t *testing.T) {
	inner := map[string]error{
		"limit of a dial":        connect.NewError(connect.CodeDeadlineExceeded, fmt.Errorf("%w: %w", errNotDialled, context.DeadlineExceeded)),
		"deadline on the leader": connect.NewError(connect.CodeDeadlineExceeded, context.DeadlineExceeded),
		"leader hung up":         connect.NewError(connect.CodeCanceled, context.Canceled),
	}
	for name, err := range inner {
		got := unreached(t.Context(), err)
		var answered *connect.Error
		if !retriable(got) || errors.As(got, &answered) || errors.Is(got, context.DeadlineExceeded) || errors.Is(got, context.Canceled) {
			t.Errorf("%s: %v surfaces as something else than an unknown outcome", name, got)
		}
		if errors.Is(got, errNotDialled) != errors.Is(err, errNotDialled) {
			t.Errorf("%s: %v does not tell whether the leader was reached", name, got)
		}
	}
	over, cancel := context.WithCancelCause(t.Context())
	cancel(ErrTimeout)
	if got := unreached(over, inner["leader hung up"]); !errors.Is(got, ErrTimeout) {
		t.Errorf("the caller's time is over: %v", got)
	}
}

// TestCallersDeadlineIsTheCallers: whose time runs out while a ticket waits, on whichever node, hears that and
// not that the coordinator could not decide.
func TestCallersDeadlineIsTheCallers(t *testing.T) {
	call, cancel := context.WithTimeout(t.Context(), time.Hour)
	between, done := undated(call)
	if _, dated := between.Deadline(); dated {
		t.Error("the leader is told the caller's deadline")
	}
	cancel()
	<-between.Done()
	done()

	c := startCluster(t)
	c.budget(100)
	admit(t, c.leader().Replica, ask("held", 100))
	for _, m := range []*member{c.leader(), c.followers()[0]} {
		for i := range 20 {
			ctx, cancel := context.WithTimeout(t.Context(), time.Duration(10+i)*time.Millisecond)
			_, err := m.Acquire(ctx, ask(fmt.Sprintf("%s-%d", m.opts.NodeID, i), 100))
			cancel()
			if !errors.Is(err, context.DeadlineExceeded) || errors.Is(err, ErrTimeout) {
				t.Errorf("%s: %v, want the caller's own deadline", m.opts.NodeID, err)
			}
		}
	}
}
