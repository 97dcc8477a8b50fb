package sessions

import (
	"context"
	"fmt"
	"net/http"
	"net/http/httptest"
	"sync"
	"testing"
	"time"
)

// BenchmarkFanOut closes 1,000 sessions on 64 engines: over HTTP, with engines that answer at once, and
// as plain calls without a table or a closer for comparison.
func BenchmarkFanOut(b *testing.B) {
	const sessions, engines = 1000, 64
	var urls []string
	for range engines {
		s := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) { w.WriteHeader(http.StatusOK) }))
		b.Cleanup(s.Close)
		urls = append(urls, s.URL)
	}
	var ids []string
	for i := range sessions {
		ids = append(ids, ticketName(i))
	}
	client := newTestClient(b, Keys{})
	perCall := func(b *testing.B) {
		b.ReportMetric(float64(b.Elapsed().Microseconds())/float64(b.N*sessions*engines), "µs/call")
	}
	b.Run("closer", func(b *testing.B) {
		for b.Loop() {
			n := newNode(urls...)
			c := NewCloser(n, n, client, Options{})
			ctx, cancel := context.WithCancel(b.Context())
			var wg sync.WaitGroup
			wg.Go(func() { c.Run(ctx) })
			n.closeSessions(ids...)
			n.until(b, "all", func(tab *Table) bool { c, _ := tab.Counts("p"); return c.Closed == sessions })
			cancel()
			wg.Wait()
		}
		perCall(b)
	})
	b.Run("engines alone", func(b *testing.B) {
		for b.Loop() {
			var wg sync.WaitGroup
			next := make(chan int)
			for range defaultParallel {
				wg.Go(func() {
					for i := range next {
						if err := client.CloseSession(b.Context(), urls[i%engines], ids[i/engines]); err != nil {
							b.Error(err)
						}
					}
				})
			}
			for i := range sessions * engines {
				next <- i
			}
			close(next)
			wg.Wait()
		}
		perCall(b)
	})
}

// BenchmarkTurn is what one turn of a session costs the table, in small and large tables.
func BenchmarkTurn(b *testing.B) {
	for _, n := range []int{1, 100_000} {
		b.Run(fmt.Sprint(n, " sessions"), func(b *testing.B) {
			tab := NewTable()
			for i := range n {
				tab.Started("p", ticketName(i), "", Flight{Ticket: "t" + ticketName(i)})
			}
			tab.Reset()
			b.ReportAllocs()
			for b.Loop() {
				tab.SetNow(tab.Now().Add(time.Millisecond))
				if tab.Gate("p", ticketName(0)) != nil {
					b.Fatal("closed")
				}
				tab.Started("p", ticketName(0), "", Flight{Ticket: "x"})
				tab.Ended("p", "x", Turn{Tokens: 10})
				tab.Reset()
			}
		})
	}
}
