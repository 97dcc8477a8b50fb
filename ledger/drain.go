package ledger

import (
	"maps"
	"time"
)

// MetricPrefix starts every key of a drained step.
const MetricPrefix = "agentic_kv/"

// DrainStep returns the metrics since the previous drain and starts a new window. The same run and
// step as the last drain answer the same again, so that a retry loses nothing.
func (l *Ledger) DrainStep(pool, run string, step int64) (map[string]float64, error) {
	p, ok := l.pools[pool]
	if !ok {
		return nil, ErrUnknownPool
	}
	if p.Stepped && p.Run == run && p.Step == step {
		return maps.Clone(p.Answer), nil
	}
	p.Answer = p.metrics()
	p.Run, p.Step, p.Stepped = run, step, true
	p.Drained = p.Total
	p.PressureSum, p.PressureCount, p.PressurePeak = 0, 0, 0
	l.touchPool(p, dirtyCounters)
	l.emitPool(p, Event{Kind: KindDrained, Detail: run, Tokens: Tokens(step)})
	return maps.Clone(p.Answer), nil
}

func (p *pool) metrics() map[string]float64 {
	m := map[string]float64{}
	set := func(key string, v float64) { m[MetricPrefix+key] = v }
	p.admissionMetrics(set)
	p.budgetMetrics(set)
	if p.set.Lifecycle {
		set("session/lifecycle_enabled", 1)
	}
	set("session/close", float64(p.Total.Closed-p.Drained.Closed))
	set("session/close_failure", float64(p.Total.CloseFailures-p.Drained.CloseFailures))
	return m
}

func (p *pool) admissionMetrics(set func(string, float64)) {
	t, d := &p.Total, &p.Drained
	var bypass int64
	for r := range reasonCount {
		n := t.Bypass[r] - d.Bypass[r]
		bypass += n
		if n > 0 {
			set("admission/bypass_"+r.String(), float64(n))
		}
	}
	admit, wait := t.Admit-d.Admit, t.Wait-d.Wait
	decisions := float64(admit + wait + bypass)
	set("admission/admit", float64(admit))
	set("admission/bypass", float64(bypass))
	set("admission/wait", float64(wait))
	set("admission/waiting", float64(p.waitingCount()))
	set("admission/cancelled", float64(t.Cancelled-d.Cancelled))
	set("admission/defer_rate", ratio(float64(wait), decisions))
	set("admission/degraded_rate", ratio(float64(t.Bypass[Degraded]-d.Bypass[Degraded]), decisions))
	waited := (t.WaitedTime - d.WaitedTime).Seconds()
	set("admission/wait_seconds_mean", ratio(waited, float64(t.WaitedGrants-d.WaitedGrants)))
}

func (p *pool) budgetMetrics(set func(string, float64)) {
	set("budget/ceiling", float64(p.ceiling))
	set("budget/reserved", float64(p.reserved))
	set("budget/available_tokens", float64(max(0, p.budget()-p.reserved)))
	if p.ceiling > 0 {
		set("budget/reserved_utilization", float64(p.reserved)/float64(p.ceiling))
	}
	set("budget/lease_count", float64(p.leases.len()))
	set("budget/lease_expired", float64(p.Total.LeaseExpired-p.Drained.LeaseExpired))
	mean, peak := p.pressure, p.pressure
	if p.PressureCount > 0 {
		mean, peak = p.PressureSum/float64(p.PressureCount), p.PressurePeak
	}
	set("budget/kv_token_usage_mean", mean)
	set("budget/kv_token_usage_max", peak)
	set("budget/epoch", float64(p.Epoch))
	degraded := 0.0
	if p.Degraded {
		degraded = 1
	}
	set("budget/degraded", degraded)
}

func ratio(a, b float64) float64 {
	if b == 0 {
		return 0
	}
	return a / b
}

// report adds what a release says was really used to the accuracy counters and returns it as text.
func (l *Ledger) report(p *pool, x *lease, u *Usage) string {
	if u == nil {
		return ""
	}
	if u.PromptTokens+u.CompletionTokens > 0 {
		t := &p.Total
		t.Reports++
		t.ReportedReserved += x.Tokens
		t.ReportedUsed += u.PromptTokens + u.CompletionTokens
		t.ReportedCached += u.CachedTokens
		l.touchPool(p, dirtyCounters)
	}
	held := l.meta.Now.Sub(x.GrantedAt).Round(time.Millisecond)
	return usageText(u, held)
}
