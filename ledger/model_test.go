package ledger_test

import (
	"slices"
	"sort"
	"strings"
	"time"

	"kvgate/ledger"
)

// model is the ledger as the design describes it, with slices, linear scans and no state that could be
// computed: the reference that random operations are compared with.
type model struct {
	now       ledger.Time
	seq       ledger.Seq
	pools     []*modelPool
	decisions []ledger.Decision
}

type modelPool struct {
	name       string
	set        ledger.Settings
	engines    []ledger.Engine
	epoch      uint64
	snapshotAt ledger.Time
	degraded   bool
	leases     []*modelLease  // in grant order
	waiters    []*modelWaiter // in order of arrival
	marks      []*modelMark
	active     []modelHolder
	// facts is everything that was ever counted; drained is how many of them the last drain had seen.
	facts    []fact
	drained  int
	samples  []float64
	last     float64
	answer   map[string]float64
	run      string
	step     int64
	answered bool
}

type modelLease struct {
	op            ledger.Acquire
	tokens        ledger.Tokens
	grant, waiter ledger.Seq
	epoch         uint64
	at, deadline  ledger.Time
	ttl           time.Duration
	claimBy       ledger.Time
	unclaimed     bool
	attempt       uint32
}

type modelWaiter struct {
	op       ledger.Acquire
	tokens   ledger.Tokens
	seq      ledger.Seq
	since    ledger.Time
	maxWait  time.Duration
	reason   ledger.WaitReason
	attached bool
	dropAt   ledger.Time
	attempt  uint32
}

type modelMark struct {
	ticket string
	seq    ledger.Seq
	until  ledger.Time
	// call of the Cancel and its answer, and of the Acquire that used the mark up.
	call, usedBy uint64
	was          ledger.CancelState
	spent        bool
	ended        []ledger.EndedCall
}

// over returns what an Acquire that is over had.
func (k *modelMark) over(call uint64) (was ledger.CancelState, ok bool) {
	if k == nil || call == 0 {
		return 0, false
	}
	for _, e := range k.ended {
		if e.Call == call {
			return e.Was, true
		}
	}
	return 0, false
}

type modelHolder struct {
	name string
	at   ledger.Time
}

// fact is one thing that counters count.
type fact struct {
	kind   string
	reason ledger.Reason
	waited time.Duration
	tokens ledger.Tokens
	usage  *ledger.Usage
}

func newModel() *model {
	m := &model{}
	m.addPool(ledger.DefaultPool, ledger.DefaultSettings())
	return m
}

func (m *model) addPool(name string, set ledger.Settings) *modelPool {
	p := &modelPool{name: name, set: set, degraded: true}
	m.pools = append(m.pools, p)
	sort.Slice(m.pools, func(i, j int) bool { return m.pools[i].name < m.pools[j].name })
	return p
}

func (m *model) pool(name string) *modelPool {
	for _, p := range m.pools {
		if p.name == name {
			return p
		}
	}
	return nil
}

func (m *model) next() ledger.Seq {
	m.seq++
	return m.seq
}

func (p *modelPool) count(f fact) { p.facts = append(p.facts, f) }

func (p *modelPool) lease(ticket string) *modelLease {
	for _, x := range p.leases {
		if x.op.Ticket == ticket {
			return x
		}
	}
	return nil
}

func (p *modelPool) waiter(ticket string) *modelWaiter {
	for _, w := range p.waiters {
		if w.op.Ticket == ticket {
			return w
		}
	}
	return nil
}

func (p *modelPool) markOf(ticket string) *modelMark {
	for _, k := range p.marks {
		if k.ticket == ticket {
			return k
		}
	}
	return nil
}

func (p *modelPool) reserved() (sum ledger.Tokens) {
	for _, x := range p.leases {
		sum += x.tokens
	}
	return sum
}

// ceiling: capacities of different roles are never added up; decode engines make it where there are any.
func (p *modelPool) ceiling() ledger.Tokens {
	byRole := map[ledger.Role]ledger.Tokens{}
	known := map[ledger.Role]bool{}
	for _, e := range p.engines {
		known[roleOf(e)] = true
		if e.Healthy {
			byRole[roleOf(e)] += e.Capacity
		}
	}
	role := ledger.RolePrefill
	switch {
	case p.set.CapacityRoles == ledger.RolesRegular:
		role = ledger.RoleRegular
	case p.set.CapacityRoles == ledger.RolesDecode:
		role = ledger.RoleDecode
	case p.set.CapacityRoles == ledger.RolesPrefill:
	case known[ledger.RoleDecode]:
		role = ledger.RoleDecode
	case known[ledger.RoleRegular]:
		role = ledger.RoleRegular
	}
	return ledger.Tokens(float64(byRole[role]) * p.set.Headroom)
}

