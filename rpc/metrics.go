package rpc

import (
	"context"
	"fmt"
	"net/http"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/collectors"
	"github.com/prometheus/client_golang/prometheus/promhttp"

	"kvgate/fsm"
	"kvgate/ledger"
)

// register adds everything the server exports to the registry.
func register(registry *prometheus.Registry, b Backend, closes *CloseMetrics) (*callMetrics, error) {
	calls := newCallMetrics()
	if closes == nil {
		closes = NewCloseMetrics()
	}
	for _, c := range []prometheus.Collector{
		calls.seconds, calls.errors, calls.untracked, calls.streams, calls.desks,
		closes.seconds, closes.calls,
		&collector{backend: b, status: b.Status},
		&sessionCollector{reader: b, ledger: b},
		collectors.NewGoCollector(),
		collectors.NewProcessCollector(collectors.ProcessCollectorOpts{}),
	} {
		if err := registry.Register(c); err != nil {
			return nil, fmt.Errorf("register metrics: %w", err)
		}
	}
	return calls, nil
}

func metricsHandler(registry *prometheus.Registry) http.Handler {
	return promhttp.HandlerFor(registry, promhttp.HandlerOpts{ErrorHandling: promhttp.ContinueOnError})
}

// viewTimeout bounds one collection; a stale view takes micro- to milliseconds.
const viewTimeout = 5 * time.Second

// collector reads the node's own ledger when it is scraped, so that nothing has to be kept up to date
// in between. Every node exports the replicated counters: they agree up to how far each has applied,
// so dashboards take the maximum over the nodes and never the sum. Ids of tickets, leases, sessions
// and holders are never labels; engines are, since a fleet has few.
type collector struct {
	backend viewer
	status  func() fsm.Status
}

// series is one metric of T with the labels pool and, for some, one more.
type series[T any] struct {
	desc  *prometheus.Desc
	kind  prometheus.ValueType
	value func(T) float64
}

func count[T any](name, help string, value func(T) float64) series[T] {
	return series[T]{prometheus.NewDesc("agentic_kv_"+name, help, []string{"pool"}, nil), prometheus.CounterValue, value}
}

func gauge[T any](name, help string, value func(T) float64) series[T] {
	return series[T]{prometheus.NewDesc("agentic_kv_"+name, help, []string{"pool"}, nil), prometheus.GaugeValue, value}
}

func engineGauge(name, help string, value func(*ledger.Engine) float64) series[*ledger.Engine] {
	return series[*ledger.Engine]{
		prometheus.NewDesc("agentic_kv_engine_"+name, help, []string{"pool", "engine"}, nil), prometheus.GaugeValue, value,
	}
}

func raftGauge(name, help string, value func(fsm.Status) float64) series[fsm.Status] {
	return series[fsm.Status]{prometheus.NewDesc("agentic_kv_raft_"+name, help, nil, nil), prometheus.GaugeValue, value}
}

var bypassDesc = prometheus.NewDesc("agentic_kv_bypass_total", "Attempts let go without a lease, by reason.", []string{"pool", "reason"}, nil)

