package scrape

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"kvgate/ledger"
)

const a, b, c = "http://a:1", "http://b:1", "http://c:1"

func TestRound(t *testing.T) {
	w := newWorld()
	w.router = lists(b, a)
	w.engine[a], w.engine[b] = full(0.25), full(0.5)
	poll(t, w, routed(), nil, func(p *Poller, logs *logbook) {
		pass(time.Second)
		r := w.last(t)
		if !r.Fresh || r.Degrade || r.Discovery != SourceWorkers || len(r.Engines) != 2 || r.Engines[0].URL != a {
			t.Fatalf("round %+v", r)
		}
		want := ledger.Engine{URL: b, Healthy: true, Capacity: 1000, Used: 500, Usage: 0.5, Pressure: 0.5, DPRanks: 1, Role: ledger.RoleRegular}
		if got := row(t, r, b); got != want {
			t.Errorf("got  %+v\nwant %+v", got, want)
		}
		pass(10 * time.Second)
		if st := p.Status(); st.Rounds != 6 || st.Engines != 2 || st.Healthy != 2 || st.LastError != "" || st.Discovery != SourceWorkers {
			t.Errorf("status %+v, want 6 rounds in 11 s", st)
		}
		if n := strings.Count(logs.String(), "\n"); n != 5 {
			t.Errorf("%d log lines for two engines that joined and stay healthy, want 5:\n%s", n, logs)
		}
	})
}

func TestOneBadEngineDoesNotVoidTheRound(t *testing.T) {
	w := newWorld()
	w.router = func(context.Context) (Discovery, error) {
		return Discovery{Source: SourceWorkers, Engines: []Listed{{URL: a}, {URL: b}, {URL: c, Unhealthy: true, Role: ledger.RoleDecode}}}, nil
	}
	w.engine[a], w.engine[c] = full(0.25), full(0.5)
	poll(t, w, routed(), nil, func(*Poller, *logbook) {
		pass(time.Second)
		r := w.last(t)
		if e := row(t, r, a); !r.Fresh || !e.Healthy {
			t.Errorf("the good engine: %+v", e)
		}
		if e := row(t, r, b); e.Healthy || !strings.Contains(e.Error, "connection refused") || e.Capacity != 0 {
			t.Errorf("the engine that is down: %+v", e)
		}
		if e := row(t, r, c); e.Healthy || e.Error != "the router calls it unhealthy" || e.Role != ledger.RoleDecode || e.Capacity != 1000 {
			t.Errorf("the engine that the router calls unhealthy: %+v", e)
		}
	})
}

// 10 % of 256 engines hang: rounds stay under the poll interval, the hanging keep their last good sample
// until poll_timeout, and are scraped one at a time.
func TestHangingEngines(t *testing.T) {
	w := newWorld()
	var urls []string
	for i := range 256 {
		u := fmt.Sprintf("http://e%03d:1", i)
		urls = append(urls, u)
		w.engine[u] = full(0.5)
	}
	w.router = lists(urls...)
	healthy := func() int {
		n := 0
		for _, e := range w.last(t).Engines {
			if e.Healthy {
				n++
			}
		}
		return n
	}
	poll(t, w, routed(), nil, func(p *Poller, _ *logbook) {
		pass(time.Second)
		if n := healthy(); n != 256 {
			t.Fatalf("%d of 256 healthy at first", n)
		}
		w.set(func() {
			for i := range 26 {
				w.engine[urls[i*9]] = hangs
			}
		})
		// The rounds of 2 s and 4 s end with those scrapes still out; that of 2 s waits for them in vain.
		pass(2900 * time.Millisecond)
		if d := p.Status().LastDuration; d >= 2*time.Second {
			t.Errorf("a round took %s", d)
		}
		pass(time.Second)
		if n, st := healthy(), p.Status(); n != 256 || st.LastDuration >= 100*time.Millisecond || st.InFlight != 26 {
			t.Errorf("before poll_timeout %d healthy, status %+v; want 256, nobody waited for, 26 out", n, st)
		}
		pass(3900 * time.Millisecond) // 8.8 s: the round of 8 s, closed at 8.5 s, has seen the scrapes of 2 s fail at 7 s
		if n := healthy(); n != 230 {
			t.Errorf("after poll_timeout %d healthy, want 230", n)
		}
		if e := row(t, w.last(t), urls[0]); e.Error != "no answer within 5s" {
			t.Errorf("error %q", e.Error)
		}
		for _, u := range urls {
			if n := w.scraped(u); n > 5 {
				t.Errorf("%s scraped %d times in 9 s", u, n)
			}
		}
	})
}

