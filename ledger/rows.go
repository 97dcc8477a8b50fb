package ledger

import (
	"maps"
	"slices"
	"time"
)

// Rows are the durable image of the ledger: everything else is computed from them by [Load].

// MetaRow is what the ledger knows of itself.
type MetaRow struct {
	Now          Time
	Seq          Seq
	Term         uint64
	Leader       string
	ClusterID    string
	JournalFirst uint64
	// Version is the newest command version that was ever applied, 0 for the first.
	Version uint32
}

// PoolRow holds a pool's settings.
type PoolRow struct {
	Name     string
	Settings Settings
}

// CapacityRow is a pool's newest capacity snapshot.
type CapacityRow struct {
	Epoch uint64
	// Snapshot is false until the first fresh round.
	Snapshot       bool
	SnapshotAt     Time
	Degraded       bool
	DegradedReason string
	Discovery      string
	Engines        []Engine
}

// CountersRow holds what a pool counts.
type CountersRow struct {
	Total         Counters
	Drained       Counters
	PressureSum   float64
	PressureCount int64
	PressurePeak  float64
	// LastPressure is that of the newest fresh round.
	LastPressure float64
	// Run, Step and Answer repeat the last drain; Stepped is false before the first.
	Run     string
	Step    int64
	Stepped bool
	Answer  map[string]float64
}

// LeaseRow is one lease.
type LeaseRow struct {
	Pool, Ticket string
	Grant        Seq
	Epoch        uint64
	Tokens       Tokens
	GrantedAt    Time
	TTL          time.Duration
	Deadline     Time
	Holder       string
	Session      string
	Group        string
	RID          string
	// ClaimBy is when a grant made to a detached waiter is reclaimed; 0 when it was claimed.
	ClaimBy Time
	// Waiter is the number the ticket waited under; 0 when it did not wait.
	Waiter Seq
	// Attempt counts the Acquires that were answered with this lease or its waiter.
	Attempt uint32
}

// WaiterRow is one waiter.
type WaiterRow struct {
	Pool, Ticket string
	Seq          Seq
	Tokens       Tokens
	// Asked is the reservation before the expected decode cap: a retry that asks for the same is the same
	// request, also when the cap was changed meanwhile.
	Asked    Tokens
	Priority int32
	Since    Time
	MaxWait  time.Duration
	TTL      time.Duration
	Reason   WaitReason
	Holder   string
	Session  string
	Group    string
	RID      string
	// Attached: a call is blocked on the ticket. Otherwise the waiter is dropped at DropAt.
	Attached bool
	DropAt   Time
	// Attempt counts the Acquires that joined the waiter. It fences a Detach that was overtaken by a
	// retry.
	Attempt uint32
}

// MarkRow remembers the newest Cancel of a ticket, and which of its Acquires are over. Unless it is spent, the
// ticket was cancelled before it arrived, and its next Acquire bypasses.
type MarkRow struct {
	Pool, Ticket string
	Seq          Seq
	Until        Time
	// Call is the Cancel's, and Was its answer, for when it comes again; UsedBy is the call of the Acquire
	// that the mark let go. All are 0 for calls without a number.
	Call   uint64
	Was    CancelState
	UsedBy uint64
	// Spent: the mark lets nobody go any more.
	Spent bool
	// Ended are calls about the ticket that are over, oldest first, at most maxEnded. Never changed in place:
	// copies of the row share it.
	Ended []EndedCall `json:",omitempty"`
}

// EndedCall is an Acquire that was given up, let go by a mark, or whose lease was released, or a Cancel before
// the last one. A copy of it that comes late gets nothing, or does nothing.
type EndedCall struct {
	Call uint64
	Was  CancelState
}

// HolderRow is one client process that has leases or waiters.
type HolderRow struct {
	Pool, Holder string
	LastActive   Time
}

// Change is one row that changed: exactly one pointer is set, Deleted says that the row is gone.
type Change struct {
	Deleted  bool
	Meta     *MetaRow
	Pool     *PoolRow
	Capacity *CapacityRow
	Counters *CountersRow
	Lease    *LeaseRow
	Waiter   *WaiterRow
	Mark     *MarkRow
	Holder   *HolderRow
	// Name is the pool of Capacity and Counters, whose rows do not hold it.
	Name string
}

type dirtyFlag uint8

const (
	dirtySettings dirtyFlag = 1 << iota
	dirtyCapacity
	dirtyCounters
)

