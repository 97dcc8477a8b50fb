package sessions

import (
	"cmp"
	"fmt"
	"slices"
	"strings"
)

// Loader builds a table from rows, in any order. Nothing of it is visible until Finish.
type Loader struct {
	meta     MetaRow
	pools    []PoolRow
	sessions []SessionRow
	tickets  []TicketRow
	owed     []OwedRow
	pins     []PinRow
	// names keeps one copy of each engine's URL: thousands of rows repeat them.
	names map[string]string
}

// NewLoader returns an empty loader.
func NewLoader() *Loader { return &Loader{names: map[string]string{}} }

// Add takes one row.
func (ld *Loader) Add(c Change) {
	switch {
	case c.Meta != nil:
		ld.meta = *c.Meta
	case c.Pool != nil:
		ld.pools = append(ld.pools, *c.Pool)
	case c.Session != nil:
		ld.sessions = append(ld.sessions, *c.Session)
	case c.Ticket != nil:
		ld.tickets = append(ld.tickets, *c.Ticket)
	case c.Owed != nil:
		row := OwedRow{Session: c.Owed.Session, Creditors: slices.Clone(c.Owed.Creditors)}
		for i := range row.Creditors {
			row.Creditors[i].Engine = ld.name(row.Creditors[i].Engine)
		}
		ld.owed = append(ld.owed, row)
	case c.Pin != nil:
		ld.pins = append(ld.pins, *c.Pin)
	}
}

func (ld *Loader) name(s string) string {
	if have, ok := ld.names[s]; ok {
		return have
	}
	ld.names[s] = s
	return s
}

// Finish returns the table, or ErrCorrupt when rows contradict each other. Its time is 0: SetNow it to
// the ledger's before anything else.
func (ld *Loader) Finish() (*Table, error) {
	t := NewTable()
	for i := range ld.pools {
		row := ld.pools[i]
		if t.pools[row.Pool] != nil {
			return nil, fmt.Errorf("%w: pool %q is there twice", ErrCorrupt, row.Pool)
		}
		row.Engines = slices.Clone(row.Engines)
		slices.SortFunc(row.Engines, func(a, b Engine) int { return strings.Compare(a.URL, b.URL) })
		t.at(row.Pool).PoolRow = row
	}
	bySeq := map[uint64]*session{}
	for _, load := range []func(*Table, map[uint64]*session) error{ld.loadSessions, ld.loadTickets, ld.loadOwed, ld.loadPins} {
		if err := load(t, bySeq); err != nil {
			return nil, err
		}
	}
	t.meta.Seq = max(t.meta.Seq, ld.meta.Seq)
	t.Reset()
	return t, nil
}

// number checks that a number is used once.
func (ld *Loader) number(t *Table, seq uint64, what string) error {
	if seq == 0 || seq > ld.meta.Seq {
		return fmt.Errorf("%w: %s has number %d, allowed are 1 to %d", ErrCorrupt, what, seq, ld.meta.Seq)
	}
	return nil
}

func (ld *Loader) loadSessions(t *Table, bySeq map[uint64]*session) error {
	for i := range ld.sessions {
		row := ld.sessions[i]
		if err := ld.number(t, row.Seq, "a session"); err != nil {
			return err
		}
		switch {
		case t.pools[row.Pool] == nil:
			return fmt.Errorf("%w: session %q is of pool %q, which has no row", ErrCorrupt, row.ID, row.Pool)
		case t.find(row.Pool, row.ID) != nil || bySeq[row.Seq] != nil:
			return fmt.Errorf("%w: session %q is there twice", ErrCorrupt, row.ID)
		case row.State < Open || row.State > ClosedWithFailures || row.Close.Phase > Telling || (row.State == Closing) != (row.Close.Phase != NotClosing):
			return fmt.Errorf("%w: session %q is %v in phase %v", ErrCorrupt, row.ID, row.State, row.Close.Phase)
		}
		bySeq[row.Seq] = t.add(t.at(row.Pool), row)
	}
	return nil
}

func (ld *Loader) loadTickets(t *Table, bySeq map[uint64]*session) error {
	slices.SortFunc(ld.tickets, func(a, b TicketRow) int { return cmp.Compare(a.Seq, b.Seq) })
	for _, row := range ld.tickets {
		if err := ld.number(t, row.Seq, "a ticket"); err != nil {
			return err
		}
		s := bySeq[row.Session]
		switch {
		case s == nil || s.Pool != row.Pool:
			return fmt.Errorf("%w: ticket %q is of session number %d, which has no row in pool %q", ErrCorrupt, row.Ticket, row.Session, row.Pool)
		case s.State > Closing || s.State == Closing && row.Waiting:
			return fmt.Errorf("%w: ticket %q is of session %q, which is %v", ErrCorrupt, row.Ticket, s.ID, s.State)
		case s.pool.byTicket[row.Ticket] != nil:
			return fmt.Errorf("%w: ticket %q of pool %q is there twice", ErrCorrupt, row.Ticket, row.Pool)
		}
		t.addTicket(s, row)
	}
	return nil
}

func (ld *Loader) loadOwed(t *Table, bySeq map[uint64]*session) error {
	for i := range ld.owed {
		row := ld.owed[i]
		s := bySeq[row.Session]
		if s == nil || s.owed != nil || len(row.Creditors) == 0 {
			return fmt.Errorf("%w: debts of session number %d", ErrCorrupt, row.Session)
		}
		slices.SortFunc(row.Creditors, func(a, b Creditor) int { return strings.Compare(a.Engine, b.Engine) })
		want := Failed
		if s.State == Closing {
			want = Owed
		}
		if slices.ContainsFunc(row.Creditors, func(c Creditor) bool { return c.Debt != want }) {
			return fmt.Errorf("%w: session %q is %v, and its debts are not all %v", ErrCorrupt, s.ID, s.State, want)
		}
		t.setCreditors(s, row.Creditors)
	}
	for s := range t.busy.all() {
		if s.Close.Phase == Telling && s.owed == nil {
			return fmt.Errorf("%w: session %q tells engines, and none owes anything", ErrCorrupt, s.ID)
		}
	}
	return nil
}

func (ld *Loader) loadPins(t *Table, bySeq map[uint64]*session) error {
	for i := range ld.pins {
		row := ld.pins[i]
		if err := ld.number(t, row.Seq, "a pin"); err != nil {
			return err
		}
		p, s := t.pools[row.Pool], bySeq[row.Session]
		switch {
		case p == nil:
			return fmt.Errorf("%w: pin %q is of pool %q, which has no row", ErrCorrupt, row.ID, row.Pool)
		case p.byPin[row.ID] != nil:
			return fmt.Errorf("%w: pin %q of pool %q is there twice", ErrCorrupt, row.ID, row.Pool)
		case row.Session != 0 && (s == nil || s.pool != p):
			return fmt.Errorf("%w: pin %q is of session number %d, which has no row in pool %q", ErrCorrupt, row.ID, row.Session, row.Pool)
		}
		t.addPin(p, s, row)
	}
	return nil
}