// More engines hang than scrapes may work at once; the others still get their turn.
func TestHangingEnginesLeaveTheirSlots(t *testing.T) {
	w := newWorld()
	var urls []string
	for i := range 200 {
		urls = append(urls, fmt.Sprintf("http://e%03d:1", i))
		w.engine[urls[i]] = hangs
	}
	w.engine[urls[199]] = full(0.5)
	w.router = lists(urls...)
	poll(t, w, routed(), nil, func(*Poller, *logbook) {
		pass(1900 * time.Millisecond)
		if e := row(t, w.last(t), urls[199]); !e.Healthy {
			t.Errorf("the engine that answers: %+v", e)
		}
	})
}

// A scrape that does not even end with its context makes the engine unhealthy all the same.
func TestStuckScrape(t *testing.T) {
	w := newWorld()
	w.router = lists(a, b)
	w.engine[a], w.engine[b] = full(0.5), full(0.5)
	poll(t, w, routed(), nil, func(*Poller, *logbook) {
		pass(time.Second)
		w.set(func() {
			w.engine[b] = func(context.Context) (Sample, error) { time.Sleep(time.Minute); return Sample{}, errDown }
		})
		pass(6 * time.Second)
		if e := row(t, w.last(t), b); !e.Healthy {
			t.Errorf("4 s after its scrape began: %+v", e)
		}
		pass(2 * time.Second)
		r := w.last(t)
		if e := row(t, r, b); e.Healthy || e.Error != "no answer within 5s" || !row(t, r, a).Healthy {
			t.Errorf("6 s after its scrape began: %+v", r)
		}
	})
}

// A scrape slower than a round is used when it comes.
func TestSlowEngine(t *testing.T) {
	w := newWorld()
	w.router = lists(a)
	w.engine[a] = func(ctx context.Context) (Sample, error) {
		time.Sleep(3 * time.Second)
		return full(0.5)(ctx)
	}
	poll(t, w, routed(), nil, func(*Poller, *logbook) {
		pass(2500 * time.Millisecond)
		for _, r := range w.all() {
			if r.Fresh {
				t.Errorf("a round without any news is a snapshot: %+v", r)
			}
		}
		pass(18 * time.Second)
		if r := w.last(t); !r.Fresh || !row(t, r, a).Healthy {
			t.Errorf("round %+v", r)
		}
	})
}

func TestNothingAnswers(t *testing.T) {
	w := newWorld()
	w.engine[a] = full(0.5)
	s := routed()
	s.RouterURL, s.EngineURLs = "", []string{a}
	poll(t, w, s, nil, func(*Poller, *logbook) {
		pass(time.Second)
		if r := w.last(t); !r.Fresh || r.Discovery != SourceStatic {
			t.Fatalf("round %+v", r)
		}
		n := w.count()
		w.set(func() { w.engine[a] = nil })
		pass(20 * time.Second)
		if got := w.count() - n; got != 2 {
			t.Fatalf("%d rounds proposed while nothing answers, want 1 for the error text and 1 that gives the engine up", got)
		}
		if r := w.last(t); r.Fresh || !r.Degrade || row(t, r, a).Error == "" {
			t.Errorf("round %+v", r)
		}
		// An answer that is an error is no figure either.
		w.set(func() { w.engine[a] = answers500 })
		pass(2 * time.Second)
		if r := w.last(t); r.Fresh || !r.Degrade || !strings.Contains(row(t, r, a).Error, "500") {
			t.Errorf("round %+v", r)
		}
		w.set(func() { w.engine[a] = full(0.5) })
		pass(2 * time.Second)
		if r := w.last(t); !r.Fresh || !row(t, r, a).Healthy {
			t.Errorf("round %+v", r)
		}
	})
}

