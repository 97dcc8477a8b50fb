package sessions

import (
	"bytes"
	"encoding/json"
	"errors"
	"io"
	"net/http"
	"testing"
	"time"

	"kvgate/integration/enginesim"
)

// fleet starts simulated engines and a node that lists them.
func fleet(t *testing.T, n int, cfg enginesim.Config) (*node, []*enginesim.Engine) {
	t.Helper()
	f, err := enginesim.StartFleet(enginesim.FleetConfig{Count: n, Engine: cfg})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = f.Close() })
	var urls []string
	for _, e := range f.Engines {
		urls = append(urls, e.URL())
	}
	return newNode(urls...), f.Engines
}

func newTestClient(t testing.TB, keys Keys) *Client {
	c := NewClient(nil, keys)
	t.Cleanup(c.CloseIdleConnections)
	return c
}

// generate runs one turn to its end.
func generate(t *testing.T, engine, session, rid string, from, prompt, output int) {
	t.Helper()
	ids := make([]int, prompt)
	for i := range ids {
		ids[i] = from + i
	}
	raw, err := json.Marshal(map[string]any{"rid": rid, "session_id": session, "input_ids": ids,
		"sampling_params": map[string]any{"max_new_tokens": output, "ignore_eos": true}})
	if err != nil {
		t.Fatal(err)
	}
	c := &http.Client{Transport: &http.Transport{DisableKeepAlives: true}}
	resp, err := c.Post(engine+"/generate", "application/json", bytes.NewReader(raw))
	if err != nil {
		t.Error(err)
		return
	}
	defer resp.Body.Close()
	_, _ = io.Copy(io.Discard, resp.Body)
}

var radixEngine = enginesim.Config{SessionRadix: true, PoolTokens: 100_000, Speed: 50}

func TestCloseAfterTheLastReleaseFreesTheSessionsKV(t *testing.T) {
	n, engines := fleet(t, 2, radixEngine)
	runCloser(t, n, newTestClient(t, Keys{}), fastOptions())
	n.do(func(tab *Table) { tab.Started("p", "s", "", Flight{Ticket: "t"}) })
	turn := make(chan struct{})
	go func() { defer close(turn); generate(t, engines[0].URL(), "s", "t", 0, 500, 200) }()
	n.do(func(tab *Table) { _, _ = tab.Close(CloseRequest{Pool: "p", ID: "s"}, rules) })
	<-turn
	for _, e := range engines {
		equal(t, "closes heard before the release", len(e.ClosedSessions()), 0)
	}
	n.do(func(tab *Table) { tab.Ended("p", "t", Turn{Engine: engines[0].URL()}) })
	n.until(t, "closed", isState("s", Closed))
	for _, e := range engines {
		if err := e.Sync(t.Context()); err != nil {
			t.Fatal(err)
		}
		equal(t, "tombstones", e.Stats().Tombstones, 1)
	}
	equal(t, "resident", engines[0].Stats().Resident, 0)
}

// The trap that the join exists for: the same close sent before the response ended frees nothing.
func TestEarlyCloseFreesNothing(t *testing.T) {
	_, engines := fleet(t, 1, radixEngine)
	e, c := engines[0], newTestClient(t, Keys{})
	generate(t, e.URL(), "s", "t0", 0, 500, 1)
	turn := make(chan struct{})
	go func() { defer close(turn); generate(t, e.URL(), "s", "t1", 0, 600, 3000) }()
	for e.Stats().Running == 0 {
		if err := e.Sync(t.Context()); err != nil {
			t.Fatal(err)
		}
	}
	if err := c.CloseSession(t.Context(), e.URL(), "s"); err != nil {
		t.Fatal(err)
	}
	<-turn
	if err := c.CloseSession(t.Context(), e.URL(), "s"); err != nil {
		t.Fatal(err)
	}
	if err := e.Sync(t.Context()); err != nil {
		t.Fatal(err)
	}
	equal(t, "released", e.Stats().Released, 0)
}

func TestAbortEndsTheTurnThenTheCloseFrees(t *testing.T) {
	n, engines := fleet(t, 2, enginesim.Config{SessionRadix: true, PoolTokens: 100_000, APIKey: "key", AdminKey: "admin"})
	runCloser(t, n, newTestClient(t, Keys{Engine: "key", Admin: "admin"}), fastOptions())
	n.do(func(tab *Table) {
		tab.Started("p", "s", "", Flight{Ticket: "t"})
		_, _ = tab.Close(CloseRequest{Pool: "p", ID: "s", Mode: Abort}, rules)
	})
	n.until(t, "the abort to be noted", func(tab *Table) bool { _, sum := tab.Counts("p"); return sum.Aborted == 1 })
	for _, e := range engines {
		equal(t, "aborted", e.AbortedRIDs(), []string{"t"})
		equal(t, "closed", len(e.ClosedSessions()), 0)
	}
	n.do(func(tab *Table) { tab.Ended("p", "t", Turn{}) })
	n.until(t, "closed", isState("s", Closed))
	for _, e := range engines {
		equal(t, "closed", e.ClosedSessions(), []string{"s"})
	}
}

