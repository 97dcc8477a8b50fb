package whatif

import (
	"container/heap"
	"errors"
	"fmt"
	"math"
	"slices"
	"time"

	"kvgate/ledger"
	"kvgate/rpc"
	kvgatev1 "kvgate/rpc/kvgate/v1"
	"kvgate/rpc/story"
)

// ErrNothing: the recording holds no decision of the pool.
var ErrNothing = errors.New("the recording holds no decision of the pool")

// Input is what is replayed.
type Input struct {
	// Events are the recording in order, of all pools.
	Events []*kvgatev1.JournalEvent
	Pool   string
	// Settings are what the pool's settings are now; changes in the recording lead back to those at its beginning.
	Settings *kvgatev1.Settings
	// Change makes the other settings of each recorded one; nil leaves them as recorded.
	Change func(*ledger.Settings) error
}

// replay is one run.
type replay struct {
	in     Input
	pool   string
	events []*kvgatev1.JournalEvent // of the pool, and of none
	lives  []*story.Life
	l      *ledger.Ledger
	loader *ledger.Loader

	todo      agenda
	scheduled int
	live      map[string]*attempt // by ticket, those that arrived last
	pins      map[string]ledger.Tokens
	measured  *kvgatev1.Measured
	degraded  bool
	holds     []time.Duration
	start     ledger.Time
	adopted   ledger.Tokens
	grants    ledger.Seq

	out []happening
	// counts for the notes
	guessed, ownWait, refused, inherited int
	failed                               error
	// extraWait is how much longer the pool lets tickets wait in the replay, for those that asked for its max_wait.
	extraWait time.Duration
	// restored: an operator replaced the state in the recording; the replay begins there.
	restored bool
}

// Run replays a recording and compares.
func Run(in Input) (*Result, error) {
	_, x, err := run(in)
	return x, err
}

func run(in Input) (*replay, *Result, error) {
	r := &replay{in: in, pool: in.Pool, live: map[string]*attempt{}, pins: map[string]ledger.Tokens{}}
	reader := &story.Reader{}
	for _, e := range in.Events {
		if e.Kind == "restored" {
			r.events, reader, r.restored = nil, &story.Reader{}, true // what was before belongs to another state
		}
		if e.Pool == "" || e.Pool == in.Pool {
			r.events = append(r.events, e)
			reader.Read(e)
		}
	}
	p := reader.Pool(in.Pool)
	if p == nil || len(p.Lives) == 0 {
		return nil, nil, fmt.Errorf("%w %q", ErrNothing, in.Pool)
	}
	r.lives = p.Lives
	r.learn()
	if err := r.prepare(); err != nil {
		return nil, nil, err
	}
	r.plan()
	if err := r.load(); err != nil {
		return nil, nil, err
	}
	r.play(ledger.Time(reader.Now))
	if r.failed != nil {
		return nil, nil, r.failed
	}
	return r, r.result(reader.Now), nil
}

// learn collects how long leases were held that their callers released.
func (r *replay) learn() {
	for _, l := range r.lives {
		if d, ok := l.Held(0); ok && l.Ended != nil && l.Ended.Kind == "released" {
			r.holds = append(r.holds, d)
		}
	}
	slices.Sort(r.holds)
}

// usualHold is the median of the recorded holding times, for tickets that hold a lease only in the replay.
func (r *replay) usualHold() (time.Duration, bool) {
	if len(r.holds) == 0 {
		return 0, false
	}
	return r.holds[len(r.holds)/2], true
}

// settingsOf reads the API's settings.
func settingsOf(m *kvgatev1.Settings) (ledger.Settings, bool) {
	if m == nil {
		return ledger.Settings{}, false
	}
	return rpc.LedgerSettings(m), true
}

// longAgo makes the replay's snapshots never grow stale: outages are taken from the recording.
const longAgo = 365 * 24 * time.Hour

// changed applies the changes that are asked for, and what a replay must have its own way.
func (r *replay) changed(set ledger.Settings) (ledger.Settings, error) {
	recorded := set.MaxWait
	defer func() { r.extraWait = set.MaxWait - recorded }()
	if r.in.Change != nil {
		if err := r.in.Change(&set); err != nil {
			return set, err
		}
	}
	set.Staleness, set.CapacityRoles = longAgo, ledger.RolesRegular
	return set, set.Validate()
}