func roleOf(e ledger.Engine) ledger.Role {
	if e.Role == ledger.RoleUnspecified {
		return ledger.RoleRegular
	}
	return e.Role
}

func (p *modelPool) pressure() (worst float64) {
	for _, e := range p.engines {
		if e.Healthy {
			worst = max(worst, e.Pressure)
		}
	}
	return worst
}

// queue: higher priority first, in order of arrival within a priority.
func (p *modelPool) queue() []*modelWaiter {
	q := slices.Clone(p.waiters)
	sort.SliceStable(q, func(i, j int) bool { return q[i].op.Priority > q[j].op.Priority })
	return q
}

func (p *modelPool) blocked(tokens ledger.Tokens) ledger.WaitReason {
	if p.pressure() >= p.set.PressureThreshold {
		return ledger.PressureGuard
	}
	if p.reserved()+tokens > p.ceiling() {
		return ledger.CapacityExhausted
	}
	return ledger.WaitUnspecified
}

func (p *modelPool) oversized(tokens ledger.Tokens) bool {
	return tokens > p.ceiling() && p.set.Oversize != ledger.OversizeWait
}

func (w *modelWaiter) agesAt() ledger.Time { return w.since.Add(w.maxWait) }

func (w *modelWaiter) due() ledger.Time {
	if w.attached {
		return w.agesAt()
	}
	return min(w.dropAt, w.agesAt())
}

func (x *modelLease) due() ledger.Time {
	if x.unclaimed {
		return min(x.claimBy, x.deadline)
	}
	return x.deadline
}

// activity notes a sign of life of a holder that has something in the pool.
func (m *model) activity(p *modelPool, holder string) {
	for i := range p.active {
		if p.active[i].name == holder {
			p.active[i].at = m.now
		}
	}
}

func (m *model) knowHolder(p *modelPool, holder string) {
	if holder == "" || slices.ContainsFunc(p.active, func(h modelHolder) bool { return h.name == holder }) {
		return
	}
	p.active = append(p.active, modelHolder{holder, m.now})
}

// forgetIdle drops the holders that have neither lease nor waiter.
func (p *modelPool) forgetIdle() {
	p.active = slices.DeleteFunc(p.active, func(h modelHolder) bool {
		leases, waiters := p.has(h.name)
		return leases+waiters == 0
	})
}

func (p *modelPool) has(holder string) (leases, waiters int64) {
	for _, x := range p.leases {
		if x.op.Holder == holder {
			leases++
		}
	}
	for _, w := range p.waiters {
		if w.op.Holder == holder {
			waiters++
		}
	}
	return leases, waiters
}

// grant charges the pool. waited tells a grant to a waiter from one at once.
func (m *model) grant(p *modelPool, op ledger.Acquire, tokens ledger.Tokens) *modelLease {
	ttl := op.TTL
	if ttl <= 0 {
		ttl = p.set.LeaseTTL
	}
	ttl = min(ttl, p.set.MaxTTL)
	x := &modelLease{
		op: op, tokens: tokens, grant: m.next(), epoch: p.epoch, at: m.now, ttl: ttl,
		deadline: m.now.Add(ttl), attempt: 1,
	}
	p.leases = append(p.leases, x)
	m.knowHolder(p, op.Holder)
	return x
}

func (m *model) admitted(p *modelPool, x *modelLease) ledger.Decision {
	return ledger.Decision{
		Pool: p.name, Ticket: x.op.Ticket, Action: ledger.ActionAdmit, Reason: ledger.CapacityAvailable,
		Tokens: x.tokens, Seq: x.grant, Attempt: x.attempt, Epoch: x.epoch, ExpiresIn: x.deadline.Sub(m.now),
	}
}

func (p *modelPool) dropLease(x *modelLease) {
	p.leases = slices.DeleteFunc(p.leases, func(y *modelLease) bool { return y == x })
	p.forgetIdle()
}

func (p *modelPool) dropWaiter(w *modelWaiter) {
	p.waiters = slices.DeleteFunc(p.waiters, func(v *modelWaiter) bool { return v == w })
	p.forgetIdle()
}

func (p *modelPool) dropMark(k *modelMark) {
	p.marks = slices.DeleteFunc(p.marks, func(j *modelMark) bool { return j == k })
}

