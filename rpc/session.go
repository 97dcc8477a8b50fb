package rpc

import (
	"context"
	"errors"
	"fmt"
	"time"

	"connectrpc.com/connect"
	"google.golang.org/protobuf/types/known/durationpb"

	"kvgate/fsm"
	kvgatev1 "kvgate/rpc/kvgate/v1"
	"kvgate/sessions"
)

// WarningSessionReused is the warning on answers about a session whose id was closed not long ago: the
// engines may silently never tag its KV [sglang 27058].
const WarningSessionReused = "session_id_reused"

// sessionService serves kvgate.v1.SessionService. Its reads are in session_read.go.
type sessionService struct {
	sessions SessionBackend
	pins     PinBackend
	reader   SessionReader
	pools    viewer
	now      func() time.Time
	// stopping ends when the server shuts down.
	stopping context.Context
}

// OpenSession implements the service.
func (s *sessionService) OpenSession(ctx context.Context, req *connect.Request[kvgatev1.OpenSessionRequest]) (*connect.Response[kvgatev1.OpenSessionResponse], error) {
	m := req.Msg
	op := sessions.OpenRequest{
		Pool: poolName(m.GetPool()), ID: m.GetSessionId(), Group: m.GetGroupId(), Kind: sessions.Kind(m.GetKind()),
		IdleTimeout: -1, Engine: m.GetEngineUrl(),
	}
	if m.IdleTimeout != nil {
		op.IdleTimeout = m.IdleTimeout.AsDuration()
	}
	v, err := s.sessions.OpenSession(ctx, op)
	if err != nil {
		return nil, explainEngine(err)
	}
	answer := &kvgatev1.OpenSessionResponse{Session: s.message(ctx, v)}
	if v.Reused {
		answer.Warnings = []string{WarningSessionReused}
	}
	return connect.NewResponse(answer), nil
}

// explainEngine adds what is allowed to an error about an engine that the pool does not list.
func explainEngine(err error) error {
	if errors.Is(err, sessions.ErrUnknownEngine) {
		return fmt.Errorf("%w; allowed is an engine that ListEngines names", err)
	}
	return err
}

// TouchSession implements the service.
func (s *sessionService) TouchSession(ctx context.Context, req *connect.Request[kvgatev1.TouchSessionRequest]) (*connect.Response[kvgatev1.TouchSessionResponse], error) {
	v, err := s.sessions.TouchSession(ctx, poolName(req.Msg.GetPool()), req.Msg.GetSessionId())
	if err != nil {
		return nil, err
	}
	return connect.NewResponse(&kvgatev1.TouchSessionResponse{Session: s.message(ctx, v)}), nil
}

// BindSession implements the service.
func (s *sessionService) BindSession(ctx context.Context, req *connect.Request[kvgatev1.BindSessionRequest]) (*connect.Response[kvgatev1.BindSessionResponse], error) {
	m := req.Msg
	v, err := s.sessions.BindSession(ctx, sessions.BindRequest{
		Pool: poolName(m.GetPool()), ID: m.GetSessionId(), Engine: m.GetEngineUrl(), DPRank: m.GetDpRank(), TTL: m.GetTtl().AsDuration(),
	})
	if err != nil {
		return nil, explainEngine(err)
	}
	return connect.NewResponse(&kvgatev1.BindSessionResponse{Session: s.message(ctx, v)}), nil
}

// CloseSession implements the service. An id that is not known is answered as closed.
func (s *sessionService) CloseSession(ctx context.Context, req *connect.Request[kvgatev1.CloseSessionRequest]) (*connect.Response[kvgatev1.CloseSessionResponse], error) {
	m := req.Msg
	v, err := s.sessions.CloseSession(ctx, sessions.CloseRequest{
		Pool: poolName(m.GetPool()), ID: m.GetSessionId(), Mode: sessions.Mode(m.GetMode()), Timeout: m.GetTimeout().AsDuration(),
	})
	if err == nil && m.GetWait() && v.State == sessions.Closing {
		v, err = s.awaitClosed(ctx, v)
	}
	if err != nil {
		return nil, err
	}
	return connect.NewResponse(&kvgatev1.CloseSessionResponse{Session: s.message(ctx, v)}), nil
}

// awaitClosed blocks until the session is closed, the caller leaves or the server stops.
func (s *sessionService) awaitClosed(ctx context.Context, v sessions.View) (sessions.View, error) {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	defer context.AfterFunc(s.stopping, cancel)()
	v, err := s.sessions.AwaitClosed(ctx, v.Pool, v.ID, v.Seq)
	if err != nil && errors.Is(err, context.Canceled) && s.stopping.Err() != nil {
		err = fsm.ErrShutdown
	}
	return v, err
}

// CloseGroup implements the service.
func (s *sessionService) CloseGroup(ctx context.Context, req *connect.Request[kvgatev1.CloseGroupRequest]) (*connect.Response[kvgatev1.CloseGroupResponse], error) {
	m := req.Msg
	n, err := s.sessions.CloseGroup(ctx, poolName(m.GetPool()), m.GetGroupId(), sessions.Mode(m.GetMode()))
	if err != nil {
		return nil, err
	}
	return connect.NewResponse(&kvgatev1.CloseGroupResponse{Closing: int64(n)}), nil
}

// PinPrefix implements the service.
func (s *sessionService) PinPrefix(ctx context.Context, req *connect.Request[kvgatev1.PinPrefixRequest]) (*connect.Response[kvgatev1.PinPrefixResponse], error) {
	m := req.Msg
	// Not a rule of the proto: those take about a microsecond for each of millions of ids.
	for i, id := range m.GetTokenIds() {
		if id < 0 {
			return nil, invalid(fmt.Sprintf("tokenIds[%d]", i), id, "0 or more")
		}
	}
	op := sessions.PinRequest{
		Pool: poolName(m.GetPool()), ID: m.GetPinId(), Session: m.GetSessionId(), Tokens: m.GetTokens(),
		TTL: sessions.ParsePinTTL(m.GetTtl()), Engine: m.GetEngineUrl(),
	}
	if op.Tokens == 0 {
		op.Tokens = int64(len(m.GetTokenIds()))
	}
	v, err := s.pins.PinPrefix(ctx, op, m.GetTokenIds())
	if err != nil {
		return nil, explainEngine(err)
	}
	return connect.NewResponse(&kvgatev1.PinPrefixResponse{Pin: pinMessage(v)}), nil
}

// UnpinPrefix implements the service.
func (s *sessionService) UnpinPrefix(ctx context.Context, req *connect.Request[kvgatev1.UnpinPrefixRequest]) (*connect.Response[kvgatev1.UnpinPrefixResponse], error) {
	unpinned, err := s.pins.UnpinPrefix(ctx, poolName(req.Msg.GetPool()), req.Msg.GetPinId())
	if err != nil {
		return nil, err
	}
	return connect.NewResponse(&kvgatev1.UnpinPrefixResponse{Unpinned: unpinned}), nil
}

// pinMessage returns a pin as the API shows it.
func pinMessage(v sessions.PinView) *kvgatev1.Pin {
	return &kvgatev1.Pin{
		PinId: v.ID, Tokens: v.Tokens, ExpiresIn: durationpb.New(v.ExpiresIn), LedgerOnly: v.LedgerOnly,
		SessionId: v.Session, EngineUrl: v.Engine, HeldBy: v.Held,
	}
}
