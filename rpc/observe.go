package rpc

import (
	"context"
	"errors"
	"fmt"

	"connectrpc.com/connect"
	"google.golang.org/protobuf/types/known/durationpb"

	"kvgate/fsm"
	"kvgate/ledger"
	kvgatev1 "kvgate/rpc/kvgate/v1"
)

// observeService serves kvgate.v1.ObserveService. The journal's call is in journal.go.
type observeService struct {
	backend ObserveBackend
	status  func() fsm.Status
	// stopping ends streams when the server stops.
	stopping context.Context
}

// viewer is the part of a backend that reads the ledger.
type viewer interface {
	View(ctx context.Context, stale bool, fn func(*ledger.Ledger)) error
}

// readPool reads from one pool. read's bool says whether there is such a pool.
func readPool[T any](ctx context.Context, v viewer, pool string, stale bool, read func(*ledger.Ledger, string) (T, bool)) (T, error) {
	var (
		out   T
		known bool
	)
	pool = poolName(pool)
	if err := v.View(ctx, stale, func(l *ledger.Ledger) { out, known = read(l, pool) }); err != nil {
		return out, err
	}
	if !known {
		return out, fmt.Errorf("%w %s", ledger.ErrUnknownPool, quote(pool))
	}
	return out, nil
}

// GetBudget implements the service.
func (s *observeService) GetBudget(ctx context.Context, req *connect.Request[kvgatev1.GetBudgetRequest]) (*connect.Response[kvgatev1.GetBudgetResponse], error) {
	b, err := readPool(ctx, s.backend, req.Msg.GetPool(), req.Msg.GetStale(), (*ledger.Ledger).Budget)
	if err != nil {
		return nil, err
	}
	return connect.NewResponse(&kvgatev1.GetBudgetResponse{
		Ceiling:           int64(b.Ceiling),
		Reserved:          int64(b.Reserved),
		Available:         int64(b.Available()),
		Epoch:             int64(b.Epoch),
		Degraded:          b.Degraded,
		Pressure:          b.Pressure,
		Waiting:           b.Waiting,
		Leases:            b.Leases,
		DegradedReason:    b.DegradedReason,
		OldestWait:        durationpb.New(b.OldestWait),
		Pool:              b.Pool,
		PressureThreshold: b.PressureThreshold,
		Admission:         b.Admission,
	}), nil
}

// GetTicket implements the service. A ticket that the pool does not know is an answer, not an error.
func (s *observeService) GetTicket(ctx context.Context, req *connect.Request[kvgatev1.GetTicketRequest]) (*connect.Response[kvgatev1.GetTicketResponse], error) {
	read := func(l *ledger.Ledger, pool string) (standing, bool) {
		return readStanding(l, pool, req.Msg.GetTicketId())
	}
	st, err := readPool(ctx, s.backend, req.Msg.GetPool(), req.Msg.GetStale(), read)
	if err != nil {
		return nil, err
	}
	m := &kvgatev1.GetTicketResponse{State: kvgatev1.TicketState_TICKET_STATE_UNKNOWN, Explanation: st.explain()}
	switch {
	case st.ticket.Lease != nil:
		fillLeased(m, st.ticket.Lease)
	case st.ticket.Waiter != nil:
		fillWaiting(m, st.ticket.Waiter)
	}
	return connect.NewResponse(m), nil
}

func fillLeased(m *kvgatev1.GetTicketResponse, x *ledger.LeaseView) {
	m.State = kvgatev1.TicketState_TICKET_STATE_LEASED
	m.LeaseId = ledger.LeaseID(x.Epoch, x.Ticket)
	m.ExpiresIn = durationpb.New(x.ExpiresIn)
	m.ReservationTokens = int64(x.Tokens)
	m.Grant = uint64(x.Grant)
	m.HolderId, m.SessionId = x.Holder, x.Session
}

func fillWaiting(m *kvgatev1.GetTicketResponse, w *ledger.WaiterView) {
	m.State = kvgatev1.TicketState_TICKET_STATE_WAITING
	m.WaitReason = kvgatev1.WaitReason(w.Reason)
	m.Position = int64(w.Position)
	m.Waited = durationpb.New(w.Waited)
	m.ReservationTokens = int64(w.Tokens)
	m.HolderId, m.SessionId = w.Holder, w.Session
}

// ListLeases implements the service. Leases come in grant order, so paging neither skips nor repeats
// a lease that stays.
func (s *observeService) ListLeases(ctx context.Context, req *connect.Request[kvgatev1.ListLeasesRequest]) (*connect.Response[kvgatev1.ListLeasesResponse], error) {
	token, err := parsePageToken(leasePage, req.Msg.GetPageToken())
	if err != nil {
		return nil, err
	}
	size := pageSize(req.Msg.GetPageSize())
	filter := ledger.LeaseFilter{Holder: req.Msg.GetHolderId(), Session: req.Msg.GetSessionId()}
	read := func(l *ledger.Ledger, pool string) ([]ledger.LeaseView, bool) {
		return l.Leases(pool, ledger.Seq(token.a), size+1, filter)
	}
	leases, err := readPool(ctx, s.backend, req.Msg.GetPool(), req.Msg.GetStale(), read)
	if err != nil {
		return nil, err
	}
	m := &kvgatev1.ListLeasesResponse{}
	if len(leases) > size {
		leases = leases[:size]
		m.NextPageToken = pageToken{kind: leasePage, a: uint64(leases[size-1].Grant)}.String()
	}
	for _, x := range leases {
		m.Leases = append(m.Leases, leaseMessage(x))
	}
	return connect.NewResponse(m), nil
}

