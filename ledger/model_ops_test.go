package ledger_test

import (
	"slices"
	"sort"
	"time"

	"kvgate/ledger"
)

// Advance mirrors ledger.Ledger.Advance.
func (m *model) Advance(t ledger.Time, limit int) bool {
	t = max(t, m.now)
	for n := 0; ; n++ {
		due := m.deadlines()
		if len(due) == 0 || due[0].at > t {
			m.now = t
			return false
		}
		if limit > 0 && n >= limit {
			m.now = t
			return true
		}
		m.now = max(m.now, due[0].at)
		told := len(m.decisions)
		due[0].run()
		for i := range m.decisions[told:] {
			if d := &m.decisions[told+i]; d.Action == ledger.ActionAdmit {
				d.ExpiresIn = max(0, d.ExpiresIn-t.Sub(m.now))
			}
		}
	}
}

// Acquire follows the decision order of the design, step by step.
func (m *model) Acquire(op ledger.Acquire) (ledger.Decision, error) {
	for _, n := range []ledger.Tokens{op.PromptTokens, op.MaxNewTokens, op.ReservationTokens} {
		if n < 0 || n > ledger.MaxTokens {
			return ledger.Decision{}, ledger.ErrInvalid
		}
	}
	if op.Ticket == "" {
		return ledger.Decision{}, ledger.ErrInvalid
	}
	p := m.pool(op.Pool)
	if p == nil {
		return ledger.Decision{
			Pool: op.Pool, Ticket: op.Ticket, Action: ledger.ActionBypass, Reason: ledger.Degraded,
			Warnings: []string{"unknown_pool"},
		}, nil
	}
	m.settle(p, op.Ticket)
	tokens := op.ReservationTokens
	if tokens == 0 {
		decode := op.MaxNewTokens
		if p.set.ExpectedDecodeCap > 0 && decode > p.set.ExpectedDecodeCap {
			decode = p.set.ExpectedDecodeCap
		}
		tokens = op.PromptTokens + decode
	}
	k := p.markOf(op.Ticket)
	_, over := k.over(op.Call)
	if over || k != nil && op.Call != 0 && k.usedBy == op.Call { // the same call again, or one that is over
		return ledger.Decision{
			Pool: p.name, Ticket: op.Ticket, Action: ledger.ActionBypass, Reason: ledger.Cancelled, Tokens: tokens, Epoch: p.epoch,
		}, nil
	}
	if !p.set.Admission { // 1
		return m.bypass(p, op, tokens, ledger.Disabled), nil
	}
	if op.Mode == ledger.ModeEval && p.set.Scope != ledger.ScopeAll {
		return m.bypass(p, op, tokens, ledger.OutOfScope), nil
	}
	if k != nil && !k.spent { // 2
		k.spent, k.usedBy, k.until = true, op.Call, m.now.Add(time.Minute)
		if op.Call == 0 && len(k.ended) == 0 {
			p.dropMark(k)
		}
		return m.bypass(p, op, tokens, ledger.Cancelled), nil
	}
	if op.Protected { // 3
		return m.bypass(p, op, tokens, ledger.Protected), nil
	}
	if x := p.lease(op.Ticket); x != nil { // 4
		x.unclaimed, x.claimBy = false, 0
		x.attempt++
		m.activity(p, x.op.Holder)
		return m.admitted(p, x), nil
	}
	if w := p.waiter(op.Ticket); w != nil { // 5
		return m.join(p, w, op, tokens)
	}
	return m.decide(p, op, tokens)
}

func (m *model) bypass(p *modelPool, op ledger.Acquire, tokens ledger.Tokens, reason ledger.Reason) ledger.Decision {
	if w := p.waiter(op.Ticket); w != nil {
		m.letGo(p, w, reason)
		d := m.decisions[len(m.decisions)-1]
		m.advanceQueue(p)
		return d
	}
	p.count(fact{kind: "bypass", reason: reason})
	return ledger.Decision{
		Pool: p.name, Ticket: op.Ticket, Action: ledger.ActionBypass, Reason: reason, Tokens: tokens, Epoch: p.epoch,
	}
}

