package sessions

import "fmt"

// MaxReclaim bounds how many attempts one HolderEnded ends, so that a log entry stays short.
const MaxReclaim = 4096

// Gate says whether a session takes tickets: nil when it is open or not known. It wraps ErrClosing.
func (t *Table) Gate(pool, id string) error {
	if s := t.find(pool, id); s != nil && s.State != Open {
		return fmt.Errorf("%w: %q is %v", ErrClosing, id, s.State)
	}
	return nil
}

// Queued notes that a ticket of a session waits. A session that is not known is opened as radix. It
// reports false, and notes nothing, when the session takes no tickets.
func (t *Table) Queued(pool, id, group, ticket, rid, holder string) bool {
	s := t.use(pool, id, group)
	if s == nil {
		return false
	}
	if x := s.pool.byTicket[ticket]; x != nil {
		if x.s == s && x.Waiting {
			return true
		}
		t.end(x, Turn{})
	}
	t.addTicket(s, TicketRow{
		Pool: pool, Ticket: ticket, Seq: t.nextSeq(), Session: s.Seq, Waiting: true,
		RID: rid, Holder: holder, Since: t.now,
	})
	return true
}

// Started notes that an attempt was let through, admitted or bypassed. A session that is not known is
// opened as radix. It reports false, and notes nothing, when the session takes no tickets.
func (t *Table) Started(pool, id, group string, f Flight) bool {
	s := t.use(pool, id, group)
	if s == nil {
		return false
	}
	row := TicketRow{
		Pool: pool, Ticket: f.Ticket, Seq: t.nextSeq(), Session: s.Seq,
		RID: f.RID, Holder: f.Holder, Since: t.now, Bypassed: f.Bypassed,
	}
	if x := s.pool.byTicket[f.Ticket]; x != nil {
		if x.s == s {
			row.fillFrom(&x.TicketRow)
			t.dropTicket(x)
		} else {
			t.end(x, Turn{})
		}
	}
	if row.RID == "" {
		row.RID = f.Ticket
	}
	if f.Bypassed && row.Holder == "" {
		ttl := clampDuration(f.TTL)
		if ttl == 0 {
			ttl = flightDefault
		}
		row.Until = t.now.Add(ttl)
	}
	t.addTicket(s, row)
	return true
}

// fillFrom takes over what an earlier notice of the same ticket said.
func (row *TicketRow) fillFrom(old *TicketRow) {
	if row.RID == "" {
		row.RID = old.RID
	}
	if row.Holder == "" {
		row.Holder = old.Holder
	}
	if !old.Waiting {
		row.Since = old.Since
	}
}

// use returns the session that a ticket names, opening it when it is not known; nil when it takes no
// tickets.
func (t *Table) use(pool, id, group string) *session {
	p := t.at(pool)
	s := p.byID[id]
	switch {
	case s == nil:
		return t.create(p, OpenRequest{ID: id, Group: group}, "ticket")
	case s.State != Open:
		return nil
	case s.Implicit && s.Kind == Bind:
		// A bind came first. The ticket's KV will be tagged with the id, so the engines must hear of its end.
		s.Kind, s.IdleTimeout = Radix, 0
		if group != "" && s.Group == "" {
			s.Group = group
			t.join(s)
		}
		t.changed(s)
	}
	return s
}

// Ended notes that a ticket is over: released, cancelled, expired, abandoned or reclaimed. It reports
// whether the ticket was in flight. Tickets that no session knows are none of its business.
func (t *Table) Ended(pool, ticket string, turn Turn) bool {
	p := t.pools[pool]
	if p == nil {
		return false
	}
	x := p.byTicket[ticket]
	if x == nil {
		return false
	}
	return t.end(x, turn)
}

func (t *Table) end(x *ticket, turn Turn) bool {
	s, flew := x.s, !x.Waiting
	t.dropTicket(x)
	s.ActiveAt = t.now
	if flew {
		s.landed(t.now, turn)
	}
	t.changed(s)
	if s.State == Closing {
		t.step(s)
	}
	return flew
}

