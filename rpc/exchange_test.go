package rpc

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"testing"
	"time"

	"connectrpc.com/connect"
	"google.golang.org/protobuf/proto"

	"kvgate/fsm"
	"kvgate/ledger"
	kvgatev1 "kvgate/rpc/kvgate/v1"
)

func acquireReq(seq uint64, ticket string, tokens int64) *kvgatev1.ExchangeRequest {
	return &kvgatev1.ExchangeRequest{Seq: seq, Op: &kvgatev1.ExchangeRequest_Acquire{Acquire: &kvgatev1.AcquireRequest{
		TicketId: ticket, ReservationTokens: proto.Int64(tokens), HolderId: "h",
	}}}
}

func releaseReq(seq uint64, ticket string) *kvgatev1.ExchangeRequest {
	return &kvgatev1.ExchangeRequest{Seq: seq, Op: &kvgatev1.ExchangeRequest_Release{Release: &kvgatev1.ReleaseRequest{TicketId: ticket}}}
}

// stream is the caller's end of an Exchange.
type stream struct {
	t *testing.T
	*connect.BidiStreamForClient[kvgatev1.ExchangeRequest, kvgatev1.ExchangeResponse]
	cancel context.CancelFunc
}

func (n *node) exchange(t *testing.T) *stream {
	t.Helper()
	ctx, cancel := context.WithCancel(t.Context())
	s := &stream{t, n.api.Exchange(ctx), cancel}
	t.Cleanup(func() { cancel(); _ = s.CloseResponse() })
	return s
}

func (s *stream) send(ops ...*kvgatev1.ExchangeRequest) {
	s.t.Helper()
	for _, op := range ops {
		if err := s.Send(op); err != nil {
			s.t.Fatal(err)
		}
	}
}

// answers reads n messages by seq.
func (s *stream) answers(n int) map[uint64]*kvgatev1.ExchangeResponse {
	s.t.Helper()
	out := map[uint64]*kvgatev1.ExchangeResponse{}
	for range n {
		m, err := s.Receive()
		if err != nil {
			s.t.Fatal(err)
		}
		out[m.GetSeq()] = m
	}
	return out
}

// TestExchangeAnswersEveryOperation under its number, each as its unary call would, and a bad one alone.
func TestExchangeAnswersEveryOperation(t *testing.T) {
	n := startNode(t, Options{})
	s := n.exchange(t)
	s.send(acquireReq(1, "a", 100), acquireReq(2, "", 1), &kvgatev1.ExchangeRequest{Seq: 3}, acquireReq(4, "b", 100),
		&kvgatev1.ExchangeRequest{Seq: 5, Op: &kvgatev1.ExchangeRequest_Heartbeat{Heartbeat: &kvgatev1.HeartbeatRequest{HolderId: "h"}}})
	got := s.answers(4)
	lease := got[1].GetAcquire()
	if lease.GetAction() != kvgatev1.Action_ACTION_ADMIT || lease.GetTicketId() != "a" || lease.GetGrant() == 0 {
		t.Errorf("a: %v", got[1])
	}
	if e := got[2].GetError(); e.GetCode() != "invalid_argument" || e.GetInfo().GetField() != "ticketId" || e.GetInfo().GetCode() != CodeInvalidArgument {
		t.Errorf("no ticket: %v", got[2])
	}
	if e := got[3].GetError(); e.GetInfo().GetField() != "op" {
		t.Errorf("no operation: %v", got[3])
	}
	if h := got[5].GetHeartbeat(); h.GetTtl().AsDuration() != time.Hour {
		t.Errorf("heartbeat: %v", got[5])
	}
	s.send(
		&kvgatev1.ExchangeRequest{Seq: 6, Op: &kvgatev1.ExchangeRequest_Renew{Renew: &kvgatev1.RenewRequest{LeaseIds: []string{lease.GetLeaseId(), "9:x"}}}},
		releaseReq(7, "a"),
		&kvgatev1.ExchangeRequest{Seq: 8, Op: &kvgatev1.ExchangeRequest_Cancel{Cancel: &kvgatev1.CancelRequest{TicketId: "c"}}},
	)
	if err := s.CloseRequest(); err != nil {
		t.Fatal(err)
	}
	got = s.answers(4)
	if r := got[6].GetRenew().GetLeases(); len(r) != 2 || !r[0].GetRenewed() || r[1].GetRenewed() {
		t.Errorf("renew: %v", got[6])
	}
	if !got[7].GetRelease().GetReleased() || got[8].GetCancel().GetWas() != kvgatev1.CancelState_CANCEL_STATE_UNKNOWN {
		t.Errorf("release %v, cancel %v", got[7], got[8])
	}
	if b := got[4].GetAcquire(); b.GetAction() != kvgatev1.Action_ACTION_ADMIT || b.GetTicketId() != "b" {
		t.Errorf("b: %v", got[4])
	}
	if m, err := s.Receive(); !errors.Is(err, io.EOF) {
		t.Errorf("after the last answer: %v, %v", m, err)
	}
}

