package client

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"
	"time"

	"connectrpc.com/connect"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/durationpb"

	kvgatev1 "kvgate/rpc/kvgate/v1"
)

// fakeLedger is a ledger that forgets nothing by itself: what a client leaves behind stays.
type fakeLedger struct {
	mu           sync.Mutex
	capacity     int64
	ttl          time.Duration
	holderTTL    time.Duration
	reserved     int64
	seq          uint64
	leases       map[string]*fakeLease
	waiters      []*fakeWaiter
	marks        map[string]bool
	calls        []uint64        // call ids of Acquires
	ended        map[uint64]bool // calls that are over
	maxWaits     []time.Duration // of each Acquire as sent; -1 for unset
	releases     []*kvgatev1.ReleaseRequest
	renewals     []int // leases named by each Renew
	beats        int
	sessionCalls []proto.Message
	changed      chan struct{}
}

type fakeLease struct {
	ticket, id string
	tokens     int64
	grant      uint64
	waited     time.Duration
}

type fakeWaiter struct {
	ticket string
	tokens int64
	since  time.Time
	gone   chan struct{} // closed when it left the queue
	reason Reason        // why it left; CapacityAvailable when it was granted
	lease  *fakeLease
}

func newFakeLedger(capacity int64) *fakeLedger {
	return &fakeLedger{
		capacity: capacity, ttl: 600 * time.Second, holderTTL: 15 * time.Second,
		leases: map[string]*fakeLease{}, marks: map[string]bool{}, ended: map[uint64]bool{}, changed: make(chan struct{}),
	}
}

// notify wakes await. The caller holds mu.
func (l *fakeLedger) notify() {
	close(l.changed)
	l.changed = make(chan struct{})
}

// await blocks until cond, which is called with mu held, is true.
func (l *fakeLedger) await(ctx context.Context, cond func() bool) error {
	for {
		l.mu.Lock()
		ok, changed := cond(), l.changed
		l.mu.Unlock()
		if ok {
			return nil
		}
		select {
		case <-changed:
		case <-ctx.Done():
			return ctx.Err()
		}
	}
}

// seen returns a copy of what field points to.
func seen[T any](l *fakeLedger, field *[]T) []T {
	l.mu.Lock()
	defer l.mu.Unlock()
	return slices.Clone(*field)
}

func (l *fakeLedger) sizes() (leases, waiters int) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return len(l.leases), len(l.waiters)
}

func (l *fakeLedger) acquire(ctx context.Context, req *kvgatev1.AcquireRequest) (*kvgatev1.AcquireResponse, error) {
	l.mu.Lock()
	sent := time.Duration(-1)
	if req.MaxWait != nil {
		sent = req.GetMaxWait().AsDuration()
	}
	l.maxWaits = append(l.maxWaits, sent)
	l.calls = append(l.calls, req.GetCallId())
	defer l.mu.Unlock()
	defer l.notify()
	ticket := req.GetTicketId()
	if l.ended[req.GetCallId()] {
		return bypass(req, Cancelled), nil
	}
	if l.marks[ticket] {
		delete(l.marks, ticket)
		return bypass(req, Cancelled), nil
	}
	if req.GetProtected() {
		return bypass(req, Protected), nil
	}
	if lease := l.leases[ticket]; lease != nil {
		return l.admitted(lease), nil
	}
	tokens := req.GetReservationTokens() + req.GetPromptTokens() + req.GetMaxNewTokens()
	w := l.waiter(ticket)
	switch {
	case w != nil && w.tokens != tokens:
		return nil, kvgateError(connect.CodeFailedPrecondition, &kvgatev1.ErrorInfo{Code: "ticket_mismatch"})
	case w == nil && len(l.waiters) == 0 && l.reserved+tokens <= l.capacity:
		return l.admitted(l.grant(ticket, tokens, 0)), nil
	case w == nil:
		w = &fakeWaiter{ticket: ticket, tokens: tokens, since: time.Now(), gone: make(chan struct{})}
		l.waiters = append(l.waiters, w)
	}
	maxWait := sent
	if sent < 0 {
		maxWait = 30 * time.Second
	}
	return l.wait(ctx, w, req, maxWait)
}

// wait blocks without mu until w left the queue or the caller goes away; the waiter stays then.
func (l *fakeLedger) wait(ctx context.Context, w *fakeWaiter, req *kvgatev1.AcquireRequest, maxWait time.Duration) (*kvgatev1.AcquireResponse, error) {
	l.notify()
	l.mu.Unlock()
	aged := time.NewTimer(maxWait)
	defer aged.Stop()
	var err error
	select {
	case <-w.gone:
	case <-aged.C:
	case <-ctx.Done():
		err = ctx.Err()
	}
	l.mu.Lock()
	if err != nil {
		return nil, err
	}
	l.leave(w, Aged)
	if w.lease != nil {
		return l.admitted(w.lease), nil
	}
	resp := bypass(req, w.reason)
	resp.Waited = durationpb.New(time.Since(w.since))
	return resp, nil
}

func (l *fakeLedger) waiter(ticket string) *fakeWaiter {
	for _, w := range l.waiters {
		if w.ticket == ticket {
			return w
		}
	}
	return nil
}

