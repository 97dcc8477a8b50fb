package ledger_test

import (
	"maps"
	"time"

	"kvgate/ledger"
)

// The model's answers to questions, and the counters, all recomputed.

func (m *model) Budget(p *modelPool) ledger.Budget {
	b := ledger.Budget{
		Pool: p.name, Ceiling: p.ceiling(), Reserved: p.reserved(), Epoch: p.epoch, Degraded: p.degraded,
		Pressure: p.pressure(), PressureThreshold: p.set.PressureThreshold, Admission: p.set.Admission,
		Waiting: int64(len(p.waiters)), Leases: int64(len(p.leases)),
	}
	if len(p.waiters) > 0 {
		b.OldestWait = m.now.Sub(p.queue()[0].since)
	}
	return b
}

func (m *model) Leases(p *modelPool) (out []ledger.LeaseView) {
	for _, x := range p.leases {
		out = append(out, ledger.LeaseView{
			Ticket: x.op.Ticket, Grant: x.grant, Epoch: x.epoch, Tokens: x.tokens, Holder: x.op.Holder,
			Session: x.op.Session, Group: x.op.Group, RID: x.op.RID, Held: m.now.Sub(x.at), ExpiresIn: max(0, x.due().Sub(m.now)),
		})
	}
	return out
}

func (m *model) Waiters(p *modelPool) (out []ledger.WaiterView) {
	for i, w := range p.queue() {
		out = append(out, ledger.WaiterView{
			Ticket: w.op.Ticket, Seq: w.seq, Position: i + 1, Tokens: w.tokens, Priority: w.op.Priority,
			Reason: w.reason, Waited: m.now.Sub(w.since), AgesIn: max(0, w.agesAt().Sub(m.now)), Attached: w.attached,
			Holder: w.op.Holder, Session: w.op.Session, Group: w.op.Group,
		})
	}
	return out
}

func (m *model) Holders() (out []ledger.HolderView) {
	for _, p := range m.pools {
		for _, h := range p.active {
			leases, waiters := p.has(h.name)
			out = append(out, ledger.HolderView{
				Pool: p.name, Holder: h.name, LastActive: h.at, Leases: leases, Waiters: waiters,
			})
		}
	}
	return out
}

// Totals counts the facts.
func totals(facts []fact) (c ledger.Counters) {
	for _, f := range facts {
		switch f.kind {
		case "admit":
			c.Admit++
		case "wait":
			c.Wait++
		case "bypass":
			c.Bypass[f.reason]++
		case "cancelled":
			c.Cancelled++
		case "lease_expired":
			c.LeaseExpired++
		case "renewed":
			c.Renewed++
		case "abandoned":
			c.Abandoned++
		case "unclaimed":
			c.Unclaimed++
		case "holder_expired":
			c.HolderExpired++
		case "waited":
			c.WaitedGrants++
			c.WaitedTime += f.waited
		case "released":
			c.Released++
			countUsage(&c, f)
		}
	}
	return c
}

func countUsage(c *ledger.Counters, f fact) {
	if f.usage == nil || f.usage.PromptTokens+f.usage.CompletionTokens <= 0 {
		return
	}
	c.Reports++
	c.ReportedReserved += f.tokens
	c.ReportedUsed += f.usage.PromptTokens + f.usage.CompletionTokens
	c.ReportedCached += f.usage.CachedTokens
}

func (m *model) DrainStep(name, run string, step int64) (map[string]float64, error) {
	p := m.pool(name)
	if p == nil {
		return nil, ledger.ErrUnknownPool
	}
	if p.answered && p.run == run && p.step == step {
		return p.answer, nil
	}
	p.answer = p.metrics(totals(p.facts[p.drained:]))
	p.run, p.step, p.answered = run, step, true
	p.drained, p.samples = len(p.facts), nil
	return maps.Clone(p.answer), nil
}

func (p *modelPool) metrics(c ledger.Counters) map[string]float64 {
	out := map[string]float64{
		"session/close": 0, "session/close_failure": 0,
		"admission/admit": float64(c.Admit), "admission/wait": float64(c.Wait),
		"admission/waiting": float64(len(p.waiters)), "admission/cancelled": float64(c.Cancelled),
		"budget/ceiling": float64(p.ceiling()), "budget/reserved": float64(p.reserved()),
		"budget/available_tokens": float64(max(0, p.ceiling()-p.reserved())),
		"budget/lease_count":      float64(len(p.leases)), "budget/lease_expired": float64(c.LeaseExpired),
		"budget/epoch": float64(p.epoch), "budget/degraded": 0,
	}
	var bypass int64
	for reason, n := range c.Bypass {
		bypass += n
		if n > 0 {
			out["admission/bypass_"+ledger.Reason(reason).String()] = float64(n)
		}
	}
	out["admission/bypass"] = float64(bypass)
	all := float64(c.Admit + c.Wait + bypass)
	out["admission/defer_rate"] = over(float64(c.Wait), all)
	out["admission/degraded_rate"] = over(float64(c.Bypass[ledger.Degraded]), all)
	out["admission/wait_seconds_mean"] = over(float64(c.WaitedTime)/float64(time.Second), float64(c.WaitedGrants))
	out["budget/kv_token_usage_mean"], out["budget/kv_token_usage_max"] = p.usageWindow()
	if p.ceiling() > 0 {
		out["budget/reserved_utilization"] = float64(p.reserved()) / float64(p.ceiling())
	}
	if p.degraded {
		out["budget/degraded"] = 1
	}
	if p.set.Lifecycle {
		out["session/lifecycle_enabled"] = 1
	}
	return prefixed(out)
}

// usageWindow is the mean and peak of the polls since the last drain; of the present pressure when
// there was none.
func (p *modelPool) usageWindow() (mean, peak float64) {
	if len(p.samples) == 0 {
		return p.pressure(), p.pressure()
	}
	for _, s := range p.samples {
		mean += s / float64(len(p.samples))
		peak = max(peak, s)
	}
	return mean, peak
}

func over(a, b float64) float64 {
	if b == 0 {
		return 0
	}
	return a / b
}

func prefixed(in map[string]float64) map[string]float64 {
	out := map[string]float64{}
	for k, v := range in {
		out[ledger.MetricPrefix+k] = v
	}
	return out
}