// TestExchangeTogether: operations in one message keep their order, and answers may come together.
func TestExchangeTogether(t *testing.T) {
	n := startNode(t, Options{})
	s := n.exchange(t)
	all := acquireReq(0, "t0", 100)
	for i := uint64(1); i < maxOpsAtOnce; i++ {
		all.More = append(all.More, acquireReq(i, fmt.Sprint("t", i), 100))
	}
	s.send(all)
	// Each is granted when the one before it is released, so the answers come in the order of asking.
	for next := uint64(0); next < maxOpsAtOnce; {
		m, err := s.Receive()
		if err != nil {
			t.Fatal(err)
		}
		for _, x := range append([]*kvgatev1.ExchangeResponse{m}, m.GetMore()...) {
			if a := x.GetAcquire(); a != nil {
				if x.GetSeq() != next || a.GetAction() != kvgatev1.Action_ACTION_ADMIT {
					t.Fatalf("answer %v, want the grant of t%d", x, next)
				}
				s.send(releaseReq(maxOpsAtOnce+next, fmt.Sprint("t", next)))
				next++
			}
		}
	}
	all.More = append(all.More, acquireReq(9, "more", 1))
	s.send(all)
	if err := s.end(); connect.CodeOf(err) != connect.CodeInvalidArgument {
		t.Errorf("too many operations in one message: %v", err)
	}
}

// TestExchangeRefusesNestedOperations: one that has more of its own is answered with an error and not done,
// the others are.
func TestExchangeRefusesNestedOperations(t *testing.T) {
	n := startNode(t, Options{})
	s := n.exchange(t)
	deep, all := acquireReq(2, "b", 10), acquireReq(1, "a", 10)
	deep.More = []*kvgatev1.ExchangeRequest{acquireReq(3, "c", 10)}
	all.More = []*kvgatev1.ExchangeRequest{deep, acquireReq(4, "d", 10)}
	s.send(all)
	got := map[uint64]*kvgatev1.ExchangeResponse{}
	for len(got) < 3 {
		m, err := s.Receive()
		if err != nil {
			t.Fatal(err)
		}
		for _, x := range append([]*kvgatev1.ExchangeResponse{m}, m.GetMore()...) {
			got[x.GetSeq()] = x
		}
	}
	if e := got[2].GetError(); e.GetCode() != "invalid_argument" || e.GetInfo().GetField() != "more" {
		t.Errorf("nested: %v", got[2])
	}
	for _, seq := range []uint64{1, 4} {
		if got[seq].GetAcquire().GetAction() != kvgatev1.Action_ACTION_ADMIT {
			t.Errorf("beside it: %v", got[seq])
		}
	}
}

// end reads until the stream ends and says why.
func (s *stream) end() error {
	for {
		if _, err := s.Receive(); err != nil {
			return err
		}
	}
}

// TestExchangeThatBreaks detaches what waits.
func TestExchangeThatBreaks(t *testing.T) {
	n := startNode(t, Options{})
	s := n.exchange(t)
	s.send(acquireReq(1, "a", 100), acquireReq(2, "b", 100))
	s.answers(1)
	eventually(t, "b waits", func() bool { return n.waits("b") })
	s.cancel()
	_ = s.CloseResponse()
	eventually(t, "b is detached", func() bool { return n.detached("b") })
	if n.ticket("a").Lease == nil {
		t.Error("the lease that was heard of is gone")
	}
}

// TestExchangeOfAServerThatStops ends soon, also while its caller says nothing, and sends it elsewhere.
func TestExchangeOfAServerThatStops(t *testing.T) {
	n := startNode(t, Options{ShutdownGrace: patience})
	s := n.exchange(t)
	s.send(acquireReq(1, "a", 100), acquireReq(2, "b", 100))
	s.answers(1)
	stopped := make(chan error, 1)
	go func() { stopped <- n.stop() }()
	got := s.answers(1)[2].GetAcquire()
	if got.GetReason() != kvgatev1.Reason_REASON_DEGRADED {
		t.Errorf("b was answered %v, want to be let go by the only node", got)
	}
	err := s.end()
	var failed *connect.Error
	if !errors.As(err, &failed) || failed.Code() != connect.CodeUnavailable {
		t.Errorf("the stream ended with %v", err)
	}
	if err := <-stopped; err != nil {
		t.Error(err)
	}
}

// TestExchangeNeedsHTTP2: over HTTP/1.1 the caller hears that at once.
func TestExchangeNeedsHTTP2(t *testing.T) {
	r := start(t, &fakeBackend{})
	res, err := r.client.Post(r.url+"/kvgate.v1.AdmissionService/Exchange", "application/connect+json", http.NoBody)
	if err != nil {
		t.Fatal(err)
	}
	defer res.Body.Close()
	if res.StatusCode != http.StatusHTTPVersionNotSupported {
		t.Errorf("status %d", res.StatusCode)
	}
}