func (m *model) join(p *modelPool, w *modelWaiter, op ledger.Acquire, tokens ledger.Tokens) (ledger.Decision, error) {
	uncapped := ledger.Settings{}
	asked := func(a ledger.Acquire) ledger.Tokens {
		return uncapped.Reservation(a.PromptTokens, a.MaxNewTokens, a.ReservationTokens)
	}
	if tokens != w.tokens && asked(op) != asked(w.op) {
		return ledger.Decision{}, ledger.ErrTicketMismatch
	}
	if op.MaxWait == 0 {
		m.letGo(p, w, ledger.Aged)
		d := m.decisions[len(m.decisions)-1]
		m.advanceQueue(p)
		return d, nil
	}
	if op.MaxWait > 0 && m.now.Add(op.MaxWait) < w.since.Add(w.maxWait) {
		w.maxWait = m.now.Add(op.MaxWait).Sub(w.since)
	}
	w.attached = true
	w.attempt++
	m.activity(p, w.op.Holder)
	return m.waits(p, w), nil
}

func (m *model) waits(p *modelPool, w *modelWaiter) ledger.Decision {
	return ledger.Decision{
		Pool: p.name, Ticket: w.op.Ticket, Action: ledger.ActionWait, Wait: w.reason, Tokens: w.tokens,
		Seq: w.seq, Waiter: w.seq, Attempt: w.attempt, Waited: m.now.Sub(w.since),
	}
}

func (m *model) decide(p *modelPool, op ledger.Acquire, tokens ledger.Tokens) (ledger.Decision, error) {
	if p.degraded { // 6
		return m.bypass(p, op, tokens, ledger.Degraded), nil
	}
	if p.oversized(tokens) { // 7
		return m.bypass(p, op, tokens, ledger.Oversized), nil
	}
	reason := p.blocked(tokens) // 8
	for _, w := range p.waiters {
		if w.op.Priority >= op.Priority {
			reason = ledger.OlderWaiter
		}
	}
	if reason == ledger.WaitUnspecified { // 9
		x := m.grant(p, op, tokens)
		m.activity(p, op.Holder)
		p.count(fact{kind: "admit"})
		return m.admitted(p, x), nil
	}
	maxWait := op.MaxWait
	if maxWait < 0 {
		maxWait = p.set.MaxWait
	}
	if maxWait == 0 {
		return m.bypass(p, op, tokens, ledger.Aged), nil
	}
	if int64(len(p.waiters)) >= p.set.MaxWaiters {
		return ledger.Decision{}, ledger.ErrTooManyWaiters
	}
	w := &modelWaiter{
		op: op, tokens: tokens, seq: m.next(), since: m.now, maxWait: maxWait, reason: reason,
		attached: true, attempt: 1,
	}
	p.waiters = append(p.waiters, w)
	m.knowHolder(p, op.Holder)
	m.activity(p, op.Holder)
	p.count(fact{kind: "wait"})
	return m.waits(p, w), nil
}

func (x *modelLease) fenced(epoch uint64, hasEpoch bool, grant ledger.Seq) bool {
	return (hasEpoch && x.epoch != epoch) || (grant != 0 && x.grant != grant)
}

func (m *model) Release(op ledger.Release) bool {
	p := m.pool(op.Pool)
	if p == nil {
		return false
	}
	m.settle(p, op.Ticket)
	m.activity(p, op.Holder)
	x := p.lease(op.Ticket)
	if x == nil || x.fenced(op.Epoch, op.HasEpoch, op.Grant) {
		return false
	}
	m.activity(p, x.op.Holder)
	p.dropLease(x)
	p.count(fact{kind: "released", tokens: x.tokens, usage: op.Usage})
	if op.Ended != 0 {
		m.over(p, op.Ticket, op.Ended, ledger.CancelLeased)
	}
	m.advanceQueue(p)
	return true
}

