package ledger

// The ledger knows no sessions. What their table decides reaches it here.

// Leave is what a session that closes has in a pool.
type Leave struct {
	Pool, Session string
	// Waiters leave the queue with bypass session_closing.
	Waiters []string
	// Leases are taken back.
	Leases []string
}

// EndSessions takes what closing sessions leave behind. All of it has left before any queue advances, so
// that no session of the list is granted anything. Tickets that are not there, or are another session's,
// are passed over.
func (l *Ledger) EndSessions(list []Leave) {
	touched := make([]*pool, 0, len(list))
	for i := range list {
		p, ok := l.pools[list[i].Pool]
		if !ok {
			continue
		}
		l.leave(p, &list[i])
		touched = append(touched, p)
	}
	for _, p := range touched {
		l.advance(p)
	}
}

func (l *Ledger) leave(p *pool, s *Leave) {
	for _, ticket := range s.Waiters {
		if w, ok := p.waiting[ticket]; ok && w.Session == s.Session {
			l.letGo(w, KindBypassed, SessionClosing)
		}
	}
	for _, ticket := range s.Leases {
		x, ok := p.byTicket[ticket]
		if !ok || x.Session != s.Session {
			continue
		}
		l.dropLease(p, x)
		l.count(p, &p.Total.Released)
		l.emitLease(p, x, Event{Kind: KindReleased, Reason: SessionClosing.String()})
	}
}

// SetPinned says how many tokens of a pool's ceiling are pinned. When that changes, the oversize policy is
// applied to the queue anew, and the queue advances.
func (l *Ledger) SetPinned(pool string, tokens Tokens) {
	p, ok := l.pools[pool]
	if !ok || p.pinned == tokens {
		return
	}
	grew := tokens > p.pinned
	p.pinned = tokens
	if p.Degraded {
		return
	}
	if grew {
		l.dropOversized(p)
	}
	l.advance(p)
}

// NoteCloses says how many closes of a pool's sessions are over, and how many of them failed, since the
// pool was made; the next DrainStep answers what is new of it.
func (l *Ledger) NoteCloses(pool string, closed, failures int64) {
	p, ok := l.pools[pool]
	if !ok || p.Total.Closed == closed && p.Total.CloseFailures == failures {
		return
	}
	p.Total.Closed, p.Total.CloseFailures = closed, failures
	l.touchPool(p, dirtyCounters)
}

// Requests calls fn for every lease of a pool, in grant order, with the request id that engines know.
func (l *Ledger) Requests(pool string, fn func(ticket, session, rid string)) {
	p, ok := l.pools[pool]
	if !ok {
		return
	}
	for x := range p.leases.after(0) {
		rid := x.RID
		if rid == "" {
			rid = x.Ticket
		}
		fn(x.Ticket, x.Session, rid)
	}
}
