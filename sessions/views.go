package sessions

import (
	"slices"
	"time"
)

// View is one session as people see it.
type View struct {
	SessionRow
	// Tickets are in order of arrival, InFlight and Waiting count them.
	Tickets           []TicketRow
	InFlight, Waiting int
	// Owed are the engines that have not acknowledged the close, or never did.
	Owed []Creditor
	Pins []PinView
}

func (t *Table) view(s *session) View {
	v := View{SessionRow: s.SessionRow, InFlight: s.flights, Waiting: s.waiting}
	v.Served = slices.Clone(s.Served)
	if s.Binding != nil {
		b := *s.Binding
		v.Binding = &b
	}
	for x := s.first; x != nil; x = x.next {
		v.Tickets = append(v.Tickets, x.TicketRow)
	}
	if s.owed != nil {
		v.Owed = slices.Clone(s.owed.Creditors)
	}
	for x := range s.pins.all() {
		v.Pins = append(v.Pins, x.view(t.now))
	}
	return v
}

// Aborting returns the tickets that engines are to be asked to abort and not all have taken.
func (v *View) Aborting() (tickets []string) {
	if v.State != Closing || v.Close.Phase != Aborting {
		return nil
	}
	for i := range v.Tickets {
		if x := &v.Tickets[i]; !x.Waiting && !x.AbortSent && x.RID != "" {
			tickets = append(tickets, x.Ticket)
		}
	}
	return tickets
}

// Get returns a session.
func (t *Table) Get(pool, id string) (View, bool) {
	if s := t.find(pool, id); s != nil {
		return t.view(s), true
	}
	return View{}, false
}

// Placement is what an Acquire's answer says of its session.
type Placement struct {
	// Binding is nil when the session is not bound.
	Binding *Binding
	Reused  bool
}

// Placement returns it cheaply; the zero value for a session that is not known.
func (t *Table) Placement(pool, id string) Placement {
	s := t.find(pool, id)
	if s == nil {
		return Placement{}
	}
	out := Placement{Reused: s.Reused}
	if s.Binding != nil {
		b := *s.Binding
		out.Binding = &b
	}
	return out
}

// PlacementOf returns the placement of the session that a ticket belongs to.
func (t *Table) PlacementOf(pool, ticket string) Placement {
	p := t.pools[pool]
	if p == nil || p.byTicket[ticket] == nil {
		return Placement{}
	}
	return t.Placement(pool, p.byTicket[ticket].s.ID)
}

// Filter keeps the sessions that match every field that is not zero.
type Filter struct {
	State State
	Group string
}

// List returns sessions by id, those after an id, at most limit of them. It answers whether more follow.
func (t *Table) List(pool string, f Filter, after string, limit int) (page []View, more bool) {
	p := t.pools[pool]
	if p == nil {
		return nil, false
	}
	list := p.sessions
	if f.Group != "" {
		list = p.groups[f.Group]
	}
	for s := range list.from(func(s *session) bool { return s.ID > after }) {
		if f.State != StateUnspecified && s.State != f.State {
			continue
		}
		if len(page) >= limit {
			return page, true
		}
		page = append(page, t.view(s))
	}
	return page, false
}

// PinView is one pin as people see it.
type PinView struct {
	ID, Engine string
	// Session is empty for a pin that goes with none.
	Session   string
	Tokens    int64
	ExpiresIn time.Duration
	// LedgerOnly: no engine holds the prefix; the tokens are only kept out of the ceiling.
	LedgerOnly bool
	// Held are the engines that hold the prefix, Refused those that know no pins.
	Held, Refused []string
}

func (x *pin) view(now Time) PinView {
	v := PinView{
		ID: x.ID, Engine: x.Engine, Tokens: x.Tokens, ExpiresIn: max(0, x.Until.Sub(now)),
		LedgerOnly: len(x.Held) == 0, Held: slices.Clone(x.Held), Refused: slices.Clone(x.LedgerOnly),
	}
	if x.s != nil {
		v.Session = x.s.ID
	}
	return v
}

// Pins returns pins by id, those after an id, at most limit of them; of one session unless it is empty.
// It answers whether more follow.
func (t *Table) Pins(pool, session, after string, limit int) (page []PinView, more bool) {
	p := t.pools[pool]
	if p == nil {
		return nil, false
	}
	list := p.pins
	if session != "" {
		s := p.byID[session]
		if s == nil {
			return nil, false
		}
		list = s.pins
	}
	for x := range list.from(func(x *pin) bool { return x.ID > after }) {
		if len(page) >= limit {
			return page, true
		}
		page = append(page, x.view(t.now))
	}
	return page, false
}

// Pinned returns the tokens that a pool's pins keep out of its ceiling.
func (t *Table) Pinned(pool string) int64 {
	if p := t.pools[pool]; p != nil {
		return p.pinned
	}
	return 0
}

// Counts are what a pool has now.
type Counts struct {
	Open, Closing, Closed int
	// Owed counts acknowledgements that engines still owe, OldestOwed is the age of the oldest such close.
	Owed       int
	OldestOwed time.Duration
	Pins       int
	Pinned     int64
}

// Counts returns what a pool has, and what it ever did.
func (t *Table) Counts(pool string) (Counts, Totals) {
	p := t.pools[pool]
	if p == nil {
		return Counts{}, Totals{}
	}
	c := Counts{
		Open: p.open, Closing: p.closing, Closed: p.sessions.len() - p.open - p.closing,
		Owed: p.owed, Pins: p.pins.len(), Pinned: p.pinned,
	}
	if p.owed > 0 {
		for s := range t.busy.all() {
			if s.pool == p && s.debts() > 0 {
				c.OldestOwed = max(c.OldestOwed, t.now.Sub(s.Close.Since))
			}
		}
	}
	return c, p.Totals
}

// HasPool reports whether the table has anything of a pool. A pool without sessions may have nothing.
func (t *Table) HasPool(name string) bool { return t.pools[name] != nil }

// Pools returns the names of all pools, sorted.
func (t *Table) Pools() []string { return slices.Clone(t.names) }
