package story

import (
	"cmp"
	"maps"
	"slices"

	kvgatev1 "kvgate/rpc/kvgate/v1"
)

// Reader follows a journal from its first kept event on. The zero value watches no ticket.
type Reader struct {
	// Watch names the tickets whose waits are to be followed in detail; nil means none.
	Watch func(pool, ticket string) bool
	// Done is called with every life that is over, in the order of the ends; nil means that they are kept in
	// Pool.Lives instead.
	Done func(*Life)

	// Settings are those of the pools before the first event, as far as they are known; see [SettingsBefore].
	Settings map[string]*kvgatev1.Settings

	pools map[string]*Pool
	// Now is the ledger time of the newest event.
	Now int64
	// First and Last are the events at the ends.
	First, Last *Event
}

// Pool is one pool as far as the events read make it known.
type Pool struct {
	Name                       string
	Reserved, Ceiling, Waiting int64
	Measured                   *kvgatev1.Measured
	// Threshold is the pressure from which nothing is admitted, 0 while no settings event was read.
	Threshold float64
	Degraded  bool
	// Told reports that an event told the budget.
	Told bool
	// Lives are over or not, in the order of their first events; empty where Reader.Done takes them.
	Lives []*Life

	open map[string]*Life
	// pins are the tokens of each pin, which are kept out of the ceiling; Pinned is their sum.
	pins   map[string]int64
	Pinned int64
	// queue holds those that wait in the order in which they are served.
	queue   []*Life
	watched []*Life
	// cause is the newest event that is not an admission.
	cause *Event
}

// SettingsBefore returns the settings that the pools had before the events: what the first change of each tells,
// else what they are now.
func SettingsBefore(events []*Event, now map[string]*kvgatev1.Settings) map[string]*kvgatev1.Settings {
	out := maps.Clone(now)
	if out == nil {
		out = map[string]*kvgatev1.Settings{}
	}
	seen := map[string]bool{}
	for _, e := range events {
		if e.Kind == "settings" && e.SettingsBefore != nil && !seen[e.Pool] {
			out[e.Pool], seen[e.Pool] = e.SettingsBefore, true
		}
	}
	return out
}

// Pool returns what is known of a pool; nil when no event was about it.
func (r *Reader) Pool(name string) *Pool { return r.pools[name] }

// Pools returns the names of the pools, sorted.
func (r *Reader) Pools() []string {
	names := make([]string, 0, len(r.pools))
	for name := range r.pools {
		names = append(names, name)
	}
	slices.Sort(names)
	return names
}

// Read takes the next event.
func (r *Reader) Read(e *Event) {
	if r.First == nil {
		r.First = e
	}
	r.Last, r.Now = e, max(r.Now, e.LedgerTime)
	switch e.Kind {
	case "leader":
		r.newLeader(e)
	case "restored":
		r.forget()
	}
	if e.Pool == "" {
		return
	}
	p := r.pool(e.Pool)
	r.apply(p, e)
	if tellsBudget(e.Kind) {
		p.Reserved, p.Ceiling, p.Waiting, p.Told = e.ReservedAfter, e.CeilingAfter, e.WaitingAfter, true
	}
	for _, l := range p.watched {
		p.review(l, e)
	}
	if e.Kind != "admitted" {
		p.cause = e
	}
}

func (r *Reader) pool(name string) *Pool {
	p, ok := r.pools[name]
	if !ok {
		if r.pools == nil {
			r.pools = map[string]*Pool{}
		}
		p = &Pool{Name: name, open: map[string]*Life{}, pins: map[string]int64{}, Threshold: r.Settings[name].GetPressureThreshold()}
		r.pools[name] = p
	}
	return p
}

// tellsBudget reports that events of a kind carry what is reserved afterwards.
func tellsBudget(kind string) bool {
	switch kind {
	case "admitted", "waiting", "bypassed", "released", "renewed", "lease_expired", "cancelled", "abandoned", "unclaimed", "holder_expired",
		"detached", "attached", "capacity", "usage", "epoch", "degraded", "recovered", "settings", "drained":
		return true
	}
	return false
}

