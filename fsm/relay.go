package fsm

import (
	"context"
	"errors"
	"fmt"
	"sync"

	"connectrpc.com/connect"

	"kvgate/fsm/fsmpb"
	"kvgate/ledger"
)

// relay is operations that another node, which leads, was sent together. It is what a flight is here.
type relay struct {
	replica *Replica
	// ready is closed when firsts are there, over when the stream has ended, for the reason err.
	ready, over chan struct{}
	firsts      []Result
	err         error

	// mu guards gone, and with it who takes a decision: the caller, or nobody any more.
	mu      sync.Mutex
	gone    []bool
	decided []chan Result
}

// launch sends operations to the leader, in order. The stream lives until nothing waits any more or ctx
// ends; spawn runs its reader.
func (p *peers) launch(ctx context.Context, spawn func(func()), addr string, ops []*fsmpb.Op) *relay {
	r := &relay{
		replica: p.replica, ready: make(chan struct{}), over: make(chan struct{}),
		gone: make([]bool, len(ops)), decided: make([]chan Result, len(ops)),
	}
	for i := range r.decided {
		r.decided[i] = make(chan Result, 1)
	}
	spawn(func() {
		defer close(r.over)
		r.err = r.read(ctx, p.client(addr), ops)
	})
	return r
}

// read takes the answers off the stream and says why it ended.
func (r *relay) read(ctx context.Context, client streamer, ops []*fsmpb.Op) error {
	call, cancel := undated(ctx)
	defer cancel()
	stream, err := client.DoAll(call, connect.NewRequest(&fsmpb.DoAllRequest{Ops: ops}))
	if err != nil {
		return unreached(ctx, err)
	}
	defer func() { _ = stream.Close() }()
	for stream.Receive() {
		if err := r.take(stream.Msg().Results); err != nil {
			return err
		}
	}
	if err := stream.Err(); err != nil {
		return unreached(ctx, err)
	}
	return fmt.Errorf("%w: the leader ended the stream", ErrLeadershipLost)
}

// streamer is what a relay needs of a peer.
type streamer interface {
	DoAll(context.Context, *connect.Request[fsmpb.DoAllRequest]) (*connect.ServerStreamForClient[fsmpb.DoAllResponse], error)
}

func (r *relay) take(results []*fsmpb.OpResult) error {
	if r.firsts == nil {
		if len(results) != len(r.decided) {
			return fmt.Errorf("%w: the leader answered %d of %d operations", ErrLeadershipLost, len(results), len(r.decided))
		}
		firsts := make([]Result, len(results))
		for i, x := range results {
			firsts[i] = decodeResult(x.Result)
		}
		r.publish(firsts)
		return nil
	}
	for _, x := range results {
		if int(x.Op) < len(r.decided) {
			r.deliver(int(x.Op), decodeResult(x.Result))
		}
	}
	return nil
}

func (r *relay) publish(firsts []Result) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.firsts = firsts
	close(r.ready)
	for i, gone := range r.gone {
		if gone {
			r.replica.unheard(firsts[i])
		}
	}
}

func (r *relay) deliver(i int, res Result) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.gone[i] {
		r.replica.unheard(res)
		return
	}
	select {
	case r.decided[i] <- res:
	default: // a second decision on one operation; the first one counts
	}
}

// abandon is called when the caller stops listening for operation i.
func (r *relay) abandon(i int) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.gone[i] = true
	select {
	case res := <-r.decided[i]:
		r.replica.unheard(res)
	default:
	}
}

func (r *relay) first(ctx context.Context, i int) (Result, error) {
	select {
	case <-r.ready:
		return lift(r.firsts[i])
	case <-ctx.Done():
		r.abandon(i)
		return Result{}, context.Cause(ctx)
	case <-r.over:
	}
	select {
	case <-r.ready:
		return lift(r.firsts[i])
	default:
		return Result{}, r.err
	}
}

func (r *relay) decision(ctx context.Context, i int, _ ledger.Decision) (Result, error) {
	select {
	case res := <-r.decided[i]:
		return lift(res)
	case <-ctx.Done():
		r.abandon(i)
		return Result{}, ctx.Err()
	case <-r.over:
	}
	select {
	case res := <-r.decided[i]:
		return lift(res)
	default:
		return Result{}, r.err
	}
}