// deafLane begins operations and answers none, but acquires wait.
type deafLane struct {
	fsm.Lane
	begun chan struct{}
}

func (l *deafLane) Acquire(_ context.Context, op ledger.Acquire, answer func(ledger.Decision, error)) {
	answer(ledger.Decision{Action: ledger.ActionWait, Ticket: op.Ticket}, nil)
	l.begun <- struct{}{}
}

func (l *deafLane) Release(ledger.Release, func(bool, error)) { l.begun <- struct{}{} }

func (l *deafLane) Renew(string, []ledger.LeaseRef, time.Duration, func([]ledger.Renewed, error)) {
	l.begun <- struct{}{}
}

type deafBackend struct {
	*fakeBackend
	lane *deafLane
}

func (b *deafBackend) OpenLane(ctx context.Context) fsm.Lane {
	b.lane.Lane = fsm.LaneOver(ctx, b)
	return b.lane
}

// TestExchangeIsBounded: tickets that wait hold up nothing; operations without an answer do, from the
// bound on.
func TestExchangeIsBounded(t *testing.T) {
	b := &deafBackend{&fakeBackend{}, &deafLane{begun: make(chan struct{}, 4*maxUnanswered)}}
	r := startWith(t, b.fakeBackend, Options{Backend: b})
	ctx, cancel := context.WithCancel(t.Context())
	s := &stream{t, apiClient(t, r.url).Exchange(ctx), cancel}
	defer func() { cancel(); _ = s.CloseResponse() }()
	for i := range 2 * maxUnanswered {
		s.send(acquireReq(uint64(i), fmt.Sprint("t", i), 1))
	}
	for range 2 * maxUnanswered {
		<-b.lane.begun
	}
	for i := range maxUnanswered + 100 {
		s.send(releaseReq(uint64(i), "x"))
	}
	eventually(t, "as many as may be begun", func() bool { return len(b.lane.begun) == maxUnanswered })
	// The handler now waits for room: a while later it has begun no more.
	again := s.Send(releaseReq(0, "x"))
	for range 100 {
		r.get("/healthz")
	}
	if begun := len(b.lane.begun); begun != maxUnanswered || again != nil {
		t.Errorf("%d operations are under way, %v", begun, again)
	}
}

// TestExchangeIsBoundedInBytes: large operations without an answer hold up the stream sooner.
func TestExchangeIsBoundedInBytes(t *testing.T) {
	b := &deafBackend{&fakeBackend{}, &deafLane{begun: make(chan struct{}, 100)}}
	r := startWith(t, b.fakeBackend, Options{Backend: b})
	ctx, cancel := context.WithCancel(t.Context())
	s := &stream{t, apiClient(t, r.url).Exchange(ctx), cancel}
	defer func() { cancel(); _ = s.CloseResponse() }()
	ids := make([]string, 3000)
	for i := range ids {
		ids[i] = fmt.Sprintf("1:%0200d", i)
	}
	large := &kvgatev1.ExchangeRequest{Op: &kvgatev1.ExchangeRequest_Renew{Renew: &kvgatev1.RenewRequest{LeaseIds: ids}}}
	want := maxUnansweredBytes / proto.Size(large)
	go func() { // blocks until the test ends
		for range want + 5 {
			_ = s.Send(large)
		}
	}()
	eventually(t, "as many as may be begun", func() bool { return len(b.lane.begun) == want })
	for range 100 {
		r.get("/healthz")
	}
	if begun := len(b.lane.begun); begun != want {
		t.Errorf("%d operations are under way, want %d", begun, want)
	}
}

// TestExchangeChecksPools for every operation.
func TestExchangeChecksPools(t *testing.T) {
	n := startNode(t, Options{Tokens: tokenList(t)})
	as := func(token string) *stream {
		ctx, cancel := context.WithCancel(t.Context())
		x := n.api.Exchange(ctx)
		x.RequestHeader().Set("Authorization", "Bearer "+token)
		t.Cleanup(func() { cancel(); _ = x.CloseResponse() })
		return &stream{t, x, cancel}
	}
	s := as("t-default")
	foreign := acquireReq(1, "a", 1)
	foreign.GetAcquire().Pool = "other"
	foreign.More = append(foreign.More, acquireReq(2, "b", 1))
	s.send(foreign)
	for answers := 0; answers < 2; {
		m, err := s.Receive()
		if err != nil {
			t.Fatal(err)
		}
		for _, x := range append([]*kvgatev1.ExchangeResponse{m}, m.GetMore()...) {
			answers++
			if denied := x.GetError().GetInfo().GetCode() == CodePermissionDenied; denied != (x.GetSeq() == 1) {
				t.Errorf("answered %v", x)
			}
		}
	}
	s = as("unknown")
	_ = s.Send(acquireReq(1, "a", 1)) // the stream may be over already
	if err := s.end(); connect.CodeOf(err) != connect.CodeUnauthenticated {
		t.Errorf("an unknown token: %v", err)
	}
}