func (s *session) landed(now Time, turn Turn) {
	s.Turns++
	s.LastTurnAt = now
	if turn.Tokens > 0 {
		s.Footprint = turn.Tokens
	}
	engine := EngineURL(turn.Engine)
	if s.pool.lists(engine) {
		s.Served = insertString(s.Served, engine)
	}
}

// HolderEnded ends the bypassed attempts of a holder that went silent, at most MaxReclaim of them; its
// leases and waiters end in the ledger. It reports how many ended and whether more are left.
func (t *Table) HolderEnded(pool, holder string) (n int, more bool) {
	p := t.pools[pool]
	if p == nil {
		return 0, false
	}
	// The end of one may end others of its session, so each turn looks anew.
	for ; p.holders[holder].len() > 0; n++ {
		if n == MaxReclaim {
			return n, true
		}
		x := p.holders[holder].chunks[0][0]
		t.emit(p, x.s, Event{Kind: TicketForgotten, Ticket: x.Ticket, Holder: holder, Reason: "holder expired"})
		t.end(x, Turn{})
	}
	return n, false
}

// Flying calls fn for every ticket in flight of a holder, or of none, that holds no lease: the ledger
// does not know of those, so a watch of holders must ask here too. Order means nothing.
func (t *Table) Flying(fn func(pool, holder string, n int)) {
	for _, name := range t.names {
		for holder, list := range t.pools[name].holders {
			fn(name, holder, list.len())
		}
	}
}

// Newest returns the number of a holder's newest ticket in flight that holds no lease, and when its attempt
// began; zeros when it has none. It takes time in proportion to those tickets.
func (t *Table) Newest(pool, holder string) (seq uint64, since Time) {
	p := t.pools[pool]
	if p == nil {
		return 0, 0
	}
	for x := range p.holders[holder].all() {
		seq, since = max(seq, x.Seq), max(since, x.Since)
	}
	return seq, since
}

// Flies returns the pools in which a holder has tickets in flight that hold no lease.
func (t *Table) Flies(holder string) (pools []string) {
	for _, name := range t.names {
		if t.pools[name].holders[holder] != nil {
			pools = append(pools, name)
		}
	}
	return pools
}

// addTicket puts a ticket into all lists. Its number is the highest of its session's.
func (t *Table) addTicket(s *session, row TicketRow) *ticket {
	x := &ticket{TicketRow: row, s: s, prev: s.last, due: due{seq: row.Seq}}
	if s.last == nil {
		s.first = x
	} else {
		s.last.next = x
	}
	s.last = x
	p := s.pool
	p.byTicket[x.Ticket] = x
	if x.Waiting {
		s.waiting++
	} else {
		s.flights++
		p.rids.insert(x)
	}
	if x.held() {
		if p.holders[x.Holder] == nil {
			p.holders[x.Holder] = newOrdered(byTicketID)
		}
		p.holders[x.Holder].insert(x)
	}
	if x.Until > 0 {
		t.arm(x, x.Until)
	}
	t.touch(x)
	t.rearm(s)
	s.rev++
	return x
}

// dropTicket takes a ticket out of all lists; the caller sets the session's deadline anew.
func (t *Table) dropTicket(x *ticket) {
	s, p := x.s, x.s.pool
	if x.prev == nil {
		s.first = x.next
	} else {
		x.prev.next = x.next
	}
	if x.next == nil {
		s.last = x.prev
	} else {
		x.next.prev = x.prev
	}
	delete(p.byTicket, x.Ticket)
	if x.Waiting {
		s.waiting--
	} else {
		s.flights--
		p.rids.remove(x)
	}
	if list := p.holders[x.Holder]; x.held() && list.remove(x) && list.len() == 0 {
		delete(p.holders, x.Holder)
	}
	t.disarm(x)
	t.erase(x)
}

// held reports whether the end of its holder ends the ticket here rather than in the ledger.
func (x *ticket) held() bool { return x.Bypassed && !x.Waiting && x.Holder != "" }
