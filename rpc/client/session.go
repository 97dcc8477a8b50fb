package client

import (
	"context"
	"errors"
	"log/slog"
	"time"

	"connectrpc.com/connect"
	"google.golang.org/protobuf/types/known/durationpb"

	kvgatev1 "kvgate/rpc/kvgate/v1"
	"kvgate/rpc/kvgate/v1/kvgatev1connect"
)

// SessionKind and CloseMode are those of the API.
type (
	// SessionKind says what a session is to the engines.
	SessionKind = kvgatev1.SessionKind
	// CloseMode says what a close does with tickets in flight.
	CloseMode = kvgatev1.CloseMode
)

// The kinds and modes.
const (
	Radix     = kvgatev1.SessionKind_SESSION_KIND_RADIX
	Streaming = kvgatev1.SessionKind_SESSION_KIND_STREAMING
	Bind      = kvgatev1.SessionKind_SESSION_KIND_BIND

	Join  = kvgatev1.CloseMode_CLOSE_MODE_JOIN
	Abort = kvgatev1.CloseMode_CLOSE_MODE_ABORT
)

// closeBound is how long a close is tried to be delivered. A coordinator that was away for longer has
// worse to tell; the KV then goes by eviction, or by the session's idle timeout.
const closeBound = 10 * time.Minute

// NeverIdle as an IdleTimeout keeps a session open until it is closed.
const NeverIdle time.Duration = -1

// SessionRequest describes a session to open.
type SessionRequest struct {
	// Pool is the engine fleet; empty means the client's, see WithPool.
	Pool string
	// ID is what engines see as session_id, 1 to 256 bytes. Use a fresh one for each agent program.
	ID    string
	Group string
	// Kind is Radix by default.
	Kind SessionKind
	// IdleTimeout closes the session when it had no ticket for so long. 0 means the default of its kind;
	// NeverIdle means never.
	IdleTimeout time.Duration
	// EngineURL is the engine that a streaming session lives on.
	EngineURL string
}

func (r *SessionRequest) message(pool string) *kvgatev1.OpenSessionRequest {
	msg := &kvgatev1.OpenSessionRequest{
		Pool: pool, SessionId: r.ID, GroupId: r.Group, Kind: r.Kind, EngineUrl: r.EngineURL,
	}
	switch {
	case r.IdleTimeout == NeverIdle:
		msg.IdleTimeout = durationpb.New(0)
	case r.IdleTimeout != 0:
		msg.IdleTimeout = durationpb.New(r.IdleTimeout)
	}
	return msg
}

// Session is an open session.
type Session struct {
	Pool, ID string
	// Warnings of the coordinator, such as "session_id_reused".
	Warnings []string
	// Cause says why the coordinator did not open it; nil when it did. The rollout goes on without: the
	// first Acquire that names the session opens it as a radix session.
	Cause error

	c *Client
}

// Close begins to close the session; see [Client.CloseSession].
func (s *Session) Close(mode CloseMode) { s.c.CloseSession(s.Pool, s.ID, mode) }

// OpenSession opens a session, or starts the idle clock of an open one anew. It is needed only for what
// the first Acquire does not say: a group, an idle timeout, another kind than Radix.
//
// It fails open: an unreachable coordinator is the session's Cause, not an error. The error is not nil
// only when the request can never be right (ErrInvalid), when the id is still closing
// (ErrSessionClosing), when the coordinator or the engine refused (an *Error), when the client is
// closed (ErrClosed), or when ctx is done.
func (c *Client) OpenSession(ctx context.Context, r SessionRequest) (*Session, error) {
	msg := r.message(c.poolName(r.Pool))
	if err := validate(msg); err != nil {
		return nil, err
	}
	s := &Session{Pool: msg.GetPool(), ID: r.ID, c: c}
	resp, err := call(ctx, c, c.sessions.OpenSession, msg)
	if own := (*Error)(nil); errors.As(err, &own) && own.verdict() == retryable {
		s.Cause = err
		return s, nil
	}
	if err != nil {
		return nil, err
	}
	s.Warnings = resp.GetWarnings()
	return s, nil
}