func TestEmptyListCountsTwice(t *testing.T) {
	w := newWorld()
	w.router = lists(a)
	w.engine[a] = full(0.5)
	poll(t, w, routed(), nil, func(p *Poller, _ *logbook) {
		pass(time.Second)
		w.set(func() { w.router = lists() })
		pass(2 * time.Second)
		if r, st := w.last(t), p.Status(); r.Degrade || len(r.Engines) != 1 || st.Engines != 1 || w.scraped(a) != 2 {
			t.Errorf("after one empty list: %+v, status %+v; want the engine polled on", r, st)
		}
		pass(2 * time.Second)
		if r := w.last(t); !r.Degrade || !r.Fresh || len(r.Engines) != 0 || r.Reason != "router /workers lists no workers" {
			t.Errorf("after two: %+v", r)
		}
		w.set(func() { w.router = lists(a) })
		pass(2 * time.Second)
		if r := w.last(t); r.Degrade || !row(t, r, a).Healthy {
			t.Errorf("after the workers came back: %+v", r)
		}
	})
}

func TestEmptyListsNotInARow(t *testing.T) {
	w := newWorld()
	w.router = lists(a)
	w.engine[a] = full(0.5)
	s := routed()
	s.Staleness = time.Hour
	poll(t, w, s, nil, func(*Poller, *logbook) {
		pass(time.Second)
		for i, router := range []func(context.Context) (Discovery, error){lists(), lists(a), lists(), routerDown, lists()} {
			w.set(func() { w.router = router })
			pass(2 * time.Second)
			if r := w.last(t); r.Degrade {
				t.Fatalf("degraded in step %d", i)
			}
		}
	})
}

func TestRouterDiesAndReturns(t *testing.T) {
	w := newWorld()
	w.router = lists(a)
	w.engine[a] = full(0.5)
	poll(t, w, routed(), nil, func(p *Poller, logs *logbook) {
		pass(time.Second)
		w.set(func() { w.router = routerDown })
		pass(5 * time.Second) // at 6 s the list of 0 s is not older than 6 s yet
		if r := w.last(t); !r.Fresh || r.Degrade || !row(t, r, a).Healthy {
			t.Errorf("while the list is young: %+v", r)
		}
		pass(2 * time.Second)
		if r := w.last(t); r.Fresh || !r.Degrade || !strings.Contains(r.Reason, "older than 6s") || !strings.Contains(r.Reason, "refused") {
			t.Errorf("when the list is old: %+v", r)
		}
		if st := p.Status(); !strings.Contains(st.LastError, "refused") {
			t.Errorf("status %+v", st)
		}
		w.set(func() { w.router = lists(a) })
		pass(2 * time.Second)
		if r := w.last(t); !r.Fresh || r.Degrade || !row(t, r, a).Healthy {
			t.Errorf("when the router is back: %+v", r)
		}
		if n := strings.Count(logs.String(), "router gives no list"); n != 1 {
			t.Errorf("the outage was logged %d times", n)
		}
	})
}

func TestRouterHangs(t *testing.T) {
	w := newWorld()
	w.router = lists(a)
	w.engine[a] = full(0.5)
	poll(t, w, routed(), nil, func(p *Poller, _ *logbook) {
		pass(time.Second)
		w.set(func() {
			w.router = func(ctx context.Context) (Discovery, error) { <-ctx.Done(); return Discovery{}, unreachable(ctx.Err()) }
		})
		pass(4900 * time.Millisecond)
		if r, st := w.last(t), p.Status(); !r.Fresh || st.Rounds != 3 || st.LastDuration >= 2*time.Second {
			t.Errorf("round %+v, status %+v; want 3 rounds in 5.9 s", r, st)
		}
		pass(4 * time.Second)
		if r := w.last(t); !r.Degrade {
			t.Errorf("when the list is old: %+v", r)
		}
	})
}

