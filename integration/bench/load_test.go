package bench

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"slices"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"connectrpc.com/connect"

	v1 "kvgate/rpc/kvgate/v1"
	"kvgate/rpc/kvgate/v1/kvgatev1connect"
)

// side is what a benchmark compares: servers, and a load on them.
type side interface {
	String() string
	// pids are the processes of the servers.
	pids() []int
	// run has so many callers make pairs for a while.
	run(ctx context.Context, callers int, length time.Duration) (round, error)
}

// api is a side that speaks kvgate's API.
type api struct {
	name    string
	url     string
	servers []int
	client  kvgatev1connect.AdmissionServiceClient
	// tickets numbers the tickets of all rounds.
	tickets atomic.Uint64
}

func newAPI(b *testing.B, name, url string, servers ...int) *api {
	protocols := new(http.Protocols)
	protocols.SetUnencryptedHTTP2(true)
	transport := &http.Transport{Protocols: protocols, DisableCompression: true}
	b.Cleanup(transport.CloseIdleConnections)
	return &api{name: name, url: url, servers: servers, client: kvgatev1connect.NewAdmissionServiceClient(
		&http.Client{Transport: transport}, url, connect.WithAcceptCompression("gzip", nil, nil),
	)}
}

// round is what one round of one side came to.
type round struct {
	// calls per second, two to a pair, and quantiles of the time from a pair's first call to its answer.
	calls    float64
	p50, p99 time.Duration
	// cost is the servers' processor time for each call: what a machine shared with others tells best.
	cost time.Duration
}

func (s *api) String() string { return s.name }

func (s *api) pids() []int { return s.servers }

// run fails at any answer but the expected one.
func (s *api) run(ctx context.Context, callers int, length time.Duration) (round, error) {
	var group sync.WaitGroup
	times, failures := make([][]time.Duration, callers), make([]error, callers)
	began := time.Now()
	for i := range callers {
		group.Go(func() { times[i], failures[i] = s.caller(ctx, i, began.Add(length)) })
	}
	group.Wait()
	took := time.Since(began)
	return summary(s.name, slices.Concat(times...), took, failures)
}

// summary makes a round of the times of all acquires.
func summary(name string, all []time.Duration, took time.Duration, failures []error) (round, error) {
	slices.Sort(all)
	if err := errors.Join(failures...); err != nil || len(all) == 0 {
		return round{}, fmt.Errorf("%s, %d pairs: %w", name, len(all), err)
	}
	return round{
		calls: float64(2*len(all)) / took.Seconds(),
		p50:   all[len(all)/2], p99: all[len(all)*99/100],
	}, nil
}

// caller makes pairs until the end and returns how long each acquire took.
func (s *api) caller(ctx context.Context, id int, end time.Time) (times []time.Duration, err error) {
	holder := fmt.Sprintf("worker-%d", id)
	for {
		ticket := fmt.Sprintf("rollout-%08d:0", s.tickets.Add(1))
		start := time.Now()
		if start.After(end) {
			return times, nil
		}
		lease, err := s.client.Acquire(ctx, connect.NewRequest(&v1.AcquireRequest{
			TicketId: ticket, PromptTokens: 4000, MaxNewTokens: 96, HolderId: holder, SessionId: ticket[:len(ticket)-2],
		}))
		if err != nil {
			return times, err
		}
		if lease.Msg.Action != v1.Action_ACTION_ADMIT {
			return times, fmt.Errorf("acquire answers %v", lease.Msg)
		}
		times = append(times, time.Since(start))
		done, err := s.client.Release(ctx, connect.NewRequest(&v1.ReleaseRequest{
			TicketId: ticket, LeaseId: lease.Msg.LeaseId, Grant: lease.Msg.Grant, HolderId: holder,
		}))
		if err != nil {
			return times, err
		}
		if !done.Msg.Released {
			return times, fmt.Errorf("ticket %s was not released", ticket)
		}
	}
}