// letGo ends a wait without a lease.
func (m *model) letGo(p *modelPool, w *modelWaiter, reason ledger.Reason) {
	p.dropWaiter(w)
	p.count(fact{kind: "bypass", reason: reason})
	m.decisions = append(m.decisions, ledger.Decision{
		Pool: p.name, Ticket: w.op.Ticket, Action: ledger.ActionBypass, Reason: reason, Tokens: w.tokens,
		Waiter: w.seq, Epoch: p.epoch, Waited: m.now.Sub(w.since),
	})
}

func (m *model) flush(p *modelPool, reason ledger.Reason) {
	for _, w := range p.queue() {
		m.letGo(p, w, reason)
	}
}

func (m *model) dropOversized(p *modelPool) {
	for _, w := range p.queue() {
		if p.oversized(w.tokens) {
			m.letGo(p, w, ledger.Oversized)
		}
	}
}

// advanceQueue grants from the head while the head fits.
func (m *model) advanceQueue(p *modelPool) {
	for !p.degraded && len(p.waiters) > 0 {
		w := p.queue()[0]
		if reason := p.blocked(w.tokens); reason != ledger.WaitUnspecified {
			w.reason = reason
			return
		}
		m.grantWaiter(p, w)
	}
}

func (m *model) grantWaiter(p *modelPool, w *modelWaiter) {
	x := m.grant(p, w.op, w.tokens)
	x.waiter, x.attempt = w.seq, w.attempt
	p.dropWaiter(w)
	if !w.attached {
		m.unclaim(p, x)
	}
	waited := m.now.Sub(w.since)
	p.count(fact{kind: "admit"})
	p.count(fact{kind: "waited", waited: waited})
	d := m.admitted(p, x)
	d.Waiter, d.Waited = w.seq, waited
	m.decisions = append(m.decisions, d)
}

func (m *model) unclaim(p *modelPool, x *modelLease) {
	x.unclaimed, x.claimBy = true, m.now.Add(max(1, p.set.DetachGrace))
}

// deadline is something that falls due.
type deadline struct {
	at   ledger.Time
	rank int
	seq  ledger.Seq
	pool string
	run  func()
}

// deadlines lists all that is pending. At one instant leases go first, then waiters, marks and
// snapshots, each in the order of their numbers.
func (m *model) deadlines() []deadline {
	var all []deadline
	for _, p := range m.pools {
		for _, x := range p.leases {
			all = append(all, deadline{x.due(), 0, x.grant, p.name, func() { m.expireLease(p, x) }})
		}
		for _, w := range p.waiters {
			all = append(all, deadline{w.due(), 1, w.seq, p.name, func() { m.expireWaiter(p, w) }})
		}
		for _, k := range p.marks {
			all = append(all, deadline{k.until, 2, k.seq, p.name, func() { p.dropMark(k) }})
		}
		if !p.degraded {
			at := p.snapshotAt.Add(p.set.Staleness)
			all = append(all, deadline{at, 3, 0, p.name, func() { m.degrade(p) }})
		}
	}
	sort.SliceStable(all, func(i, j int) bool { return all[i].before(all[j]) })
	return all
}

func (d deadline) before(e deadline) bool {
	if d.at != e.at {
		return d.at < e.at
	}
	if d.rank != e.rank {
		return d.rank < e.rank
	}
	if d.seq != e.seq {
		return d.seq < e.seq
	}
	return strings.Compare(d.pool, e.pool) < 0
}

func (m *model) expireLease(p *modelPool, x *modelLease) {
	p.dropLease(x)
	if x.unclaimed && x.claimBy < x.deadline {
		p.count(fact{kind: "unclaimed"})
	} else {
		p.count(fact{kind: "lease_expired"})
	}
	m.advanceQueue(p)
}

func (m *model) expireWaiter(p *modelPool, w *modelWaiter) {
	if !w.attached && w.dropAt < w.agesAt() {
		p.count(fact{kind: "abandoned"})
		m.letGo(p, w, ledger.Abandoned)
	} else {
		m.letGo(p, w, ledger.Aged)
	}
	m.advanceQueue(p)
}

func (m *model) degrade(p *modelPool) {
	p.degraded = true
	m.flush(p, ledger.Degraded)
}

// settle handles what is due of one ticket and was left over by a bounded advance.
func (m *model) settle(p *modelPool, ticket string) {
	if x := p.lease(ticket); x != nil && x.due() <= m.now {
		m.expireLease(p, x)
	}
	if w := p.waiter(ticket); w != nil && w.due() <= m.now {
		m.expireWaiter(p, w)
	}
	if k := p.markOf(ticket); k != nil && k.until <= m.now {
		p.dropMark(k)
	}
}
