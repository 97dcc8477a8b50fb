package fsm

import (
	"context"
	"fmt"
	"runtime"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/hashicorp/raft"
	"google.golang.org/protobuf/proto"

	"kvgate/fsm/fsmpb"
	"kvgate/ledger"
)

// Bounds of batching: how many operations one log entry carries, and how many calls wait for the next.
const (
	maxBatchOps   = 512
	maxBatchBytes = 1 << 20
	queueLength   = 4096
)

// call is one operation on its way through the log.
type call struct {
	op   *fsmpb.Op
	done chan Result
	// decided gets the later decision of an Acquire whose ticket waits; nil for other operations.
	decided chan ledger.Decision
	// listeners counts the calls that were blocked on the same ticket when it was decided and may still
	// hear of it. Written before decided is.
	listeners *atomic.Int64
	// state is callGone once the caller stopped listening for done.
	state atomic.Uint32
	// more are calls that go into the same log entry, right behind this one; set on the call that is
	// submitted for all of them.
	more []*call
}

const (
	callOpen uint32 = iota
	callAnswered
	callGone
)

// proposer turns calls into batches for one term of leadership. One batch is out at a time: what arrives
// meanwhile shares the next one, so the log carries fewer and larger entries the busier it is. More in
// flight only makes them smaller, since raft writes them one after another anyway. run is its goroutine
// and ends with the term's context.
type proposer struct {
	raft  *raft.Raft
	ctx   context.Context
	fail  context.CancelCauseFunc
	calls chan *call
	clock *termClock
	// version is the command version to write.
	version func() uint32
	// gate is held for writing while the state is replaced: nothing is proposed meanwhile.
	gate  *sync.RWMutex
	waits waits
	// shared is how many calls the last entry carried; only run touches it.
	shared int
}

// termClock stamps commands with ledger time: that of the machine when the term began plus the
// monotonic time since.
type termClock struct {
	base  ledger.Time
	start time.Time
	now   func() time.Time
}

func (c *termClock) ledgerNow() ledger.Time { return c.base.Add(c.now().Sub(c.start)) }

func newProposer(ctx context.Context, fail context.CancelCauseFunc, r *raft.Raft, clock *termClock, version func() uint32, gate *sync.RWMutex) *proposer {
	return &proposer{
		raft: r, ctx: ctx, fail: fail, clock: clock, version: version, gate: gate,
		calls: make(chan *call, queueLength),
		waits: waits{bySeq: map[ledger.Seq]*blocked{}},
	}
}

// submit queues a call, unless its caller has left: a copy that was held up must not begin then. The context
// is the caller's.
func (p *proposer) submit(ctx context.Context, c *call) error {
	if ctx.Err() != nil {
		return ctx.Err()
	}
	select {
	case p.calls <- c: // nearly always, and cheaper alone
		return nil
	default:
	}
	select {
	case p.calls <- c:
		return nil
	case <-ctx.Done():
		return ctx.Err()
	case <-p.ctx.Done():
		return context.Cause(p.ctx)
	}
}

// do queues an operation and waits for its result.
func (p *proposer) do(ctx context.Context, op *fsmpb.Op) (Result, error) {
	c := &call{op: op, done: make(chan Result, 1)}
	if err := p.submit(ctx, c); err != nil {
		return Result{}, err
	}
	return p.await(ctx, c)
}

// await waits for the result of a queued call. When the caller gives up first, the operation stays as
// it will be decided.
func (p *proposer) await(ctx context.Context, c *call) (Result, error) {
	select {
	case r := <-c.done:
		return r, nil
	case <-p.ctx.Done():
		return p.late(c, context.Cause(p.ctx))
	case <-ctx.Done():
		return p.late(c, ctx.Err())
	}
}

func (p *proposer) late(c *call, err error) (Result, error) {
	if c.state.CompareAndSwap(callOpen, callGone) {
		return Result{}, err
	}
	return <-c.done, nil
}

// run collects what waits into a batch, has raft commit it and hands out the results, again and again.
func (p *proposer) run() {
	for {
		select {
		case <-p.ctx.Done():
			return
		case c := <-p.calls:
			if !p.pass(p.collect(c)) {
				return
			}
		}
	}
}

// gatherRounds bounds how often gather lets others run.
const gatherRounds = 3

// gather lets run whoever is ready to while that brings more calls: on a busy node some are about to
// arrive, and cost less in this entry than in one of their own. On an idle node it returns at once.
func (p *proposer) gather() {
	for n, i := -1, 0; n < len(p.calls) && i < gatherRounds; i++ {
		n = len(p.calls)
		runtime.Gosched()
	}
}

