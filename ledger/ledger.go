package ledger

import (
	"container/heap"
	"slices"
)

// Ledger holds all pools.
type Ledger struct {
	meta  MetaRow
	pools map[string]*pool
	// names is sorted: every walk over pools follows it.
	names []string

	due     timerHeap
	pending int

	events    []Event
	decisions []Decision
	dirty     dirty
}

// New returns a ledger that knows only the default pool.
func New() *Ledger {
	l := &Ledger{pools: map[string]*pool{}}
	l.dirty.meta = true
	l.addPool(DefaultPool, DefaultSettings())
	return l
}

// Now returns ledger time.
func (l *Ledger) Now() Time { return l.meta.Now }

// Meta returns what the ledger knows of itself.
func (l *Ledger) Meta() MetaRow { return l.meta }

// Advance moves ledger time to t, which does nothing when t lies behind, and lets go what falls due on
// the way, in the order of the deadlines and as if each had been handled at its own deadline. It stops
// after limit items (0: no limit), so that a mass expiry cannot make one log entry arbitrarily long,
// and says whether more are due. What is due and left over is settled when a call names its ticket.
// What was decided on the way is told as of t.
func (l *Ledger) Advance(t Time, limit int) (more bool) {
	_, more = l.Pass(t, limit)
	return more
}

// Pass does as Advance does, and also answers how many items it let go.
func (l *Ledger) Pass(t Time, limit int) (n int, more bool) {
	t = max(t, l.meta.Now)
	told := len(l.decisions)
	for ; len(l.due) > 0 && l.due[0].at <= t; n++ {
		if limit > 0 && n >= limit {
			l.setNow(t)
			return n, true
		}
		next := l.due[0]
		l.setNow(max(l.meta.Now, next.at))
		l.disarm(next)
		next.owner.expire(l)
		for ; told < len(l.decisions); told++ {
			if d := &l.decisions[told]; d.Action == ActionAdmit {
				d.ExpiresIn = max(0, d.ExpiresIn-t.Sub(l.meta.Now))
			}
		}
	}
	l.setNow(t)
	return n, false
}

// SetNow moves ledger time to t, never backwards, and lets nothing go.
func (l *Ledger) SetNow(t Time) { l.setNow(max(t, l.meta.Now)) }

func (l *Ledger) setNow(t Time) {
	if t != l.meta.Now {
		l.meta.Now = t
		l.dirty.meta = true
	}
}

// NextDue returns the earliest deadline of any kind.
func (l *Ledger) NextDue() (Time, bool) {
	if len(l.due) == 0 {
		return 0, false
	}
	return l.due[0].at, true
}

// Pending counts the deadlines of leases, waiters and cancel marks. While it is above 0 a leader must
// tick often enough that a failover loses little ledger time.
func (l *Ledger) Pending() int { return l.pending }

// NewTerm records that node leads in term. Calls that were blocked on the previous leader are gone, so
// every waiter is detached and keeps its place for the detach grace.
func (l *Ledger) NewTerm(term uint64, node string) {
	l.meta.Term, l.meta.Leader = term, node
	l.dirty.meta = true
	l.emit(Event{Kind: KindLeader, Detail: node, Epoch: term})
	for _, name := range l.names {
		p := l.pools[name]
		p.queue.each(func(w *waiter) bool {
			if w.Attached {
				l.detach(p, w)
			}
			return true
		})
	}
}

// SetCluster names the cluster, once; later calls are ignored.
func (l *Ledger) SetCluster(id string) string {
	if l.meta.ClusterID == "" {
		l.meta.ClusterID = id
		l.dirty.meta = true
	}
	return l.meta.ClusterID
}

// RaiseVersion records that a command of a version was applied. The first version is not recorded, as
// it was not by those who knew no other.
func (l *Ledger) RaiseVersion(v uint32) {
	if v > 1 && v > l.meta.Version {
		l.meta.Version = v
		l.dirty.meta = true
	}
}

// TrimJournal records that events before first are gone.
func (l *Ledger) TrimJournal(first uint64) {
	if first <= l.meta.JournalFirst {
		return
	}
	l.meta.JournalFirst = first
	l.dirty.meta = true
	l.emit(Event{Kind: KindTrimmed, Grant: Seq(first)})
}

