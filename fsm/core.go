package fsm

import (
	"errors"
	"time"

	"kvgate/ledger"
	"kvgate/sessions"
	"kvgate/store"
)

// core is the state that commands change: the ledger of every pool, and the table of their sessions. It
// keeps the two in step, within one log entry: the table hears of each ticket that the ledger lets in, lets
// through or ends, and the ledger does what a closing session or a pin asks for. It is a pure function of
// the commands.
type core struct {
	ledger *ledger.Ledger
	table  *sessions.Table

	// heard, told and filled count what was seen of the ledger's events, the table's events and the ledger's
	// decisions since the last forget.
	heard, told, filled int
	// order tells how the events of both followed each other: those of the ledger by number from 0 up, those
	// of the table as -1 - number.
	order []int
	// repinned are pools whose pins changed.
	repinned []string
	// op is the Acquire that is being applied, for what events do not tell.
	op *ledger.Acquire
	// freed is the Release that is being applied.
	freed *ledger.Release
}

func newCore(l *ledger.Ledger, t *sessions.Table) *core {
	return &core{ledger: l, table: t}
}

// forget forgets the events and decisions that were collected.
func (c *core) forget() {
	c.ledger.Forget()
	c.table.Forget()
	c.heard, c.told, c.filled = 0, 0, 0
	c.order = c.order[:0]
}

// takeRows takes the rows that changed since it was called last, encoded.
func (c *core) takeRows() (rows []store.Change, err error) {
	add := func(row store.Change, failed error) {
		err = errors.Join(err, failed)
		rows = append(rows, row)
	}
	c.ledger.Changes(func(x ledger.Change) { add(encodeRow(x)) })
	c.table.Changes(func(x sessions.Change) { add(encodeSessionRow(x)) })
	c.ledger.Saved()
	c.table.Saved()
	return rows, err
}

// pass moves time to t and lets go what falls due on the way, at most limit of it, in the order of the
// deadlines of both. It says whether more is due.
func (c *core) pass(t ledger.Time, limit int) (more bool) {
	t = max(t, c.ledger.Now())
	for limit > 0 {
		at, some := c.nextDue()
		if !some || at > t {
			break
		}
		told := len(c.ledger.Decisions())
		n, _ := c.ledger.Pass(at, limit)
		c.settle()
		if limit -= n; limit > 0 {
			n, _ = c.table.Expire(sessions.Time(at), limit, c.rules)
			c.settle()
			limit -= n
		}
		c.tell(told, t.Sub(c.ledger.Now()))
	}
	c.ledger.SetNow(t)
	c.table.SetNow(sessions.Time(t))
	next, some := c.nextDue()
	return some && next <= t
}

// tell has decisions told as of a later time than that at which they were taken.
func (c *core) tell(from int, later time.Duration) {
	for i := range c.ledger.Decisions()[from:] {
		if d := &c.ledger.Decisions()[from+i]; d.Action == ledger.ActionAdmit {
			d.ExpiresIn = max(0, d.ExpiresIn-later)
		}
	}
}

// nextDue returns the earliest deadline of both.
func (c *core) nextDue() (at ledger.Time, some bool) {
	at, some = c.ledger.NextDue()
	if t, also := c.table.NextDue(); also && (!some || ledger.Time(t) < at) {
		return ledger.Time(t), true
	}
	return at, some
}

// settle has each side do what follows from what the other did, until nothing follows any more.
func (c *core) settle() {
	for {
		c.follow()
		effects := c.table.TakeEffects()
		if len(effects) > 0 {
			c.ledger.EndSessions(leaves(effects))
			continue
		}
		if len(c.repinned) == 0 {
			break
		}
		for _, pool := range c.repinned {
			c.ledger.SetPinned(pool, ledger.Tokens(c.table.Pinned(pool)))
		}
		c.repinned = c.repinned[:0]
	}
	c.place()
}

