package fsm

import (
	"context"
	"errors"

	"kvgate/sessions"
)

// errNoSessions is answered until the machine holds the session table.
var errNoSessions = errors.New("this node does not keep sessions yet")

// OpenSession opens a session, or refreshes the one that is open. A streaming session is opened on its
// engine first; when that fails, nothing is left.
func (r *Replica) OpenSession(context.Context, sessions.OpenRequest) (sessions.View, error) {
	return sessions.View{}, errNoSessions
}

// TouchSession starts the idle clock of an open session anew.
func (r *Replica) TouchSession(_ context.Context, _, _ string) (sessions.View, error) {
	return sessions.View{}, errNoSessions
}

// BindSession records a placement that a router made.
func (r *Replica) BindSession(context.Context, sessions.BindRequest) (sessions.View, error) {
	return sessions.View{}, errNoSessions
}

// CloseSession begins to close a session and answers at once.
func (r *Replica) CloseSession(context.Context, sessions.CloseRequest) (sessions.View, error) {
	return sessions.View{}, errNoSessions
}

// AwaitClosed blocks until the incarnation seq of a session is closed, and answers how that went. One
// that is gone is answered as closed.
func (r *Replica) AwaitClosed(_ context.Context, _, _ string, _ uint64) (sessions.View, error) {
	return sessions.View{}, errNoSessions
}

// CloseGroup closes the open sessions of a group and answers how many are closing because of it.
func (r *Replica) CloseGroup(_ context.Context, _, _ string, _ sessions.Mode) (closing int, err error) {
	return 0, errNoSessions
}

// PinPrefix reserves tokens for a prefix and, where token ids are given, asks the engine to keep it.
func (r *Replica) PinPrefix(_ context.Context, _ sessions.PinRequest, _ []int32) (sessions.PinView, error) {
	return sessions.PinView{}, errNoSessions
}

// UnpinPrefix drops a pin and reports whether there was one.
func (r *Replica) UnpinPrefix(_ context.Context, _, _ string) (bool, error) {
	return false, errNoSessions
}

// Sessions calls fn with the session table, which fn must neither change nor keep, and in which it must
// not block.
func (r *Replica) Sessions(_ context.Context, _ bool, _ func(*sessions.Table)) error {
	return errNoSessions
}

// OwedStatus answers what the leader knows of what closes owe: attempts and last errors, by session.
func (r *Replica) OwedStatus(_ context.Context, _ string, _ []string) (map[string][]sessions.OwedStatus, error) {
	return nil, errNoSessions
}
