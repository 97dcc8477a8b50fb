package sessions

import "time"

// Rows are the durable image of the table: everything else is computed from them by [Loader].

// MetaRow is what the table knows of itself.
type MetaRow struct {
	// Seq is the last number given to a session, ticket or pin. Numbers are never used twice.
	Seq uint64
}

// PoolRow is one pool.
type PoolRow struct {
	Pool string
	// Engines are those of the last successful discovery, sorted by URL.
	Engines []Engine
	// ListedNone: that discovery listed none. Without it, no engines means that they are not known yet.
	ListedNone bool `json:",omitzero"`
	Totals     Totals
}

// Totals count over the life of a pool.
type Totals struct {
	Opened int64
	// Closed counts closes that are over, CloseFailures those of them with an engine that never
	// acknowledged.
	Closed, CloseFailures int64
	// Acked, Failed and Left count debts of engines.
	Acked, Failed, Left int64
	// Idle counts closes for idleness, Aborted the tickets that engines were asked to abort.
	Idle, Aborted int64
}

// Binding records where the router placed the session's first turn.
type Binding struct {
	Engine string
	DPRank int32
	// TTL slides: it runs while the session has no ticket. 0 means for as long as the session is open.
	TTL   time.Duration
	Since Time
}

// CloseRow is how far a session's close is. The pool's settings are those at its beginning.
type CloseRow struct {
	Mode   Mode
	Reason string
	Since  Time
	Phase  Phase
	// PhaseUntil is when the present phase is over at the latest.
	PhaseUntil    Time
	AbortTimeout  time.Duration
	CloseDeadline time.Duration
	ServedOnly    bool
	// Discovers: while the pool's engines are not known, the close waits for them to be.
	Discovers bool `json:",omitzero"`
	// Acked, Failed and Left count the engines whose debt is settled.
	Acked, Failed, Left int
	// ForgetAt is when the closed record goes.
	ForgetAt Time
}

// SessionRow is one session.
type SessionRow struct {
	Pool, ID string
	// Seq numbers incarnations: a reopened id has another.
	Seq   uint64
	Kind  Kind
	Group string
	State State
	// Implicit: opened by a ticket or a bind; the first Open says what it really is.
	Implicit bool
	// Reused: an earlier incarnation of the id was closed not long ago. SGLang 0.5.15.post1 silently
	// never tags the KV of a closed id [sglang 27058].
	Reused bool
	// Engine is the one that a streaming session was opened on; EngineLost says that it left the set or
	// was restarted since.
	Engine      string
	EngineLost  bool
	IdleTimeout time.Duration
	OpenedAt    Time
	// ActiveAt starts the idle clock and the binding's TTL.
	ActiveAt Time
	// LastTurnAt is when the last turn ended; 0 before the first.
	LastTurnAt Time
	Turns      int64
	// Footprint is the tokens of the last reported turn.
	Footprint int64
	// Served are the engines that releases reported, sorted.
	Served  []string
	Binding *Binding
	Close   CloseRow
}

// TicketRow is one ticket of a session, in the queue or in flight.
type TicketRow struct {
	Pool, Ticket string
	Seq          uint64
	// Session is the number of its session.
	Session uint64
	Waiting bool
	RID     string
	Holder  string
	// Since is when it began to wait, or was let through.
	Since    Time
	Bypassed bool
	// Until is when a bypassed attempt without a holder counts as ended; 0 for all others.
	Until Time
	// AbortSent: every engine was asked to abort it.
	AbortSent bool
}

// Creditor is one engine that must hear of a close. One without a name stands for the engines of a pool in
// which none was found yet.
type Creditor struct {
	Engine string
	Debt   Debt
}

// OwedRow is what a session's close still owes, sorted by engine. After the close deadline it keeps the
// engines that failed.
type OwedRow struct {
	Session   uint64
	Creditors []Creditor
}

// PinRow is one pinned prefix.
type PinRow struct {
	Pool, ID string
	Seq      uint64
	// Session is the number of the session that the pin belongs to, 0 for none.
	Session uint64
	// Engine that the caller named; empty for none in particular.
	Engine string
	Tokens int64
	Since  Time
	Until  Time
	// Held are the engines that took the pin, LedgerOnly those that know no pins. Both sorted.
	Held, LedgerOnly []string
}

// Change is one row that changed: exactly one pointer is set, Deleted says that the row is gone. Keys:
// Pool by name; Session, Ticket and Pin by their Seq; Owed by its session's number.
type Change struct {
	Deleted bool
	Meta    *MetaRow
	Pool    *PoolRow
	Session *SessionRow
	Ticket  *TicketRow
	Owed    *OwedRow
	Pin     *PinRow
}

// tracked is the dirty mark of one row.
type tracked struct {
	// listed: the row is in the list of what changed.
	listed bool
	// stored: the last Saved saw the row, so that its deletion must be told.
	stored bool
	gone   bool
}

func (m *tracked) tracking() *tracked { return m }

// record is what has a row.
type record interface {
	tracking() *tracked
	change() Change
}

func (p *pool) change() Change    { return Change{Pool: &p.PoolRow} }
func (s *session) change() Change { return Change{Session: &s.SessionRow} }
func (x *ticket) change() Change  { return Change{Ticket: &x.TicketRow} }
func (o *owed) change() Change    { return Change{Owed: &o.OwedRow} }
func (x *pin) change() Change     { return Change{Pin: &x.PinRow} }

func (t *Table) touch(r record) {
	if m := r.tracking(); !m.listed {
		m.listed = true
		t.dirty = append(t.dirty, r)
	}
}

// erase marks a row as gone.
func (t *Table) erase(r record) {
	t.touch(r)
	r.tracking().gone = true
}

// Changes calls fn for every row that changed since the last Saved. Rows that came and went in between
// are left out. fn must not keep the pointers.
func (t *Table) Changes(fn func(Change)) {
	if t.metaDirty {
		fn(Change{Meta: &t.meta})
	}
	for _, r := range t.dirty {
		m := r.tracking()
		if m.gone && !m.stored {
			continue
		}
		c := r.change()
		c.Deleted = m.gone
		fn(c)
	}
}

// Forget forgets the events collected so far.
func (t *Table) Forget() {
	clear(t.events)
	t.events = t.events[:0]
}

// Saved forgets the changes collected so far: their rows are kept elsewhere.
func (t *Table) Saved() {
	for _, r := range t.dirty {
		m := r.tracking()
		m.listed, m.stored = false, !m.gone
	}
	clear(t.dirty)
	t.dirty, t.metaDirty = t.dirty[:0], false
}

// Reset is Forget and Saved. Effects stay until they are taken.
func (t *Table) Reset() {
	t.Forget()
	t.Saved()
}

// Export calls fn for every row of the table, in a fixed order.
func (t *Table) Export(fn func(Change)) {
	if t.meta != (MetaRow{}) { // a table that never gave a number has no row either
		fn(Change{Meta: &t.meta})
	}
	for _, name := range t.names {
		p := t.pools[name]
		fn(p.change())
		for s := range p.sessions.all() {
			t.exportSession(s, fn)
		}
		for x := range p.pins.all() {
			fn(x.change())
		}
	}
}

func (t *Table) exportSession(s *session, fn func(Change)) {
	fn(s.change())
	for x := s.first; x != nil; x = x.next {
		fn(x.change())
	}
	if s.owed != nil {
		fn(s.owed.change())
	}
}
