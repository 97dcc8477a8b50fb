package fsm

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"time"

	"kvgate/fsm/fsmpb"
	"kvgate/sessions"
)

// engineTimeout bounds a call to an engine that a caller waits for.
const engineTimeout = 5 * time.Second

// OpenSession opens a session, or refreshes the one that is open. A streaming session is opened on its
// engine first; when that fails, nothing is left. Errors: those of sessions.Table.Open and, of the engine,
// of sessions.Client.OpenSession; ledger.ErrUnknownPool.
func (r *Replica) OpenSession(ctx context.Context, o sessions.OpenRequest) (sessions.View, error) {
	called := false
	if o.Kind == sessions.Streaming {
		var err error
		if called, err = r.openOnEngine(ctx, o); err != nil {
			return sessions.View{}, err
		}
	}
	v, err := decide[sessions.View](ctx, r, openOp(o))
	if called && (errors.Is(err, sessions.ErrKind) || errors.Is(err, sessions.ErrClosing) || errors.Is(err, sessions.ErrUnknownEngine)) {
		r.undoOpen(ctx, o)
	}
	return v, err
}

// undoOpen closes on its engine what was opened there and then refused, because somebody else opened or closed
// the id meanwhile; once, as well as can be. What the id means to that engine otherwise is left alone.
func (r *Replica) undoOpen(ctx context.Context, o sessions.OpenRequest) {
	engine, leave := sessions.EngineURL(o.Engine), false
	r.machine.look(func(c *core) {
		v, known := c.table.Get(o.Pool, o.ID)
		leave = known && v.State == sessions.Open && (v.Kind != sessions.Streaming || v.Engine == engine)
	})
	if leave {
		return
	}
	bounded, cancel := context.WithTimeout(context.WithoutCancel(ctx), engineTimeout)
	defer cancel()
	if err := r.opts.Engines.CloseSession(bounded, engine, o.ID); err != nil {
		r.log.Warn("session was opened on an engine, then refused, and could not be closed there",
			slog.String("engine", engine), slog.String("session", o.ID), slog.Any("error", err))
	}
}

// openOnEngine makes the call to the engine, unless the session would be refused, is open there already, or
// the pool tells engines nothing. It says whether it made it.
func (r *Replica) openOnEngine(ctx context.Context, o sessions.OpenRequest) (call bool, err error) {
	if err := r.readable(ctx, false); err != nil {
		return false, err
	}
	var refusal error
	r.machine.look(func(c *core) {
		if refusal = c.check(o.Pool, o.ID); refusal == nil {
			call, refusal = c.table.CheckOpen(o)
			call = call && c.silent(o.Pool) == ""
		}
	})
	if refusal != nil || !call {
		return false, refusal
	}
	if r.opts.Engines == nil {
		return false, fmt.Errorf("%w: node %s makes no calls to engines", sessions.ErrUnreachable, r.opts.NodeID)
	}
	bounded, cancel := context.WithTimeout(ctx, engineTimeout)
	defer cancel()
	engine := sessions.EngineURL(o.Engine)
	if err := r.opts.Engines.OpenSession(bounded, engine, o.ID, o.Idle()); err != nil {
		return false, fmt.Errorf("open session %q on engine %s: %w", o.ID, engine, err)
	}
	return true, nil
}

// TouchSession starts the idle clock of an open session anew.
func (r *Replica) TouchSession(ctx context.Context, pool, id string) (sessions.View, error) {
	return decide[sessions.View](ctx, r, &fsmpb.Op{Kind: &fsmpb.Op_TouchSession{TouchSession: &fsmpb.TouchSession{Pool: pool, Id: id}}})
}

// BindSession records a placement that a router made.
func (r *Replica) BindSession(ctx context.Context, b sessions.BindRequest) (sessions.View, error) {
	return decide[sessions.View](ctx, r, bindOp(b))
}

// CloseSession begins to close a session and answers at once. An id that is not known is answered as closed.
func (r *Replica) CloseSession(ctx context.Context, c sessions.CloseRequest) (sessions.View, error) {
	return decide[sessions.View](ctx, r, closeOp(c))
}

// CloseGroup closes the open sessions of a group and answers how many are closing because of it.
func (r *Replica) CloseGroup(ctx context.Context, pool, group string, mode sessions.Mode) (closing int, err error) {
	return decide[int](ctx, r, &fsmpb.Op{Kind: &fsmpb.Op_CloseGroup{CloseGroup: &fsmpb.CloseGroup{
		Pool: pool, Group: group, Mode: uint32(mode),
	}}})
}

// AwaitClosed blocks until the incarnation seq of a session is closed, and answers how that went. One that is
// gone is answered as closed.
func (r *Replica) AwaitClosed(ctx context.Context, pool, id string, seq uint64) (sessions.View, error) {
	if err := r.readable(ctx, false); err != nil {
		return sessions.View{}, err
	}
	for {
		v, known, changed := r.machine.session(pool, id)
		switch {
		case !known || v.Seq != seq:
			return sessions.View{SessionRow: sessions.SessionRow{
				Pool: pool, ID: id, Seq: seq, Kind: sessions.Radix, State: sessions.Closed,
			}}, nil
		case v.State > sessions.Closing:
			return v, nil
		}
		select {
		case <-changed:
		case <-ctx.Done():
			return v, context.Cause(ctx)
		case <-r.ctx.Done():
			return v, context.Cause(r.ctx)
		}
	}
}

// session returns a session, and what is closed when something happened to any session since.
func (m *Machine) session(pool, id string) (v sessions.View, known bool, changed <-chan struct{}) {
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.told == nil {
		m.told = make(chan struct{})
	}
	v, known = m.core.table.Get(pool, id)
	return v, known, m.told
}

// Sessions calls fn with the session table, which fn must neither change nor keep, and in which it must not
// block.
func (r *Replica) Sessions(ctx context.Context, stale bool, fn func(*sessions.Table)) error {
	if err := r.readable(ctx, stale); err != nil {
		return err
	}
	r.machine.look(func(c *core) { fn(c.table) })
	return nil
}
