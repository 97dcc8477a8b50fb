package scrape

import (
	"context"
	"fmt"
	"testing"
	"time"

	"kvgate/ledger"
)

func answers500(context.Context) (Sample, error) {
	return Sample{}, fmt.Errorf("%w: GET /metrics answers 500", ErrStatus)
}

// One poll in which no engine gives its figures changes nothing but error texts, although the router
// answers. When it lasts for longer than the staleness bound, the engines are given up.
func TestEveryScrapeFails(t *testing.T) {
	for name, fail := range map[string]func(w *world){
		"both answer 500": func(w *world) { w.engine[a], w.engine[b] = answers500, answers500 },
		"both are down":   func(w *world) { w.engine[a], w.engine[b] = nil, nil },
		"one each":        func(w *world) { w.engine[a], w.engine[b] = answers500, nil },
		"one hangs":       func(w *world) { w.engine[a], w.engine[b] = answers500, hangs },
	} {
		t.Run(name, func(t *testing.T) {
			w := newWorld()
			w.router = lists(a, b)
			w.engine[a], w.engine[b] = full(0.25), full(0.5)
			l := ledger.New()
			w.apply = func(r ledger.Round) { l.Reconcile(ledger.DefaultPool, r) }
			poll(t, w, routed(), nil, func(*Poller, *logbook) {
				pass(time.Second)
				before, _ := l.Budget(ledger.DefaultPool)
				w.set(func() { fail(w) })
				pass(2 * time.Second)
				w.set(func() { w.engine[a], w.engine[b] = full(0.25), full(0.5) })
				pass(6 * time.Second) // a hanging scrape of before ends, too
				if after, _ := l.Budget(ledger.DefaultPool); after.Epoch != before.Epoch || after.Ceiling != before.Ceiling || after.Degraded {
					t.Errorf("after one bad poll: %+v; before: %+v", after, before)
				}
				w.set(func() { fail(w) })
				pass(2 * time.Second)
				n := w.count()
				pass(20 * time.Second)
				for _, r := range w.all()[n:] {
					if r.Fresh {
						t.Errorf("while no engine gives figures: %+v", r)
					}
				}
				if lost, _ := l.Budget(ledger.DefaultPool); !lost.Degraded || lost.Ceiling != 0 {
					t.Errorf("long after the engines were lost: %+v", lost)
				}
				if r := w.last(t); row(t, r, a).Error == "" || row(t, r, b).Error == "" {
					t.Errorf("nothing says what is wrong: %+v", r)
				}
			})
		})
	}
}

// A pool that never had a healthy engine is told at once what is wrong with those it has.
func TestEveryScrapeFailsFromTheStart(t *testing.T) {
	w := newWorld()
	w.router = lists(a, b)
	poll(t, w, routed(), nil, func(*Poller, *logbook) {
		pass(time.Second)
		if r := w.last(t); r.Fresh || !r.Degrade || len(r.Engines) != 2 || r.Reason != "no engine gave its figures" {
			t.Errorf("round %+v", r)
		}
	})
	w = newWorld()
	w.router = lists(a, b)
	poll(t, w, routed(), []ledger.Engine{{URL: a, Healthy: true, Capacity: 700}}, func(*Poller, *logbook) {
		pass(7 * time.Second)
		for _, r := range w.all() {
			if r.Fresh || r.Degrade {
				t.Errorf("after a change of leader: %+v", r)
			}
		}
	})
}

// The router's word that none of its engines is to be used is news, whatever the scrapes bring.
func TestRouterCallsAllUnhealthy(t *testing.T) {
	w := newWorld()
	w.router = lists(a, b)
	w.engine[a], w.engine[b] = full(0.25), full(0.5)
	poll(t, w, routed(), nil, func(*Poller, *logbook) {
		pass(time.Second)
		one := []Listed{{URL: a, Unhealthy: true}, {URL: b}}
		w.set(func() {
			w.engine[b] = answers500
			w.router = func(context.Context) (Discovery, error) { return Discovery{Source: SourceWorkers, Engines: one}, nil }
		})
		pass(2 * time.Second)
		if r := w.last(t); r.Fresh || r.Degrade {
			t.Errorf("the one that the router means to be used fails: %+v", r)
		}
		all := []Listed{{URL: a, Unhealthy: true}, {URL: b, Unhealthy: true}}
		w.set(func() {
			w.engine[a] = nil
			w.router = func(context.Context) (Discovery, error) { return Discovery{Source: SourceWorkers, Engines: all}, nil }
		})
		pass(2 * time.Second)
		if r := w.last(t); !r.Fresh || row(t, r, a).Healthy || row(t, r, b).Healthy {
			t.Errorf("the router means none to be used: %+v", r)
		}
	})
}
