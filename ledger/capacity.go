package ledger

import (
	"fmt"
	"slices"
	"strings"
)

// Reconcile takes in a round of polling. A pool that does not exist is left alone.
func (l *Ledger) Reconcile(pool string, r Round) bool {
	p, ok := l.pools[pool]
	if !ok {
		return false
	}
	if !r.Fresh && !r.Degrade {
		l.noteErrors(p, r)
		return true
	}
	engines := slices.Clone(r.Engines)
	slices.SortStableFunc(engines, func(a, b Engine) int { return strings.Compare(a.URL, b.URL) })
	engines = slices.CompactFunc(engines, func(a, b Engine) bool { return a.URL == b.URL })
	for i := range engines {
		engines[i].sanitise()
	}
	before := p.measured()
	shrunk, told := l.setEngines(p, engines, r.Discovery)
	if r.Fresh {
		if after := p.measured(); !told && after != before {
			l.emitPool(p, Event{Kind: KindUsage, Measured: &after})
		}
		l.sample(p, r.Repeats)
		p.Snapshot, p.SnapshotAt = true, l.meta.Now
		l.arm(&p.stale, l.meta.Now.Add(p.set.Staleness))
	}
	l.judge(p, r, shrunk)
	return true
}

// sanitise keeps a wrong measurement from breaking the ledger's sums: the poller clamps already, but
// the log may hold anything.
func (e *Engine) sanitise() {
	e.Usage, e.Pressure = clamp(e.Usage), clamp(e.Pressure)
	e.Capacity = min(max(e.Capacity, 0), MaxTokens)
	if e.Capacity == 0 && e.Healthy {
		e.Healthy, e.Error = false, "no capacity known"
	}
}

func clamp(x float64) float64 {
	if !(x > 0) { // NaN too
		return 0
	}
	return min(x, 1)
}

// noteErrors takes over what a round without any answer says of the engines; capacity, health and the
// snapshot's age stay as they are.
func (l *Ledger) noteErrors(p *pool, r Round) {
	for _, e := range r.Engines {
		i, ok := slices.BinarySearchFunc(p.Engines, e.URL, func(a Engine, url string) int { return strings.Compare(a.URL, url) })
		if ok && p.Engines[i].Error != e.Error {
			p.Engines[i].Error = e.Error
			l.touchPool(p, dirtyCapacity)
		}
	}
}

func (l *Ledger) setEngines(p *pool, engines []Engine, discovery string) (shrunk, told bool) {
	if set := healthySet(engines); !slices.Equal(set, healthySet(p.Engines)) {
		p.Epoch++
		before := healthySet(p.Engines)
		l.emitPool(p, Event{Kind: KindEpoch, Reason: whyLost(before, engines), Detail: difference(before, set)})
	}
	p.Engines, p.Discovery = engines, discovery
	l.touchPool(p, dirtyCapacity)
	return l.resize(p)
}

func healthySet(engines []Engine) []string {
	var set []string
	for i := range engines {
		if engines[i].Healthy {
			set = append(set, engines[i].URL)
		}
	}
	return set
}

// whyLost tells of the engines that are no longer healthy what is known of the reason. before is sorted.
func whyLost(before []string, after []Engine) string {
	var parts []string
	for i := range after {
		e := &after[i]
		if _, was := slices.BinarySearch(before, e.URL); was && !e.Healthy && e.Error != "" {
			parts = append(parts, e.URL+": "+e.Error)
		}
	}
	return strings.Join(parts, "; ")
}

// difference says in words which engines came and went. Both lists are sorted.
func difference(before, after []string) string {
	var parts []string
	for _, u := range after {
		if _, ok := slices.BinarySearch(before, u); !ok {
			parts = append(parts, "+"+u)
		}
	}
	for _, u := range before {
		if _, ok := slices.BinarySearch(after, u); !ok {
			parts = append(parts, "-"+u)
		}
	}
	return strings.Join(parts, " ")
}

// resize computes ceiling and pressure anew and reports whether the ceiling fell. What becomes of the
// queue is the caller's to decide: a pool that turns degraded lets everyone go as degraded. told says that
// the change is in the journal.
func (l *Ledger) resize(p *pool) (shrunk, told bool) {
	before := p.ceiling
	p.measure()
	if p.ceiling != before {
		now := p.measured()
		l.emitPool(p, Event{Kind: KindCapacity, Detail: fmt.Sprintf("ceiling %d -> %d tokens", before, p.ceiling), Measured: &now})
	}
	return p.ceiling < before, p.ceiling != before
}

// dropOversized applies the oversize policy to the queue of a pool that is not degraded.
func (l *Ledger) dropOversized(p *pool) {
	for _, w := range p.queue.all() {
		if !p.fits(w.Tokens) {
			l.letGo(w, KindBypassed, Oversized)
		}
	}
}

