package bench

import (
	"context"
	"fmt"
	"log/slog"
	"slices"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"kvgate/rpc/client"
)

// library is a side that uses the client library, as one process with many tickets does.
type library struct {
	name    string
	servers []int
	client  *client.Client
	tickets *atomic.Uint64
}

func newLibrary(b *testing.B, name string, of *api, tickets *atomic.Uint64, opts ...client.Option) *library {
	c, err := client.New([]string{of.url}, append([]client.Option{client.WithLogger(slog.New(slog.DiscardHandler))}, opts...)...)
	if err != nil {
		b.Fatal(err)
	}
	b.Cleanup(func() {
		if err := c.Close(context.Background()); err != nil {
			b.Error(err)
		}
	})
	return &library{name, of.servers, c, tickets}
}

func (l *library) String() string { return l.name }

func (l *library) pids() []int { return l.servers }

// run fails at any answer but the expected one. A pair ends when its release is known.
func (l *library) run(ctx context.Context, callers int, length time.Duration) (round, error) {
	var group sync.WaitGroup
	times, failures := make([][]time.Duration, callers), make([]error, callers)
	began := time.Now()
	for i := range callers {
		group.Go(func() { times[i], failures[i] = l.caller(ctx, began.Add(length)) })
	}
	group.Wait()
	return summary(l.name, slices.Concat(times...), time.Since(began), failures)
}

func (l *library) caller(ctx context.Context, end time.Time) (times []time.Duration, err error) {
	for {
		start := time.Now()
		if start.After(end) {
			return times, nil
		}
		grant, err := l.client.Acquire(ctx, client.Request{
			Ticket: fmt.Sprintf("rollout-%08d:0", l.tickets.Add(1)), PromptTokens: 4000, MaxNewTokens: 96,
		})
		if err != nil {
			return times, err
		}
		if grant.Action != client.Admit {
			return times, fmt.Errorf("acquire answers %+v", grant.Decision)
		}
		times = append(times, time.Since(start))
		if err := grant.ReleaseWait(ctx); err != nil {
			return times, err
		}
	}
}

// BenchmarkMultiplexed compares one process whose tickets share a stream, or batches, with the same
// process making a call for every operation; three durable nodes, pairs known to be released.
func BenchmarkMultiplexed(b *testing.B) {
	cluster := startCluster(b)
	var tickets atomic.Uint64
	stream := newLibrary(b, "stream", cluster, &tickets)
	unary := newLibrary(b, "unary", cluster, &tickets, client.WithMultiplex(false))
	for b.Loop() {
		compare(b, []side{stream, unary}, []int{16, 256, 1024})
	}
}

// BenchmarkLibrary compares one process that uses the client library with one that uses etcd's client and keys of its
// own, which decide nothing; three nodes and three members.
func BenchmarkLibrary(b *testing.B) {
	var tickets atomic.Uint64
	sides := []side{newLibrary(b, "library", startCluster(b), &tickets), startEtcd(b)}
	for b.Loop() {
		compare(b, sides, []int{256, 1024})
	}
}
