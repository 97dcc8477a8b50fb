package rpc

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"slices"
	"strconv"

	"connectrpc.com/connect"
	"github.com/prometheus/client_golang/prometheus"
	"golang.org/x/time/rate"
	"google.golang.org/protobuf/types/known/durationpb"

	"kvgate/fsm"
	"kvgate/ledger"
	kvgatev1 "kvgate/rpc/kvgate/v1"
)

// WarningUntracked starts the warning on an answer that the ledger knows nothing of: the coordinator
// could not decide and the caller goes ahead without it.
const WarningUntracked = "untracked"

// WarningUnknownPool starts the warning on an answer for a pool that does not exist.
const WarningUnknownPool = "unknown_pool"

// admissionService serves kvgate.v1.AdmissionService.
type admissionService struct {
	tickets AdmissionBackend
	status  func() fsm.Status
	holders HolderBackend
	// stopping ends when the server shuts down.
	stopping  context.Context
	log       *slog.Logger
	untracked *prometheus.CounterVec
	many      *manyOps
	// warn keeps a cluster without a leader from writing one line per call.
	warn rate.Sometimes
}

// Acquire implements the service. Trouble on the coordinator's side is answered with bypass
// "degraded"; only what the caller did wrong, a full queue and a caller that left are errors. A node of
// several that stops sends its callers elsewhere: their tickets keep their places in the queue.
func (s *admissionService) Acquire(ctx context.Context, req *connect.Request[kvgatev1.AcquireRequest]) (*connect.Response[kvgatev1.AcquireResponse], error) {
	op := acquireOp(req.Msg)
	decision, err := s.acquire(ctx, op)
	if err == nil {
		explainUnknownPool(op, &decision)
		return connect.NewResponse(acquireAnswer(decision)), nil
	}
	if gone := ctx.Err(); gone != nil {
		return nil, gone
	}
	if !s.opens(err) {
		return nil, err
	}
	return connect.NewResponse(s.failOpen(ctx, op, err)), nil
}

// opens reports whether an Acquire that failed so is let go instead.
func (s *admissionService) opens(err error) bool {
	fault := faultOf(err)
	return fault.ours && (!fault.elsewhere || !otherVoters(s.status()))
}

func (s *admissionService) failOpen(ctx context.Context, op ledger.Acquire, err error) *kvgatev1.AcquireResponse {
	s.untracked.WithLabelValues(faultOf(err).name).Inc()
	s.warn.Do(func() {
		s.log.WarnContext(ctx, "cannot decide on tickets, letting them bypass",
			slog.String("pool", op.Pool), slog.String("ticket", op.Ticket), slog.Any("error", err))
	})
	return untrackedAnswer(op, err)
}

// acquire blocks until the ticket is decided, the caller leaves or the server stops.
func (s *admissionService) acquire(ctx context.Context, op ledger.Acquire) (ledger.Decision, error) {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	defer context.AfterFunc(s.stopping, cancel)()
	decision, err := s.tickets.Acquire(ctx, op)
	if err != nil && errors.Is(err, context.Canceled) && s.stopping.Err() != nil {
		err = fsm.ErrShutdown
	}
	return decision, err
}

func acquireOp(m *kvgatev1.AcquireRequest) ledger.Acquire {
	op := ledger.Acquire{
		Pool:              poolName(m.GetPool()),
		Ticket:            m.GetTicketId(),
		PromptTokens:      ledger.Tokens(m.GetPromptTokens()),
		MaxNewTokens:      ledger.Tokens(m.GetMaxNewTokens()),
		ReservationTokens: ledger.Tokens(m.GetReservationTokens()),
		Mode:              ledger.Mode(m.GetMode()),
		Protected:         m.GetProtected(),
		Priority:          m.GetPriority(),
		Session:           m.GetSessionId(),
		Group:             m.GetGroupId(),
		Holder:            m.GetHolderId(),
		RID:               m.GetRid(),
		MaxWait:           -1,
		TTL:               m.GetTtl().AsDuration(),
		Call:              m.GetCallId(),
	}
	if m.MaxWait != nil {
		op.MaxWait = m.MaxWait.AsDuration()
	}
	return op
}