// measure sets what follows from the engines and the settings. Capacities of different roles are
// never added up; pressure looks at every healthy engine.
func (p *pool) measure() {
	role := capacityRole(p.set.CapacityRoles, p.Engines)
	var capacity Tokens
	p.pressure = 0
	for i := range p.Engines {
		e := &p.Engines[i]
		if !e.Healthy {
			continue
		}
		p.pressure = max(p.pressure, e.Pressure)
		if e.role() == role {
			capacity += e.Capacity
		}
	}
	// Settings are not validated while admission is off: the clamp keeps the conversion defined.
	p.ceiling = Tokens(float64(capacity) * clamp(p.set.Headroom))
}

// measured sums up the healthy engines for the journal.
func (p *pool) measured() Measured {
	m := Measured{Pressure: p.pressure, Known: int64(len(p.Engines))}
	role := capacityRole(p.set.CapacityRoles, p.Engines)
	for i := range p.Engines {
		e := &p.Engines[i]
		if !e.Healthy {
			continue
		}
		m.Healthy++
		if e.role() == role {
			m.Capacity += e.Capacity
		}
		m.Used += clampTokens(e.Used)
		m.Evictable += clampTokens(e.Evictable)
		m.Running += e.Running
		m.Queued += e.Queued
		m.EvictionRate += float64(e.EvictionRate)
	}
	return m
}

func clampTokens(n Tokens) Tokens { return min(max(n, 0), MaxTokens) }

func (e *Engine) role() Role {
	if e.Role == RoleUnspecified {
		return RoleRegular
	}
	return e.Role
}

// capacityRole picks the role whose engines make the ceiling. Automatic: decode where any decode
// engine is known, healthy or not, so that a fleet that lost its decoders does not fall back to
// counting prefill pools; else regular; else prefill.
func capacityRole(want CapacityRoles, engines []Engine) Role {
	switch want {
	case RolesRegular:
		return RoleRegular
	case RolesDecode:
		return RoleDecode
	case RolesPrefill:
		return RolePrefill
	}
	best := RolePrefill
	for i := range engines {
		switch engines[i].role() {
		case RoleDecode:
			return RoleDecode
		case RoleRegular:
			best = RoleRegular
		}
	}
	return best
}

// sample adds the round's pressure to the usage window, and the polls before it that read the same as
// the round they followed.
func (l *Ledger) sample(p *pool, repeats int64) {
	if repeats > 0 {
		// The conversion keeps compilers from fusing the sum, which would differ between machines.
		p.PressureSum += float64(p.LastPressure * float64(repeats))
		p.PressureCount += repeats
		p.PressurePeak = max(p.PressurePeak, p.LastPressure)
	}
	p.PressureSum += p.pressure
	p.PressureCount++
	p.PressurePeak = max(p.PressurePeak, p.pressure)
	p.LastPressure = p.pressure
	l.touchPool(p, dirtyCounters)
}

// judge decides whether the pool is degraded after a round.
func (l *Ledger) judge(p *pool, r Round, shrunk bool) {
	switch {
	case r.Degrade:
		l.degrade(p, or(r.Reason, "no usable engines"))
	case p.ceiling <= 0:
		l.degrade(p, or(r.Reason, "no healthy engine with known capacity"))
	default:
		l.recover(p)
		if shrunk {
			l.dropOversized(p)
		}
		l.advance(p)
	}
}

func or(s, fallback string) string {
	if s != "" {
		return s
	}
	return fallback
}

func (l *Ledger) degrade(p *pool, reason string) {
	if !p.Degraded || p.DegradedReason != reason {
		p.Degraded, p.DegradedReason = true, reason
		l.touchPool(p, dirtyCapacity)
		l.emitPool(p, Event{Kind: KindDegraded, Reason: reason})
	}
	// The staleness deadline is armed exactly while there is a snapshot and the pool is not degraded.
	l.disarm(&p.stale)
	l.flush(p, Degraded)
}

func (l *Ledger) recover(p *pool) {
	if p.Degraded {
		p.Degraded, p.DegradedReason = false, ""
		l.touchPool(p, dirtyCapacity)
		l.emitPool(p, Event{Kind: KindRecovered})
	}
}

// staleness is the pool as the owner of its staleness deadline.
type staleness pool

func (s *staleness) expire(l *Ledger) {
	p := (*pool)(s)
	l.degrade(p, "capacity snapshot older than "+p.set.Staleness.String())
}

func (l *Ledger) emitPool(p *pool, e Event) {
	e.Pool, e.Epoch = p.name, p.Epoch
	e.ReservedAfter, e.CeilingAfter, e.WaitingAfter = p.reserved, p.ceiling, p.waitingCount()
	l.emit(e)
}