func TestStaticListStandsIn(t *testing.T) {
	w := newWorld()
	w.router = routerDown
	w.engine[a], w.engine[b] = full(0.5), full(0.5)
	s := routed()
	s.EngineURLs = []string{b}
	poll(t, w, s, nil, func(*Poller, *logbook) {
		pass(time.Second)
		if r := w.last(t); !r.Fresh || r.Discovery != SourceStatic || !row(t, r, b).Healthy {
			t.Errorf("router never seen: %+v", r)
		}
		w.set(func() { w.router = lists(a) })
		pass(2 * time.Second)
		if r := w.last(t); r.Discovery != SourceWorkers || len(r.Engines) != 1 || !row(t, r, a).Healthy {
			t.Errorf("router up: %+v", r)
		}
		w.set(func() { w.router = routerDown })
		pass(2 * time.Second)
		if r := w.last(t); r.Discovery != SourceWorkers {
			t.Errorf("router just died: %+v", r)
		}
		pass(8 * time.Second)
		if r := w.last(t); r.Degrade || r.Discovery != SourceStatic || !row(t, r, b).Healthy {
			t.Errorf("router long dead: %+v", r)
		}
	})
}

// A new leader polls what the last one knew although the router is down, and keeps incarnations.
func TestKnownEngines(t *testing.T) {
	w := newWorld()
	w.router = routerDown
	w.engine[a] = hangs
	w.engine[b] = full(0.5)
	known := []ledger.Engine{
		{URL: a, Healthy: true, Capacity: 700, Incarnation: "restart-2", Role: ledger.RoleRegular},
		{URL: b, Error: "was down"},
	}
	poll(t, w, routed(), known, func(*Poller, *logbook) {
		pass(1900 * time.Millisecond)
		r := w.last(t)
		if e := row(t, r, a); e != known[0] {
			t.Errorf("an engine that is slow to answer the new leader: %+v", e)
		}
		if e := row(t, r, b); !r.Fresh || !e.Healthy {
			t.Errorf("round %+v", r)
		}
		pass(4900 * time.Millisecond)
		if e := row(t, w.last(t), a); e.Healthy || e.Incarnation != "restart-2" {
			t.Errorf("after poll_timeout: %+v", e)
		}
	})
}

func TestSuppression(t *testing.T) {
	w := newWorld()
	w.router = lists(a)
	w.engine[a] = full(0.5)
	s := routed()
	s.Staleness = 30 * time.Second // a third is five polls
	poll(t, w, s, nil, func(p *Poller, _ *logbook) {
		pass(9 * time.Second)
		if w.count() != 1 || p.Status().Suppressed != 4 {
			t.Errorf("%d rounds proposed in 9 s, %d suppressed; want 1 and 4", w.count(), p.Status().Suppressed)
		}
		pass(2 * time.Second)
		if r := w.last(t); w.count() != 2 || r.Repeats != 4 {
			t.Errorf("%d rounds proposed in 11 s, repeats %d; want 2 and 4", w.count(), r.Repeats)
		}
		w.set(func() { w.engine[a] = full(0.50001) })
		pass(2 * time.Second)
		if w.count() != 2 {
			t.Errorf("a change of 1e-5 was proposed")
		}
		w.set(func() { w.engine[a] = full(0.51) })
		pass(2 * time.Second)
		if r := w.last(t); w.count() != 3 || r.Repeats != 1 || row(t, r, a).Usage != 0.51 {
			t.Errorf("%d rounds, the last %+v; want 3 and one repeat", w.count(), r)
		}
	})
}

// Error texts that a silent round replaced must not survive the recovery, even if it reads as before.
func TestRecoveryIsProposed(t *testing.T) {
	w := newWorld()
	w.engine[a] = full(0.5)
	s := routed()
	s.RouterURL, s.EngineURLs, s.Staleness = "", []string{a}, time.Hour
	poll(t, w, s, nil, func(*Poller, *logbook) {
		pass(3 * time.Second)
		w.set(func() { w.engine[a] = nil })
		pass(2 * time.Second)
		w.set(func() { w.engine[a] = full(0.5) })
		pass(2 * time.Second)
		if r := w.last(t); w.count() != 3 || !r.Fresh || row(t, r, a).Error != "" || r.Repeats != 1 {
			t.Errorf("%d rounds, the last %+v; want the third to be the recovery, with the repeat of 2 s", w.count(), r)
		}
	})
}

