package main

import (
	"context"

	"connectrpc.com/connect"

	kvgatev1 "kvgate/rpc/kvgate/v1"
)

// The session calls of the fake.

func (f *fake) OpenSession(_ context.Context, r *connect.Request[kvgatev1.OpenSessionRequest]) (*connect.Response[kvgatev1.OpenSessionResponse], error) {
	return answer(f, "OpenSession", r, f.openSession)
}

func (f *fake) TouchSession(_ context.Context, r *connect.Request[kvgatev1.TouchSessionRequest]) (*connect.Response[kvgatev1.TouchSessionResponse], error) {
	return answer(f, "TouchSession", r, f.touchSession)
}

func (f *fake) BindSession(_ context.Context, r *connect.Request[kvgatev1.BindSessionRequest]) (*connect.Response[kvgatev1.BindSessionResponse], error) {
	return answer(f, "BindSession", r, f.bindSession)
}

func (f *fake) CloseSession(_ context.Context, r *connect.Request[kvgatev1.CloseSessionRequest]) (*connect.Response[kvgatev1.CloseSessionResponse], error) {
	return answer(f, "CloseSession", r, f.closeSession)
}

func (f *fake) CloseGroup(_ context.Context, r *connect.Request[kvgatev1.CloseGroupRequest]) (*connect.Response[kvgatev1.CloseGroupResponse], error) {
	return answer(f, "CloseGroup", r, f.closeGroup)
}

func (f *fake) GetSession(_ context.Context, r *connect.Request[kvgatev1.GetSessionRequest]) (*connect.Response[kvgatev1.GetSessionResponse], error) {
	return answer(f, "GetSession", r, f.getSession)
}

func (f *fake) ListSessions(_ context.Context, r *connect.Request[kvgatev1.ListSessionsRequest]) (*connect.Response[kvgatev1.ListSessionsResponse], error) {
	return answer(f, "ListSessions", r, f.listSessions)
}

func (f *fake) PinPrefix(_ context.Context, r *connect.Request[kvgatev1.PinPrefixRequest]) (*connect.Response[kvgatev1.PinPrefixResponse], error) {
	return answer(f, "PinPrefix", r, f.pinPrefix)
}

func (f *fake) UnpinPrefix(_ context.Context, r *connect.Request[kvgatev1.UnpinPrefixRequest]) (*connect.Response[kvgatev1.UnpinPrefixResponse], error) {
	return answer(f, "UnpinPrefix", r, f.unpinPrefix)
}

func (f *fake) ListPins(_ context.Context, r *connect.Request[kvgatev1.ListPinsRequest]) (*connect.Response[kvgatev1.ListPinsResponse], error) {
	return answer(f, "ListPins", r, f.listPins)
}