func TestEnginesThatFailAreToldOnceTheyAreBack(t *testing.T) {
	for name, fault := range map[string]enginesim.Fault{
		"refuses":   {Kind: enginesim.FaultRefuse},
		"hangs":     {Kind: enginesim.FaultHang, Path: "/close_session"},
		"errors":    {Kind: enginesim.FaultStatus, Path: "/close_session", Status: 500},
		"no route":  {Kind: enginesim.FaultStatus, Path: "/close_session", Status: 404},
		"wrong key": {Kind: enginesim.FaultStatus, Path: "/close_session", Status: 401},
	} {
		t.Run(name, func(t *testing.T) {
			n, engines := fleet(t, 2, radixEngine)
			if err := engines[1].Inject(fault); err != nil {
				t.Fatal(err)
			}
			failed := make(chan struct{}, 1000)
			opt := fastOptions()
			opt.CallTimeout = 50 * time.Millisecond
			opt.Observe = func(c Call) {
				if c.Err != nil {
					failed <- struct{}{}
				}
			}
			runCloser(t, n, newTestClient(t, Keys{}), opt)
			n.closeSessions("a", "b")
			n.until(t, "the healthy one", func(tab *Table) bool { c, _ := tab.Counts("p"); return c.Owed == 2 })
			<-failed
			<-failed
			if err := engines[1].Heal(); err != nil {
				t.Fatal(err)
			}
			n.until(t, "the other one", func(tab *Table) bool { c, _ := tab.Counts("p"); return c.Closed == 2 })
			n.until(t, "no failure", func(tab *Table) bool { _, sum := tab.Counts("p"); return sum.CloseFailures == 0 })
		})
	}
}

func TestARestartedEngineOwesNothing(t *testing.T) {
	n, engines := fleet(t, 2, radixEngine)
	if err := engines[1].Inject(enginesim.Fault{Kind: enginesim.FaultStatus, Path: "/close_session", Status: 503}); err != nil {
		t.Fatal(err)
	}
	runCloser(t, n, newTestClient(t, Keys{}), fastOptions())
	n.closeSessions("a")
	n.until(t, "the healthy one", func(tab *Table) bool { c, _ := tab.Counts("p"); return c.Owed == 1 })
	engines[1].Restart()
	n.do(func(tab *Table) {
		tab.EnginesChanged("p", []Engine{{engines[0].URL(), "i1"}, {engines[1].URL(), "i2"}})
	})
	n.until(t, "closed", isState("a", Closed))
	equal(t, "closes heard by the new process", len(engines[1].ClosedSessions()), 0)
}

func TestStreamingOpenAndPinOnARealEngine(t *testing.T) {
	_, on := fleet(t, 1, enginesim.Config{StreamingSessions: true, PinPrefix: true, APIKey: "key"})
	_, off := fleet(t, 1, enginesim.Config{})
	c := newTestClient(t, Keys{Engine: "key"})
	for range 2 {
		if err := c.OpenSession(t.Context(), on[0].URL(), "s", time.Minute); err != nil {
			t.Fatal(err)
		}
	}
	var body struct{ Timeout float64 }
	if err := json.Unmarshal([]byte(on[0].Bodies("/open_session")[0]), &body); err != nil {
		t.Fatal(err)
	}
	equal(t, "timeout", body.Timeout, 90.0)
	if err := c.OpenSession(t.Context(), off[0].URL(), "s", 0); !errors.Is(err, ErrStreamingOff) {
		t.Fatalf("got %v, want %v", err, ErrStreamingOff)
	}
	only, err := c.PinPrefix(t.Context(), off[0].URL(), []int32{1, 2}, 5*time.Minute)
	equal(t, "error", err, nil)
	equal(t, "ledger only", only, true)
	only, err = c.PinPrefix(t.Context(), on[0].URL(), []int32{1, 2}, 5*time.Minute)
	equal(t, "ledger only", only, false)
	if !errors.Is(err, ErrRefused) {
		t.Fatalf("a pin of what is not cached: got %v, want %v", err, ErrRefused)
	}
}