func TestRefusedProposalIsRepeated(t *testing.T) {
	w := newWorld()
	w.router = lists(a)
	w.engine[a] = full(0.5)
	w.refuse = errRefused
	s := routed()
	s.Staleness = time.Hour
	poll(t, w, s, nil, func(p *Poller, logs *logbook) {
		pass(5 * time.Second)
		if st := p.Status(); st.Proposed != 0 || !strings.Contains(st.LastError, "not the leader") {
			t.Errorf("status %+v", st)
		}
		if n := strings.Count(logs.String(), "round was not taken"); n != 1 {
			t.Errorf("logged %d times", n)
		}
		w.set(func() { w.refuse = nil })
		pass(2 * time.Second)
		if w.count() != 1 {
			t.Errorf("%d rounds taken", w.count())
		}
		// A refused round may have been applied all the same: what it replaced is proposed again.
		w.set(func() { w.refuse = errRefused; w.engine[a] = full(0.75) })
		pass(2 * time.Second)
		w.set(func() { w.refuse = nil; w.engine[a] = full(0.5) })
		pass(2 * time.Second)
		if w.count() != 2 {
			t.Errorf("%d rounds taken after one was refused, want 2", w.count())
		}
	})
}

func TestEnginesComeAndGo(t *testing.T) {
	w := newWorld()
	w.router = lists(a, b)
	w.engine[a], w.engine[c] = full(0.5), full(0.5)
	w.engine[b] = hangs
	poll(t, w, routed(), nil, func(_ *Poller, logs *logbook) {
		pass(1900 * time.Millisecond)
		w.set(func() { w.router = lists(c) })
		pass(2 * time.Second)
		if r := w.last(t); len(r.Engines) != 1 || !row(t, r, c).Healthy {
			t.Errorf("round %+v, want the new engine alone and healthy in its first round", r)
		}
		// b returns while its first scrape still hangs: no second one may start.
		w.set(func() { w.router = lists(b) })
		pass(2 * time.Second)
		for line, n := range map[string]int{"engine joined": 4, "engine left": 3, "before=\"\"": 1, "another source": 1} {
			if got := strings.Count(logs.String(), line); got != n {
				t.Errorf("%q was logged %d times, want %d:\n%s", line, got, n, logs)
			}
		}
	})
}

func TestUnsupportedIsSaidOnce(t *testing.T) {
	w := newWorld()
	w.router = lists(a, "grpc://g:1")
	w.engine[a] = full(0.5)
	poll(t, w, routed(), nil, func(_ *Poller, logs *logbook) {
		pass(9 * time.Second)
		if n := strings.Count(logs.String(), "grpc://g:1"); n != 1 {
			t.Errorf("said %d times", n)
		}
		w.set(func() { w.router = lists("grpc://g:1") })
		pass(4 * time.Second)
		if r := w.last(t); !r.Degrade || !strings.Contains(r.Reason, "over HTTP") {
			t.Errorf("round %+v", r)
		}
	})
}

func TestSettingsChange(t *testing.T) {
	w := newWorld()
	w.router = lists(a)
	w.engine[a], w.engine[b] = full(0.5), full(0.25)
	poll(t, w, routed(), nil, func(p *Poller, _ *logbook) {
		pass(time.Second)
		s := routed()
		s.RouterURL, s.EngineURLs, s.PollInterval = "", []string{b}, time.Second
		p.Update(s)
		pass(2 * time.Second)
		if r := w.last(t); r.Discovery != SourceStatic || len(r.Engines) != 1 || !row(t, r, b).Healthy {
			t.Errorf("round %+v", r)
		}
		before := p.Status().Rounds
		pass(5 * time.Second)
		if n := p.Status().Rounds - before; n != 5 {
			t.Errorf("%d rounds in 5 s at a poll interval of 1 s", n)
		}
	})
}

