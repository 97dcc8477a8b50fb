package sessions

import (
	"context"
	"encoding/json"
	"errors"
	"net/http"
	"net/http/httptest"
	"slices"
	"sync"
	"testing"
	"time"
)

// node is a table behind a lock, as a replica is: the closer reads it and reports to it.
type node struct {
	mu    sync.Mutex
	table *Table
	wake  chan struct{}
	// changed is closed and replaced with every change.
	changed chan struct{}
	// refuse makes that many reports fail.
	refuse  int
	batches int
	// told are all events.
	told  []Event
	start time.Time
}

func newNode(engines ...string) *node {
	n := &node{table: NewTable(), wake: make(chan struct{}, 1), changed: make(chan struct{}), start: time.Now()}
	n.do(func(t *Table) {
		var listed []Engine
		for _, e := range engines {
			listed = append(listed, Engine{e, "i1"})
		}
		t.EnginesChanged("p", listed)
	})
	return n
}

func (n *node) do(fn func(*Table)) {
	n.mu.Lock()
	defer n.mu.Unlock()
	n.table.Expire(Time(time.Since(n.start)), 1000, anyRules)
	fn(n.table)
	n.told = append(n.told, n.table.Events()...)
	n.table.Reset()
	close(n.changed)
	n.changed = make(chan struct{})
	select {
	case n.wake <- struct{}{}:
	default:
	}
}

func (n *node) Work(have func(seq, rev uint64) bool) []Work {
	n.mu.Lock()
	defer n.mu.Unlock()
	n.table.Expire(Time(time.Since(n.start)), 1000, anyRules)
	return n.table.Work(WorkQuery{Have: have})
}

func (n *node) Wake() <-chan struct{} { return n.wake }

func (n *node) Report(_ context.Context, batch []Report) error {
	n.mu.Lock()
	if n.refuse > 0 {
		n.refuse--
		n.mu.Unlock()
		return errors.New("no leader")
	}
	n.batches++
	n.mu.Unlock()
	n.do(func(t *Table) { t.Report(batch) })
	return nil
}

// until waits for a condition on the table, which is checked after every change.
func (n *node) until(t testing.TB, what string, cond func(*Table) bool) {
	t.Helper()
	late := time.After(30 * time.Second)
	for {
		n.mu.Lock()
		ok, changed := cond(n.table), n.changed
		n.mu.Unlock()
		if ok {
			return
		}
		select {
		case <-changed:
		case <-late:
			t.Fatalf("waited too long for %s", what)
		}
	}
}

func (n *node) closeSessions(ids ...string) {
	n.do(func(t *Table) {
		for _, id := range ids {
			_, _ = t.Open(OpenRequest{Pool: "p", ID: id})
			_, _ = t.Close(CloseRequest{Pool: "p", ID: id}, rules)
		}
	})
}

func isState(id string, want State) func(*Table) bool {
	return func(t *Table) bool { v, _ := t.Get("p", id); return v.State == want }
}

// fastOptions make failures quick to get over.
func fastOptions() Options {
	return Options{Poll: 5 * time.Millisecond, Flush: time.Millisecond, FirstRetry: 2 * time.Millisecond, LastRetry: 10 * time.Millisecond}
}

// runCloser runs a closer until the test ends.
func runCloser(t testing.TB, n *node, e Engines, opt Options) *Closer {
	t.Helper()
	c := NewCloser(n, n, e, opt)
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan struct{})
	go func() { defer close(done); c.Run(ctx) }()
	t.Cleanup(func() { cancel(); <-done })
	return c
}

// fakeEngines answers calls with functions, and notes them.
type fakeEngines struct {
	mu    sync.Mutex
	calls []string
	// answer may block; nil means that all is well.
	answer func(ctx context.Context, engine, path, id string) error
}

func (f *fakeEngines) call(ctx context.Context, engine, path, id string) error {
	f.mu.Lock()
	f.calls = append(f.calls, engine+path+" "+id)
	answer := f.answer
	f.mu.Unlock()
	if answer == nil {
		return nil
	}
	return answer(ctx, engine, path, id)
}

func (f *fakeEngines) CloseSession(ctx context.Context, engine, id string) error {
	return f.call(ctx, engine, pathClose, id)
}

func (f *fakeEngines) Abort(ctx context.Context, engine, rid string) error {
	return f.call(ctx, engine, pathAbort, rid)
}