func acquireAnswer(d ledger.Decision) *kvgatev1.AcquireResponse {
	m := &kvgatev1.AcquireResponse{
		Action:            kvgatev1.Action(d.Action),
		Reason:            kvgatev1.Reason(d.Reason),
		TicketId:          d.Ticket,
		ReservationTokens: int64(d.Tokens),
		Waited:            durationpb.New(d.Waited),
		Warnings:          d.Warnings,
	}
	if d.Action == ledger.ActionAdmit {
		m.LeaseId = ledger.LeaseID(d.Epoch, d.Ticket)
		m.OwnerEpoch = int64(d.Epoch)
		m.ExpiresIn = durationpb.New(d.ExpiresIn)
		m.Grant = uint64(d.Seq)
	}
	if d.Binding != nil {
		m.Binding = &kvgatev1.Binding{EngineUrl: d.Binding.Engine, DpRank: d.Binding.DPRank}
	}
	if d.SessionReused {
		m.Warnings = append(slices.Clip(m.Warnings), WarningSessionReused)
	}
	return m
}

// explainUnknownPool puts the ledger's bare warning into words and fills in what would have been charged
// without a decode cap: a pool that does not exist has none.
func explainUnknownPool(op ledger.Acquire, d *ledger.Decision) {
	i := slices.Index(d.Warnings, WarningUnknownPool)
	if i < 0 {
		return
	}
	d.Warnings = slices.Clone(d.Warnings)
	d.Warnings[i] = fmt.Sprintf("%s: there is no pool %s; this bypass is in no ledger; settings of a pool make it", WarningUnknownPool, quote(op.Pool))
	if d.Tokens == 0 {
		d.Tokens = uncapped(op)
	}
}

func uncapped(op ledger.Acquire) ledger.Tokens {
	var none ledger.Settings
	return none.Reservation(op.PromptTokens, op.MaxNewTokens, op.ReservationTokens)
}

// untrackedAnswer lets the caller go ahead when the coordinator cannot decide. The reservation is what the
// request asks for, without the pool's decode cap, which is not known here.
func untrackedAnswer(op ledger.Acquire, err error) *kvgatev1.AcquireResponse {
	return &kvgatev1.AcquireResponse{
		Action:            kvgatev1.Action_ACTION_BYPASS,
		Reason:            kvgatev1.Reason_REASON_DEGRADED,
		TicketId:          op.Ticket,
		ReservationTokens: int64(uncapped(op)),
		Waited:            durationpb.New(0),
		Warnings:          []string{WarningUntracked + ": the coordinator could not decide (" + err.Error() + "); this bypass is in no ledger"},
	}
}

// Release implements the service.
func (s *admissionService) Release(ctx context.Context, req *connect.Request[kvgatev1.ReleaseRequest]) (*connect.Response[kvgatev1.ReleaseResponse], error) {
	op, err := releaseOp(req.Msg)
	if err != nil {
		return nil, err
	}
	released, err := s.tickets.Release(ctx, op)
	if err != nil {
		return nil, err
	}
	return connect.NewResponse(&kvgatev1.ReleaseResponse{Released: released}), nil
}

func releaseOp(m *kvgatev1.ReleaseRequest) (ledger.Release, error) {
	op := ledger.Release{
		Pool:   poolName(m.GetPool()),
		Ticket: m.GetTicketId(),
		Grant:  ledger.Seq(m.GetGrant()),
		Usage:  usageOf(m.GetUsage()),
		Holder: m.GetHolderId(),
		Ended:  m.GetEndedCallId(),
	}
	if m.GetLeaseId() == "" {
		return op, nil
	}
	epoch, ticket, err := parseLeaseID("leaseId", m.GetLeaseId())
	if err != nil {
		return op, err
	}
	if op.Ticket != "" && op.Ticket != ticket {
		return op, invalid("leaseId", quote(m.GetLeaseId()), "a lease of ticketId "+quote(op.Ticket)+", or no ticketId")
	}
	op.Ticket, op.Epoch, op.HasEpoch = ticket, epoch, true
	return op, nil
}

