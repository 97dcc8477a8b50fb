package sessions

import (
	"cmp"
	"slices"
	"strings"
	"time"
)

const (
	// keepClosed is how long the record of a closed session answers, so that closing again is idempotent.
	keepClosed = 10 * time.Minute
	// idleDefault closes streaming and bind sessions that had no turn for so long, unless they said
	// otherwise; radix sessions are never closed for idleness by default.
	idleDefault = 300 * time.Second
	// flightDefault ends bypassed attempts whose TTL nobody gave; the default lease_ttl.
	flightDefault = 600 * time.Second
)

// Table holds the sessions of all pools. It is not safe for concurrent use.
type Table struct {
	now       Time
	meta      MetaRow
	metaDirty bool
	pools     map[string]*pool
	// names are those of pools, sorted.
	names   []string
	due     dueHeap
	effects []Effect
	events  []Event
	dirty   []record
	// busy are the sessions in a phase that the closer works on, by number.
	busy *ordered[*session]
}

type pool struct {
	PoolRow
	tracked
	name     string
	byID     map[string]*session
	byTicket map[string]*ticket
	byPin    map[string]*pin
	sessions *ordered[*session]
	pins     *ordered[*pin]
	groups   map[string]*ordered[*session]
	// holders lists the bypassed attempts of each holder.
	holders map[string]*ordered[*ticket]
	// rids lists what is in flight by request id.
	rids *ordered[*ticket]
	// Counts of sessions, debts and tokens.
	open, closing, owed int
	pinned              int64
}

type session struct {
	SessionRow
	tracked
	due
	pool *pool
	// first and last chain the tickets by number.
	first, last      *ticket
	flights, waiting int
	owed             *owed
	pins             *ordered[*pin]
	// rev counts changes that matter to the closer.
	rev uint64
}

type ticket struct {
	TicketRow
	tracked
	due
	s          *session
	prev, next *ticket
}

type owed struct {
	OwedRow
	tracked
}

type pin struct {
	PinRow
	tracked
	due
	pool *pool
	s    *session
}

func bySessionID(a, b *session) int  { return strings.Compare(a.ID, b.ID) }
func bySessionSeq(a, b *session) int { return cmp.Compare(a.Seq, b.Seq) }
func byPinID(a, b *pin) int          { return strings.Compare(a.ID, b.ID) }
func byTicketID(a, b *ticket) int    { return strings.Compare(a.Ticket, b.Ticket) }
func byRID(a, b *ticket) int {
	return cmp.Or(strings.Compare(a.RID, b.RID), strings.Compare(a.Ticket, b.Ticket))
}

// NewTable returns an empty table.
func NewTable() *Table {
	return &Table{pools: map[string]*pool{}, busy: newOrdered(bySessionSeq)}
}

// Now returns the table's time.
func (t *Table) Now() Time { return t.now }

// Seq returns the last number given to a session, ticket or pin.
func (t *Table) Seq() uint64 { return t.meta.Seq }

// SetNow moves the table's time, never backwards. Nothing expires by it: see Expire.
func (t *Table) SetNow(now Time) { t.now = max(t.now, now) }

// NextDue returns the earliest deadline.
func (t *Table) NextDue() (Time, bool) {
	if len(t.due) == 0 {
		return 0, false
	}
	return t.due[0].slot().at, true
}

// Pending counts the deadlines. While it is above 0 a leader must tick often enough that a failover
// loses little ledger time.
func (t *Table) Pending() int { return len(t.due) }

func (t *Table) nextSeq() uint64 {
	t.meta.Seq++
	t.metaDirty = true
	return t.meta.Seq
}

// at returns the pool by name, making it when needed.
func (t *Table) at(name string) *pool {
	if p, ok := t.pools[name]; ok {
		return p
	}
	p := &pool{
		PoolRow: PoolRow{Pool: name}, name: name,
		byID: map[string]*session{}, byTicket: map[string]*ticket{}, byPin: map[string]*pin{},
		sessions: newOrdered(bySessionID), pins: newOrdered(byPinID), rids: newOrdered(byRID),
		groups: map[string]*ordered[*session]{}, holders: map[string]*ordered[*ticket]{},
	}
	t.pools[name] = p
	i, _ := slices.BinarySearch(t.names, name)
	t.names = slices.Insert(t.names, i, name)
	t.touch(p)
	return p
}

