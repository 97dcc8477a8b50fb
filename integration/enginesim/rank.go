package enginesim

import (
	"context"
	"sync"
	"sync/atomic"
	"time"

	"kvgate/integration/enginesim/radix"
)

const (
	idleRefresh = 30 * time.Second       // virtual time between gauge refreshes of an idle rank
	maxLag      = 250 * time.Millisecond // real time a rank may fall behind the clock before it skips ahead
	slack       = 500 * time.Microsecond // real time it may run ahead: timers are coarser than a step at high speed
)

// rank is the scheduler of one DP rank with its KV pool. Its goroutine owns every field below inbox;
// others reach it through post and ask, which it serves between two steps as the real scheduler
// reads its socket, and read its published snapshots.
type rank struct {
	cfg   *Config
	index int
	clock Clock

	live, shown atomic.Pointer[Snapshot]
	wake        chan struct{}
	stopped     chan struct{}
	inMu        sync.Mutex
	closed      bool
	inbox       []func()

	now     time.Duration
	tree    *radix.Tree
	ghost   *ghost
	private int // tokens allocated outside the tree
	waiting []*request
	running []*request
	chunked *request // the one request whose prompt is only partly computed
	ratio   float64
	slots   map[string]*slot
	pins    []pin
	count   counters
	shownAt time.Duration
	after   []func() // run by the next publish
}

func newRank(cfg *Config, index int, clock Clock) *rank {
	k := &rank{
		cfg: cfg, index: index, clock: clock,
		wake: make(chan struct{}, 1), stopped: make(chan struct{}),
		tree: radix.New(), ghost: newGhost(), ratio: cfg.NewTokenRatio, slots: map[string]*slot{},
	}
	k.tree.KeepReferenced = cfg.CloseMode == CloseForgets
	k.publish()
	k.refresh()
	return k
}

// post hands f to the rank's goroutine and does not wait for it. It reports false when the rank has stopped.
func (k *rank) post(f func()) bool {
	k.inMu.Lock()
	defer k.inMu.Unlock()
	if k.closed {
		return false
	}
	k.inbox = append(k.inbox, f)
	select {
	case k.wake <- struct{}{}:
	default:
	}
	return true
}

// ask runs f on the rank's goroutine and waits for its answer or the end of ctx.
func (k *rank) ask(ctx context.Context, f func() error) error {
	answer := make(chan error, 1)
	run := func() {
		err := f()
		k.later(func() { answer <- err })
	}
	if !k.post(run) {
		return ErrStopped
	}
	select {
	case err := <-answer:
		return err
	case <-k.stopped:
		return ErrStopped
	case <-ctx.Done():
		return ctx.Err()
	}
}

// run is the scheduler loop. It ends with ctx and then fails what is left.
func (k *rank) run(ctx context.Context) {
	defer k.shut()
	for ctx.Err() == nil {
		k.now = max(k.now, k.clock.Now()-k.virtual(maxLag))
		k.drain()
		k.expire()
		if !k.step(ctx) {
			k.idle(ctx)
		}
	}
}

// step runs one forward pass, prefill first, and reports whether there was anything to run.
func (k *rank) step(ctx context.Context) bool {
	if batch := k.planPrefill(); len(batch) > 0 {
		k.spend(ctx, k.prefillTime(batch))
		k.commitPrefill(batch)
	} else if len(k.running) > 0 {
		if k.reserveDecode(); len(k.running) > 0 {
			k.spend(ctx, k.decodeTime())
			k.commitDecode()
		}
	} else {
		return false
	}
	k.publish()
	return true
}

// spend lets virtual time pass. The deadline counts from the last one, so late timers do not add up.
func (k *rank) spend(ctx context.Context, d time.Duration) {
	k.now += d
	if k.now-k.clock.Now() > k.virtual(slack) {
		k.clock.Wait(ctx, k.now, nil)
	}
}

func (k *rank) virtual(real time.Duration) time.Duration {
	return time.Duration(float64(real) * k.cfg.Speed)
}

func (k *rank) idle(ctx context.Context) {
	k.now = max(k.now, k.clock.Now())
	if len(k.waiting) == 0 {
		k.ratio = k.cfg.NewTokenRatio
	}
	if k.now-k.shownAt >= idleRefresh || k.cfg.LiveGauges {
		k.refresh()
	}
	k.publish()
	k.clock.Wait(ctx, k.nextDeadline(), k.wake)
	k.now = max(k.now, k.clock.Now())
}

func (k *rank) drain() {
	k.inMu.Lock()
	todo := k.inbox
	k.inbox = nil
	k.inMu.Unlock()
	for _, f := range todo {
		f()
	}
	if len(todo) > 0 {
		k.publish()
	}
}

func (k *rank) shut() {
	k.inMu.Lock()
	k.closed = true
	todo := k.inbox
	k.inbox = nil
	k.inMu.Unlock()
	for _, f := range todo {
		f()
	}
	for _, q := range k.all() {
		q.end(nil, ErrStopped, k.now)
	}
	k.publish()
	close(k.stopped)
}

// later runs f once the state it is the result of is published, so that nobody hears of an end and
// then reads Stats from before it.
func (k *rank) later(f func()) { k.after = append(k.after, f) }

// all is every request the rank knows.
func (k *rank) all() []*request {
	out := make([]*request, 0, len(k.waiting)+len(k.running)+1)
	out = append(out, k.waiting...)
	out = append(out, k.running...)
	if k.chunked != nil {
		out = append(out, k.chunked)
	}
	return out
}

// available is the number of free token slots of the pool.
func (k *rank) available() int { return k.cfg.PoolTokens - k.tree.Total() - k.private }

// makeRoom evicts cached prefixes when fewer than want tokens are free, and reports whether that
// many are free now. Like the engine it evicts want tokens, not the shortage.
func (k *rank) makeRoom(want int) bool {
	if k.available() < want {
		k.count.evicted += k.tree.Evict(want)
	}
	return k.available() >= want
}
