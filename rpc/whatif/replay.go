package whatif

import (
	"container/heap"
	"errors"
	"fmt"
	"math"
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
	// Journal is the recording, of all pools. It is read twice.
	Journal story.Journal
	Pool    string
	// Settings are what the pool's settings are now; changes in the recording lead back to those at its beginning.
	Settings *kvgatev1.Settings
	// Change makes the other settings of each recorded one; nil leaves them as recorded.
	Change func(*ledger.Settings) error
}

// replay is one run. It reads the recording as virtual time goes on, so that it holds what is open at a time, and of
// each ticket where on disk its story is.
type replay struct {
	in     Input
	pool   string
	known  *survey
	next   int                      // of the survey's lives
	entry  []*kvgatev1.JournalEvent // of one log entry, of the pool and of none
	l      *ledger.Ledger
	loader *ledger.Loader

	todo      agenda
	scheduled int
	live      map[string]*attempt // by ticket, those that arrived last
	pins      map[string]ledger.Tokens
	measured  *kvgatev1.Measured
	degraded  bool
	start     ledger.Time
	end       ledger.Time
	adopted   ledger.Tokens
	grants    ledger.Seq

	column sum
	// counts for the notes
	guessed, ownWait, refused, inherited int
	failed                               error
	// extraWait is how much longer the pool lets tickets wait in the replay, for those that asked for its max_wait.
	extraWait time.Duration
}

// Run replays a recording and compares. Errors: [ErrNothing], those of the settings and of the journal.
func Run(in Input) (*Result, error) {
	_, x, err := run(in, false)
	return x, err
}

// run keeps what happened in the result when it is asked to.
func run(in Input, keep bool) (r *replay, x *Result, err error) {
	known, err := newSurvey(in.Pool, keep)
	if err != nil {
		return nil, nil, err
	}
	defer func() { err = errors.Join(err, known.lives.Close()) }()
	if err := known.read(in.Journal); err != nil {
		return nil, nil, err
	}
	if !known.some {
		return nil, nil, fmt.Errorf("%w %q", ErrNothing, in.Pool)
	}
	r = &replay{
		in: in, pool: in.Pool, known: known, end: ledger.Time(known.reader.Now),
		live: map[string]*attempt{}, pins: map[string]ledger.Tokens{}, column: newSum(keep),
	}
	if err := r.run(); err != nil {
		return nil, nil, err
	}
	return r, r.result(), nil
}

func (r *replay) run() error {
	if err := r.prepare(); err != nil {
		return err
	}
	r.adoptAll()
	if err := r.load(); err != nil {
		return err
	}
	r.take()
	seen := 0
	err := r.in.Journal(func(e *kvgatev1.JournalEvent) {
		if seen++; seen > r.known.skip && (e.Pool == "" || e.Pool == r.pool) {
			r.read(e)
		}
	})
	r.playEntry()
	r.play(r.end)
	return errors.Join(err, r.failed)
}

// read takes the next event of the recording.
func (r *replay) read(e *kvgatev1.JournalEvent) {
	if len(r.entry) > 0 && r.entry[0].Index != e.Index {
		r.playEntry()
	}
	r.entry = append(r.entry, e)
}

// playEntry plays what comes before a log entry, then schedules what the entry tells.
func (r *replay) playEntry() {
	if len(r.entry) == 0 || r.failed != nil {
		return
	}
	for at := ledger.Time(r.entry[0].LedgerTime); r.failed == nil && len(r.todo) > 0 && r.todo[0].at < at; {
		r.play(r.todo[0].at)
	}
	r.planEntry(r.entry)
	clear(r.entry)
	r.entry = r.entry[:0]
}

// usualHold is the median of the recorded holding times, for tickets that hold a lease only in the replay.
func (r *replay) usualHold() (time.Duration, bool) {
	if len(r.known.holds) == 0 {
		return 0, false
	}
	return r.known.holds[len(r.known.holds)/2], true
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

// play runs the inputs up to a time, in virtual time. What falls due in between is handled at its own time, so that
// what it leads to is scheduled before time moves on. It ends with the recording: what comes later has nothing to be
// compared with.
func (r *replay) play(until ledger.Time) {
	until = min(until, r.end)
	for r.failed == nil {
		next, more := until, false
		if len(r.todo) > 0 && r.todo[0].at <= until {
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
			r.l.Advance(until, 0)
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
		r.happened(fromLedger(e))
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
	for _, e := range r.l.Events() {
		if a := r.live[e.Ticket]; a != nil && e.Pool == r.pool {
			r.dropIfOver(a)
		}
	}
	r.l.Reset()
}

// happened takes what the replay did. What is after the end of the recording has nothing to be compared with.
func (r *replay) happened(h happening) {
	if h.At <= int64(r.end) {
		r.column.add(h)
	}
}

func (r *replay) granted(a *attempt, e ledger.Event) {
	a.seq = e.Grant
	r.planLease(a, e.At)
}

// arrive asks for a ticket.
func (r *replay) arrive(a *attempt, e *kvgatev1.JournalEvent) {
	r.live[a.ticket] = a
	if e.Kind == "bypassed" && (e.Reason == "cancelled" || e.Reason == "session_closing") {
		// It was cancelled before it came, or its session was closing: the ledger was not asked.
		r.happened(fromJournal(e))
		return
	}
	op := a.op
	if e.Arrival.PoolWait && op.MaxWait >= 0 {
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
		r.failed = errors.Join(r.failed, fmt.Errorf("ticket %q: %w", a.ticket, err))
	default:
		a.seq, a.number = d.Seq, d.Attempt
	}
}

func (r *replay) release(a *attempt) {
	r.l.Release(ledger.Release{Pool: r.pool, Ticket: a.ticket})
}

// giveUp cancels a ticket that waits. One that was let go earlier than recorded is past being cancelled.
func (r *replay) giveUp(a *attempt) {
	if v, _ := r.l.Ticket(r.pool, a.ticket); v.Waiter != nil {
		r.l.Cancel(ledger.Cancel{Pool: r.pool, Ticket: a.ticket})
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