func leaseMessage(x ledger.LeaseView) *kvgatev1.Lease {
	return &kvgatev1.Lease{
		LeaseId:           ledger.LeaseID(x.Epoch, x.Ticket),
		TicketId:          x.Ticket,
		ReservationTokens: int64(x.Tokens),
		OwnerEpoch:        int64(x.Epoch),
		HolderId:          x.Holder,
		SessionId:         x.Session,
		Held:              durationpb.New(x.Held),
		ExpiresIn:         durationpb.New(x.ExpiresIn),
		Grant:             uint64(x.Grant),
		GroupId:           x.Group,
	}
}

// ListWaiters implements the service. The queue moves between pages: the next page starts behind the
// last ticket seen while that one still waits, else at its old place, which may repeat a waiter that
// moved up but rarely skips one.
func (s *observeService) ListWaiters(ctx context.Context, req *connect.Request[kvgatev1.ListWaitersRequest]) (*connect.Response[kvgatev1.ListWaitersResponse], error) {
	token, err := parsePageToken(waiterPage, req.Msg.GetPageToken())
	if err != nil {
		return nil, err
	}
	size := pageSize(req.Msg.GetPageSize())
	read := func(l *ledger.Ledger, pool string) ([]ledger.WaiterView, bool) {
		return l.Waiters(pool, nextPosition(l, pool, token), size+1)
	}
	waiters, err := readPool(ctx, s.backend, req.Msg.GetPool(), req.Msg.GetStale(), read)
	if err != nil {
		return nil, err
	}
	m := &kvgatev1.ListWaitersResponse{}
	if len(waiters) > size {
		waiters = waiters[:size]
		last := waiters[size-1]
		m.NextPageToken = pageToken{kind: waiterPage, a: uint64(last.Position), text: last.Ticket}.String()
	}
	for _, w := range waiters {
		m.Waiters = append(m.Waiters, waiterMessage(w))
	}
	return connect.NewResponse(m), nil
}

func nextPosition(l *ledger.Ledger, pool string, t pageToken) int {
	if v, ok := l.Ticket(pool, t.text); ok && v.Waiter != nil {
		return v.Waiter.Position + 1
	}
	const maxPosition = 1 << 40
	return int(min(t.a, maxPosition))
}

func waiterMessage(w ledger.WaiterView) *kvgatev1.Waiter {
	return &kvgatev1.Waiter{
		TicketId:          w.Ticket,
		Position:          int64(w.Position),
		ReservationTokens: int64(w.Tokens),
		WaitReason:        kvgatev1.WaitReason(w.Reason),
		Waited:            durationpb.New(w.Waited),
		Attached:          w.Attached,
		HolderId:          w.Holder,
		SessionId:         w.Session,
		Priority:          w.Priority,
		AgesIn:            durationpb.New(w.AgesIn),
		GroupId:           w.Group,
	}
}

// ListEngines implements the service.
func (s *observeService) ListEngines(ctx context.Context, req *connect.Request[kvgatev1.ListEnginesRequest]) (*connect.Response[kvgatev1.ListEnginesResponse], error) {
	c, err := readPool(ctx, s.backend, req.Msg.GetPool(), req.Msg.GetStale(), (*ledger.Ledger).Capacity)
	if err != nil {
		return nil, err
	}
	m := &kvgatev1.ListEnginesResponse{Discovery: c.Discovery}
	if c.Snapshot {
		m.SnapshotAge = durationpb.New(c.Age)
	}
	for i := range c.Engines {
		m.Engines = append(m.Engines, engineMessage(&c.Engines[i]))
	}
	return connect.NewResponse(m), nil
}

func engineMessage(e *ledger.Engine) *kvgatev1.Engine {
	return &kvgatev1.Engine{
		Url:             e.URL,
		Healthy:         e.Healthy,
		Error:           e.Error,
		CapacityTokens:  int64(e.Capacity),
		UsedTokens:      int64(e.Used),
		EvictableTokens: int64(e.Evictable),
		Usage:           e.Usage,
		Pressure:        e.Pressure,
		DpRanks:         int32(e.DPRanks),
		Role:            kvgatev1.EngineRole(e.Role),
		EvictionRate:    e.EvictionRate,
		RunningRequests: e.Running,
		QueuedRequests:  e.Queued,
	}
}

// ListPools implements the service.
func (s *observeService) ListPools(ctx context.Context, req *connect.Request[kvgatev1.ListPoolsRequest]) (*connect.Response[kvgatev1.ListPoolsResponse], error) {
	m := &kvgatev1.ListPoolsResponse{}
	if err := s.backend.View(ctx, req.Msg.GetStale(), func(l *ledger.Ledger) { m.Pools = l.Pools() }); err != nil {
		return nil, err
	}
	return connect.NewResponse(m), nil
}

// DrainStep implements the service.
func (s *observeService) DrainStep(ctx context.Context, req *connect.Request[kvgatev1.DrainStepRequest]) (*connect.Response[kvgatev1.DrainStepResponse], error) {
	pool := poolName(req.Msg.GetPool())
	metrics, err := s.backend.DrainStep(ctx, pool, req.Msg.GetRunId(), req.Msg.GetStep())
	if errors.Is(err, ledger.ErrUnknownPool) {
		return nil, fmt.Errorf("%w %s", ledger.ErrUnknownPool, quote(pool))
	}
	if err != nil {
		return nil, err
	}
	return connect.NewResponse(&kvgatev1.DrainStepResponse{Metrics: metrics, Step: req.Msg.GetStep()}), nil
}
