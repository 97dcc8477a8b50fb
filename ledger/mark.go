package ledger

// mark remembers that a ticket was cancelled before it arrived.
type mark struct {
	MarkRow
	timer         timer
	pool          *pool
	dirty, stored bool
	gone          bool
}

func (m *mark) number() Seq { return m.Seq }

func (l *Ledger) mark(p *pool, ticket string) {
	if old, ok := p.marks[ticket]; ok {
		l.dropMark(p, old)
	}
	m := l.addMark(p, MarkRow{
		Pool: p.name, Ticket: ticket, Seq: l.nextSeq(), Until: l.meta.Now.Add(p.set.LeaseTTL),
	})
	l.touchMark(m)
	l.emit(Event{
		Pool: p.name, Kind: KindCancelled, Ticket: ticket, Reason: "unknown", Epoch: p.Epoch, Deadline: m.Until,
		ReservedAfter: p.reserved, CeilingAfter: p.ceiling, WaitingAfter: p.waitingCount(),
	})
}

func (l *Ledger) addMark(p *pool, row MarkRow) *mark {
	m := &mark{MarkRow: row, pool: p}
	m.timer = timer{rank: rankMark, seq: m.Seq, owner: m}
	p.marks[m.Ticket] = m
	p.markList.push(m)
	l.arm(&m.timer, m.Until)
	return m
}

func (l *Ledger) dropMark(p *pool, m *mark) {
	l.disarm(&m.timer)
	delete(p.marks, m.Ticket)
	p.markList.remove(m)
	m.gone = true
	l.touchMark(m)
}

func (m *mark) expire(l *Ledger) { l.dropMark(m.pool, m) }
