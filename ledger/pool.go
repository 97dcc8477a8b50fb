package ledger

// pool is one fleet with its own budget, queue and settings.
type pool struct {
	name string
	set  Settings
	CapacityRow
	CountersRow

	// ceiling and pressure are computed from CapacityRow and the settings.
	ceiling  Tokens
	pressure float64
	reserved Tokens
	// pinned is what pins of prefixes keep out of the ceiling.
	pinned Tokens

	byTicket map[string]*lease
	leases   seqList[*lease]
	waiting  map[string]*waiter
	queue    queue
	marks    map[string]*mark
	markList seqList[*mark]
	holders  map[string]*holder
	// holderList links the holders in order of arrival; lastHolder is its end.
	holderList, lastHolder *holder

	stale timer
	dirty dirtyFlag
	gone  bool
}

func newPool(name string, set Settings) *pool {
	p := &pool{
		name:     name,
		set:      set,
		byTicket: map[string]*lease{},
		waiting:  map[string]*waiter{},
		marks:    map[string]*mark{},
		holders:  map[string]*holder{},
	}
	p.Degraded, p.DegradedReason = true, "no capacity snapshot yet"
	p.stale = timer{rank: rankStale, name: name, owner: (*staleness)(p)}
	return p
}

// blocked says what keeps a reservation from being granted now, leaving the queue aside. It is the
// seam between queueing and the charging policy: what fits, and what it is charged against.
func (p *pool) blocked(tokens Tokens) WaitReason {
	switch {
	case p.pressure >= p.set.PressureThreshold:
		return PressureGuard
	case p.reserved+tokens > p.budget():
		return CapacityExhausted
	}
	return WaitUnspecified
}

// budget is what leases may take in all: the ceiling without what is pinned.
func (p *pool) budget() Tokens { return p.ceiling - p.pinned }

// fits reports whether the reservation could ever be granted at the present ceiling and pins.
func (p *pool) fits(tokens Tokens) bool {
	return tokens <= p.budget() || p.set.Oversize == OversizeWait
}

func (p *pool) inScope(m Mode) bool {
	return m != ModeEval || p.set.Scope == ScopeAll
}

// waitingCount returns the length of the queue.
func (p *pool) waitingCount() int64 { return int64(p.queue.len()) }
