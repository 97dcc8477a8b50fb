package sessions

import (
	"context"
	"fmt"
	"strings"
	"testing"
	"testing/synctest"
	"time"
)

// TestCloserKeepsItsRate: calls to engines that answer at once go out as fast as Options.Rate allows, and no faster.
func TestCloserKeepsItsRate(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		const engines, closes, rate, parallel = 10, 10, 100, 4
		var urls, ids []string
		for i := range engines {
			urls = append(urls, fmt.Sprint("http://e", i))
		}
		for i := range closes {
			ids = append(ids, fmt.Sprint("s", i))
		}
		n := newNode(urls...)
		var at []time.Duration
		fake := &fakeEngines{}
		start := time.Now()
		fake.answer = func(context.Context, string, string, string) error {
			fake.mu.Lock()
			defer fake.mu.Unlock()
			at = append(at, time.Since(start))
			return nil
		}
		opt := fastOptions()
		opt.Rate, opt.Parallel = rate, parallel
		runCloser(t, n, fake, opt)
		n.closeSessions(ids...)
		for _, id := range ids {
			n.until(t, "session "+id+" to be closed", isState(id, Closed))
		}
		synctest.Wait()
		fake.mu.Lock()
		defer fake.mu.Unlock()
		if len(at) != engines*closes {
			t.Fatalf("%d calls, want %d", len(at), engines*closes)
		}
		for k, when := range at {
			if earliest := time.Duration(k+1-parallel) * time.Second / rate; when < earliest {
				t.Errorf("call %d went out after %v, allowed after %v", k, when, earliest)
			}
		}
		if last, bound := at[len(at)-1], (engines*closes-parallel)*time.Second/rate; last > bound+50*time.Millisecond {
			t.Errorf("the last call went out after %v, allowed after %v", last, bound)
		}
	})
}

// TestRefusedCallsLeaveRoom: an engine that refuses the closes of many sessions, again and again and as fast as the
// rate allows, still hears of the others soon.
func TestRefusedCallsLeaveRoom(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		const many, rate = 200, 100
		n := newNode("http://e")
		var refused []string
		for i := range many {
			refused = append(refused, fmt.Sprint("refused", i))
		}
		fake := &fakeEngines{answer: func(_ context.Context, _, _, session string) error {
			if strings.HasPrefix(session, "refused") {
				return ErrRefused
			}
			return nil
		}}
		opt := fastOptions()
		opt.Rate = rate
		runCloser(t, n, fake, opt)
		n.closeSessions(refused...)
		time.Sleep(3 * many * time.Second / rate) // all were refused once, and ask for more than the rate
		begun := time.Now()
		n.closeSessions("a", "b", "c")
		for _, id := range []string{"a", "b", "c"} {
			n.until(t, id+" to be closed", isState(id, Closed))
		}
		if took := time.Since(begun); took > 10*time.Second/rate+opt.Poll {
			t.Errorf("it took %v", took)
		}
	})
}

// TestAbortsDoNotWaitForTheRate: their time is short, so they go out at once, amid closes that wait.
func TestAbortsDoNotWaitForTheRate(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		n := newNode("http://e0", "http://e1")
		opt := fastOptions()
		opt.Rate, opt.Parallel, opt.PerEngine = 1, 8, 4
		fake := &fakeEngines{}
		runCloser(t, n, fake, opt)
		var closed, tickets []string
		for i := range 100 {
			closed, tickets = append(closed, fmt.Sprint("c", i)), append(tickets, fmt.Sprintf("t%02d", i))
		}
		n.closeSessions(closed...)
		begun := time.Now()
		n.abortAll(t, tickets...)
		n.until(t, "every abort to be told", func(tab *Table) bool { return tab.pools["p"].Totals.Aborted == int64(len(tickets)) })
		if took := time.Since(begun); took > time.Second {
			t.Errorf("%d aborts took %v", 2*len(tickets), took)
		}
		fake.mu.Lock()
		defer fake.mu.Unlock()
		closes := 0
		for _, call := range fake.calls {
			if strings.Contains(call, pathClose) {
				closes++
			}
		}
		if closes > opt.Parallel+1 {
			t.Errorf("%d closes went out meanwhile, the rate allows %d", closes, opt.Parallel+1)
		}
	})
}