// An engine that will not tell its capacity is asked again, but not at each poll.
func TestCapacityIsAskedForAgain(t *testing.T) {
	w := newWorld()
	w.router = lists(a)
	w.engine[a] = func(context.Context) (Sample, error) { return Sample{}, ErrNoCapacity }
	poll(t, w, routed(), nil, func(*Poller, *logbook) {
		pass(40 * time.Second)
		w.set(func() {
			if want := []time.Duration{0, 16 * time.Second, 32 * time.Second}; !slices.Equal(w.asks, want) {
				t.Errorf("asked at %v, want %v: the first polls at least 15 s apart", w.asks, want)
			}
		})
		if e := row(t, w.last(t), a); e.Healthy || e.Error != "capacity unknown" {
			t.Errorf("engine %+v", e)
		}
	})
}

// A list of the router before is not taken for one of the router now.
func TestSettingsChangeWhileAsking(t *testing.T) {
	w := newWorld()
	w.router = func(context.Context) (Discovery, error) {
		time.Sleep(3 * time.Second)
		return list(SourceWorkers, []string{a}), nil
	}
	w.engine[a], w.engine[b] = full(0.5), full(0.5)
	poll(t, w, routed(), nil, func(p *Poller, _ *logbook) {
		pass(time.Second)
		s := routed()
		s.RouterURL, s.EngineURLs = "", []string{b}
		p.Update(s)
		pass(2500 * time.Millisecond)
		if r := w.last(t); len(r.Engines) != 1 || r.Discovery != SourceStatic || w.scraped(a) != 0 {
			t.Errorf("round %+v, old engine scraped %d times", r, w.scraped(a))
		}
	})
}

func TestIncarnation(t *testing.T) {
	at := time.Unix(1000, 0)
	counted := func(evicted float64) Sample {
		return Sample{Capacity: 1, Evicted: evicted, HasEvicted: true, Counters: [len(counters)]float64{evicted, 5}}
	}
	startedAt := func(start, evicted float64) Sample {
		s := counted(evicted)
		s.Start = start
		return s
	}
	for _, tc := range []struct {
		name    string
		before  string
		samples []Sample
		want    string
		rate    float64
	}{
		{"counters grow", "", []Sample{counted(10), counted(30)}, "", 10},
		{"a counter falls", "", []Sample{counted(10), counted(3)}, "restart-1", 0},
		{"a counter vanishes", "", []Sample{counted(10), {Capacity: 1}}, "restart-1", 0},
		{"restarts add up over leaders", "restart-4", []Sample{counted(10), counted(3), counted(2)}, "restart-6", 0},
		{"first sample is no restart", "restart-4", []Sample{counted(10)}, "restart-4", 0},
		{"start time", "", []Sample{startedAt(1.7e9, 5)}, "start-1700000000", 0},
		{"start time stays", "", []Sample{startedAt(1700000000.25, 5), startedAt(1700000000.25, 7)}, "start-1700000000.25", 1},
		{"start time wins over counters", "", []Sample{startedAt(1.7e9, 10), startedAt(1.7e9+60, 90)}, "start-1700000060", 0},
	} {
		t.Run(tc.name, func(t *testing.T) {
			tr := &track{incarnation: tc.before}
			for i, s := range tc.samples {
				s.Info = Info{PerRank: 7}
				tr.take(s, nil, at.Add(time.Duration(i)*2*time.Second))
			}
			if tr.incarnation != tc.want || tr.rate != tc.rate {
				t.Errorf("incarnation %q, rate %v; want %q, %v", tr.incarnation, tr.rate, tc.want, tc.rate)
			}
			// A new process may have another capacity, which must be asked for anew.
			restarted := len(tc.samples) > 1 && tc.want != tc.before && tc.name != "start time stays"
			if forgotten := tr.sample.Info.PerRank == 0; forgotten != restarted {
				t.Errorf("capacity forgotten: %v, want %v", forgotten, restarted)
			}
		})
	}
}