func usageOf(m *kvgatev1.Usage) *ledger.Usage {
	if m == nil {
		return nil
	}
	return &ledger.Usage{
		PromptTokens:     ledger.Tokens(m.GetPromptTokens()),
		CompletionTokens: ledger.Tokens(m.GetCompletionTokens()),
		CachedTokens:     ledger.Tokens(m.GetCachedTokens()),
		Engine:           m.GetEngineUrl(),
		Outcome:          m.GetOutcome(),
	}
}

// Renew implements the service.
func (s *admissionService) Renew(ctx context.Context, req *connect.Request[kvgatev1.RenewRequest]) (*connect.Response[kvgatev1.RenewResponse], error) {
	refs, err := leaseRefs(req.Msg)
	if err != nil {
		return nil, err
	}
	renewed, err := s.tickets.Renew(ctx, poolName(req.Msg.GetPool()), refs, req.Msg.GetTtl().AsDuration())
	if err != nil {
		return nil, err
	}
	return connect.NewResponse(renewAnswer(req.Msg, renewed)), nil
}

func renewAnswer(m *kvgatev1.RenewRequest, renewed []ledger.Renewed) *kvgatev1.RenewResponse {
	answer := &kvgatev1.RenewResponse{Leases: make([]*kvgatev1.RenewedLease, len(renewed))}
	for i, r := range renewed {
		lease := &kvgatev1.RenewedLease{LeaseId: m.GetLeaseIds()[i], Renewed: r.OK}
		if r.OK {
			lease.ExpiresIn = durationpb.New(r.ExpiresIn)
		}
		answer.Leases[i] = lease
	}
	return answer
}

func leaseRefs(m *kvgatev1.RenewRequest) ([]ledger.LeaseRef, error) {
	refs := make([]ledger.LeaseRef, len(m.GetLeaseIds()))
	for i, id := range m.GetLeaseIds() {
		epoch, ticket, err := parseLeaseID("leaseIds["+strconv.Itoa(i)+"]", id)
		if err != nil {
			return nil, err
		}
		refs[i] = ledger.LeaseRef{Ticket: ticket, Epoch: epoch, HasEpoch: true}
		if len(m.GetGrants()) > 0 {
			refs[i].Grant = ledger.Seq(m.GetGrants()[i])
		}
	}
	return refs, nil
}

// Cancel implements the service.
func (s *admissionService) Cancel(ctx context.Context, req *connect.Request[kvgatev1.CancelRequest]) (*connect.Response[kvgatev1.CancelResponse], error) {
	was, err := s.tickets.Cancel(ctx, cancelOp(req.Msg))
	if err != nil {
		return nil, err
	}
	return connect.NewResponse(&kvgatev1.CancelResponse{Was: kvgatev1.CancelState(was)}), nil
}

func cancelOp(m *kvgatev1.CancelRequest) ledger.Cancel {
	return ledger.Cancel{Pool: poolName(m.GetPool()), Ticket: m.GetTicketId(), Call: m.GetCallId(), Ended: m.GetEndedCallId()}
}

// Heartbeat implements the service.
func (s *admissionService) Heartbeat(ctx context.Context, req *connect.Request[kvgatev1.HeartbeatRequest]) (*connect.Response[kvgatev1.HeartbeatResponse], error) {
	h, err := s.holders.Heartbeat(ctx, req.Msg.GetHolderId())
	if err != nil {
		return nil, err
	}
	return connect.NewResponse(heartbeatAnswer(h)), nil
}

func heartbeatAnswer(h fsm.HolderStatus) *kvgatev1.HeartbeatResponse {
	return &kvgatev1.HeartbeatResponse{Ttl: durationpb.New(h.TTL), Leases: h.Leases, Waiters: h.Waiters}
}
