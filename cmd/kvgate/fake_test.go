package main

import (
	"context"
	"net/http"
	"net/http/httptest"
	"sync"
	"testing"

	"connectrpc.com/connect"
	"google.golang.org/protobuf/types/known/durationpb"

	kvgatev1 "kvgate/rpc/kvgate/v1"
	"kvgate/rpc/kvgate/v1/kvgatev1connect"
)

// fake is a server whose answers are the function fields; a call without one is unimplemented.
type fake struct {
	kvgatev1connect.UnimplementedAdmissionServiceHandler
	kvgatev1connect.UnimplementedSessionServiceHandler
	kvgatev1connect.UnimplementedObserveServiceHandler
	kvgatev1connect.UnimplementedClusterServiceHandler

	acquire    func(context.Context, *kvgatev1.AcquireRequest) (*kvgatev1.AcquireResponse, error)
	release    func(*kvgatev1.ReleaseRequest) (*kvgatev1.ReleaseResponse, error)
	renew      func(*kvgatev1.RenewRequest) (*kvgatev1.RenewResponse, error)
	cancel     func(*kvgatev1.CancelRequest) (*kvgatev1.CancelResponse, error)
	heartbeat  func(*kvgatev1.HeartbeatRequest) (*kvgatev1.HeartbeatResponse, error)
	budget     func(*kvgatev1.GetBudgetRequest) (*kvgatev1.GetBudgetResponse, error)
	leases     func(*kvgatev1.ListLeasesRequest) (*kvgatev1.ListLeasesResponse, error)
	waiters    func(*kvgatev1.ListWaitersRequest) (*kvgatev1.ListWaitersResponse, error)
	engines    func(*kvgatev1.ListEnginesRequest) (*kvgatev1.ListEnginesResponse, error)
	pools      func(*kvgatev1.ListPoolsRequest) (*kvgatev1.ListPoolsResponse, error)
	journal    func(*kvgatev1.ReadJournalRequest) (*kvgatev1.ReadJournalResponse, error)
	watch      func(*kvgatev1.WatchEventsRequest, func(*kvgatev1.WatchEventsResponse) error) error
	drain      func(*kvgatev1.DrainStepRequest) (*kvgatev1.DrainStepResponse, error)
	status     func(*kvgatev1.GetStatusRequest) (*kvgatev1.GetStatusResponse, error)
	settings   func(*kvgatev1.GetSettingsRequest) (*kvgatev1.GetSettingsResponse, error)
	updateSets func(*kvgatev1.UpdateSettingsRequest) (*kvgatev1.UpdateSettingsResponse, error)

	openSession  func(*kvgatev1.OpenSessionRequest) (*kvgatev1.OpenSessionResponse, error)
	touchSession func(*kvgatev1.TouchSessionRequest) (*kvgatev1.TouchSessionResponse, error)
	bindSession  func(*kvgatev1.BindSessionRequest) (*kvgatev1.BindSessionResponse, error)
	closeSession func(*kvgatev1.CloseSessionRequest) (*kvgatev1.CloseSessionResponse, error)
	closeGroup   func(*kvgatev1.CloseGroupRequest) (*kvgatev1.CloseGroupResponse, error)
	getSession   func(*kvgatev1.GetSessionRequest) (*kvgatev1.GetSessionResponse, error)
	listSessions func(*kvgatev1.ListSessionsRequest) (*kvgatev1.ListSessionsResponse, error)
	pinPrefix    func(*kvgatev1.PinPrefixRequest) (*kvgatev1.PinPrefixResponse, error)
	unpinPrefix  func(*kvgatev1.UnpinPrefixRequest) (*kvgatev1.UnpinPrefixResponse, error)
	listPins     func(*kvgatev1.ListPinsRequest) (*kvgatev1.ListPinsResponse, error)

	mu     sync.Mutex
	calls  []string
	tokens []string
}

// answer records the call and runs fn on the request.
func answer[Req, Res any](f *fake, name string, req *connect.Request[Req], fn func(*Req) (*Res, error)) (*connect.Response[Res], error) {
	f.mu.Lock()
	f.calls = append(f.calls, name)
	f.tokens = append(f.tokens, req.Header().Get("Authorization"))
	f.mu.Unlock()
	if fn == nil {
		return nil, connect.NewError(connect.CodeUnimplemented, nil)
	}
	res, err := fn(req.Msg)
	if err != nil {
		return nil, err
	}
	return connect.NewResponse(res), nil
}

// called returns the names of the calls so far, in order.
func (f *fake) called() []string {
	f.mu.Lock()
	defer f.mu.Unlock()
	return append([]string(nil), f.calls...)
}

func (f *fake) serve() (url string, stop func()) {
	mux := http.NewServeMux()
	mux.Handle(kvgatev1connect.NewAdmissionServiceHandler(f))
	mux.Handle(kvgatev1connect.NewSessionServiceHandler(f))
	mux.Handle(kvgatev1connect.NewObserveServiceHandler(f))
	mux.Handle(kvgatev1connect.NewClusterServiceHandler(f))
	server := httptest.NewServer(mux)
	return server.URL, server.Close
}

// start serves until the test ends.
func (f *fake) start(t *testing.T) string {
	url, stop := f.serve()
	t.Cleanup(stop)
	return url
}

func (f *fake) Acquire(ctx context.Context, r *connect.Request[kvgatev1.AcquireRequest]) (*connect.Response[kvgatev1.AcquireResponse], error) {
	if f.acquire == nil {
		return answer[kvgatev1.AcquireRequest, kvgatev1.AcquireResponse](f, "Acquire", r, nil)
	}
	return answer(f, "Acquire", r, func(req *kvgatev1.AcquireRequest) (*kvgatev1.AcquireResponse, error) { return f.acquire(ctx, req) })
}