func (f *fakeEngines) heard() []string {
	f.mu.Lock()
	defer f.mu.Unlock()
	out := slices.Clone(f.calls)
	slices.Sort(out)
	return out
}

func TestCloserTellsEveryEngineOnce(t *testing.T) {
	n, f := newNode("e1", "e2"), &fakeEngines{}
	c := runCloser(t, n, f, fastOptions())
	n.closeSessions("a", "b")
	n.until(t, "both closed", func(tab *Table) bool { return isState("a", Closed)(tab) && isState("b", Closed)(tab) })
	equal(t, "calls", f.heard(), []string{"e1/close_session a", "e1/close_session b", "e2/close_session a", "e2/close_session b"})
	equal(t, "status of what is over", len(c.Status("p", "nobody")), 0)
}

func TestCloserRetriesUntilTheEngineAnswers(t *testing.T) {
	for name, failure := range map[string]error{
		"unreachable":  ErrUnreachable,
		"server error": ErrStatus,
		"wrong key":    ErrUnauthorized,
		"refused":      ErrRefused,
	} {
		t.Run(name, func(t *testing.T) {
			left := 5
			f := &fakeEngines{}
			f.answer = func(context.Context, string, string, string) error {
				f.mu.Lock()
				defer f.mu.Unlock()
				if left--; left >= 0 {
					return failure
				}
				return nil
			}
			n := newNode("e1")
			runCloser(t, n, f, fastOptions())
			n.closeSessions("a")
			n.until(t, "closed", isState("a", Closed))
			equal(t, "calls", len(f.heard()), 6)
		})
	}
}

func TestStatusTellsAttemptsAndTheLastError(t *testing.T) {
	tried := make(chan struct{}, 1000)
	f := &fakeEngines{answer: func(context.Context, string, string, string) error { tried <- struct{}{}; return ErrUnauthorized }}
	n := newNode("e1")
	c := runCloser(t, n, f, fastOptions())
	n.closeSessions("a")
	for range 3 {
		<-tried
	}
	s := c.Status("p", "a")
	equal(t, "engines", len(s), 1)
	equal(t, "error", s[0].LastError, ErrUnauthorized.Error())
	if s[0].Engine != "e1" || s[0].Attempts < 2 {
		t.Fatalf("status %+v", s[0])
	}
}

func TestOneHangingEngineDelaysNobody(t *testing.T) {
	f := &fakeEngines{answer: func(ctx context.Context, engine, _, _ string) error {
		if engine == "slow" {
			<-ctx.Done()
			return ErrUnreachable
		}
		return nil
	}}
	n := newNode("e1", "e2", "slow")
	opt := fastOptions()
	opt.CallTimeout = time.Hour
	runCloser(t, n, f, opt)
	var ids []string
	for i := range 200 {
		ids = append(ids, ticketName(i))
	}
	n.closeSessions(ids...)
	n.until(t, "all but the slow one", func(tab *Table) bool { c, _ := tab.Counts("p"); return c.Owed == len(ids) })
	n.do(func(tab *Table) { tab.EnginesChanged("p", []Engine{{"e1", "i1"}, {"e2", "i1"}}) })
	n.until(t, "the slow one left", func(tab *Table) bool { c, _ := tab.Counts("p"); return c.Closed == len(ids) })
}

func TestParallelismIsBounded(t *testing.T) {
	var mu sync.Mutex
	flying, most, byEngine, mostByEngine := 0, 0, map[string]int{}, 0
	f := &fakeEngines{answer: func(_ context.Context, engine, _, _ string) error {
		mu.Lock()
		flying++
		byEngine[engine]++
		most, mostByEngine = max(most, flying), max(mostByEngine, byEngine[engine])
		mu.Unlock()
		defer func() { mu.Lock(); flying--; byEngine[engine]--; mu.Unlock() }()
		return nil
	}}
	n := newNode("e1", "e2", "e3", "e4")
	opt := fastOptions()
	opt.Parallel, opt.PerEngine = 6, 3
	runCloser(t, n, f, opt)
	var ids []string
	for i := range 300 {
		ids = append(ids, ticketName(i))
	}
	n.closeSessions(ids...)
	n.until(t, "all", func(tab *Table) bool { c, _ := tab.Counts("p"); return c.Closed == len(ids) })
	if most > 6 || mostByEngine > 3 {
		t.Fatalf("%d calls at once, %d to one engine", most, mostByEngine)
	}
}

