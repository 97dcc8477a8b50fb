package fsm

import (
	"context"

	"kvgate/sessions"
)

// Sessions calls fn with the session table as it was, which fn must neither change nor keep.
func (o *Offline) Sessions(_ context.Context, _ bool, fn func(*sessions.Table)) error {
	o.machine.look(func(c *core) { fn(c.table) })
	return nil
}

// OwedStatus answers nothing: attempts and errors were the leader's own and died with it.
func (o *Offline) OwedStatus(context.Context, string, []string) (map[string][]sessions.OwedStatus, error) {
	return nil, nil
}

// OpenSession fails.
func (o *Offline) OpenSession(context.Context, sessions.OpenRequest) (sessions.View, error) {
	return sessions.View{}, o.refuse()
}

// TouchSession fails.
func (o *Offline) TouchSession(context.Context, string, string) (sessions.View, error) {
	return sessions.View{}, o.refuse()
}

// BindSession fails.
func (o *Offline) BindSession(context.Context, sessions.BindRequest) (sessions.View, error) {
	return sessions.View{}, o.refuse()
}

// CloseSession fails.
func (o *Offline) CloseSession(context.Context, sessions.CloseRequest) (sessions.View, error) {
	return sessions.View{}, o.refuse()
}

// AwaitClosed fails.
func (o *Offline) AwaitClosed(context.Context, string, string, uint64) (sessions.View, error) {
	return sessions.View{}, o.refuse()
}

// CloseGroup fails.
func (o *Offline) CloseGroup(context.Context, string, string, sessions.Mode) (int, error) {
	return 0, o.refuse()
}

// PinPrefix fails.
func (o *Offline) PinPrefix(context.Context, sessions.PinRequest, []int32) (sessions.PinView, error) {
	return sessions.PinView{}, o.refuse()
}

// UnpinPrefix fails.
func (o *Offline) UnpinPrefix(context.Context, string, string) (bool, error) {
	return false, o.refuse()
}