// DeletePool drops a pool with its leases, queue and settings. Waiters are let go as degraded. The
// default pool comes back empty. by is who asks for it, for the journal.
func (l *Ledger) DeletePool(name, by string) bool {
	p, ok := l.pools[name]
	if !ok {
		return false
	}
	l.flush(p, Degraded)
	for _, e := range p.leases.all() {
		l.dropLease(p, e)
	}
	for _, m := range p.markList.all() {
		l.dropMark(p, m)
	}
	l.disarm(&p.stale)
	p.gone = true
	l.touchPool(p, dirtySettings|dirtyCapacity|dirtyCounters)
	delete(l.pools, name)
	l.names = slices.DeleteFunc(l.names, func(n string) bool { return n == name })
	l.emit(Event{Kind: KindPoolDeleted, Pool: name, By: by})
	if name == DefaultPool {
		l.addPool(DefaultPool, DefaultSettings())
	}
	return true
}

// Events returns what happened since the last Forget, which reuses the slice.
func (l *Ledger) Events() []Event { return l.events }

// Decisions returns what was decided on tickets that had waited since the last Forget, which reuses the slice.
func (l *Ledger) Decisions() []Decision { return l.decisions }

// Forget forgets the events and decisions collected so far.
func (l *Ledger) Forget() {
	clear(l.events)
	clear(l.decisions)
	l.events, l.decisions = l.events[:0], l.decisions[:0]
}

// Saved forgets the changes collected so far: their rows are kept elsewhere.
func (l *Ledger) Saved() { l.dirty.reset() }

// Reset is Forget and Saved.
func (l *Ledger) Reset() {
	l.Forget()
	l.Saved()
}

func (l *Ledger) emit(e Event) {
	e.At = l.meta.Now
	l.events = append(l.events, e)
}

func (l *Ledger) nextSeq() Seq {
	l.meta.Seq++
	l.dirty.meta = true
	return l.meta.Seq
}

func (l *Ledger) addPool(name string, set Settings) *pool {
	p := newPool(name, set)
	l.pools[name] = p
	i, _ := slices.BinarySearch(l.names, name)
	l.names = slices.Insert(l.names, i, name)
	l.touchPool(p, dirtySettings|dirtyCapacity|dirtyCounters)
	return p
}

// expirer is what a timer belongs to.
type expirer interface{ expire(*Ledger) }

// timer is one deadline, embedded in what it belongs to. Its order is total, so that every node lets
// go in the same order however its heap came about.
type timer struct {
	at    Time
	rank  uint8
	seq   Seq
	name  string
	owner expirer
	// pos is 1 + the index in the heap; 0 when not armed.
	pos int
}

// Ranks order what falls due at the same instant: capacity comes back before anybody is let go.
const (
	rankLease uint8 = iota
	rankWaiter
	rankMark
	rankStale
)

func (t *timer) before(u *timer) bool {
	switch {
	case t.at != u.at:
		return t.at < u.at
	case t.rank != u.rank:
		return t.rank < u.rank
	case t.seq != u.seq:
		return t.seq < u.seq
	}
	return t.name < u.name
}

// arm sets the timer to go off at t, whether or not it is armed already.
func (l *Ledger) arm(tm *timer, t Time) {
	if tm.pos > 0 {
		if tm.at != t {
			tm.at = t
			heap.Fix(&l.due, tm.pos-1)
		}
		return
	}
	tm.at = t
	heap.Push(&l.due, tm)
	if tm.rank != rankStale {
		l.pending++
	}
}

func (l *Ledger) disarm(tm *timer) {
	if tm.pos == 0 {
		return
	}
	heap.Remove(&l.due, tm.pos-1)
	if tm.rank != rankStale {
		l.pending--
	}
}

type timerHeap []*timer

func (h timerHeap) Len() int           { return len(h) }
func (h timerHeap) Less(i, j int) bool { return h[i].before(h[j]) }
func (h timerHeap) Swap(i, j int) {
	h[i], h[j] = h[j], h[i]
	h[i].pos, h[j].pos = i+1, j+1
}

func (h *timerHeap) Push(x any) {
	t := x.(*timer)
	t.pos = len(*h) + 1
	*h = append(*h, t)
}

func (h *timerHeap) Pop() any {
	old := *h
	t := old[len(old)-1]
	old[len(old)-1] = nil
	*h = old[:len(old)-1]
	t.pos = 0
	return t
}
