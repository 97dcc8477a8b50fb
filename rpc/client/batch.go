package client

import (
	"context"
	"errors"
	"sync"
	"time"

	"connectrpc.com/connect"
	"google.golang.org/protobuf/types/known/durationpb"

	kvgatev1 "kvgate/rpc/kvgate/v1"
)

// pollTime is how long one AwaitGrants stays open; submitTime bounds one Submit, which decides at once.
const (
	pollTime   = 20 * time.Second
	submitTime = 5 * time.Second
)

var errPollReset = errors.New("the endpoint forgot this holder's waiters")

// batch carries operations by Submit, one call at a time so that their order is kept, and fetches
// decisions by AwaitGrants while any ticket waits. Its goroutines end when nothing is left to do.
type batch struct {
	*ops
	line *line

	mu                  sync.Mutex
	submitting, polling bool
	// waiting are the operations that were answered ACTION_WAIT.
	waiting map[uint64]bool
}

func newBatch(l *line) *batch {
	return &batch{ops: newOps(), line: l, waiting: map[uint64]bool{}}
}

// do implements carrier.
func (b *batch) do(ctx context.Context, op *kvgatev1.ExchangeRequest) (*kvgatev1.ExchangeResponse, *Error) {
	p, before, err := b.add(&kvgatev1.ExchangeRequest{Op: op.GetOp()})
	if err != nil {
		return nil, err
	}
	b.run(&b.submitting, b.submit)
	answer, err := b.await(ctx, p, before, func() {})
	b.mu.Lock()
	delete(b.waiting, p.msg.GetSeq())
	b.mu.Unlock()
	return answer, err
}

// run starts fn unless it runs. fn repeats until it returns false, seen under the lock, so that nothing
// is added unnoticed.
func (b *batch) run(running *bool, fn func(context.Context) bool) {
	b.mu.Lock()
	defer b.mu.Unlock()
	if *running {
		return
	}
	*running = b.line.lines.running.start(func() {
		ctx, cancel := b.line.context()
		defer cancel()
		for fn(ctx) {
		}
	})
	if !*running {
		b.fail(&Error{Code: connect.CodeCanceled, Err: ErrClosed})
	}
}

// submit sends what is queued.
func (b *batch) submit(ctx context.Context) bool {
	open := b.take(sendTogether)
	if len(open) == 0 {
		b.mu.Lock()
		defer b.mu.Unlock()
		b.submitting = b.queued()
		return b.submitting
	}
	msg := &kvgatev1.SubmitRequest{HolderId: b.line.lines.holder}
	for _, p := range open {
		msg.Ops = append(msg.Ops, p.msg)
	}
	ctx, cancel := context.WithTimeout(ctx, submitTime)
	defer cancel()
	res, err := b.line.lines.unary.Submit(ctx, connect.NewRequest(msg))
	switch {
	case err != nil:
		b.refuse(open, asError(err))
	case len(res.Msg.GetResults()) != len(open):
		b.refuse(open, nonsense("submit answered %d operations of %d", len(res.Msg.GetResults()), len(open)))
	default:
		b.settle(open, res.Msg.GetResults())
	}
	return true
}

func (o *ops) queued() bool {
	o.mu.Lock()
	defer o.mu.Unlock()
	return len(o.queue) > 0
}

func (b *batch) refuse(open []*pendingOp, err *Error) {
	for _, p := range open {
		e := *err
		b.answer(p.msg.GetSeq(), opAnswer{err: &e})
	}
}

// settle hands out first answers; who waits is remembered, and polled for.
func (b *batch) settle(open []*pendingOp, results []*kvgatev1.ExchangeResponse) {
	for i, p := range open {
		if results[i].GetAcquire().GetAction() != kvgatev1.Action_ACTION_WAIT {
			b.answer(p.msg.GetSeq(), opAnswer{msg: results[i]})
			continue
		}
		b.mu.Lock()
		b.waiting[p.msg.GetSeq()] = true
		b.mu.Unlock()
		if !b.isOpen(p) { // its caller left, or the poll was faster
			b.mu.Lock()
			delete(b.waiting, p.msg.GetSeq())
			b.mu.Unlock()
		}
	}
	b.mu.Lock()
	waits := len(b.waiting) > 0
	b.mu.Unlock()
	if waits {
		b.startPoll()
	}
}

func (o *ops) isOpen(p *pendingOp) bool {
	o.mu.Lock()
	defer o.mu.Unlock()
	return o.pending[p.msg.GetSeq()] == p
}

func (b *batch) startPoll() {
	cursor := ""
	b.run(&b.polling, func(ctx context.Context) bool { return b.poll(ctx, &cursor) })
}

// poll fetches decisions once; false when nobody waits any more.
func (b *batch) poll(ctx context.Context, cursor *string) bool {
	before, waits := b.stillWaiting()
	if !waits {
		return false
	}
	ctx, cancel := context.WithTimeout(ctx, pollTime+submitTime)
	defer cancel()
	res, err := b.line.lines.unary.AwaitGrants(ctx, connect.NewRequest(&kvgatev1.AwaitGrantsRequest{
		HolderId: b.line.lines.holder, Cursor: *cursor, Timeout: durationpb.New(pollTime),
	}))
	if err != nil {
		b.lose(before, asError(err))
		*cursor = ""
		return true
	}
	*cursor = res.Msg.GetCursor()
	for _, d := range res.Msg.GetDecisions() {
		b.decided(d)
	}
	if res.Msg.GetReset_() {
		b.lose(before, &Error{Code: connect.CodeUnavailable, Err: errPollReset})
	}
	return true
}

// stillWaiting returns the operations that wait; when there are none, the poll has ended.
func (b *batch) stillWaiting() (seqs []uint64, waits bool) {
	b.mu.Lock()
	defer b.mu.Unlock()
	for seq := range b.waiting {
		seqs = append(seqs, seq)
	}
	b.polling = len(seqs) > 0
	return seqs, b.polling
}

// lose fails operations that waited through the endpoint. They are asked for again, perhaps elsewhere,
// and keep their places. They did arrive there, whatever err says of the poll that failed.
func (b *batch) lose(seqs []uint64, err *Error) {
	for _, seq := range seqs {
		b.mu.Lock()
		was := b.waiting[seq]
		delete(b.waiting, seq)
		b.mu.Unlock()
		if was {
			e := *err
			e.notSent = false
			b.answer(seq, opAnswer{err: &e})
		}
	}
}

func (b *batch) decided(d *kvgatev1.WaiterDecision) {
	m := &kvgatev1.ExchangeResponse{Seq: d.GetSeq()}
	if a := d.GetAcquire(); a != nil {
		m.Result = &kvgatev1.ExchangeResponse_Acquire{Acquire: a}
	} else {
		m.Result = &kvgatev1.ExchangeResponse_Error{Error: d.GetError()}
	}
	b.mu.Lock()
	delete(b.waiting, d.GetSeq())
	b.mu.Unlock()
	b.answer(d.GetSeq(), opAnswer{msg: m})
}
