package client

import (
	"context"
	"errors"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"connectrpc.com/connect"

	kvgatev1 "kvgate/rpc/kvgate/v1"
)

func (n *fakeNode) PinPrefix(ctx context.Context, req *connect.Request[kvgatev1.PinPrefixRequest]) (*connect.Response[kvgatev1.PinPrefixResponse], error) {
	return serve(ctx, req, func(r *kvgatev1.PinPrefixRequest) (*kvgatev1.PinPrefixResponse, error) {
		n.ledger.note(r)
		return &kvgatev1.PinPrefixResponse{Pin: &kvgatev1.Pin{PinId: r.GetPinId()}}, nil
	})
}

func (n *fakeNode) UnpinPrefix(ctx context.Context, req *connect.Request[kvgatev1.UnpinPrefixRequest]) (*connect.Response[kvgatev1.UnpinPrefixResponse], error) {
	return serve(ctx, req, func(r *kvgatev1.UnpinPrefixRequest) (*kvgatev1.UnpinPrefixResponse, error) {
		n.ledger.note(r)
		return &kvgatev1.UnpinPrefixResponse{Unpinned: true}, nil
	})
}

// ListPins answers two pages.
func (n *fakeNode) ListPins(ctx context.Context, req *connect.Request[kvgatev1.ListPinsRequest]) (*connect.Response[kvgatev1.ListPinsResponse], error) {
	return serve(ctx, req, func(r *kvgatev1.ListPinsRequest) (*kvgatev1.ListPinsResponse, error) {
		if r.GetPageToken() == "" {
			return &kvgatev1.ListPinsResponse{Pins: []*kvgatev1.Pin{{PinId: "a"}}, NextPageToken: "2"}, nil
		}
		return &kvgatev1.ListPinsResponse{Pins: []*kvgatev1.Pin{{PinId: "b"}}}, nil
	})
}

func TestPins(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t, []string{"a:1"}, []string{"a:1"}, WithPool("mine"))
		pin, err := w.client.Pin(t.Context(), PinRequest{ID: "p", Tokens: 7, Session: "s", TTL: 10 * time.Minute, EngineURL: "http://e1"})
		if err != nil || pin.GetPinId() != "p" {
			t.Fatalf("got %v, %v", pin, err)
		}
		if was, err := w.client.Unpin(t.Context(), "other", "p"); err != nil || !was {
			t.Fatalf("got %v, %v", was, err)
		}
		w.wantSessionCalls(
			&kvgatev1.PinPrefixRequest{Pool: "mine", PinId: "p", Tokens: 7, SessionId: "s", Ttl: "600", EngineUrl: "http://e1"},
			&kvgatev1.UnpinPrefixRequest{Pool: "other", PinId: "p"},
		)
		pins, err := w.client.Pins(t.Context(), "", "")
		if err != nil || len(pins) != 2 {
			t.Fatalf("got %v, %v, want both pages", pins, err)
		}
	})
}

func TestPinRefuses(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t, []string{"a:1"}, []string{"a:1"})
		for field, r := range map[string]PinRequest{
			"pinId":     {Tokens: 1},
			"tokens":    {ID: "p"},
			"sessionId": {ID: "p", Tokens: 1, Session: strings.Repeat("s", 257)},
		} {
			_, err := w.client.Pin(t.Context(), r)
			var e *Error
			if !errors.As(err, &e) || e.Field != field {
				t.Errorf("%+v: got %v, want field %s", r, err, field)
			}
		}
		w.wantSessionCalls()
	})
}

func TestCallBudget(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t, []string{"a:1"}, nil, WithCallBudget(time.Minute))
		began := time.Now()
		if _, err := w.client.Budget(t.Context(), ""); err == nil {
			t.Fatal("nobody is there, and the call succeeds")
		}
		if took := time.Since(began); took < 50*time.Second || took > 61*time.Second {
			t.Errorf("gave up after %v, want about a minute", took)
		}
	})
}
