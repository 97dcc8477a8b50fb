package client

import (
	"context"
	"errors"
	"testing"
	"testing/synctest"
	"time"

	"connectrpc.com/connect"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/durationpb"

	kvgatev1 "kvgate/rpc/kvgate/v1"
)

func (n *fakeNode) OpenSession(ctx context.Context, req *connect.Request[kvgatev1.OpenSessionRequest]) (*connect.Response[kvgatev1.OpenSessionResponse], error) {
	return serve(ctx, req, func(r *kvgatev1.OpenSessionRequest) (*kvgatev1.OpenSessionResponse, error) {
		n.ledger.note(r)
		return &kvgatev1.OpenSessionResponse{Session: &kvgatev1.Session{SessionId: r.SessionId}, Warnings: []string{"session_id_reused"}}, nil
	})
}

func (n *fakeNode) BindSession(ctx context.Context, req *connect.Request[kvgatev1.BindSessionRequest]) (*connect.Response[kvgatev1.BindSessionResponse], error) {
	return serve(ctx, req, func(r *kvgatev1.BindSessionRequest) (*kvgatev1.BindSessionResponse, error) {
		n.ledger.note(r)
		return &kvgatev1.BindSessionResponse{}, nil
	})
}

func (n *fakeNode) TouchSession(ctx context.Context, req *connect.Request[kvgatev1.TouchSessionRequest]) (*connect.Response[kvgatev1.TouchSessionResponse], error) {
	return serve(ctx, req, func(r *kvgatev1.TouchSessionRequest) (*kvgatev1.TouchSessionResponse, error) {
		n.ledger.note(r)
		return &kvgatev1.TouchSessionResponse{}, nil
	})
}

func (n *fakeNode) CloseSession(ctx context.Context, req *connect.Request[kvgatev1.CloseSessionRequest]) (*connect.Response[kvgatev1.CloseSessionResponse], error) {
	return serve(ctx, req, func(r *kvgatev1.CloseSessionRequest) (*kvgatev1.CloseSessionResponse, error) {
		n.ledger.note(r)
		return &kvgatev1.CloseSessionResponse{}, nil
	})
}

func (n *fakeNode) CloseGroup(ctx context.Context, req *connect.Request[kvgatev1.CloseGroupRequest]) (*connect.Response[kvgatev1.CloseGroupResponse], error) {
	return serve(ctx, req, func(r *kvgatev1.CloseGroupRequest) (*kvgatev1.CloseGroupResponse, error) {
		n.ledger.note(r)
		return &kvgatev1.CloseGroupResponse{}, nil
	})
}

// note keeps a session call that was carried out.
func (l *fakeLedger) note(m proto.Message) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.sessionCalls = append(l.sessionCalls, m)
}

func (w *world) wantSessionCalls(want ...proto.Message) {
	w.Helper()
	got := seen(w.ledger, &w.ledger.sessionCalls)
	if len(got) != len(want) {
		w.Fatalf("%d session calls arrived, want %d: %v", len(got), len(want), got)
	}
	for i := range want {
		if !proto.Equal(got[i], want[i]) {
			w.Errorf("call %d is %v, want %v", i, got[i], want[i])
		}
	}
}

func TestSessionCalls(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t, []string{"a:1"}, []string{"a:1"})
		s, err := w.client.OpenSession(t.Context(), SessionRequest{ID: "s", Group: "g", IdleTimeout: NeverIdle})
		if err != nil || s.Cause != nil || len(s.Warnings) != 1 {
			t.Fatalf("got %+v, %v", s, err)
		}
		if err := w.client.BindSession(t.Context(), "p", "s", "http://e1", 2, time.Minute); err != nil {
			t.Fatal(err)
		}
		if err := w.client.TouchSession(t.Context(), "", "s"); err != nil {
			t.Fatal(err)
		}
		s.Close(Abort)
		synctest.Wait()
		w.client.CloseGroup("p", "g", Join)
		synctest.Wait()
		w.wantSessionCalls(
			&kvgatev1.OpenSessionRequest{Pool: "default", SessionId: "s", GroupId: "g", IdleTimeout: durationpb.New(0)},
			&kvgatev1.BindSessionRequest{Pool: "p", SessionId: "s", EngineUrl: "http://e1", DpRank: 2, Ttl: durationpb.New(time.Minute)},
			&kvgatev1.TouchSessionRequest{Pool: "default", SessionId: "s"},
			&kvgatev1.CloseSessionRequest{Pool: "default", SessionId: "s", Mode: Abort},
			&kvgatev1.CloseGroupRequest{Pool: "p", GroupId: "g", Mode: Join},
		)
		if got := w.client.Stats(); got.SessionsClosed != 2 || got.ClosesLost != 0 {
			t.Errorf("stats %+v", got)
		}
	})
}