var counterSeries = []series[ledger.Counters]{
	count("admit_total", "Leases granted.", func(c ledger.Counters) float64 { return float64(c.Admit) }),
	count("wait_total", "Attempts that had to wait.", func(c ledger.Counters) float64 { return float64(c.Wait) }),
	count("cancelled_total", "Attempts cancelled.", func(c ledger.Counters) float64 { return float64(c.Cancelled) }),
	count("released_total", "Leases released.", func(c ledger.Counters) float64 { return float64(c.Released) }),
	count("renewed_total", "Lease renewals.", func(c ledger.Counters) float64 { return float64(c.Renewed) }),
	count("lease_expired_total", "Leases reclaimed at their deadline.", func(c ledger.Counters) float64 { return float64(c.LeaseExpired) }),
	count("holder_expired_total", "Holders that went silent and lost their leases and waiters.", func(c ledger.Counters) float64 { return float64(c.HolderExpired) }),
	count("abandoned_total", "Waiters dropped because no caller came back for them.", func(c ledger.Counters) float64 { return float64(c.Abandoned) }),
	count("unclaimed_total", "Grants reclaimed because no caller came back for them.", func(c ledger.Counters) float64 { return float64(c.Unclaimed) }),
	count("waited_grants_total", "Leases granted after waiting.", func(c ledger.Counters) float64 { return float64(c.WaitedGrants) }),
	count("waited_seconds_total", "Time in the queue of leases granted after waiting.", func(c ledger.Counters) float64 { return c.WaitedTime.Seconds() }),
	count("usage_reports_total", "Releases that reported usage.", func(c ledger.Counters) float64 { return float64(c.Reports) }),
	count("reported_reserved_tokens_total", "Tokens reserved by attempts that reported usage.", func(c ledger.Counters) float64 { return float64(c.ReportedReserved) }),
	count("reported_used_tokens_total", "Tokens that those attempts used.", func(c ledger.Counters) float64 { return float64(c.ReportedUsed) }),
	count("reported_cached_tokens_total", "Prompt tokens that those attempts found cached.", func(c ledger.Counters) float64 { return float64(c.ReportedCached) }),
}

var budgetSeries = []series[ledger.Budget]{
	gauge("ceiling_tokens", "Tokens that may be reserved at once.", func(b ledger.Budget) float64 { return float64(b.Ceiling) }),
	gauge("reserved_tokens", "Tokens reserved by leases.", func(b ledger.Budget) float64 { return float64(b.Reserved) }),
	gauge("available_tokens", "Tokens that may still be reserved.", func(b ledger.Budget) float64 { return float64(b.Available()) }),
	gauge("leases", "Leases held.", func(b ledger.Budget) float64 { return float64(b.Leases) }),
	gauge("waiting", "Attempts in the queue.", func(b ledger.Budget) float64 { return float64(b.Waiting) }),
	gauge("oldest_wait_seconds", "How long the head of the queue has waited.", func(b ledger.Budget) float64 { return b.OldestWait.Seconds() }),
	gauge("pressure", "Worst engine token usage, 0 to 1.", func(b ledger.Budget) float64 { return b.Pressure }),
	gauge("pressure_threshold", "Pressure at and above which nothing new is granted.", func(b ledger.Budget) float64 { return b.PressureThreshold }),
	gauge("epoch", "Generation of the engine set.", func(b ledger.Budget) float64 { return float64(b.Epoch) }),
	gauge("degraded", "1 while the pool lets everything bypass for want of a capacity snapshot.", func(b ledger.Budget) float64 { return oneIf(b.Degraded) }),
	gauge("admission_enabled", "1 while admission is on.", func(b ledger.Budget) float64 { return oneIf(b.Admission) }),
}

var snapshotAge = gauge("snapshot_age_seconds", "Age of the newest capacity snapshot; absent before the first.",
	func(c ledger.CapacityView) float64 { return c.Age.Seconds() })

var engineSeries = []series[*ledger.Engine]{
	engineGauge("healthy", "1 while the engine counts towards the ceiling.", func(e *ledger.Engine) float64 { return oneIf(e.Healthy) }),
	engineGauge("capacity_tokens", "KV-cache capacity.", func(e *ledger.Engine) float64 { return float64(e.Capacity) }),
	engineGauge("used_tokens", "KV-cache tokens in use.", func(e *ledger.Engine) float64 { return float64(e.Used) }),
	engineGauge("evictable_tokens", "Cached prefixes of idle sessions, in tokens.", func(e *ledger.Engine) float64 { return float64(e.Evictable) }),
	engineGauge("usage", "Used over capacity, 0 to 1.", func(e *ledger.Engine) float64 { return e.Usage }),
	engineGauge("pressure", "Worst usage over the DP ranks, 0 to 1.", func(e *ledger.Engine) float64 { return e.Pressure }),
	engineGauge("running_requests", "Requests that decode.", func(e *ledger.Engine) float64 { return float64(e.Running) }),
	engineGauge("queued_requests", "Requests in the engine's own queue.", func(e *ledger.Engine) float64 { return float64(e.Queued) }),
	engineGauge("eviction_rate", "Evicted tokens per second.", func(e *ledger.Engine) float64 { return e.EvictionRate }),
}