// lift turns the leader's own troubles, which travel as results, back into errors.
func lift(r Result) (Result, error) {
	if retriable(r.Err) || errors.Is(r.Err, ErrTimeout) || errors.Is(r.Err, ErrReadOnly) {
		return Result{}, r.Err
	}
	return r, nil
}

// unheard gives back what nobody heard of. When the ticket was asked for more than once, others may have.
func (r *Replica) unheard(res Result) {
	if d, ok := res.Value.(ledger.Decision); ok && res.Err == nil && d.Attempt == 1 {
		r.GiveBack(d)
	}
}

// allUnheard gives back the leases among first answers; tickets that wait have a decision to come.
func (r *Replica) allUnheard(firsts []*fsmpb.OpResult) {
	for _, x := range firsts {
		res := decodeResult(x.Result)
		if _, waits := waiting(res); !waits {
			r.unheard(res)
		}
	}
}

// GiveBack says that nobody listens for the ticket of a decision any more: a waiter is detached, and a
// grant must be claimed by a retry within the pool's detach grace. Nothing happens when a later answer
// was given for the ticket. It does not block; a node that stops, or finds no leader, leaves the lease
// to its holder's TTL.
func (r *Replica) GiveBack(d ledger.Decision) {
	if d.Action != ledger.ActionWait && d.Action != ledger.ActionAdmit || r.ctx.Err() != nil {
		return
	}
	op := &fsmpb.Op{Kind: &fsmpb.Op_Detach{Detach: &fsmpb.Detach{
		Pool: d.Pool, Ticket: d.Ticket, Seq: uint64(d.Seq), Attempt: d.Attempt,
	}}}
	r.spawn(func() { _, _ = decide[bool](r.ctx, r, op) })
}

// DoAll implements the peer service. Like Do it never forwards.
func (p *peers) DoAll(ctx context.Context, req *connect.Request[fsmpb.DoAllRequest], stream *connect.ServerStream[fsmpb.DoAllResponse]) error {
	f, err := p.replica.launch(ctx, req.Msg.Ops)
	firsts := make([]*fsmpb.OpResult, len(req.Msg.Ops))
	bounded, cancel := context.WithTimeoutCause(ctx, p.replica.opts.FailOpenAfter, ErrTimeout)
	defer cancel()
	decided := make(chan *fsmpb.OpResult)
	open := 0
	for i := range firsts {
		res := Result{Err: err}
		if err == nil {
			res = asked(ctx, func() (Result, error) { return f.first(bounded, i) })
		}
		firsts[i] = &fsmpb.OpResult{Op: uint32(i), Result: encodeResult(res)}
		if d, ok := waiting(res); ok {
			open++
			go f.report(ctx, i, d, decided)
		}
	}
	sent := stream.Send(&fsmpb.DoAllResponse{Results: firsts})
	if sent != nil {
		p.replica.allUnheard(firsts)
	}
	for ; open > 0; open-- {
		x := <-decided // each report ends with ctx at the latest
		if sent == nil {
			sent = stream.Send(&fsmpb.DoAllResponse{Results: []*fsmpb.OpResult{x}})
		} else {
			p.replica.unheard(decodeResult(x.Result))
		}
	}
	return sent
}

// report sends the decision on operation i to out, exactly once.
func (f *flight) report(ctx context.Context, i int, d ledger.Decision, out chan<- *fsmpb.OpResult) {
	res := asked(ctx, func() (Result, error) { return f.decision(ctx, i, d) })
	out <- &fsmpb.OpResult{Op: uint32(i), Result: encodeResult(res)}
}

// asked makes a result of an error, for a caller on another node.
func asked(ctx context.Context, ask func() (Result, error)) Result {
	res, err := ask()
	if err != nil && ctx.Err() != nil {
		err = fmt.Errorf("%w: %w", ErrTimeout, err) // the caller's time is over, which is not this node's error
	}
	if err != nil {
		return Result{Err: err}
	}
	return res
}