// TestAbortsThatFailDoNotHoldUpCloses: an engine that wants another key for aborts, or hangs on them, hears of
// the closes of other sessions meanwhile.
func TestAbortsThatFailDoNotHoldUpCloses(t *testing.T) {
	for name, answer := range map[string]func(context.Context) error{
		"refused key": func(context.Context) error { return ErrUnauthorized },
		"hangs":       func(ctx context.Context) error { <-ctx.Done(); return ErrUnreachable },
	} {
		t.Run(name, func(t *testing.T) {
			asked := make(chan struct{})
			var once sync.Once
			f := &fakeEngines{answer: func(ctx context.Context, _, path, _ string) error {
				if path == pathAbort {
					once.Do(func() { close(asked) })
					return answer(ctx)
				}
				return nil
			}}
			n := newNode("e1")
			opt := fastOptions()
			opt.CallTimeout = time.Hour
			runCloser(t, n, f, opt)
			patient := rules
			patient.AbortTimeout = time.Hour
			n.do(func(tab *Table) {
				for i := range 20 {
					tab.Started("p", "stuck", "", Flight{Ticket: ticketName(i)})
				}
				must(tab.Close(CloseRequest{Pool: "p", ID: "stuck", Mode: Abort}, patient))(t)
			})
			<-asked
			n.closeSessions("a", "b", "c", "d")
			n.until(t, "the others", func(tab *Table) bool { c, _ := tab.Counts("p"); return c.Closed == 4 })
		})
	}
}

func TestAbortsAreSentOncePerEngineAndGuarded(t *testing.T) {
	f := &fakeEngines{}
	n := newNode("e1", "e2")
	runCloser(t, n, f, fastOptions())
	n.do(func(tab *Table) {
		tab.Started("p", "s", "", Flight{Ticket: "a", RID: "r-1"})
		tab.Started("p", "s", "", Flight{Ticket: "b", RID: "r-2"})
		tab.Started("p", "other", "", Flight{Ticket: "c", RID: "r-10"})
		_, _ = tab.Close(CloseRequest{Pool: "p", ID: "s", Mode: Abort}, rules)
	})
	n.until(t, "the abort of b to be noted", func(tab *Table) bool { _, sum := tab.Counts("p"); return sum.Aborted == 1 })
	equal(t, "calls", f.heard(), []string{"e1/abort_request r-2", "e2/abort_request r-2"})
	n.do(func(tab *Table) { tab.Ended("p", "c", Turn{}) })
	n.until(t, "the abort of a to be noted", func(tab *Table) bool { _, sum := tab.Counts("p"); return sum.Aborted == 2 })
	n.do(func(tab *Table) { tab.Ended("p", "a", Turn{}); tab.Ended("p", "b", Turn{}) })
	n.until(t, "closed", isState("s", Closed))
	equal(t, "calls", len(f.heard()), 6)
}

func TestAReportThatIsNotTakenIsMadeAgain(t *testing.T) {
	n, f := newNode("e1"), &fakeEngines{}
	n.refuse = 3
	runCloser(t, n, f, fastOptions())
	n.closeSessions("a")
	n.until(t, "closed", isState("a", Closed))
	equal(t, "calls", len(f.heard()), 1)
}

func TestANewLeaderCarriesOn(t *testing.T) {
	n := newNode("e1", "e2")
	tried := make(chan struct{}, 1000)
	down := &fakeEngines{answer: func(_ context.Context, engine, _, _ string) error {
		if engine == "e2" {
			tried <- struct{}{}
			return ErrUnreachable
		}
		return nil
	}}
	c := NewCloser(n, n, down, fastOptions())
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan struct{})
	go func() { defer close(done); c.Run(ctx) }()
	n.closeSessions("a")
	n.until(t, "e1 to acknowledge", func(tab *Table) bool { counts, _ := tab.Counts("p"); return counts.Owed == 1 })
	<-tried
	cancel()
	<-done
	equal(t, "status of a leader that was", len(c.Status("p", "a")), 0)
	up := &fakeEngines{}
	runCloser(t, n, up, fastOptions())
	n.until(t, "closed", isState("a", Closed))
	equal(t, "calls", up.heard(), []string{"e2/close_session a"})
}