// TouchSession starts the idle clock of an open session anew. Unlike the other calls it returns every
// error: whoever lets it be misses nothing while the coordinator is away.
func (c *Client) TouchSession(ctx context.Context, pool, id string) error {
	msg := &kvgatev1.TouchSessionRequest{Pool: c.poolName(pool), SessionId: id}
	if err := validate(msg); err != nil {
		return err
	}
	_, err := call(ctx, c, c.sessions.TouchSession, msg)
	return err
}

// BindSession records where the router placed the session's first turn; later grants carry it. ttl slides
// with each turn; 0 means while the session is open.
func (c *Client) BindSession(ctx context.Context, pool, id, engineURL string, dpRank int32, ttl time.Duration) error {
	msg := &kvgatev1.BindSessionRequest{Pool: c.poolName(pool), SessionId: id, EngineUrl: engineURL, DpRank: dpRank}
	if ttl != 0 {
		msg.Ttl = durationpb.New(ttl)
	}
	if err := validate(msg); err != nil {
		return err
	}
	_, err := call(ctx, c, c.sessions.BindSession, msg)
	return err
}

// CloseSession begins to close a session. It returns at once and never fails: the close is sent in the
// background until a coordinator has it, at most for 10 minutes. From then on it is in the
// coordinator's log, and every engine will hear. Grants of the session need not be released before.
func (c *Client) CloseSession(pool, id string, mode CloseMode) { c.sendClose(pool, id, mode) }

// CloseSessionWait is CloseSession, but waits until a coordinator has the close. The error is that of ctx,
// or says why the client gave up; the close is sent on in the background when ctx ends first.
func (c *Client) CloseSessionWait(ctx context.Context, pool, id string, mode CloseMode) error {
	return c.sendClose(pool, id, mode).wait(ctx)
}

// CloseGroup begins to close all open sessions of a rollout group, like CloseSession.
func (c *Client) CloseGroup(pool, group string, mode CloseMode) {
	msg := &kvgatev1.CloseGroupRequest{Pool: c.poolName(pool), GroupId: group, Mode: mode}
	c.deliver(Event{Pool: msg.GetPool(), Group: group}, validate(msg), func(ctx context.Context) error {
		_, err := c.sessions.CloseGroup(ctx, connect.NewRequest(msg))
		return err
	})
}

func (c *Client) sendClose(pool, id string, mode CloseMode) *delivery {
	msg := &kvgatev1.CloseSessionRequest{Pool: c.poolName(pool), SessionId: id, Mode: mode}
	return c.deliver(Event{Pool: msg.GetPool(), Session: id}, validate(msg), func(ctx context.Context) error {
		_, err := c.sessions.CloseSession(ctx, connect.NewRequest(msg))
		return err
	})
}

// delivery is a close on its way to a coordinator.
type delivery struct {
	done chan struct{}
	err  error // set before done is closed
}

func (d *delivery) wait(ctx context.Context) error {
	select {
	case <-d.done:
		return d.err
	case <-ctx.Done():
		return ctx.Err()
	}
}

// deliver makes call in the background until it is answered. about says which sessions; invalid is
// what is wrong with the message, if anything.
func (c *Client) deliver(about Event, invalid error, call func(context.Context) error) *delivery {
	d := &delivery{done: make(chan struct{})}
	finish := func(err error) {
		d.err = err
		about.Kind, about.Err = EventSessionClosed, err
		if err != nil {
			about.Kind = EventCloseLost
			c.logs.closes.warn(slog.String("pool", about.Pool), slog.String("session", about.Session), slog.String("group", about.Group), slog.Any("error", err))
		}
		c.record(about)
		close(d.done)
	}
	if invalid != nil {
		finish(invalid)
		return d
	}
	started := c.settlements.start(func() {
		ctx, cancel := context.WithTimeout(c.flush, closeBound)
		defer cancel()
		retried := func(err error) {
			c.record(Event{Kind: EventCloseRetry, Pool: about.Pool, Session: about.Session, Group: about.Group, Err: err})
		}
		finish(c.persist(ctx, step{call: call, known: func(int) {}, unknown: func() {}, retried: retried}))
	})
	if !started {
		finish(ErrClosed)
	}
	return d
}

// Sessions is the plain SessionService; see [Client.Admission].
func (c *Client) Sessions() kvgatev1connect.SessionServiceClient { return c.rawSessions }
