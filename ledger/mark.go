package ledger

import (
	"slices"
	"time"
)

// recall is how long a call is remembered after it took effect, in case it comes again: a node that loses
// the leader's answer sends the call once more, and the network may deliver a copy late.
const recall = time.Minute

// maxMarks bounds the Cancels that a pool remembers. Callers that cancel more tickets than that within
// a lease TTL, none of which arrives, are a flood, and the oldest are forgotten.
const maxMarks = 1_000_000

// forgetMarks is how many are forgotten at once: finding the oldest costs a walk over what was removed.
const forgetMarks = 1000

// mark is a Cancel that is remembered, because its ticket has not arrived or in case it comes again.
type mark struct {
	MarkRow
	timer         timer
	pool          *pool
	dirty, stored bool
	gone          bool
}

func (m *mark) number() Seq { return m.Seq }

// mark leaves a mark for an Acquire that is yet to come.
func (l *Ledger) mark(p *pool, ticket string, call uint64) {
	row := MarkRow{Ticket: ticket, Until: l.meta.Now.Add(p.set.LeaseTTL), Call: call}
	if call != 0 {
		row.Was = CancelUnknown
	}
	m := l.remember(p, row)
	l.emit(Event{
		Pool: p.name, Kind: KindCancelled, Ticket: ticket, Reason: "unknown", Epoch: p.Epoch, Deadline: m.Until,
		ReservedAfter: p.reserved, CeilingAfter: p.ceiling, WaitingAfter: p.waitingCount(),
	})
}

// maxEnded bounds how many calls about one ticket are remembered that are over.
const maxEnded = 16

// end remembers that an Acquire is over, so that a copy of it which comes late gets nothing. One that had
// nothing may be under way for the first time still; it is remembered as long as a mark.
func (l *Ledger) end(p *pool, ticket string, call uint64, was CancelState) {
	keep := recall
	if was == CancelUnknown {
		keep = max(recall, p.set.LeaseTTL)
	}
	until := l.meta.Now.Add(keep)
	m, ok := p.marks[ticket]
	if !ok {
		m = l.remember(p, MarkRow{Ticket: ticket, Until: until, Spent: true})
	}
	if until > m.Until {
		m.Until = until
		l.arm(&m.timer, until)
	}
	m.Ended = withCall(m.Ended, EndedCall{Call: call, Was: was})
	l.touchMark(m)
}

// withCall returns the list with one more call, without the oldest when it would be too long.
func withCall(list []EndedCall, c EndedCall) []EndedCall {
	return append(slices.Clone(list[max(0, len(list)-maxEnded+1):]), c)
}

// calls returns all calls that a mark knows to be over, the Cancel that left it included, and the Acquire that
// used it.
func (m *mark) calls() []EndedCall {
	list := m.Ended
	if m.Call != 0 {
		list = withCall(list, EndedCall{Call: m.Call, Was: m.Was})
	}
	if m.UsedBy != 0 {
		list = withCall(list, EndedCall{Call: m.UsedBy, Was: CancelUnknown})
	}
	return list
}

// ended returns what a call that is over found, when it is remembered.
func (p *pool) ended(ticket string, call uint64) (was CancelState, over bool) {
	m, ok := p.marks[ticket]
	if !ok || call == 0 {
		return 0, false
	}
	i := slices.IndexFunc(m.Ended, func(e EndedCall) bool { return e.Call == call })
	if i < 0 {
		return 0, false
	}
	return m.Ended[i].Was, true
}

// over reports whether an Acquire with that number is known to have been let go already, or to be over.
func (p *pool) over(ticket string, call uint64) bool {
	if m, ok := p.marks[ticket]; ok && call != 0 && call == m.UsedBy {
		return true
	}
	_, over := p.ended(ticket, call)
	return over
}

// remember keeps a Cancel in the place of an earlier one of the ticket.
func (l *Ledger) remember(p *pool, row MarkRow) *mark {
	if old, ok := p.marks[row.Ticket]; ok {
		if ended := old.calls(); len(ended) > 0 {
			row.Ended, row.Until = ended, max(row.Until, old.Until)
		}
		l.dropMark(p, old)
	}
	row.Pool, row.Seq = p.name, l.nextSeq()
	m := l.addMark(p, row)
	l.touchMark(m)
	if p.markList.len() > maxMarks && (row.Call != 0 || row.Spent) { // nodes that number no calls have no bound
		l.forgetOldest(p)
	}
	return m
}

func (l *Ledger) forgetOldest(p *pool) {
	oldest := make([]*mark, 0, forgetMarks)
	for m := range p.markList.after(0) {
		if len(oldest) == forgetMarks {
			break
		}
		oldest = append(oldest, m)
	}
	for _, m := range oldest {
		l.dropMark(p, m)
	}
}

// spend uses a mark up. The call that it lets go is remembered, so that it is let go again when it comes
// again, and nobody else is.
func (l *Ledger) spend(p *pool, m *mark, call uint64) {
	if call == 0 && len(m.Ended) == 0 {
		l.dropMark(p, m)
		return
	}
	m.Spent, m.UsedBy = true, call
	m.Until = l.meta.Now.Add(recall)
	l.arm(&m.timer, m.Until)
	l.touchMark(m)
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
