package rpc

import (
	"context"
	"errors"
	"time"

	"buf.build/go/protovalidate"
	"connectrpc.com/connect"
	"google.golang.org/protobuf/proto"

	"kvgate/fsm"
	"kvgate/ledger"
	kvgatev1 "kvgate/rpc/kvgate/v1"
	"kvgate/rpc/kvgate/v1/kvgatev1connect"
	"kvgate/rpc/rules"
	"kvgate/rpc/tokens"
)

// Bounds of what one caller may have under way; the proto names them.
const (
	maxUnanswered = 4096
	maxWaiting    = 65536
	maxOpsAtOnce  = 1024
	// maxUnansweredBytes bounds the operations of a stream that were not answered; one has room always.
	maxUnansweredBytes = 8 << 20
)

// manyOps is what calls that carry several operations share.
type manyOps struct {
	lanes     LaneBackend
	view      viewer
	calls     *callMetrics
	validator protovalidate.Validator
	hints     *leaderHints
	desks     desks
}

func newManyOps(s *Server, calls *callMetrics, validator protovalidate.Validator) *manyOps {
	b := s.options.Backend
	m := &manyOps{lanes: b, view: b, calls: calls, validator: validator, hints: s.hints}
	m.desks.open = map[deskKey]*desk{}
	context.AfterFunc(s.stopping, m.desks.closeAll)
	return m
}

// reply is the answer to one operation.
type reply struct {
	msg *kvgatev1.ExchangeResponse
	// decision is set on an Acquire that the ledger answered.
	decision *ledger.Decision
	// waits: another reply will follow.
	waits bool
	// bytes is the size of the operation, on a stream.
	bytes int
}

// unheard gives a grant back that the caller was not told of. When the ticket was asked for more than
// once, another caller may have been told.
func (m *manyOps) unheard(r reply) {
	if d := r.decision; d != nil && d.Attempt == 1 {
		m.lanes.GiveBack(*d)
	}
}

// operation is one op on its way: what to call it in the metrics, and when it came.
type operation struct {
	s   *admissionService
	ctx context.Context
	// asks ends when an acquire that has no answer yet is not wanted any more.
	asks   context.Context
	lane   fsm.Lane
	seq    uint64
	method string
	began  time.Time
	// answer is called once, or twice for a ticket that waits; it must not block.
	answer func(reply)
}

// begin starts one operation on a lane. An operation that cannot be right is answered at once, from the
// calling goroutine; ctx says whether the caller is still there, asks whether it waits for the first answer.
func (s *admissionService) begin(ctx, asks context.Context, lane fsm.Lane, grant tokens.Grant, m *kvgatev1.ExchangeRequest, answer func(reply)) {
	o := &operation{s: s, ctx: ctx, asks: asks, lane: lane, seq: m.GetSeq(), began: time.Now(), answer: answer}
	if err := o.start(grant, m); err != nil {
		o.fail(err)
	}
}

func (o *operation) start(grant tokens.Grant, m *kvgatev1.ExchangeRequest) error {
	var msg proto.Message
	var begin func() error
	switch op := m.GetOp().(type) {
	case *kvgatev1.ExchangeRequest_Acquire:
		msg, begin, o.method = op.Acquire, func() error { return o.acquire(op.Acquire) }, kvgatev1connect.AdmissionServiceAcquireProcedure
	case *kvgatev1.ExchangeRequest_Release:
		msg, begin, o.method = op.Release, func() error { return o.release(op.Release) }, kvgatev1connect.AdmissionServiceReleaseProcedure
	case *kvgatev1.ExchangeRequest_Cancel:
		msg, begin, o.method = op.Cancel, func() error { return o.cancel(op.Cancel) }, kvgatev1connect.AdmissionServiceCancelProcedure
	case *kvgatev1.ExchangeRequest_Renew:
		msg, begin, o.method = op.Renew, func() error { return o.renew(op.Renew) }, kvgatev1connect.AdmissionServiceRenewProcedure
	case *kvgatev1.ExchangeRequest_Heartbeat:
		msg, begin, o.method = op.Heartbeat, func() error { return o.heartbeat(op.Heartbeat) }, kvgatev1connect.AdmissionServiceHeartbeatProcedure
	default:
		return invalid("op", "none", "one of acquire, release, cancel, renew, heartbeat")
	}
	if err := checkPool(grant, msg); err != nil {
		return err
	}
	if err := rules.Validate(o.s.many.validator, msg); err != nil {
		return violationError(err)
	}
	return begin()
}

