package rpc

import (
	"context"
	"errors"

	"github.com/prometheus/client_golang/prometheus"

	"kvgate/ledger"
	"kvgate/sessions"
)

// CloseMetrics measures the calls of this node's closer. Make it with NewCloseMetrics, hand its Observe to
// the replica and the whole to Options.Closes.
type CloseMetrics struct {
	seconds prometheus.Histogram
	calls   *prometheus.CounterVec
}

// NewCloseMetrics returns metrics that have seen nothing.
func NewCloseMetrics() *CloseMetrics {
	return &CloseMetrics{
		seconds: prometheus.NewHistogram(prometheus.HistogramOpts{
			Name:    "agentic_kv_session_close_seconds",
			Help:    "Time from when an engine had to hear of a close, as this node saw it while it led, until the engine acknowledged it.",
			Buckets: []float64{.005, .01, .025, .05, .1, .25, .5, 1, 2.5, 5, 10, 30, 60, 120},
		}),
		calls: prometheus.NewCounterVec(prometheus.CounterOpts{
			Name: "agentic_kv_session_engine_calls_total",
			Help: "Calls of this node's closer to engines, by call and what came of them.",
		}, []string{"call", "outcome"}),
	}
}

// Observe takes one call that ended. It does not block.
func (m *CloseMetrics) Observe(c sessions.Call) {
	name := "close"
	if c.Path == "/abort_request" {
		name = "abort"
	}
	m.calls.WithLabelValues(name, callOutcome(c.Err)).Inc()
	if name == "close" && c.Err == nil {
		m.seconds.Observe(c.SinceDue.Seconds())
	}
}

// callOutcome names what came of a call to an engine.
func callOutcome(err error) string {
	switch {
	case err == nil:
		return "acknowledged"
	case errors.Is(err, sessions.ErrUnauthorized):
		return "key_refused"
	case errors.Is(err, sessions.ErrRefused):
		return "refused"
	case errors.Is(err, sessions.ErrUnreachable):
		return "unreachable"
	default:
		return "error"
	}
}

// sessionCollector reads the node's own session table when it is scraped. As with the ledger, nodes agree
// up to how far each has applied: take the maximum over the nodes, never the sum. Session ids are
// never labels.
type sessionCollector struct {
	reader SessionReader
	ledger viewer
}

var sessionTotals = []series[sessions.Totals]{
	count("session_open_total", "Sessions opened.", func(t sessions.Totals) float64 { return float64(t.Opened) }),
	count("session_close_total", "Closes that are over.", func(t sessions.Totals) float64 { return float64(t.Closed) }),
	count("session_close_failure_total", "Closes that an engine had not acknowledged by the deadline.", func(t sessions.Totals) float64 { return float64(t.CloseFailures) }),
	count("session_close_idle_total", "Closes begun for idleness.", func(t sessions.Totals) float64 { return float64(t.Idle) }),
	count("session_engine_acknowledged_total", "Engine closes acknowledged.", func(t sessions.Totals) float64 { return float64(t.Acked) }),
	count("session_engine_failed_total", "Engine closes given up at the deadline.", func(t sessions.Totals) float64 { return float64(t.Failed) }),
	count("session_engine_left_total", "Engine closes void because the engine left or was restarted.", func(t sessions.Totals) float64 { return float64(t.Left) }),
	count("session_aborted_tickets_total", "Tickets that engines were asked to abort.", func(t sessions.Totals) float64 { return float64(t.Aborted) }),
}

var sessionGauges = []series[sessions.Counts]{
	gauge("sessions_open", "Sessions open.", func(c sessions.Counts) float64 { return float64(c.Open) }),
	gauge("sessions_closing", "Sessions closing.", func(c sessions.Counts) float64 { return float64(c.Closing) }),
	gauge("session_owed_closes", "Acknowledgements of closes that engines owe.", func(c sessions.Counts) float64 { return float64(c.Owed) }),
	gauge("session_oldest_owed_seconds", "Age of the oldest close that an engine owes an acknowledgement of; 0 when none does.", func(c sessions.Counts) float64 { return c.OldestOwed.Seconds() }),
	gauge("pins", "Pinned prefixes.", func(c sessions.Counts) float64 { return float64(c.Pins) }),
	gauge("pinned_tokens", "Tokens that pins keep out of the ceiling.", func(c sessions.Counts) float64 { return float64(c.Pinned) }),
}

var lifecycleEnabled = gauge("lifecycle_enabled", "1 while engines are told of closed sessions.", oneIf)

// Describe implements prometheus.Collector.
func (c *sessionCollector) Describe(ch chan<- *prometheus.Desc) {
	describe(ch, sessionTotals)
	describe(ch, sessionGauges)
	ch <- lifecycleEnabled.desc
}

// Collect implements prometheus.Collector. A table that cannot be read exports nothing: the raft series
// say why.
func (c *sessionCollector) Collect(ch chan<- prometheus.Metric) {
	ctx, cancel := context.WithTimeout(context.Background(), viewTimeout)
	defer cancel()
	c.collectLifecycle(ctx, ch)
	type facts struct {
		counts sessions.Counts
		totals sessions.Totals
	}
	pools := map[string]facts{}
	err := c.reader.Sessions(ctx, true, func(t *sessions.Table) {
		for _, pool := range t.Pools() {
			counts, totals := t.Counts(pool)
			pools[pool] = facts{counts, totals}
		}
	})
	if err != nil {
		return
	}
	for pool, f := range pools {
		emit(ch, sessionTotals, f.totals, pool)
		emit(ch, sessionGauges, f.counts, pool)
	}
}

func (c *sessionCollector) collectLifecycle(ctx context.Context, ch chan<- prometheus.Metric) {
	on := map[string]bool{}
	_ = c.ledger.View(ctx, true, func(l *ledger.Ledger) {
		for _, pool := range l.Pools() {
			set, _ := l.Settings(pool)
			on[pool] = set.Lifecycle
		}
	})
	for pool, enabled := range on {
		emit(ch, []series[bool]{lifecycleEnabled}, enabled, pool)
	}
}