// find returns a session, nil when there is none.
func (t *Table) find(pool, id string) *session {
	if p := t.pools[pool]; p != nil {
		return p.byID[id]
	}
	return nil
}

// RemovePool drops a pool with its sessions, pins and totals. Engines are told nothing.
func (t *Table) RemovePool(name string) bool {
	p, ok := t.pools[name]
	if !ok {
		return false
	}
	for _, s := range p.sessions.list() {
		for s.first != nil {
			t.dropTicket(s.first)
		}
		t.setCreditors(s, nil)
		t.forget(s)
	}
	for _, x := range p.pins.list() {
		t.dropPin(x)
	}
	delete(t.pools, name)
	t.names = slices.DeleteFunc(t.names, func(n string) bool { return n == name })
	t.erase(p)
	return true
}

// add puts a session into all lists.
func (t *Table) add(p *pool, row SessionRow) *session {
	s := &session{SessionRow: row, pool: p, due: due{seq: row.Seq}}
	p.byID[row.ID] = s
	p.sessions.insert(s)
	t.count(s, +1)
	if row.Group != "" {
		t.join(s)
	}
	if s.working() {
		t.busy.insert(s)
	}
	t.touch(s)
	t.rearm(s)
	return s
}

// forget takes a session that has no tickets, debts or pins out of all lists.
func (t *Table) forget(s *session) {
	if s.working() {
		t.busy.remove(s)
	}
	t.leave(s)
	t.count(s, -1)
	s.pool.sessions.remove(s)
	delete(s.pool.byID, s.ID)
	t.disarm(s)
	if s.owed != nil {
		t.erase(s.owed)
		s.owed = nil
	}
	t.erase(s)
}

func (t *Table) join(s *session) {
	g := s.pool.groups[s.Group]
	if g == nil {
		g = newOrdered(bySessionID)
		s.pool.groups[s.Group] = g
	}
	g.insert(s)
}

func (t *Table) leave(s *session) {
	g := s.pool.groups[s.Group]
	if g != nil && g.remove(s) && g.len() == 0 {
		delete(s.pool.groups, s.Group)
	}
}

// count adds n to the pool's count of the session's state.
func (t *Table) count(s *session, n int) {
	switch s.State {
	case Open:
		s.pool.open += n
	case Closing:
		s.pool.closing += n
	}
}

// enter moves a session to a state and, of a close, a phase.
func (t *Table) enter(s *session, state State, phase Phase) {
	if s.working() {
		t.busy.remove(s)
	}
	t.count(s, -1)
	s.State, s.Close.Phase = state, phase
	t.count(s, +1)
	if s.working() {
		t.busy.insert(s)
	}
	t.changed(s)
}

// working reports whether the closer has something to do for the session.
func (s *session) working() bool {
	return s.State == Closing && (s.Close.Phase == Aborting || s.Close.Phase == Telling)
}

// changed notes that a session's row changed, and sets its deadline anew.
func (t *Table) changed(s *session) {
	s.rev++
	t.touch(s)
	t.rearm(s)
}

func (t *Table) rearm(s *session) {
	if at, any := s.deadline(); any {
		t.arm(s, at)
	} else {
		t.disarm(s)
	}
}

// deadline is when something about the session falls due.
func (s *session) deadline() (at Time, any bool) {
	switch s.State {
	case Closing:
		return s.Close.PhaseUntil, true
	case Closed, ClosedWithFailures:
		return s.Close.ForgetAt, true
	}
	if s.first != nil {
		return 0, false
	}
	if s.IdleTimeout > 0 {
		at, any = s.ActiveAt.Add(s.IdleTimeout), true
	}
	if s.Binding != nil && s.Binding.TTL > 0 {
		if e := s.ActiveAt.Add(s.Binding.TTL); !any || e < at {
			at, any = e, true
		}
	}
	return at, any
}