func (f *fake) Release(_ context.Context, r *connect.Request[kvgatev1.ReleaseRequest]) (*connect.Response[kvgatev1.ReleaseResponse], error) {
	return answer(f, "Release", r, f.release)
}

func (f *fake) Renew(_ context.Context, r *connect.Request[kvgatev1.RenewRequest]) (*connect.Response[kvgatev1.RenewResponse], error) {
	return answer(f, "Renew", r, f.renew)
}

func (f *fake) Cancel(_ context.Context, r *connect.Request[kvgatev1.CancelRequest]) (*connect.Response[kvgatev1.CancelResponse], error) {
	return answer(f, "Cancel", r, f.cancel)
}

func (f *fake) Heartbeat(_ context.Context, r *connect.Request[kvgatev1.HeartbeatRequest]) (*connect.Response[kvgatev1.HeartbeatResponse], error) {
	return answer(f, "Heartbeat", r, f.heartbeat)
}

func (f *fake) GetBudget(_ context.Context, r *connect.Request[kvgatev1.GetBudgetRequest]) (*connect.Response[kvgatev1.GetBudgetResponse], error) {
	return answer(f, "GetBudget", r, f.budget)
}

func (f *fake) ListLeases(_ context.Context, r *connect.Request[kvgatev1.ListLeasesRequest]) (*connect.Response[kvgatev1.ListLeasesResponse], error) {
	return answer(f, "ListLeases", r, f.leases)
}

func (f *fake) ListWaiters(_ context.Context, r *connect.Request[kvgatev1.ListWaitersRequest]) (*connect.Response[kvgatev1.ListWaitersResponse], error) {
	return answer(f, "ListWaiters", r, f.waiters)
}

func (f *fake) ListEngines(_ context.Context, r *connect.Request[kvgatev1.ListEnginesRequest]) (*connect.Response[kvgatev1.ListEnginesResponse], error) {
	return answer(f, "ListEngines", r, f.engines)
}

func (f *fake) ListPools(_ context.Context, r *connect.Request[kvgatev1.ListPoolsRequest]) (*connect.Response[kvgatev1.ListPoolsResponse], error) {
	return answer(f, "ListPools", r, f.pools)
}

func (f *fake) ReadJournal(_ context.Context, r *connect.Request[kvgatev1.ReadJournalRequest]) (*connect.Response[kvgatev1.ReadJournalResponse], error) {
	return answer(f, "ReadJournal", r, f.journal)
}

func (f *fake) WatchEvents(_ context.Context, r *connect.Request[kvgatev1.WatchEventsRequest], s *connect.ServerStream[kvgatev1.WatchEventsResponse]) error {
	f.mu.Lock()
	f.calls, f.tokens = append(f.calls, "WatchEvents"), append(f.tokens, r.Header().Get("Authorization"))
	f.mu.Unlock()
	return f.watch(r.Msg, s.Send)
}

func (f *fake) DrainStep(_ context.Context, r *connect.Request[kvgatev1.DrainStepRequest]) (*connect.Response[kvgatev1.DrainStepResponse], error) {
	return answer(f, "DrainStep", r, f.drain)
}

func (f *fake) GetStatus(_ context.Context, r *connect.Request[kvgatev1.GetStatusRequest]) (*connect.Response[kvgatev1.GetStatusResponse], error) {
	return answer(f, "GetStatus", r, f.status)
}

func (f *fake) GetSettings(_ context.Context, r *connect.Request[kvgatev1.GetSettingsRequest]) (*connect.Response[kvgatev1.GetSettingsResponse], error) {
	return answer(f, "GetSettings", r, f.settings)
}

func (f *fake) UpdateSettings(_ context.Context, r *connect.Request[kvgatev1.UpdateSettingsRequest]) (*connect.Response[kvgatev1.UpdateSettingsResponse], error) {
	return answer(f, "UpdateSettings", r, f.updateSets)
}

// errorAnswer is an error with kvgate's typed detail.
func errorAnswer(code connect.Code, message string, info *kvgatev1.ErrorInfo) error {
	failure := connect.NewError(code, stringError(message))
	detail, err := connect.NewErrorDetail(info)
	if err != nil {
		panic(err)
	}
	failure.AddDetail(detail)
	return failure
}

type stringError string

func (e stringError) Error() string { return string(e) }

// lessor is a fake that admits every ticket and records the releases in order.
func lessor(ttl *durationpb.Duration) (*fake, chan *kvgatev1.ReleaseRequest) {
	released := make(chan *kvgatev1.ReleaseRequest, 8)
	f := &fake{
		acquire: func(_ context.Context, r *kvgatev1.AcquireRequest) (*kvgatev1.AcquireResponse, error) {
			return &kvgatev1.AcquireResponse{
				Action: kvgatev1.Action_ACTION_ADMIT, Reason: kvgatev1.Reason_REASON_CAPACITY_AVAILABLE, TicketId: r.TicketId,
				ReservationTokens: r.GetReservationTokens() + r.PromptTokens + r.MaxNewTokens, LeaseId: "3:" + r.TicketId, OwnerEpoch: 3,
				Waited: &durationpb.Duration{Seconds: 1, Nanos: 250_000_000}, ExpiresIn: ttl, Grant: 4711,
			}, nil
		},
		release: func(r *kvgatev1.ReleaseRequest) (*kvgatev1.ReleaseResponse, error) {
			released <- r
			return &kvgatev1.ReleaseResponse{Released: true}, nil
		},
	}
	return f, released
}
