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
