package sessions

import (
	"context"
	"fmt"
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