// The coordinator is away when the agent ends: the caller is not held up, and the close arrives later.
func TestCloseIsDeliveredWhenTheCoordinatorIsBack(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t, []string{"a:1"}, []string{"a:1"})
		w.nodes["a:1"].during(always(fault{err: connect.NewError(connect.CodeUnavailable, errors.New("no leader"))}))
		started := time.Now()
		w.client.CloseSession("", "s", Join)
		if time.Since(started) != 0 {
			t.Error("the caller was held up")
		}
		time.Sleep(2 * time.Minute)
		w.wantSessionCalls()
		w.nodes["a:1"].during(nil)
		time.Sleep(time.Minute)
		w.wantSessionCalls(&kvgatev1.CloseSessionRequest{Pool: "default", SessionId: "s", Mode: Join})
		if got := w.client.Stats(); got.SessionsClosed != 1 || got.CloseRetries == 0 || got.ReleaseRetries != 0 {
			t.Errorf("stats %+v", got)
		}
	})
}

func TestCloseIsGivenUpInTheEnd(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var lost []Event
		hook := func(e Event) {
			if e.Kind == EventCloseLost {
				lost = append(lost, e)
			}
		}
		w := newWorld(t, []string{"a:1"}, nil, WithOnEvent(hook))
		err := w.client.CloseSessionWait(t.Context(), "", "s", Join)
		if err == nil || w.client.Stats().ClosesLost != 1 || len(lost) != 1 || lost[0].Session != "s" {
			t.Errorf("got %v, lost %v", err, lost)
		}
		if err := w.client.CloseSessionWait(t.Context(), "", "", Join); !errors.Is(err, ErrInvalid) {
			t.Errorf("a close of nothing: %v", err)
		}
	})
}

func TestOpenFailsOpen(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t, []string{"a:1"}, nil)
		s, err := w.client.OpenSession(t.Context(), SessionRequest{ID: "s"})
		if err != nil || s == nil || s.Cause == nil {
			t.Errorf("got %+v, %v; want a session to go on with", s, err)
		}
	})
}

func TestOpenReturnsWhatCannotBeRight(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t, []string{"a:1"}, []string{"a:1"})
		var e *Error
		if _, err := w.client.OpenSession(t.Context(), SessionRequest{ID: "s", Kind: Streaming}); !errors.As(err, &e) || e.Field != "engineUrl" {
			t.Errorf("streaming without engine: %v", err)
		}
		w.nodes["a:1"].during(always(fault{err: kvgateError(connect.CodeFailedPrecondition, &kvgatev1.ErrorInfo{Code: "session_closing"})}))
		if _, err := w.client.OpenSession(t.Context(), SessionRequest{ID: "s"}); !errors.Is(err, ErrSessionClosing) {
			t.Errorf("closing: %v", err)
		}
		w.nodes["a:1"].during(always(fault{err: kvgateError(connect.CodeAborted, &kvgatev1.ErrorInfo{Code: "engine_unreachable"})}))
		started := time.Now()
		if _, err := w.client.OpenSession(t.Context(), SessionRequest{ID: "s"}); !errors.As(err, &e) || e.Name != "engine_unreachable" || time.Since(started) != 0 {
			t.Errorf("engine down: %v after %v", err, time.Since(started))
		}
	})
}