// On a busy node, one whose last entry carried busyCalls, the next one waits up to holdFor for as many: callers
// who were just answered are about to come back, and an entry costs much the same whatever it carries. Fewer
// callers than that are better served at once.
const (
	busyCalls = 16
	holdFor   = 800 * time.Microsecond
)

// hold gives callers who were just answered time to come back.
func (p *proposer) hold() {
	if p.shared < busyCalls || len(p.calls)+1 >= p.shared {
		return
	}
	timer := time.NewTimer(holdFor)
	defer timer.Stop()
	select {
	case <-timer.C:
	case <-p.ctx.Done():
	}
}

func (p *proposer) collect(first *call) []*call {
	p.hold()
	p.gather()
	batch, size := join(make([]*call, 0, 16), 0, first)
	for p.shared = 1; len(batch) < maxBatchOps && size < maxBatchBytes; p.shared++ {
		select {
		case c := <-p.calls:
			batch, size = join(batch, size, c)
		default:
			return batch
		}
	}
	return batch
}

// numbersSize is what the fields that are not text of an Acquire or a Release take at most, encoded.
const numbersSize = 160

// sizeOf returns about how many bytes an operation takes in an entry, and never too few. It adds up what matters of those
// that nearly all are: to measure them costs as much as to encode them.
func sizeOf(op *fsmpb.Op) int {
	switch k := op.Kind.(type) {
	case *fsmpb.Op_Acquire:
		a := k.Acquire
		return numbersSize + len(a.GetPool()) + len(a.GetTicket()) + len(a.GetSession()) + len(a.GetGroup()) + len(a.GetHolder()) + len(a.GetRid())
	case *fsmpb.Op_Release:
		r := k.Release
		return numbersSize + len(r.GetPool()) + len(r.GetTicket()) + len(r.GetHolder()) + len(r.GetUsage().GetEngine()) + len(r.GetUsage().GetOutcome())
	}
	return proto.Size(op)
}

// join adds a call and those behind it to a batch of that many bytes.
func join(batch []*call, size int, c *call) ([]*call, int) {
	batch, size = append(batch, c), size+sizeOf(c.op)
	for _, x := range c.more {
		batch, size = append(batch, x), size+sizeOf(x.op)
	}
	return batch, size
}

// pass proposes once no restore is under way. One that was has ended the term.
func (p *proposer) pass(calls []*call) bool {
	p.gate.RLock()
	defer p.gate.RUnlock()
	return p.ctx.Err() == nil && p.propose(calls)
}

// propose reports whether the term goes on.
func (p *proposer) propose(calls []*call) bool {
	ops := make([]*fsmpb.Op, len(calls))
	for i, c := range calls {
		ops[i] = c.op
	}
	stamp := p.clock.ledgerNow()
	data, err := proto.Marshal(&fsmpb.Batch{
		Version: p.version(), LedgerTime: int64(stamp), WallTime: p.clock.now().UnixNano(), Ops: ops,
	})
	if err != nil {
		return p.sift(calls, err)
	}
	return p.answer(p.raft.Apply(data, 0), stamp, calls)
}

// sift answers the operations that cannot be encoded, because a text in them is no UTF-8, and proposes
// the others: one caller's mistake must not end the term.
func (p *proposer) sift(calls []*call, why error) bool {
	sound := make([]*call, 0, len(calls))
	for _, c := range calls {
		if _, err := proto.Marshal(c.op); err != nil {
			p.deliver(c, Result{Err: &ledger.FieldError{Field: "operation", Value: err, Allowed: "texts in UTF-8"}})
			continue
		}
		sound = append(sound, c)
	}
	if len(sound) == len(calls) {
		p.fail(fmt.Errorf("encode batch: %w", why))
		return false
	}
	return len(sound) == 0 || p.propose(sound)
}

// answer waits for a batch, stamped with stamp, and hands out its results. A batch without an outcome ends the term: what
// became of it is known only to whoever leads next.
func (p *proposer) answer(future raft.ApplyFuture, stamp ledger.Time, calls []*call) bool {
	if err := future.Error(); err != nil {
		p.fail(fmt.Errorf("%w: %w", ErrLeadershipLost, err))
		return false
	}
	r, ok := future.Response().(*batchResult)
	if !ok {
		p.fail(ErrShutdown)
		return false
	}
	if late := p.clock.ledgerNow().Sub(stamp); late > promptly {
		r.age(late)
	}
	for i, c := range calls {
		p.deliver(c, r.results[i])
	}
	for _, d := range r.decisions {
		p.waits.decide(d)
	}
	return true
}

