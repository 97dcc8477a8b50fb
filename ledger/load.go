package ledger

import (
	"fmt"
	"slices"
)

// Loader builds a ledger from rows, in any order. Nothing of it is visible until Finish.
type Loader struct {
	meta  MetaRow
	pools map[string]*loading
	names []string
	// pinned is what SetPinned said.
	pinned map[string]Tokens
}

type loading struct {
	row      *PoolRow
	capacity CapacityRow
	counters CountersRow
	leases   []LeaseRow
	waiters  []WaiterRow
	marks    []MarkRow
	holders  []HolderRow
}

// NewLoader returns an empty loader.
func NewLoader() *Loader { return &Loader{pools: map[string]*loading{}, pinned: map[string]Tokens{}} }

func (ld *Loader) pool(name string) *loading {
	p, ok := ld.pools[name]
	if !ok {
		p = &loading{}
		ld.pools[name] = p
		ld.names = append(ld.names, name)
	}
	return p
}

// Add takes one row.
func (ld *Loader) Add(c Change) {
	switch {
	case c.Meta != nil:
		ld.meta = *c.Meta
	case c.Pool != nil:
		row := *c.Pool
		ld.pool(row.Name).row = &row
	case c.Capacity != nil:
		ld.pool(c.Name).capacity = *c.Capacity
	case c.Counters != nil:
		ld.pool(c.Name).counters = *c.Counters
	case c.Lease != nil:
		p := ld.pool(c.Lease.Pool)
		p.leases = append(p.leases, *c.Lease)
	case c.Waiter != nil:
		p := ld.pool(c.Waiter.Pool)
		p.waiters = append(p.waiters, *c.Waiter)
	case c.Mark != nil:
		p := ld.pool(c.Mark.Pool)
		p.marks = append(p.marks, *c.Mark)
	case c.Holder != nil:
		p := ld.pool(c.Holder.Pool)
		p.holders = append(p.holders, *c.Holder)
	}
}

// SetPinned says what is pinned in a pool, which no row of the ledger holds.
func (ld *Loader) SetPinned(pool string, tokens Tokens) { ld.pinned[pool] = tokens }

// Finish returns the ledger, or an error when rows contradict each other. No rows at all give a new
// ledger.
func (ld *Loader) Finish() (*Ledger, error) {
	if len(ld.names) == 0 {
		return New(), nil
	}
	l := &Ledger{meta: ld.meta, pools: map[string]*pool{}}
	slices.Sort(ld.names)
	for _, name := range ld.names {
		if err := ld.build(l, name); err != nil {
			return nil, err
		}
	}
	if _, ok := l.pools[DefaultPool]; !ok {
		return nil, fmt.Errorf("rows name no pool %q", DefaultPool)
	}
	l.Reset()
	return l, nil
}

func (ld *Loader) build(l *Ledger, name string) error {
	in := ld.pools[name]
	if in.row == nil {
		return fmt.Errorf("rows of pool %q, which has no settings row", name)
	}
	p := l.addPool(name, in.row.Settings)
	p.CapacityRow, p.CountersRow = in.capacity, in.counters
	p.pinned = ld.pinned[name]
	p.measure()
	if p.Snapshot && !p.Degraded {
		l.arm(&p.stale, p.SnapshotAt.Add(p.set.Staleness))
	}
	for _, h := range in.holders {
		l.addHolder(p, h)
	}
	return in.members(l, p)
}

func (in *loading) members(l *Ledger, p *pool) error {
	slices.SortFunc(in.leases, func(a, b LeaseRow) int { return compare(a.Grant, b.Grant) })
	slices.SortFunc(in.waiters, func(a, b WaiterRow) int { return compare(a.Seq, b.Seq) })
	slices.SortFunc(in.marks, func(a, b MarkRow) int { return compare(a.Seq, b.Seq) })
	for _, row := range in.leases {
		if p.byTicket[row.Ticket] != nil {
			return fmt.Errorf("two leases of ticket %q in pool %q", row.Ticket, p.name)
		}
		l.addLease(p, row).stored = true
	}
	for _, row := range in.waiters {
		if p.byTicket[row.Ticket] != nil || p.waiting[row.Ticket] != nil {
			return fmt.Errorf("ticket %q of pool %q is there twice", row.Ticket, p.name)
		}
		l.addWaiter(p, row).stored = true
	}
	for _, row := range in.marks {
		l.addMark(p, row).stored = true
	}
	for h := p.holderList; h != nil; h = h.next {
		h.stored = true
	}
	return nil
}

func compare(a, b Seq) int {
	switch {
	case a < b:
		return -1
	case a > b:
		return 1
	}
	return 0
}
