package ledger

// MaxReclaim bounds how many tickets one ReclaimHolder takes back, so that a log entry stays short.
const MaxReclaim = 4096

// holder is one client process with leases or waiters in a pool.
type holder struct {
	HolderRow
	leases        chain[*lease]
	waiters       chain[*waiter]
	prev, next    *holder
	dirty, stored bool
	gone          bool
}

// holderOf returns the holder by name, making it when needed; nil for the empty name.
func (l *Ledger) holderOf(p *pool, name string) *holder {
	if name == "" {
		return nil
	}
	if h, ok := p.holders[name]; ok {
		return h
	}
	h := l.addHolder(p, HolderRow{Pool: p.name, Holder: name, LastActive: l.meta.Now})
	l.touchHolder(h)
	return h
}

func (l *Ledger) addHolder(p *pool, row HolderRow) *holder {
	h := &holder{HolderRow: row, prev: p.lastHolder}
	p.holders[row.Holder] = h
	if h.prev == nil {
		p.holderList = h
	} else {
		h.prev.next = h
	}
	p.lastHolder = h
	return h
}

// leaveHolder forgets a holder that has nothing left.
func (l *Ledger) leaveHolder(p *pool, h *holder) {
	if h.gone || h.leases.n+h.waiters.n > 0 {
		return
	}
	if h.prev == nil {
		p.holderList = h.next
	} else {
		h.prev.next = h.next
	}
	if h.next == nil {
		p.lastHolder = h.prev
	} else {
		h.next.prev = h.prev
	}
	delete(p.holders, h.Holder)
	h.gone = true
	l.touchHolder(h)
}

// touchActivity notes that the holder was heard of now.
func (l *Ledger) touchActivity(h *holder) {
	if h != nil && !h.gone && h.LastActive != l.meta.Now {
		h.LastActive = l.meta.Now
		l.touchHolder(h)
	}
}

// ReclaimHolder takes back the leases and waiters of a holder that went silent, at most MaxReclaim of
// them. It does nothing when the holder was active after lastActive, which is what the proposer saw.
// It reports how many tickets were taken back and whether more are left.
func (l *Ledger) ReclaimHolder(pool, name string, lastActive Time) (n int, more bool) {
	p, ok := l.pools[pool]
	if !ok {
		return 0, false
	}
	h, ok := p.holders[name]
	if !ok || h.LastActive != lastActive {
		return 0, false
	}
	for ; n < MaxReclaim && h.waiters.first != nil; n++ {
		l.count(p, &p.Total.HolderExpired)
		l.letGo(h.waiters.first, KindHolderExpired, Abandoned)
	}
	for ; n < MaxReclaim && h.leases.first != nil; n++ {
		x := h.leases.first
		l.count(p, &p.Total.HolderExpired)
		l.dropLease(p, x)
		l.emitLease(p, x, Event{Kind: KindHolderExpired, Reason: "leased"})
	}
	l.advance(p)
	return n, !h.gone
}

// HolderView is one holder as the leader's watch sees it.
type HolderView struct {
	Pool, Holder    string
	LastActive      Time
	Leases, Waiters int64
}

// Holders calls fn for every holder of every pool.
func (l *Ledger) Holders(fn func(HolderView)) {
	for _, name := range l.names {
		for h := l.pools[name].holderList; h != nil; h = h.next {
			fn(HolderView{
				Pool: name, Holder: h.Holder, LastActive: h.LastActive,
				Leases: int64(h.leases.n), Waiters: int64(h.waiters.n),
			})
		}
	}
}

// Holder returns what one holder has over all pools.
func (l *Ledger) Holder(name string) []HolderView {
	var out []HolderView
	for _, pool := range l.names {
		if h, ok := l.pools[pool].holders[name]; ok {
			out = append(out, HolderView{
				Pool: pool, Holder: name, LastActive: h.LastActive,
				Leases: int64(h.leases.n), Waiters: int64(h.waiters.n),
			})
		}
	}
	return out
}

// siblings link what belongs to one holder, in order of arrival.
type siblings[T any] struct{ prev, next T }

// sibling is something that a chain can hold.
type sibling[T any] interface {
	comparable
	siblings() *siblings[T]
}

// chain is a doubly linked list whose links live in its members.
type chain[T sibling[T]] struct {
	first, last T
	n           int
}

func (c *chain[T]) push(x T) {
	var none T
	s := x.siblings()
	s.prev, s.next = c.last, none
	if c.last == none {
		c.first = x
	} else {
		c.last.siblings().next = x
	}
	c.last = x
	c.n++
}

func (c *chain[T]) remove(x T) {
	var none T
	s := x.siblings()
	if s.prev == none {
		c.first = s.next
	} else {
		s.prev.siblings().next = s.next
	}
	if s.next == none {
		c.last = s.prev
	} else {
		s.next.siblings().prev = s.prev
	}
	*s = siblings[T]{}
	c.n--
}

func (x *lease) siblings() *siblings[*lease]   { return &x.inHolder }
func (w *waiter) siblings() *siblings[*waiter] { return &w.inHolder }