// acquire answers as the unary call does, also when the coordinator cannot decide.
func (o *operation) acquire(m *kvgatev1.AcquireRequest) error {
	op := acquireOp(m)
	o.lane.Acquire(o.asks, op, func(d ledger.Decision, err error) {
		switch {
		case err == nil && d.Action == ledger.ActionWait:
			msg := acquireReply(acquireAnswer(d))
			msg.Seq = o.seq
			o.answer(reply{msg: msg, decision: &d, waits: true})
		case err == nil:
			explainUnknownPool(op, &d)
			o.done(reply{msg: acquireReply(acquireAnswer(d)), decision: &d})
		default:
			o.undecided(op, o.s.laneError(err))
		}
	})
	return nil
}

func (o *operation) undecided(op ledger.Acquire, err error) {
	if o.ctx.Err() != nil || !o.s.opens(err) {
		o.fail(err)
		return
	}
	o.done(reply{msg: acquireReply(o.s.failOpen(o.ctx, op, err))})
}

// laneError says that the server stops where a lane says only that it ended.
func (s *admissionService) laneError(err error) error {
	if errors.Is(err, context.Canceled) && s.stopping.Err() != nil {
		return fsm.ErrShutdown
	}
	return err
}

func (o *operation) release(m *kvgatev1.ReleaseRequest) error {
	op, err := releaseOp(m)
	if err != nil {
		return err
	}
	o.lane.Release(op, func(released bool, err error) {
		o.finish(err, &kvgatev1.ExchangeResponse{Result: &kvgatev1.ExchangeResponse_Release{Release: &kvgatev1.ReleaseResponse{Released: released}}})
	})
	return nil
}

func (o *operation) cancel(m *kvgatev1.CancelRequest) error {
	o.lane.Cancel(cancelOp(m), func(was ledger.CancelState, err error) {
		o.finish(err, &kvgatev1.ExchangeResponse{Result: &kvgatev1.ExchangeResponse_Cancel{Cancel: &kvgatev1.CancelResponse{Was: kvgatev1.CancelState(was)}}})
	})
	return nil
}

func (o *operation) renew(m *kvgatev1.RenewRequest) error {
	refs, err := leaseRefs(m)
	if err != nil {
		return err
	}
	o.lane.Renew(poolName(m.GetPool()), refs, m.GetTtl().AsDuration(), func(renewed []ledger.Renewed, err error) {
		if err != nil {
			renewed = nil
		}
		o.finish(err, &kvgatev1.ExchangeResponse{Result: &kvgatev1.ExchangeResponse_Renew{Renew: renewAnswer(m, renewed)}})
	})
	return nil
}

// heartbeat does not go through the log and so not through the lane. Its goroutine ends with ctx at the
// latest.
func (o *operation) heartbeat(m *kvgatev1.HeartbeatRequest) error {
	go func() {
		h, err := o.s.holders.Heartbeat(o.ctx, m.GetHolderId())
		o.finish(err, &kvgatev1.ExchangeResponse{Result: &kvgatev1.ExchangeResponse_Heartbeat{Heartbeat: heartbeatAnswer(h)}})
	}()
	return nil
}

func (o *operation) finish(err error, msg *kvgatev1.ExchangeResponse) {
	if err != nil {
		o.fail(o.s.laneError(err))
		return
	}
	o.done(reply{msg: msg})
}

func (o *operation) done(r reply) {
	o.measure()
	r.msg.Seq = o.seq
	o.answer(r)
}

func (o *operation) fail(err error) {
	o.measure()
	failed := newError(err, o.s.status)
	if o.method != "" {
		o.s.many.calls.countOp(o.method, failed)
	}
	o.answer(reply{msg: &kvgatev1.ExchangeResponse{
		Seq: o.seq, Result: &kvgatev1.ExchangeResponse_Error{Error: opError(failed)},
	}})
}

func (o *operation) measure() {
	if seconds, ok := o.s.many.calls.byName[o.method]; ok {
		seconds.Observe(time.Since(o.began).Seconds())
	}
}

// opError is the form that an error has inside of an answer.
func opError(err *connect.Error) *kvgatev1.OpError {
	out := &kvgatev1.OpError{Code: err.Code().String(), Message: err.Message()}
	for _, d := range err.Details() {
		if m, err := d.Value(); err == nil {
			if info, ok := m.(*kvgatev1.ErrorInfo); ok {
				out.Info = info
			}
		}
	}
	return out
}

func acquireReply(m *kvgatev1.AcquireResponse) *kvgatev1.ExchangeResponse {
	return &kvgatev1.ExchangeResponse{Result: &kvgatev1.ExchangeResponse_Acquire{Acquire: m}}
}