func (r *replay) configure(set ledger.Settings) {
	set, err := r.changed(set)
	if err == nil {
		_, err = r.l.UpdateSettings(r.pool, ledger.Patch{Set: set, Fields: ledger.SettingNames()})
	}
	r.failed = errors.Join(r.failed, err)
}

// play runs the inputs in virtual time. What falls due in between is handled at its own time, so that what it
// leads to is scheduled before time moves on. It goes on to the end of the recording: what comes later has nothing to
// be compared with.
func (r *replay) play(end ledger.Time) {
	r.take()
	for r.failed == nil {
		next, more := end, false
		if len(r.todo) > 0 && r.todo[0].at <= end {
			next, more = r.todo[0].at, true
		}
		due, some := r.l.NextDue()
		switch {
		case some && due <= next:
			r.l.Advance(due, 0)
		case more:
			r.l.Advance(next, 0)
			heap.Pop(&r.todo).(job).run()
		default:
			r.l.Advance(end, 0)
			r.take()
			return
		}
		r.take()
	}
}

// take keeps what the ledger did and schedules what follows from its grants.
func (r *replay) take() {
	for _, e := range r.l.Events() {
		if e.Pool != r.pool {
			continue
		}
		r.out = append(r.out, fromLedger(e))
		if e.Kind == ledger.KindAdmitted {
			if a := r.live[e.Ticket]; a != nil {
				r.granted(a, e)
			}
		}
	}
	for _, d := range r.l.Decisions() {
		if a := r.live[d.Ticket]; a != nil && d.Action == ledger.ActionAdmit {
			a.number = d.Attempt
		}
	}
	r.l.Reset()
}

func (r *replay) granted(a *attempt, e ledger.Event) {
	a.seq = e.Grant
	r.planLease(a, e.At)
}

// arrive asks for a ticket.
func (r *replay) arrive(a *attempt) {
	r.live[a.Ticket] = a
	if e := a.First; e.Kind == "bypassed" && (e.Reason == "cancelled" || e.Reason == "session_closing") {
		// It was cancelled before it came, or its session was closing: the ledger was not asked.
		r.out = append(r.out, fromJournal(e))
		return
	}
	op := a.op
	if a.First.Arrival.PoolWait && op.MaxWait >= 0 {
		op.MaxWait = max(0, op.MaxWait+r.extraWait)
	}
	r.retry(a, op)
}

// retry asks for a ticket again, or for the first time.
func (r *replay) retry(a *attempt, op ledger.Acquire) {
	d, err := r.l.Acquire(op)
	switch {
	case errors.Is(err, ledger.ErrTooManyWaiters):
		r.refused++
	case err != nil:
		r.failed = errors.Join(r.failed, fmt.Errorf("ticket %q: %w", a.Ticket, err))
	default:
		a.seq, a.number = d.Seq, d.Attempt
	}
}

func (r *replay) release(a *attempt) {
	r.l.Release(ledger.Release{Pool: r.pool, Ticket: a.Ticket})
}

// giveUp cancels a ticket that waits. One that was let go earlier than recorded is past being cancelled.
func (r *replay) giveUp(a *attempt) {
	if v, _ := r.l.Ticket(r.pool, a.Ticket); v.Waiter != nil {
		r.l.Cancel(ledger.Cancel{Pool: r.pool, Ticket: a.Ticket})
	}
}

// expire gives a holder up; further events of the same holder find nothing left.
func (r *replay) expire(name string) {
	for _, h := range r.l.Holder(name) {
		if h.Pool == r.pool {
			r.l.ReclaimHolder(r.pool, name, h.LastActive)
		}
	}
}

// capacityFor returns a capacity that gives a ceiling under a headroom.
func capacityFor(ceiling ledger.Tokens, headroom float64) ledger.Tokens {
	if ceiling <= 0 || !(headroom > 0) {
		return 0
	}
	c := ledger.Tokens(math.Ceil(float64(ceiling) / headroom))
	for c > 0 && ledger.Tokens(float64(c-1)*headroom) >= ceiling {
		c--
	}
	return c
}
