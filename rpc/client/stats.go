package client

import (
	"context"
	"log/slog"
	"maps"
	"sync"
	"time"

	"golang.org/x/time/rate"
)

// EventKind names what happened.
type EventKind string

// The kinds of events.
const (
	// EventAdmitted: an Acquire was admitted.
	EventAdmitted EventKind = "admitted"
	// EventBypassed: an Acquire was let through without a lease; Reason says why.
	EventBypassed EventKind = "bypassed"
	// EventDegraded: the client itself let an Acquire through because of Err. It comes in addition to
	// the EventBypassed with reason Degraded.
	EventDegraded EventKind = "degraded"
	// EventRetry: a try of an Acquire, or of another call, failed with Err and is repeated.
	EventRetry EventKind = "retry"
	// EventReleaseRetry: a try of a background release or cancel failed with Err and is repeated.
	EventReleaseRetry EventKind = "release_retry"
	// EventReleased: a release was carried out, or the lease was found gone.
	EventReleased EventKind = "released"
	// EventCancelled: a ticket that this client gave up on is known to be gone.
	EventCancelled EventKind = "cancelled"
	// EventUnsettled: a release or cancel was given up, with Err, at its lease's end or at Close.
	EventUnsettled EventKind = "unsettled"
	// EventLost: the lease of a grant that is still held is gone.
	EventLost EventKind = "lost"
	// EventHeartbeat: a heartbeat was answered.
	EventHeartbeat EventKind = "heartbeat"
	// EventSessionClosed: a coordinator has the close of a session or a group.
	EventSessionClosed EventKind = "session_closed"
	// EventCloseRetry: a try to send a close failed with Err and is repeated.
	EventCloseRetry EventKind = "close_retry"
	// EventCloseLost: a close was given up, with Err: no coordinator has it.
	EventCloseLost EventKind = "close_lost"
	// EventError: a call returned Err to its caller.
	EventError EventKind = "error"
)

// Event is one thing the client did. Fields that do not apply are zero.
type Event struct {
	Kind   EventKind
	Pool   string
	Ticket string
	// Session and Group of a close.
	Session string
	Group   string
	Reason  Reason
	// Waited is the time spent in the queue.
	Waited time.Duration
	Err    error
}

// Stats counts events since New.
type Stats struct {
	Admitted int64
	// Waited counts decisions, of either action, that came after a wait in the queue.
	Waited   int64
	Bypassed map[Reason]int64
	// Degraded counts the bypasses that this client decided by itself. They are in Bypassed too.
	Degraded       int64
	Retries        int64
	ReleaseRetries int64
	Released       int64
	Cancelled      int64
	Unsettled      int64
	Lost           int64
	Heartbeats     int64
	// SessionsClosed counts closes that a coordinator has, of sessions or groups; ClosesLost those that
	// were given up.
	SessionsClosed int64
	CloseRetries   int64
	ClosesLost     int64
	Errors         int64
}

// recorder counts events and passes them on.
type recorder struct {
	hook func(Event)

	mu    sync.Mutex
	stats Stats
}

func (r *recorder) record(e Event) {
	r.count(e)
	if r.hook != nil {
		r.hook(e)
	}
}

func (r *recorder) count(e Event) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if e.Waited > 0 {
		r.stats.Waited++
	}
	switch e.Kind {
	case EventAdmitted:
		r.stats.Admitted++
	case EventBypassed:
		if r.stats.Bypassed == nil {
			r.stats.Bypassed = map[Reason]int64{}
		}
		r.stats.Bypassed[e.Reason]++
	case EventDegraded:
		r.stats.Degraded++
	case EventRetry:
		r.stats.Retries++
	case EventReleaseRetry:
		r.stats.ReleaseRetries++
	case EventReleased:
		r.stats.Released++
	case EventCancelled:
		r.stats.Cancelled++
	case EventUnsettled:
		r.stats.Unsettled++
	case EventLost:
		r.stats.Lost++
	case EventHeartbeat:
		r.stats.Heartbeats++
	case EventSessionClosed:
		r.stats.SessionsClosed++
	case EventCloseRetry:
		r.stats.CloseRetries++
	case EventCloseLost:
		r.stats.ClosesLost++
	case EventError:
		r.stats.Errors++
	}
}

func (r *recorder) snapshot() Stats {
	r.mu.Lock()
	defer r.mu.Unlock()
	out := r.stats
	out.Bypassed = maps.Clone(out.Bypassed)
	return out
}

// logInterval is how often one kind of trouble is logged.
const logInterval = 10 * time.Second

// rareLog logs one kind of trouble at most once per logInterval and says how often it was silent.
type rareLog struct {
	logger  *slog.Logger
	message string

	once       rate.Sometimes
	mu         sync.Mutex
	suppressed int64
}

func newRareLog(logger *slog.Logger, message string) *rareLog {
	return &rareLog{logger: logger, message: message, once: rate.Sometimes{First: 1, Interval: logInterval}}
}

func (l *rareLog) warn(attrs ...slog.Attr) {
	l.mu.Lock()
	l.suppressed++
	l.mu.Unlock()
	l.once.Do(func() {
		l.mu.Lock()
		silent := l.suppressed - 1
		l.suppressed = 0
		l.mu.Unlock()
		attrs = append(attrs, slog.Int64("suppressed", silent))
		l.logger.LogAttrs(context.Background(), slog.LevelWarn, l.message, attrs...)
	})
}