func TestClientSaysWhatWentWrong(t *testing.T) {
	answer := func(code int, body string) http.HandlerFunc {
		return func(w http.ResponseWriter, _ *http.Request) { w.WriteHeader(code); _, _ = w.Write([]byte(body)) }
	}
	message := func(s string) string {
		raw, _ := json.Marshal(map[string]any{"error": map[string]any{"message": s}})
		return string(raw)
	}
	cut := func(http.ResponseWriter, *http.Request) { panic(http.ErrAbortHandler) }
	closing := func(c *Client, url string) error { return c.CloseSession(t.Context(), url, "s") }
	abort := func(rid string) func(*Client, string) error {
		return func(c *Client, url string) error { return c.Abort(t.Context(), url, rid) }
	}
	open := func(c *Client, url string) error { return c.OpenSession(t.Context(), url, "s", time.Minute) }
	pin := func(c *Client, url string) error {
		only, err := c.PinPrefix(t.Context(), url, []int32{1}, time.Minute)
		if only {
			return errLedgerOnly
		}
		return err
	}
	for name, c := range map[string]struct {
		h    http.HandlerFunc
		call func(*Client, string) error
		want error
	}{
		"close":                    {answer(200, ""), closing, nil},
		"close on a dummy node":    {answer(404, ""), closing, ErrRefused},
		"close without a key":      {answer(401, "{}"), closing, ErrUnauthorized},
		"close while overloaded":   {answer(429, ""), closing, ErrStatus},
		"close of a broken engine": {answer(500, "oops"), closing, ErrStatus},
		"close by redirect":        {answer(302, ""), closing, ErrStatus},
		"close cut short":          {cut, closing, ErrUnreachable},
		"abort":                    {answer(200, ""), abort("r"), nil},
		"abort of all":             {answer(200, ""), abort(""), ErrInvalid},
		"open":                     {answer(200, `"s"`), open, nil},
		"open again":               {answer(400, message("Failed to open the session. Check if a session with the same id is still open.")), open, nil},
		"open, simulated":          {answer(400, message("session id already exists")), open, nil},
		"open, switched off":       {answer(400, message("Streaming sessions are disabled. Please relaunch with --enable-streaming-session.")), open, ErrStreamingOff},
		"open, bad body":           {answer(400, message("timeout: wrong")), open, ErrRefused},
		"pin":                      {answer(200, `{"success":true}`), pin, nil},
		"pin of nothing":           {answer(200, `{"success":false}`), pin, ErrRefused},
		"pin, endpoint not there":  {answer(404, ""), pin, errLedgerOnly},
		"pin, broken":              {answer(500, ""), pin, ErrStatus},
	} {
		t.Run(name, func(t *testing.T) {
			s := httptest.NewServer(c.h)
			defer s.Close()
			client := NewClient(nil, Keys{})
			defer client.CloseIdleConnections()
			if err := c.call(client, s.URL+"/"); !errors.Is(err, c.want) {
				t.Fatalf("got %v, want %v", err, c.want)
			}
		})
	}
	client := NewClient(nil, Keys{})
	for _, url := range []string{"http://127.0.0.1:1", "http://bad host", "::"} {
		if err := client.CloseSession(t.Context(), url, "s"); !errors.Is(err, ErrUnreachable) {
			t.Errorf("%s: got %v, want %v", url, err, ErrUnreachable)
		}
	}
}

var errLedgerOnly = errors.New("ledger only")

func TestAnAbortIsNotedOnlyOnceEveryEngineWasAsked(t *testing.T) {
	heal := make(chan struct{})
	asked := make(chan struct{}, 1)
	f := &fakeEngines{answer: func(ctx context.Context, engine, _, _ string) error {
		if engine == "e2" {
			asked <- struct{}{}
			select {
			case <-heal:
			case <-ctx.Done():
			}
		}
		return ctx.Err()
	}}
	n := newNode("e1", "e2")
	answered := make(chan struct{}, 2)
	opt := fastOptions()
	opt.CallTimeout = time.Hour
	opt.Observe = func(Call) { answered <- struct{}{} }
	c := runCloser(t, n, f, opt)
	n.do(func(tab *Table) {
		tab.Started("p", "s", "", Flight{Ticket: "a"})
		_, _ = tab.Close(CloseRequest{Pool: "p", ID: "s", Mode: Abort}, rules)
	})
	<-asked
	<-answered
	c.mu.Lock()
	pending := len(c.desk.pending)
	c.mu.Unlock()
	n.mu.Lock()
	equal(t, "reports", n.batches+pending, 0)
	n.mu.Unlock()
	close(heal)
	n.until(t, "the abort to be noted", func(tab *Table) bool { _, sum := tab.Counts("p"); return sum.Aborted == 1 })
}
