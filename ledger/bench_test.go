package ledger_test

import (
	"strconv"
	"testing"

	"kvgate/ledger"
)

// newBench returns a ledger with one healthy engine and held leases.
func newBench(b *testing.B, held int) *ledger.Ledger {
	b.Helper()
	l := ledger.New()
	l.Reconcile(ledger.DefaultPool, ledger.Round{Fresh: true, Engines: []ledger.Engine{
		{URL: "http://127.0.0.1:30000", Healthy: true, Capacity: ledger.MaxTokens},
	}})
	for i := range held {
		d, err := l.Acquire(ledger.Acquire{Pool: ledger.DefaultPool, Ticket: "held-" + strconv.Itoa(i), ReservationTokens: 10})
		if err != nil || d.Action != ledger.ActionAdmit {
			b.Fatalf("decision %+v, error %v", d, err)
		}
	}
	l.Reset()
	return l
}

// BenchmarkPair measures one acquire and one release with leases held, as the state machine drives
// them: time moves, and what happened is collected and dropped every 256 operations.
func BenchmarkPair(b *testing.B) {
	for _, held := range []int{0, 100_000, 1_000_000} {
		b.Run("held="+strconv.Itoa(held), func(b *testing.B) { benchPairs(b, newBench(b, held)) })
	}
}

func benchPairs(b *testing.B, l *ledger.Ledger) {
	const ring = 4096
	tickets := make([]string, ring)
	for i := range tickets {
		tickets[i] = "req-" + strconv.Itoa(i) + ":0"
	}
	b.ReportAllocs()
	b.ResetTimer()
	for i := range b.N {
		t := tickets[i%ring]
		d, err := l.Acquire(ledger.Acquire{Pool: ledger.DefaultPool, Ticket: t, PromptTokens: 4000, MaxNewTokens: 96})
		if err != nil || d.Action != ledger.ActionAdmit {
			b.Fatalf("decision %+v, error %v", d, err)
		}
		if !l.Release(ledger.Release{Pool: ledger.DefaultPool, Ticket: t, Grant: d.Seq}) {
			b.Fatal("the lease was gone")
		}
		if i%128 == 0 {
			l.Advance(l.Now()+1000, 0)
			l.Reset()
		}
	}
	b.ReportMetric(float64(b.N)/b.Elapsed().Seconds(), "pairs/s")
}

// newQueue returns a ledger in which n tickets wait behind a lease that fills the pool.
func newQueue(b *testing.B, n int) *ledger.Ledger {
	b.Helper()
	l := newPool(b, 100)
	patch := ledger.Patch{Fields: []string{"maxWaiters"}, Set: ledger.Settings{MaxWaiters: int64(n) + 1}}
	if _, err := l.UpdateSettings(ledger.DefaultPool, patch); err != nil {
		b.Fatal(err)
	}
	acquire(b, l, "hold", 100, "")
	for i := range n {
		if d := acquire(b, l, "w-"+strconv.Itoa(i), 1, ""); d.Action != ledger.ActionWait {
			b.Fatalf("decision %+v", d)
		}
	}
	l.Reset()
	return l
}

// BenchmarkEnqueueCancel measures one ticket that joins and leaves a queue of 100,000.
func BenchmarkEnqueueCancel(b *testing.B) {
	l := newQueue(b, 100_000)
	b.ReportAllocs()
	for i := 0; b.Loop(); i++ {
		if d := acquire(b, l, "x", 1, ""); d.Action != ledger.ActionWait {
			b.Fatalf("decision %+v", d)
		}
		if l.Cancel(ledger.Cancel{Pool: ledger.DefaultPool, Ticket: "x"}) != ledger.CancelWaiting {
			b.Fatal("it did not wait")
		}
		if i%128 == 0 {
			l.Reset()
		}
	}
}

// BenchmarkPosition measures the question for the place of one of 100,000 waiters.
func BenchmarkPosition(b *testing.B) {
	const n = 100_000
	l := newQueue(b, n)
	tickets := make([]string, 1024)
	for i := range tickets {
		tickets[i] = "w-" + strconv.Itoa(i*(n/len(tickets)))
	}
	b.ReportAllocs()
	for i := 0; b.Loop(); i++ {
		at := i % len(tickets)
		v, _ := l.Ticket(ledger.DefaultPool, tickets[at])
		if v.Waiter == nil || v.Waiter.Position != at*(n/len(tickets))+1 {
			b.Fatalf("view %+v", v)
		}
	}
}
