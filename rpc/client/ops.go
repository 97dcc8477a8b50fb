package client

import (
	"context"
	"errors"
	"sync"

	"connectrpc.com/connect"

	kvgatev1 "kvgate/rpc/kvgate/v1"
)

// sendTogether is how many operations go into one message, at most.
const sendTogether = 512

var (
	errIdle     = errors.New("the stream was idle and is closed")
	errNotHeard = errors.New("nothing was heard on the stream")
)

// pendingOp is an operation on its way.
type pendingOp struct {
	msg  *kvgatev1.ExchangeRequest
	done chan opAnswer
	sent bool
}

type opAnswer struct {
	msg *kvgatev1.ExchangeResponse
	err *Error
}

// ops are the operations of one carrier: those that are not sent yet, in order, and all that are not
// answered. Safe for concurrent use.
type ops struct {
	wake chan struct{} // room for one

	mu      sync.Mutex
	last    uint64
	queue   []*pendingOp
	pending map[uint64]*pendingOp
	// heard counts answers.
	heard uint64
	over  *Error
}

func newOps() *ops { return &ops{wake: make(chan struct{}, 1), pending: map[uint64]*pendingOp{}} }

// add queues an operation; the error says that the carrier is over.
func (o *ops) add(m *kvgatev1.ExchangeRequest) (*pendingOp, uint64, *Error) {
	o.mu.Lock()
	defer o.mu.Unlock()
	if o.over != nil {
		return nil, 0, o.unsent()
	}
	o.last++
	m.Seq = o.last
	p := &pendingOp{msg: m, done: make(chan opAnswer, 1)}
	o.queue = append(o.queue, p)
	o.pending[m.Seq] = p
	select {
	case o.wake <- struct{}{}:
	default:
	}
	return p, o.heard, nil
}

func (o *ops) unsent() *Error {
	e := *o.over
	e.notSent = true
	return &e
}

// take returns the next operations to send.
func (o *ops) take(most int) []*pendingOp {
	o.mu.Lock()
	defer o.mu.Unlock()
	var out []*pendingOp
	for i, p := range o.queue {
		if len(out) == most {
			o.queue = o.queue[i:]
			return out
		}
		if o.pending[p.msg.Seq] == p { // else its caller has left
			p.sent = true
			out = append(out, p)
		}
	}
	o.queue = nil
	return out
}

// answer hands an answer to who waits for it, if anybody still does.
func (o *ops) answer(seq uint64, a opAnswer) {
	o.mu.Lock()
	p := o.pending[seq]
	delete(o.pending, seq)
	o.heard++
	o.mu.Unlock()
	if p != nil {
		p.done <- a
	}
}

// forget drops an operation whose caller leaves. heard is how many answers came in all.
func (o *ops) forget(p *pendingOp) (sent bool, heard uint64) {
	o.mu.Lock()
	defer o.mu.Unlock()
	delete(o.pending, p.msg.Seq)
	return p.sent, o.heard
}

// idle reports whether nothing is open; when so, the carrier is over.
func (o *ops) idle(why *Error) bool {
	o.mu.Lock()
	defer o.mu.Unlock()
	if len(o.pending) > 0 || o.over != nil {
		return false
	}
	o.over = why
	return true
}

// fail ends everything that is open. What was never sent is marked so.
func (o *ops) fail(err *Error) {
	o.mu.Lock()
	if o.over == nil {
		o.over = err
	}
	open := o.pending
	o.pending, o.queue = map[uint64]*pendingOp{}, nil
	o.mu.Unlock()
	for _, p := range open {
		e := *err
		e.notSent = e.notSent || !p.sent
		p.done <- opAnswer{err: &e}
	}
}

// await waits for the answer to an operation. late is called when the time of this try is over and
// nothing at all was heard since the operation was added.
func (o *ops) await(ctx context.Context, p *pendingOp, before uint64, late func()) (*kvgatev1.ExchangeResponse, *Error) {
	select {
	case a := <-p.done:
		return a.msg, a.err
	case <-ctx.Done():
	}
	sent, heard := o.forget(p)
	select {
	case a := <-p.done:
		return a.msg, a.err
	default:
	}
	if sent && heard == before && errors.Is(context.Cause(ctx), errTryOver) {
		late()
	}
	code := connect.CodeCanceled
	if errors.Is(ctx.Err(), context.DeadlineExceeded) {
		code = connect.CodeDeadlineExceeded
	}
	return nil, &Error{Code: code, Err: ctx.Err(), notSent: !sent}
}
