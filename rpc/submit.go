package rpc

import (
	"context"
	"strings"
	"sync"
	"time"

	"connectrpc.com/connect"

	"kvgate/fsm"
	kvgatev1 "kvgate/rpc/kvgate/v1"
	"kvgate/rpc/tokens"
)

// defaultPoll is how long AwaitGrants waits when the caller does not say.
const defaultPoll = 30 * time.Second

// batch is one Submit on its way.
type batch struct {
	desk *desk
	// ctx is the call's.
	ctx     context.Context
	results []*kvgatev1.ExchangeResponse

	mu   sync.Mutex
	open int
	done chan struct{}
	// gone: the caller left, so grants among the first answers are not heard.
	gone bool
	said []reply
}

// Submit implements the service.
func (s *admissionService) Submit(ctx context.Context, req *connect.Request[kvgatev1.SubmitRequest]) (*connect.Response[kvgatev1.SubmitResponse], error) {
	grant, err := accessOf(ctx)
	if err != nil {
		return nil, err
	}
	d, err := s.enter(keyOf(req.Msg.GetHolderId(), grant))
	if err != nil {
		return nil, err
	}
	defer d.leave()
	ops := req.Msg.GetOps()
	b := &batch{desk: d, ctx: ctx, results: make([]*kvgatev1.ExchangeResponse, len(ops)), open: len(ops), done: make(chan struct{})}
	if err := d.room.Acquire(ctx, int64(len(ops))); err != nil {
		return nil, err
	}
	b.begin(grant, req.Msg)
	select {
	case <-b.done:
		return connect.NewResponse(&kvgatev1.SubmitResponse{Results: b.results}), nil
	case <-ctx.Done():
		err = ctx.Err()
	case <-s.stopping.Done():
		err = fsm.ErrShutdown
	}
	b.abandon()
	return nil, err
}

func keyOf(holder string, grant tokens.Grant) deskKey {
	return deskKey{holder: holder, pools: strings.Join(grant.Pools, "\x00")}
}

// begin puts the operations on the desk's lane, in order.
func (b *batch) begin(grant tokens.Grant, m *kvgatev1.SubmitRequest) {
	b.desk.order.Lock()
	defer b.desk.order.Unlock()
	for i, op := range m.GetOps() {
		b.one(grant, m.GetHolderId(), i, op)
	}
}

// one starts an operation. Its own context outlives the call: what is submitted stays.
func (b *batch) one(grant tokens.Grant, holder string, i int, m *kvgatev1.ExchangeRequest) {
	s := b.desk.s
	answer := b.first(i)
	refuse := func(err error) {
		o := &operation{s: s, seq: m.GetSeq(), began: time.Now(), answer: answer}
		o.fail(err)
	}
	a := m.GetAcquire()
	switch {
	case len(m.GetMore()) > 0:
		refuse(invalid("more", len(m.GetMore()), "nothing in Submit: put the operations into ops"))
		return
	case !ownHolder(m, holder):
		refuse(invalid("holderId", "another", "the holderId of the call, or none"))
		return
	case a != nil && b.desk.full():
		refuse(ErrTooManyInFlight)
		return
	case a != nil:
		name, t, first := ticketName{poolName(a.GetPool()), a.GetTicketId()}, &ticketAtDesk{seq: m.GetSeq()}, true
		next := answer
		answer = func(r reply) {
			b.desk.answered(name, t, r, first)
			if first {
				next(r)
			}
			first = false
		}
	}
	s.begin(s.stopping, b.ctx, b.desk.lane, grant, m, answer)
}

// ownHolder fills in the call's holder, and reports whether the operation is for it.
func ownHolder(m *kvgatev1.ExchangeRequest, holder string) bool {
	var of *string
	switch op := m.GetOp().(type) {
	case *kvgatev1.ExchangeRequest_Acquire:
		of = &op.Acquire.HolderId
	case *kvgatev1.ExchangeRequest_Release:
		of = &op.Release.HolderId
	case *kvgatev1.ExchangeRequest_Heartbeat:
		of = &op.Heartbeat.HolderId
	default:
		return true
	}
	if *of == "" {
		*of = holder
	}
	return *of == holder
}

// first returns what takes the first answer to operation i.
func (b *batch) first(i int) func(reply) {
	return func(r reply) {
		b.mu.Lock()
		defer b.mu.Unlock()
		b.desk.room.Release(1)
		b.open--
		b.results[i] = r.msg
		switch {
		case b.gone && !r.waits:
			b.desk.s.many.unheard(r)
		case !r.waits:
			b.said = append(b.said, r)
		}
		if b.open == 0 {
			close(b.done)
		}
	}
}

// abandon gives back what was answered to a caller that left; what waits stays on the desk.
func (b *batch) abandon() {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.gone = true
	for _, r := range b.said {
		b.desk.s.many.unheard(r)
	}
}

// AwaitGrants implements the service.
func (s *admissionService) AwaitGrants(ctx context.Context, req *connect.Request[kvgatev1.AwaitGrantsRequest]) (*connect.Response[kvgatev1.AwaitGrantsResponse], error) {
	grant, err := accessOf(ctx)
	if err != nil {
		return nil, err
	}
	d, err := s.enter(keyOf(req.Msg.GetHolderId(), grant))
	if err != nil {
		return nil, err
	}
	defer d.leave()
	wait := defaultPoll
	if req.Msg.Timeout != nil {
		wait = req.Msg.GetTimeout().AsDuration()
	}
	bounded, cancel := context.WithTimeout(ctx, wait)
	defer cancel()
	polling, end := d.poll(bounded)
	defer end()
	defer s.keepHolder(polling, req.Msg.GetHolderId())()
	known := d.acknowledge(req.Msg.GetCursor())
	for {
		m, changed := d.look()
		m.Reset_ = !known
		switch {
		case polling.Err() != nil && bounded.Err() == nil: // another call took over
			return connect.NewResponse(&kvgatev1.AwaitGrantsResponse{Cursor: req.Msg.GetCursor(), Waiting: m.GetWaiting()}), nil
		case len(m.Decisions) > 0, !known, polling.Err() != nil:
			return connect.NewResponse(m), ctx.Err()
		}
		select {
		case <-changed:
		case <-polling.Done():
		case <-s.stopping.Done():
			return nil, fsm.ErrShutdown
		}
	}
}

// keepHolder sends the holder's heartbeats until ctx ends; the function it returns waits for that.
func (s *admissionService) keepHolder(ctx context.Context, holder string) (wait func()) {
	ctx, cancel := context.WithCancel(ctx)
	var keeper sync.WaitGroup
	keeper.Go(func() {
		for {
			every := time.Second
			if h, err := s.holders.Heartbeat(ctx, holder); err == nil {
				every = max(h.TTL/3, minGap/10)
			}
			select {
			case <-ctx.Done():
				return
			case <-time.After(every):
			}
		}
	})
	return func() { cancel(); keeper.Wait() }
}