var raftSeries = []series[fsm.Status]{
	raftGauge("term", "Raft term.", func(s fsm.Status) float64 { return float64(s.Term) }),
	raftGauge("applied_index", "Last log index applied.", func(s fsm.Status) float64 { return float64(s.AppliedIndex) }),
	raftGauge("commit_index", "Last log index known to be committed.", func(s fsm.Status) float64 { return float64(s.CommitIndex) }),
	raftGauge("is_leader", "1 on the node that leads.", func(s fsm.Status) float64 { return oneIf(s.State == "leader") }),
	raftGauge("has_leader", "1 while a leader is known.", func(s fsm.Status) float64 { return oneIf(s.LeaderID != "") }),
	raftGauge("writable", "1 while the node can write to its disk.", func(s fsm.Status) float64 { return oneIf(s.Writable) }),
	raftGauge("failure_tolerance", "Voters that may fail before the cluster stops deciding.", func(s fsm.Status) float64 { return float64(s.FailureTolerance) }),
}

func oneIf(b bool) float64 {
	if b {
		return 1
	}
	return 0
}

// Describe implements prometheus.Collector.
func (c *collector) Describe(ch chan<- *prometheus.Desc) {
	describe(ch, raftSeries)
	describe(ch, counterSeries)
	describe(ch, budgetSeries)
	describe(ch, engineSeries)
	ch <- snapshotAge.desc
	ch <- bypassDesc
}

func describe[T any](ch chan<- *prometheus.Desc, all []series[T]) {
	for _, s := range all {
		ch <- s.desc
	}
}

func emit[T any](ch chan<- prometheus.Metric, all []series[T], v T, labels ...string) {
	for _, s := range all {
		send(ch, s.desc, s.kind, s.value(v), labels...)
	}
}

// send reports a metric that cannot be made, such as one whose label is not UTF-8, instead of
// panicking over what an engine calls itself.
func send(ch chan<- prometheus.Metric, desc *prometheus.Desc, kind prometheus.ValueType, value float64, labels ...string) {
	m, err := prometheus.NewConstMetric(desc, kind, value, labels...)
	if err != nil {
		m = prometheus.NewInvalidMetric(desc, err)
	}
	ch <- m
}

// poolFacts is what one pool exports.
type poolFacts struct {
	name     string
	budget   ledger.Budget
	totals   ledger.Counters
	capacity ledger.CapacityView
}

// Collect implements prometheus.Collector. When the ledger cannot be read, the raft series still tell
// why.
func (c *collector) Collect(ch chan<- prometheus.Metric) {
	emit(ch, raftSeries, c.status())
	for _, p := range c.pools() {
		emit(ch, counterSeries, p.totals, p.name)
		emit(ch, budgetSeries, p.budget, p.name)
		if p.capacity.Snapshot {
			emit(ch, []series[ledger.CapacityView]{snapshotAge}, p.capacity, p.name)
		}
		for i := range p.capacity.Engines {
			emit(ch, engineSeries, &p.capacity.Engines[i], p.name, p.capacity.Engines[i].URL)
		}
		for reason, n := range p.totals.Bypass {
			if reason != int(ledger.ReasonUnspecified) && reason != int(ledger.CapacityAvailable) {
				send(ch, bypassDesc, prometheus.CounterValue, float64(n), p.name, ledger.Reason(reason).String())
			}
		}
	}
}

// pools copies the facts out of the ledger in one short view.
func (c *collector) pools() []poolFacts {
	ctx, cancel := context.WithTimeout(context.Background(), viewTimeout)
	defer cancel()
	var out []poolFacts
	err := c.backend.View(ctx, true, func(l *ledger.Ledger) {
		for _, name := range l.Pools() {
			p := poolFacts{name: name}
			p.budget, _ = l.Budget(name)
			p.totals, _ = l.Totals(name)
			p.capacity, _ = l.Capacity(name)
			out = append(out, p)
		}
	})
	if err != nil {
		return nil
	}
	return out
}