func leaves(effects []sessions.Effect) []ledger.Leave {
	out := make([]ledger.Leave, len(effects))
	for i, e := range effects {
		out[i] = ledger.Leave{Pool: e.Pool, Session: e.Session, Waiters: e.Drop, Leases: e.Release}
	}
	return out
}

// follow tells the table what happened in the ledger, at the time at which it did.
func (c *core) follow() {
	c.note()
	for ; c.heard < len(c.ledger.Events()); c.heard++ {
		c.order = append(c.order, c.heard)
		e := &c.ledger.Events()[c.heard]
		c.table.SetNow(sessions.Time(e.At))
		c.hear(e)
		c.note()
	}
}

// note takes in the table's new events.
func (c *core) note() {
	events := c.table.Events()
	for ; c.told < len(events); c.told++ {
		c.order = append(c.order, -1-c.told)
		if e := &events[c.told]; e.Kind == sessions.Pinned || e.Kind == sessions.Unpinned {
			c.repinned = append(c.repinned, e.Pool)
		}
	}
}

// hear tells the table of one event of the ledger.
func (c *core) hear(e *ledger.Event) {
	switch e.Kind {
	case ledger.KindWaiting:
		if e.Session != "" {
			c.table.Queued(e.Pool, e.Session, e.Group, e.Ticket, c.rid(e), e.Holder)
		}
	case ledger.KindAdmitted, ledger.KindBypassed:
		c.letThrough(e)
	case ledger.KindReleased, ledger.KindLeaseExpired, ledger.KindCancelled, ledger.KindAbandoned, ledger.KindUnclaimed,
		ledger.KindHolderExpired:
		c.table.Ended(e.Pool, e.Ticket, c.turn(e))
	}
}

// letThrough tells the table of an attempt that goes on, with a lease or by a bypass. A waiter that left
// because its session closes goes nowhere. A ticket that holds a lease and is let through once more, because
// the retry says it is protected, say, is one attempt, with a lease.
func (c *core) letThrough(e *ledger.Event) {
	bypassed := e.Kind == ledger.KindBypassed
	switch {
	case e.Session == "":
		return
	case bypassed && e.Reason == ledger.SessionClosing.String():
		c.table.Ended(e.Pool, e.Ticket, sessions.Turn{})
		return
	}
	f := sessions.Flight{Ticket: e.Ticket, RID: c.rid(e), Holder: e.Holder, Bypassed: bypassed}
	if bypassed {
		v, _ := c.ledger.Ticket(e.Pool, e.Ticket)
		set, _ := c.ledger.Settings(e.Pool)
		f.Bypassed, f.TTL = v.Lease == nil || v.Lease.Session != e.Session, set.LeaseTTL
	}
	c.table.Started(e.Pool, e.Session, e.Group, f)
}

// rid returns the request id of an event's ticket when the Acquire at hand is about it. The table knows
// those of tickets that waited.
func (c *core) rid(e *ledger.Event) string {
	if c.op != nil && c.op.Ticket == e.Ticket && c.op.Pool == e.Pool {
		return c.op.RID
	}
	return ""
}

// turn returns what the Release at hand reported, when an event is about its ticket.
func (c *core) turn(e *ledger.Event) sessions.Turn {
	if c.freed != nil && c.freed.Ticket == e.Ticket && c.freed.Pool == e.Pool {
		return turn(c.freed.Usage)
	}
	return sessions.Turn{}
}

func turn(u *ledger.Usage) sessions.Turn {
	if u == nil {
		return sessions.Turn{}
	}
	return sessions.Turn{Engine: u.Engine, Tokens: int64(u.PromptTokens + u.CompletionTokens)}
}

// place adds to new decisions where their sessions are.
func (c *core) place() {
	decisions := c.ledger.Decisions()
	for ; c.filled < len(decisions); c.filled++ {
		d := &decisions[c.filled]
		fill(d, c.table.PlacementOf(d.Pool, d.Ticket))
	}
}

func fill(d *ledger.Decision, p sessions.Placement) {
	d.SessionReused = p.Reused
	if p.Binding != nil {
		d.Binding = &ledger.Binding{Engine: p.Binding.Engine, DPRank: p.Binding.DPRank}
	}
}