// dirty collects what changed since the last Saved, each thing once, in the order of first change.
type dirty struct {
	meta    bool
	pools   []*pool
	leases  []*lease
	waiters []*waiter
	marks   []*mark
	holders []*holder
}

func (d *dirty) reset() {
	for _, p := range d.pools {
		p.dirty = 0
	}
	for _, x := range d.leases {
		x.dirty, x.stored = false, true
	}
	for _, x := range d.waiters {
		x.dirty, x.stored = false, true
	}
	for _, x := range d.marks {
		x.dirty, x.stored = false, true
	}
	for _, x := range d.holders {
		x.dirty, x.stored = false, true
	}
	d.meta = false
	d.pools = cleared(d.pools)
	d.leases = cleared(d.leases)
	d.waiters = cleared(d.waiters)
	d.marks = cleared(d.marks)
	d.holders = cleared(d.holders)
}

func cleared[T any](s []T) []T {
	clear(s)
	return s[:0]
}

func (l *Ledger) touchPool(p *pool, f dirtyFlag) {
	if p.dirty == 0 {
		l.dirty.pools = append(l.dirty.pools, p)
	}
	p.dirty |= f
}

func (l *Ledger) touchLease(x *lease) {
	if !x.dirty {
		x.dirty = true
		l.dirty.leases = append(l.dirty.leases, x)
	}
}

func (l *Ledger) touchWaiter(x *waiter) {
	if !x.dirty {
		x.dirty = true
		l.dirty.waiters = append(l.dirty.waiters, x)
	}
}

func (l *Ledger) touchMark(x *mark) {
	if !x.dirty {
		x.dirty = true
		l.dirty.marks = append(l.dirty.marks, x)
	}
}

func (l *Ledger) touchHolder(x *holder) {
	if !x.dirty {
		x.dirty = true
		l.dirty.holders = append(l.dirty.holders, x)
	}
}

// Changes calls fn for every row that changed since the last Saved. Rows that came and went in between
// are left out. fn must not keep the pointers.
func (l *Ledger) Changes(fn func(Change)) {
	if l.dirty.meta {
		fn(Change{Meta: &l.meta})
	}
	for _, p := range l.dirty.pools {
		p.changes(p.dirty, fn)
	}
	for _, x := range l.dirty.leases {
		if x.stored || !x.gone {
			fn(Change{Lease: &x.LeaseRow, Deleted: x.gone})
		}
	}
	for _, x := range l.dirty.waiters {
		if x.stored || !x.gone {
			fn(Change{Waiter: &x.WaiterRow, Deleted: x.gone})
		}
	}
	for _, x := range l.dirty.marks {
		if x.stored || !x.gone {
			fn(Change{Mark: &x.MarkRow, Deleted: x.gone})
		}
	}
	for _, x := range l.dirty.holders {
		if x.stored || !x.gone {
			fn(Change{Holder: &x.HolderRow, Deleted: x.gone})
		}
	}
}

func (p *pool) changes(f dirtyFlag, fn func(Change)) {
	if f&dirtySettings != 0 {
		fn(Change{Pool: &PoolRow{Name: p.name, Settings: p.set}, Deleted: p.gone, Name: p.name})
	}
	if f&dirtyCapacity != 0 {
		fn(Change{Capacity: &p.CapacityRow, Deleted: p.gone, Name: p.name})
	}
	if f&dirtyCounters != 0 {
		fn(Change{Counters: &p.CountersRow, Deleted: p.gone, Name: p.name})
	}
}

// Export calls fn for every row of the ledger, in a fixed order.
func (l *Ledger) Export(fn func(Change)) {
	fn(Change{Meta: &l.meta})
	for _, name := range l.names {
		p := l.pools[name]
		p.changes(dirtySettings|dirtyCapacity|dirtyCounters, fn)
		for _, x := range p.leases.all() {
			fn(Change{Lease: &x.LeaseRow})
		}
		p.queue.each(func(w *waiter) bool {
			fn(Change{Waiter: &w.WaiterRow})
			return true
		})
		for _, x := range p.markList.all() {
			fn(Change{Mark: &x.MarkRow})
		}
		// A holder's order of arrival is not in its row, so a reloaded ledger could not repeat it.
		for _, holder := range slices.Sorted(maps.Keys(p.holders)) {
			fn(Change{Holder: &p.holders[holder].HolderRow})
		}
	}
}