func (l *fakeLedger) leave(w *fakeWaiter, reason Reason) {
	for i, other := range l.waiters {
		if other == w {
			l.waiters = append(l.waiters[:i:i], l.waiters[i+1:]...)
			w.reason = reason
			close(w.gone)
			l.advance()
			return
		}
	}
}

func (l *fakeLedger) advance() {
	for len(l.waiters) > 0 && l.reserved+l.waiters[0].tokens <= l.capacity {
		w := l.waiters[0]
		l.waiters = l.waiters[1:]
		w.lease = l.grant(w.ticket, w.tokens, max(time.Since(w.since), 1))
		w.reason = CapacityAvailable
		close(w.gone)
	}
}

func (l *fakeLedger) grant(ticket string, tokens int64, waited time.Duration) *fakeLease {
	l.seq++
	lease := &fakeLease{ticket: ticket, id: "1:" + ticket, tokens: tokens, grant: l.seq, waited: waited}
	l.leases[ticket] = lease
	l.reserved += tokens
	return lease
}

func (l *fakeLedger) drop(lease *fakeLease) {
	delete(l.leases, lease.ticket)
	l.reserved -= lease.tokens
	l.advance()
}

func (l *fakeLedger) admitted(lease *fakeLease) *kvgatev1.AcquireResponse {
	return &kvgatev1.AcquireResponse{
		Action: Admit, Reason: CapacityAvailable, TicketId: lease.ticket, ReservationTokens: lease.tokens,
		LeaseId: lease.id, OwnerEpoch: 1, Grant: lease.grant, ExpiresIn: durationpb.New(l.ttl),
		Waited: durationpb.New(lease.waited),
	}
}

func (l *fakeLedger) release(req *kvgatev1.ReleaseRequest) *kvgatev1.ReleaseResponse {
	l.mu.Lock()
	defer l.mu.Unlock()
	defer l.notify()
	l.releases = append(l.releases, req)
	lease := l.leases[req.GetTicketId()]
	if lease == nil || (req.GetGrant() != 0 && req.GetGrant() != lease.grant) {
		return &kvgatev1.ReleaseResponse{}
	}
	l.drop(lease)
	l.end(req.GetEndedCallId())
	return &kvgatev1.ReleaseResponse{Released: true}
}

func (l *fakeLedger) cancel(req *kvgatev1.CancelRequest) *kvgatev1.CancelResponse {
	l.mu.Lock()
	defer l.mu.Unlock()
	defer l.notify()
	ticket := req.GetTicketId()
	if l.ended[req.GetEndedCallId()] {
		return &kvgatev1.CancelResponse{Was: kvgatev1.CancelState_CANCEL_STATE_UNKNOWN}
	}
	l.end(req.GetEndedCallId())
	if w := l.waiter(ticket); w != nil {
		l.leave(w, Cancelled)
		return &kvgatev1.CancelResponse{Was: kvgatev1.CancelState_CANCEL_STATE_WAITING}
	}
	if lease := l.leases[ticket]; lease != nil {
		l.drop(lease)
		return &kvgatev1.CancelResponse{Was: kvgatev1.CancelState_CANCEL_STATE_LEASED}
	}
	if req.GetEndedCallId() == 0 {
		l.marks[ticket] = true
	}
	return &kvgatev1.CancelResponse{Was: kvgatev1.CancelState_CANCEL_STATE_UNKNOWN}
}

func (l *fakeLedger) end(call uint64) {
	if call != 0 {
		l.ended[call] = true
	}
}

func (l *fakeLedger) renew(req *kvgatev1.RenewRequest) *kvgatev1.RenewResponse {
	l.mu.Lock()
	defer l.mu.Unlock()
	defer l.notify()
	l.renewals = append(l.renewals, len(req.GetLeaseIds()))
	out := &kvgatev1.RenewResponse{}
	for i, id := range req.GetLeaseIds() {
		var fence uint64
		if len(req.GetGrants()) > 0 {
			fence = req.GetGrants()[i]
		}
		renewed := &kvgatev1.RenewedLease{LeaseId: id}
		for _, lease := range l.leases {
			if lease.id == id && (fence == 0 || fence == lease.grant) {
				renewed.Renewed, renewed.ExpiresIn = true, durationpb.New(l.ttl)
			}
		}
		out.Leases = append(out.Leases, renewed)
	}
	return out
}

func (l *fakeLedger) heartbeat() *kvgatev1.HeartbeatResponse {
	l.mu.Lock()
	defer l.mu.Unlock()
	defer l.notify()
	l.beats++
	return &kvgatev1.HeartbeatResponse{
		Ttl: durationpb.New(l.holderTTL), Leases: int64(len(l.leases)), Waiters: int64(len(l.waiters)),
	}
}

func bypass(req *kvgatev1.AcquireRequest, reason Reason) *kvgatev1.AcquireResponse {
	return &kvgatev1.AcquireResponse{Action: Bypass, Reason: reason, TicketId: req.GetTicketId()}
}

func kvgateError(code connect.Code, info *kvgatev1.ErrorInfo) error {
	err := connect.NewError(code, errors.New(info.GetCode()))
	detail, detailErr := connect.NewErrorDetail(info)
	if detailErr != nil {
		return fmt.Errorf("error detail: %w", detailErr)
	}
	err.AddDetail(detail)
	return err
}