// rules are what sessions of a pool follow now.
func (c *core) rules(pool string) sessions.Rules {
	set, _ := c.ledger.Settings(pool)
	b, _ := c.ledger.Budget(pool)
	return sessions.Rules{
		Lifecycle: set.Lifecycle, JoinTimeout: set.JoinTimeout, AbortTimeout: set.AbortTimeout,
		CloseDeadline: set.CloseDeadline, ServedOnly: set.CloseScope == ledger.CloseServed,
		Discovers: set.RouterURL != "" || len(set.EngineURLs) > 0,
		PinRatio:  set.PinRatio, Ceiling: int64(b.Ceiling),
	}
}

// silent says why engines of a pool are told nothing now; empty when they are told.
func (c *core) silent(pool string) string {
	set, known := c.ledger.Settings(pool)
	switch {
	case !known:
		return ""
	case set.Quarantine:
		return "not told: the pool is in quarantine"
	case !set.Lifecycle:
		return "not told: lifecycle is off"
	}
	return ""
}

// acquire decides on a ticket, unless its session takes none.
func (c *core) acquire(a *ledger.Acquire) (ledger.Decision, error) {
	if a.Session != "" {
		if err := c.table.Gate(a.Pool, a.Session); err != nil {
			return ledger.Decision{}, err
		}
	}
	c.op = a
	d, err := c.ledger.Acquire(*a)
	c.settle()
	c.op = nil
	if err == nil && a.Session != "" {
		fill(&d, c.table.Placement(a.Pool, a.Session))
	}
	return d, err
}

// release ends a lease, or the attempt in flight of a ticket that was let through without one. Only the
// former counts as released. A release with a fence is about a lease, so it ends no attempt without one.
func (c *core) release(r *ledger.Release) bool {
	c.freed = r
	released := c.ledger.Release(*r)
	c.settle()
	c.freed = nil
	if released || r.Grant != 0 || r.HasEpoch {
		return released
	}
	if v, known := c.ledger.Ticket(r.Pool, r.Ticket); known && v.Waiter == nil && v.Lease == nil {
		c.table.Ended(r.Pool, r.Ticket, turn(r.Usage))
	}
	return false
}

// reclaim takes back what a silent holder has, unless it was active since: lastActive and newest are what the
// leader saw. It says whether more is left.
func (c *core) reclaim(pool, holder string, lastActive ledger.Time, newest uint64) (more bool) {
	if seq, _ := c.table.Newest(pool, holder); seq > newest {
		return false
	}
	for _, h := range c.ledger.Holder(holder) {
		if h.Pool == pool && h.LastActive != lastActive {
			return false
		}
	}
	_, more = c.ledger.ReclaimHolder(pool, holder, lastActive)
	c.settle()
	if !more {
		_, more = c.table.HolderEnded(pool, holder)
	}
	return more
}

// reconcile takes in a round of polling. What it lists is what the discovery listed, but for a round that
// gives the pool up without ever having had a list.
func (c *core) reconcile(pool string, r ledger.Round) bool {
	known := c.ledger.Reconcile(pool, r)
	c.settle()
	if known && (r.Fresh || r.Degrade && len(r.Engines) > 0) {
		listed := make([]sessions.Engine, len(r.Engines))
		for i, e := range r.Engines {
			listed[i] = sessions.Engine{URL: e.URL, Incarnation: e.Incarnation}
		}
		c.table.EnginesChanged(pool, listed)
	}
	return known
}

// deletePool drops a pool with its sessions.
func (c *core) deletePool(pool, by string) bool {
	deleted := c.ledger.DeletePool(pool, by)
	c.settle()
	c.table.RemovePool(pool)
	return deleted
}

func (c *core) drain(pool, run string, step int64) (map[string]float64, error) {
	_, totals := c.table.Counts(pool)
	c.ledger.NoteCloses(pool, totals.Closed, totals.CloseFailures)
	return c.ledger.DrainStep(pool, run, step)
}