// promptly is how long a batch may take without its age being told: below, an answer keeps round numbers.
const promptly = 50 * time.Millisecond

// age takes the time that a batch took off what it says leases have left. A disk or a majority that stalls
// must not make a caller trust a lease for longer than it lasts.
func (r *batchResult) age(by time.Duration) {
	for i := range r.results {
		switch v := r.results[i].Value.(type) {
		case ledger.Decision:
			v.ExpiresIn = max(0, v.ExpiresIn-by)
			r.results[i].Value = v
		case []ledger.Renewed:
			for k := range v {
				v[k].ExpiresIn = max(0, v[k].ExpiresIn-by)
			}
		}
	}
	for i := range r.decisions {
		r.decisions[i].ExpiresIn = max(0, r.decisions[i].ExpiresIn-by)
	}
}

// deliver gives a call its result. A ticket that waits is registered first, so that no decision can
// slip through; one whose caller is gone is detached.
func (p *proposer) deliver(c *call, r Result) {
	d, isDecision := r.Value.(ledger.Decision)
	waits := isDecision && r.Err == nil && d.Action == ledger.ActionWait
	if waits {
		p.waits.add(d, c)
	}
	if c.state.CompareAndSwap(callOpen, callAnswered) {
		c.done <- r
		return
	}
	if waits {
		p.leave(d, c)
	} else if isDecision && r.Err == nil && d.Action == ledger.ActionAdmit && d.Attempt == 1 {
		// A later answer for the same lease says nothing: an earlier one may have been heard.
		p.detach(d, d.Seq, d.Attempt)
	}
}

// leave is called when a caller stops waiting for the decision on its ticket.
func (p *proposer) leave(d ledger.Decision, c *call) {
	if attempt, last := p.waits.remove(d.Seq, c); last {
		p.detach(d, d.Seq, attempt)
		return
	}
	select {
	case late := <-c.decided:
		// The decision came first, and this call does not hear it. Others may hear it when they were
		// blocked on the same ticket; then the grant is theirs.
		if c.listeners.Add(-1) == 0 && late.Action == ledger.ActionAdmit {
			p.detach(d, d.Seq, late.Attempt)
		}
	default:
	}
}

// detach tells the machine that nobody listens for the ticket any more.
func (p *proposer) detach(d ledger.Decision, seq ledger.Seq, attempt uint32) {
	op := &fsmpb.Op{Kind: &fsmpb.Op_Detach{Detach: &fsmpb.Detach{
		Pool: d.Pool, Ticket: d.Ticket, Seq: uint64(seq), Attempt: attempt,
	}}}
	c := &call{op: op, done: make(chan Result, 1)}
	select {
	case p.calls <- c:
	default:
		// The queue is full, and run, which empties it, may be here. A failed submit means that
		// the term is over: the next leader detaches every waiter anyway.
		go func() { _ = p.submit(p.ctx, c) }()
	}
}

// waits knows which local calls are blocked on which waiter.
type waits struct {
	mu    sync.Mutex
	bySeq map[ledger.Seq]*blocked
}

type blocked struct {
	calls   []*call
	attempt uint32
}

func (w *waits) add(d ledger.Decision, c *call) {
	w.mu.Lock()
	defer w.mu.Unlock()
	b := w.bySeq[d.Seq]
	if b == nil {
		b = &blocked{}
		w.bySeq[d.Seq] = b
	}
	b.calls = append(b.calls, c)
	b.attempt = max(b.attempt, d.Attempt)
}

// remove forgets a call. When it was the last one blocked on the waiter, it also returns the newest
// attempt that was.
func (w *waits) remove(seq ledger.Seq, c *call) (attempt uint32, last bool) {
	w.mu.Lock()
	defer w.mu.Unlock()
	b := w.bySeq[seq]
	if b == nil {
		return 0, false
	}
	b.calls = slices.DeleteFunc(b.calls, func(x *call) bool { return x == c })
	if len(b.calls) > 0 {
		return 0, false
	}
	delete(w.bySeq, seq)
	return b.attempt, true
}

// decide hands a decision to every call that is blocked on the waiter. It does so under the lock, so that
// a call that finds itself forgotten finds the decision, too; each channel has room for it.
func (w *waits) decide(d ledger.Decision) {
	w.mu.Lock()
	defer w.mu.Unlock()
	b := w.bySeq[d.Waiter]
	if b == nil {
		return
	}
	delete(w.bySeq, d.Waiter)
	listeners := &atomic.Int64{}
	listeners.Store(int64(len(b.calls)))
	for _, c := range b.calls {
		c.listeners = listeners
		c.decided <- d
	}
}
