package rpc

import (
	"context"
	"path"
	"time"

	"connectrpc.com/connect"
	"github.com/prometheus/client_golang/prometheus"
	"google.golang.org/protobuf/reflect/protoreflect"

	kvgatev1 "kvgate/rpc/kvgate/v1"
)

// callMetrics measures calls. The children of the vectors are made ahead: a call costs two reads of
// the clock and two atomic additions.
type callMetrics struct {
	seconds *prometheus.HistogramVec
	errors  *prometheus.CounterVec
	// untracked counts what no ledger can: the bypasses given when the coordinator could not decide.
	untracked *prometheus.CounterVec
	byName    map[string]prometheus.Observer
	// streams counts open Exchange streams, desks the holders that use Submit.
	streams, desks prometheus.Gauge
}

func newCallMetrics() *callMetrics {
	m := &callMetrics{
		seconds: prometheus.NewHistogramVec(prometheus.HistogramOpts{
			Name:    "agentic_kv_rpc_seconds",
			Help:    "Time to answer a call, by method. Acquire includes the time in the queue.",
			Buckets: []float64{.0005, .001, .0025, .005, .01, .025, .05, .1, .25, .5, 1, 2.5, 5, 10, 30, 60},
		}, []string{"method"}),
		errors: prometheus.NewCounterVec(prometheus.CounterOpts{
			Name: "agentic_kv_rpc_errors_total",
			Help: "Calls answered with an error, by method and Connect code.",
		}, []string{"method", "code"}),
		untracked: prometheus.NewCounterVec(prometheus.CounterOpts{
			Name: "agentic_kv_untracked_bypass_total",
			Help: "Acquires of this node let go because the coordinator could not decide, by cause. They are in no ledger and in no other counter.",
		}, []string{"cause"}),
		streams: prometheus.NewGauge(prometheus.GaugeOpts{
			Name: "agentic_kv_exchange_streams", Help: "Open Exchange streams on this node.",
		}),
		desks: prometheus.NewGauge(prometheus.GaugeOpts{
			Name: "agentic_kv_submit_holders", Help: "Holders whose waiters this node keeps between their calls of Submit and AwaitGrants.",
		}),
		byName: map[string]prometheus.Observer{},
	}
	for _, method := range apiMethods() {
		procedure := "/" + string(method.Parent().FullName()) + "/" + string(method.Name())
		m.byName[procedure] = m.seconds.WithLabelValues(methodLabel(method))
	}
	// From 0 on, so that a rate sees the first ones, too.
	for _, cause := range untrackedCauses() {
		m.untracked.WithLabelValues(cause)
	}
	return m
}

// interceptor measures each unary call.
func (m *callMetrics) interceptor() connect.UnaryInterceptorFunc {
	return func(next connect.UnaryFunc) connect.UnaryFunc {
		return func(ctx context.Context, req connect.AnyRequest) (connect.AnyResponse, error) {
			start := time.Now()
			res, err := next(ctx, req)
			if seconds, ok := m.byName[req.Spec().Procedure]; ok {
				seconds.Observe(time.Since(start).Seconds())
			}
			if err != nil {
				m.countError(req.Spec(), err)
			}
			return res, err
		}
	}
}

func (m *callMetrics) countError(spec connect.Spec, err error) {
	if method, ok := spec.Schema.(protoreflect.MethodDescriptor); ok {
		m.errors.WithLabelValues(methodLabel(method), connect.CodeOf(err).String()).Inc()
	}
}

// countOp counts an operation that failed inside of another call.
func (m *callMetrics) countOp(procedure string, err error) {
	m.errors.WithLabelValues(path.Base(procedure), connect.CodeOf(err).String()).Inc()
}

func methodLabel(m protoreflect.MethodDescriptor) string { return string(m.Name()) }

// apiMethods lists the methods of all services of kvgate.v1. Method names are unique across them.
func apiMethods() []protoreflect.MethodDescriptor {
	var out []protoreflect.MethodDescriptor
	for _, file := range []protoreflect.FileDescriptor{
		kvgatev1.File_kvgate_v1_admission_proto,
		kvgatev1.File_kvgate_v1_session_proto,
		kvgatev1.File_kvgate_v1_observe_proto,
		kvgatev1.File_kvgate_v1_cluster_proto,
	} {
		for i := range file.Services().Len() {
			methods := file.Services().Get(i).Methods()
			for j := range methods.Len() {
				out = append(out, methods.Get(j))
			}
		}
	}
	return out
}
