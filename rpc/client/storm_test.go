package client

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"log/slog"
	"math/rand/v2"
	"net"
	"net/http"
	"sync"
	"testing"
	"time"

	"connectrpc.com/connect"

	kvgatev1 "kvgate/rpc/kvgate/v1"
)

var stormSeed = flag.Uint64("storm-seed", 0, "seed of the cancellation storm; 0 draws one")

// stormFaults makes one call in seven go wrong in some way.
func stormFaults(random *rand.Rand) func(string) fault {
	unavailable := kvgateError(connect.CodeUnavailable, &kvgatev1.ErrorInfo{Code: "no_leader"})
	return func(string) fault {
		switch random.IntN(28) {
		case 0:
			return fault{loseIt: true}
		case 1:
			return fault{html: http.StatusBadGateway}
		case 2:
			return fault{err: unavailable}
		case 3:
			return fault{delay: time.Duration(random.IntN(20)) * time.Millisecond}
		}
		return fault{}
	}
}

// TestCancellationStorm: hundreds of goroutines whose contexts end at random, against nodes that fail
// at random, over real connections. Afterwards nothing of theirs is left.
func TestCancellationStorm(t *testing.T) {
	seed := *stormSeed
	if seed == 0 {
		seed = rand.Uint64()
	}
	t.Logf("seed %d", seed)
	ledger := newFakeLedger(200)
	var urls []string
	var nodes []*fakeNode
	for i := range 3 {
		node := newFakeNode(ledger)
		node.during(stormFaults(rand.New(rand.NewPCG(seed, uint64(i)))))
		listener, err := net.Listen("tcp", "127.0.0.1:0")
		if err != nil {
			t.Fatal(err)
		}
		go func() { _ = node.server.Serve(listener) }()
		defer func() { _ = node.server.Close() }()
		nodes = append(nodes, node)
		urls = append(urls, "http://"+listener.Addr().String())
	}
	c, err := New(urls, WithLogger(slog.New(slog.DiscardHandler)), WithRetry(time.Millisecond, 20*time.Millisecond))
	if err != nil {
		t.Fatal(err)
	}
	var wg sync.WaitGroup
	for i := range 300 {
		wg.Go(func() { stormWorker(t, c, rand.New(rand.NewPCG(seed, 1000+uint64(i))), i) })
	}
	wg.Wait()
	for _, node := range nodes {
		node.during(nil)
	}
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	if err := c.Close(ctx); err != nil {
		t.Fatal(err)
	}
	leases, waiters := ledger.sizes()
	ledger.mu.Lock()
	reserved := ledger.reserved
	ledger.mu.Unlock()
	if leases != 0 || waiters != 0 || reserved != 0 {
		t.Fatalf("%d leases of %d tokens and %d waiters are left; stats %+v", leases, reserved, waiters, c.Stats())
	}
	if s := c.Stats(); s.Admitted == 0 || s.Cancelled == 0 || s.Retries == 0 || s.ReleaseRetries == 0 {
		t.Fatalf("the storm was none: %+v", s)
	}
}

// stormWorker makes a few turns; every other ticket is used twice.
func stormWorker(t *testing.T, c *Client, random *rand.Rand, id int) {
	for turn := range 6 {
		limit := time.Hour
		if random.IntN(3) > 0 {
			limit = time.Duration(random.IntN(200_000)) * time.Microsecond
		}
		ctx, cancel := context.WithTimeout(context.Background(), limit)
		grant, err := c.Acquire(ctx, Request{
			Ticket: fmt.Sprintf("w%d:%d", id, turn/2), PromptTokens: 1 + int64(id%20),
			Session: fmt.Sprint("s", id), MaxWait: time.Duration(1+random.IntN(100)) * time.Millisecond,
		})
		switch {
		case err == nil:
			if random.IntN(2) == 0 {
				_ = sleep(ctx, time.Millisecond)
			}
			grant.Release(Usage{PromptTokens: 1})
		case errors.Is(err, context.DeadlineExceeded):
		default:
			t.Errorf("Acquire: %v", err)
		}
		cancel()
	}
}
