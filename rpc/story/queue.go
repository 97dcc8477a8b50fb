package story

import (
	"cmp"
	"slices"
	"time"
)

// enqueue puts a life behind those of its priority and above.
func (p *Pool) enqueue(l *Life, watch bool) {
	at := len(p.queue)
	for at > 0 && p.queue[at-1].Priority < l.Priority {
		at--
	}
	if watch {
		l.Met = p.meet(at)
		p.watched = append(p.watched, l)
	}
	p.queue = slices.Insert(p.queue, at, l)
}

// leave takes a life out of the queue, if it is there.
func (p *Pool) leave(l *Life) {
	if l.Waiting == nil || l.Granted != nil {
		return
	}
	switch at := slices.Index(p.queue, l); {
	case at == 0: // nearly always; what is behind need not move
		p.queue[0], p.queue = nil, p.queue[1:]
	case at > 0:
		p.queue = slices.Delete(p.queue, at, at+1)
	}
	if at := slices.Index(p.watched, l); at >= 0 {
		p.watched = slices.Delete(p.watched, at, at+1)
	}
}

// maxShares bounds how many holders and waiters are remembered by name.
const maxShares = 3

// meet tells what a ticket finds that comes to place at of the queue.
func (p *Pool) meet(at int) *Met {
	m := &Met{Reserved: p.Reserved, Ceiling: p.Ceiling - p.Pinned, Threshold: p.Threshold}
	if p.Measured != nil {
		m.Pressure = p.Measured.Pressure
	}
	for _, l := range p.queue[:at] {
		m.Ahead = append(m.Ahead, Share{l.Ticket, l.Holder, l.Tokens, l.First.LedgerTime})
	}
	for _, l := range p.open {
		if l.Granted != nil {
			m.Leases++
			m.Holders = append(m.Holders, Share{l.Ticket, l.Holder, l.Tokens, l.Granted.LedgerTime})
		}
	}
	slices.SortFunc(m.Holders, func(a, b Share) int {
		return cmp.Or(cmp.Compare(b.Tokens, a.Tokens), cmp.Compare(a.Since, b.Since), cmp.Compare(a.Ticket, b.Ticket))
	})
	m.Holders = slices.Clip(m.Holders[:min(len(m.Holders), maxShares)])
	return m
}

// review notes when what holds a watched waiter back has changed. The journal tells the reason on arrival only;
// later ones follow from the place in the queue, what is reserved, and the pressure.
func (p *Pool) review(l *Life, e *Event) {
	if l.Granted != nil || l.Ended != nil {
		return
	}
	b := Block{From: e.LedgerTime, At: wall(e), Reserved: p.Reserved, Ceiling: p.Ceiling - p.Pinned}
	if p.Measured != nil {
		b.Pressure = p.Measured.Pressure
	}
	if e == l.Waiting {
		b.Reason = e.Reason
	} else {
		b.Reason = p.obstacle(l)
	}
	n := len(l.Blocks)
	if b.Reason == "" || n > 0 && l.Blocks[n-1].Reason == b.Reason {
		return
	}
	for _, w := range p.queue {
		if w == l {
			break
		}
		b.Ahead++
		b.AheadTokens += w.Tokens
	}
	switch {
	case n > 1 && l.Blocks[n-1].From == b.From:
		l.Blocks[n-1] = b
		if l.Blocks[n-2].Reason == b.Reason {
			l.Blocks = l.Blocks[:n-1]
		}
	default:
		l.Blocks = append(l.Blocks, b)
	}
}

// obstacle names what holds a waiter back now; "" in the middle of a log entry that is about to grant it.
func (p *Pool) obstacle(l *Life) string {
	switch {
	case len(p.queue) > 0 && p.queue[0] != l:
		return olderWaiter
	case p.Measured != nil && p.Threshold > 0 && p.Measured.Pressure >= p.Threshold:
		return pressureGuard
	case p.Reserved+l.Tokens > p.Ceiling-p.Pinned:
		return capacityExhausted
	}
	return ""
}

// OldestWait returns how long the one that waits longest has waited.
func (p *Pool) OldestWait(now int64) time.Duration {
	oldest := now
	for _, l := range p.queue {
		oldest = min(oldest, l.Waiting.LedgerTime)
	}
	return time.Duration(now - oldest)
}