func (m *model) Renew(pool string, refs []ledger.LeaseRef, ttl time.Duration) []ledger.Renewed {
	out := make([]ledger.Renewed, len(refs))
	p := m.pool(pool)
	if p == nil {
		return out
	}
	for i, ref := range refs {
		m.settle(p, ref.Ticket)
		x := p.lease(ref.Ticket)
		if x == nil || x.fenced(ref.Epoch, ref.HasEpoch, ref.Grant) {
			continue
		}
		d := ttl
		if d <= 0 {
			d = x.ttl
		}
		d = min(d, p.set.MaxTTL)
		x.deadline, x.unclaimed, x.claimBy = m.now.Add(d), false, 0
		m.activity(p, x.op.Holder)
		p.count(fact{kind: "renewed"})
		out[i] = ledger.Renewed{OK: true, ExpiresIn: d}
	}
	return out
}

func (m *model) Cancel(op ledger.Cancel) ledger.CancelState {
	p, ticket, call := m.pool(op.Pool), op.Ticket, op.Call
	if p == nil {
		return ledger.CancelUnknown
	}
	m.settle(p, ticket)
	k := p.markOf(ticket)
	if op.Ended != 0 {
		was, over := k.over(op.Ended)
		if over {
			return was
		}
		if was = ledger.CancelUnknown; p.lease(ticket) != nil || p.waiter(ticket) != nil {
			was = m.cancel(p, ticket)
		}
		m.over(p, ticket, op.Ended, was)
		return was
	}
	if k != nil && call != 0 && k.call == call {
		return k.was
	}
	if was, over := k.over(call); over {
		return was
	}
	was := m.cancel(p, ticket)
	if was != ledger.CancelUnknown && call == 0 {
		return was
	}
	old := k
	k = &modelMark{ticket: ticket, seq: m.next(), until: m.now.Add(p.set.LeaseTTL), call: call, was: was}
	if was != ledger.CancelUnknown {
		k.spent, k.until = true, m.now.Add(time.Minute)
	}
	if old != nil {
		p.dropMark(old)
	}
	if old != nil {
		k.ended = old.ended
		k.note(old.call, old.was)
		k.note(old.usedBy, ledger.CancelUnknown)
		if len(k.ended) > 0 {
			k.until = max(k.until, old.until)
		}
	}
	p.marks = append(p.marks, k)
	return was
}

// note adds a call that is over; 0 is none.
func (k *modelMark) note(call uint64, was ledger.CancelState) {
	if call == 0 {
		return
	}
	k.ended = append(slices.Clone(k.ended), ledger.EndedCall{Call: call, Was: was})
	if len(k.ended) > 16 {
		k.ended = k.ended[1:]
	}
}

// over notes that an Acquire is over: of a ticket the last 16, for a minute, or for a TTL when it had nothing.
func (m *model) over(p *modelPool, ticket string, call uint64, was ledger.CancelState) {
	k := p.markOf(ticket)
	if k == nil {
		k = &modelMark{ticket: ticket, seq: m.next(), spent: true}
		p.marks = append(p.marks, k)
	}
	keep := time.Minute
	if was == ledger.CancelUnknown && p.set.LeaseTTL > keep {
		keep = p.set.LeaseTTL
	}
	k.until = max(k.until, m.now.Add(keep))
	k.note(call, was)
}

func (m *model) cancel(p *modelPool, ticket string) ledger.CancelState {
	p.count(fact{kind: "cancelled"})
	if w := p.waiter(ticket); w != nil {
		m.activity(p, w.op.Holder)
		m.letGo(p, w, ledger.Cancelled)
		m.advanceQueue(p)
		return ledger.CancelWaiting
	}
	if x := p.lease(ticket); x != nil {
		m.activity(p, x.op.Holder)
		p.dropLease(x)
		m.advanceQueue(p)
		return ledger.CancelLeased
	}
	return ledger.CancelUnknown
}

func (m *model) Detach(pool, ticket string, seq ledger.Seq, attempt uint32) bool {
	p := m.pool(pool)
	if p == nil {
		return false
	}
	m.settle(p, ticket)
	if w := p.waiter(ticket); w != nil && w.seq == seq && w.attempt == attempt && w.attached {
		w.attached, w.dropAt = false, m.now.Add(p.set.DetachGrace)
		return true
	}
	x := p.lease(ticket)
	if x == nil || x.unclaimed || x.attempt != attempt || (x.grant != seq && x.waiter != seq) {
		return false
	}
	m.unclaim(p, x)
	return true
}