func (r *Reader) apply(p *Pool, e *Event) {
	switch e.Kind {
	case "waiting":
		l := r.begin(p, e)
		l.Waiting = e
		p.enqueue(l, r.Watch != nil && r.Watch(p.Name, l.Ticket))
	case "admitted":
		r.admitted(p, e)
	case "bypassed", "released", "lease_expired", "unclaimed", "cancelled", "holder_expired", "abandoned":
		r.end(p, e)
	case "attached", "detached", "renewed", "abort_sent", "abort_refused", "ticket_forgotten":
		if l := p.open[e.TicketId]; l != nil {
			l.Steps = append(l.Steps, e)
		}
	case "capacity", "usage":
		p.Measured = e.Measured
	case "settings":
		if e.SettingsAfter != nil {
			p.Threshold = e.SettingsAfter.GetPressureThreshold()
		}
	case "pinned", "unpinned":
		p.pin(e)
	case "degraded", "recovered":
		p.Degraded = e.Kind == "degraded"
	case "pool_deleted":
		for _, l := range p.open {
			l.Ended = e
			r.over(l)
		}
		p.open, p.queue, p.watched, p.Reserved, p.Ceiling, p.Waiting = map[string]*Life{}, nil, nil, 0, 0, 0
	}
}

// begin makes the life that starts with e. One that is open under the same ticket has ended unseen.
func (r *Reader) begin(p *Pool, e *Event) *Life {
	if old := p.open[e.TicketId]; old != nil {
		p.leave(old)
		r.over(old)
	}
	l := &Life{
		Pool: p.Name, Ticket: e.TicketId, Session: e.SessionId, Holder: e.HolderId, Group: e.GroupId,
		Tokens: e.Tokens, Priority: e.Priority, First: e, Steps: []*Event{e},
	}
	p.open[l.Ticket] = l
	if r.Done == nil {
		p.Lives = append(p.Lives, l)
	}
	return l
}

func (r *Reader) admitted(p *Pool, e *Event) {
	l := p.open[e.TicketId]
	if l == nil || l.Granted != nil {
		l = r.begin(p, e)
	} else {
		l.Steps = append(l.Steps, e)
		p.leave(l)
	}
	l.Granted = e
	if l.Waiting != nil && p.cause != nil && p.cause.LedgerTime == e.LedgerTime {
		l.Freed = p.cause
	}
}

func (r *Reader) end(p *Pool, e *Event) {
	l := p.open[e.TicketId]
	if l == nil {
		l = r.begin(p, e)
	} else {
		l.Steps = append(l.Steps, e)
		if again(l, e) {
			return
		}
	}
	l.Ended = e
	p.leave(l)
	delete(p.open, l.Ticket)
	r.over(l)
}

// pin follows what is pinned.
func (p *Pool) pin(e *Event) {
	p.Pinned -= p.pins[e.PinId]
	delete(p.pins, e.PinId)
	if e.Kind == "pinned" {
		p.pins[e.PinId] = e.Tokens
		p.Pinned += e.Tokens
	}
}

// again reports that a retry of a ticket that holds a lease was let through for a reason of its own, such as being
// protected; the lease stays.
func again(l *Life, e *Event) bool { return e.Kind == "bypassed" && l.Granted != nil }

func (r *Reader) over(l *Life) {
	if r.Done != nil {
		r.Done(l)
	}
}

// Open calls fn for every life that is not over, ordered by pool and first event.
func (r *Reader) Open(fn func(*Life)) {
	for _, name := range r.Pools() {
		lives := make([]*Life, 0, len(r.pools[name].open))
		for _, l := range r.pools[name].open {
			lives = append(lives, l)
		}
		slices.SortFunc(lives, func(a, b *Life) int {
			return cmp.Or(cmp.Compare(a.First.Index, b.First.Index), cmp.Compare(a.First.N, b.First.N))
		})
		for _, l := range lives {
			fn(l)
		}
	}
}

// forget starts anew: an operator replaced the state, and what was open is not there any more, or elsewhere.
func (r *Reader) forget() {
	r.Open(r.over)
	for _, p := range r.pools {
		p.open, p.pins = map[string]*Life{}, map[string]int64{}
		p.queue, p.watched, p.cause, p.Pinned = nil, nil, nil, 0
	}
}

// newLeader notes a change of leader with every ticket that waits: its call went away.
func (r *Reader) newLeader(e *Event) {
	for _, p := range r.pools {
		for _, l := range p.queue {
			l.Steps = append(l.Steps, e)
		}
	}
}