func (m *model) ReclaimHolder(pool, holder string, lastActive ledger.Time) (n int, more bool) {
	p := m.pool(pool)
	if p == nil || holder == "" {
		return 0, false
	}
	if !slices.Contains(p.active, modelHolder{holder, lastActive}) {
		return 0, false
	}
	for _, w := range slices.Clone(p.waiters) {
		if w.op.Holder == holder {
			p.count(fact{kind: "holder_expired"})
			m.letGo(p, w, ledger.Abandoned)
			n++
		}
	}
	for _, x := range slices.Clone(p.leases) {
		if x.op.Holder == holder {
			p.count(fact{kind: "holder_expired"})
			p.dropLease(x)
			n++
		}
	}
	m.advanceQueue(p)
	return n, false
}

func (m *model) NewTerm() {
	for _, p := range m.pools {
		for _, w := range p.waiters {
			if w.attached {
				w.attached, w.dropAt = false, m.now.Add(p.set.DetachGrace)
			}
		}
	}
}

func (m *model) DeletePool(name string) bool {
	p := m.pool(name)
	if p == nil {
		return false
	}
	m.flush(p, ledger.Degraded)
	m.pools = slices.DeleteFunc(m.pools, func(q *modelPool) bool { return q == p })
	if name == ledger.DefaultPool {
		m.addPool(name, ledger.DefaultSettings())
	}
	return true
}

// UpdateSettings takes the settings as a whole; the caller knows that they are valid.
func (m *model) UpdateSettings(name string, change func(*ledger.Settings)) ledger.Settings {
	p := m.pool(name)
	if p == nil {
		p = m.addPool(name, ledger.DefaultSettings())
	}
	change(&p.set)
	if !p.set.Admission {
		m.flush(p, ledger.Disabled)
		return p.set
	}
	if !p.degraded {
		m.dropOversized(p)
		m.advanceQueue(p)
	}
	return p.set
}

func (m *model) Reconcile(name string, r ledger.Round) bool {
	p := m.pool(name)
	if p == nil {
		return false
	}
	if !r.Fresh && !r.Degrade {
		for i := range p.engines {
			for _, e := range r.Engines {
				if e.URL == p.engines[i].URL {
					p.engines[i].Error = e.Error
				}
			}
		}
		return true
	}
	before := p.healthy()
	p.engines = seen(r.Engines)
	if !slices.Equal(before, p.healthy()) {
		p.epoch++
	}
	if r.Fresh {
		for range r.Repeats {
			p.samples = append(p.samples, p.last)
		}
		p.last = p.pressure()
		p.samples = append(p.samples, p.last)
		p.snapshotAt = m.now
	}
	if r.Degrade || p.ceiling() <= 0 {
		m.degrade(p)
		return true
	}
	p.degraded = false
	m.dropOversized(p)
	m.advanceQueue(p)
	return true
}

func (p *modelPool) healthy() (urls []string) {
	for _, e := range p.engines {
		if e.Healthy {
			urls = append(urls, e.URL)
		}
	}
	sort.Strings(urls)
	return urls
}

// seen is a round's engines by URL, the first of a repeated one, with measurements clamped.
func seen(engines []ledger.Engine) (out []ledger.Engine) {
	for _, e := range engines {
		if slices.ContainsFunc(out, func(f ledger.Engine) bool { return f.URL == e.URL }) {
			continue
		}
		e.Usage, e.Pressure = unit(e.Usage), unit(e.Pressure)
		e.Capacity = max(0, min(e.Capacity, ledger.MaxTokens))
		if e.Healthy && e.Capacity == 0 {
			e.Healthy, e.Error = false, "no capacity known"
		}
		out = append(out, e)
	}
	sort.Slice(out, func(i, j int) bool { return out[i].URL < out[j].URL })
	return out
}

// unit clamps to [0,1]; what is not a number counts as 0.
func unit(x float64) float64 {
	if x > 1 {
		return 1
	}
	if x > 0 {
		return x
	}
	return 0
}
