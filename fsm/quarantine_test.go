package fsm

import (
	"context"
	"path/filepath"
	"sync"
	"testing"
	"time"

	"kvgate/ledger"
	"kvgate/sessions"
)

// toldEngines are engines that acknowledge everything and remember what they were asked.
type toldEngines struct {
	mu    sync.Mutex
	calls []string
}

func (e *toldEngines) note(what string) error {
	e.mu.Lock()
	defer e.mu.Unlock()
	e.calls = append(e.calls, what)
	return nil
}

func (e *toldEngines) heard() int {
	e.mu.Lock()
	defer e.mu.Unlock()
	return len(e.calls)
}

func (e *toldEngines) OpenSession(_ context.Context, engine, session string, _ time.Duration) error {
	return e.note("open " + session + " on " + engine)
}

func (e *toldEngines) CloseSession(_ context.Context, engine, session string) error {
	return e.note("close " + session + " on " + engine)
}

func (e *toldEngines) Abort(_ context.Context, engine, rid string) error {
	return e.note("abort " + rid + " on " + engine)
}

func (e *toldEngines) PinPrefix(_ context.Context, engine string, _ []int32, _ time.Duration) (bool, error) {
	return false, e.note("pin on " + engine)
}

func sessionNow(t *testing.T, r *Replica, id string) (v sessions.View) {
	t.Helper()
	must(t, r.Sessions(t.Context(), true, func(table *sessions.Table) { v, _ = table.Get(ledger.DefaultPool, id) }))
	return v
}

// TestQuarantine: a restored node tells no engine anything, be it a close that is still owed or something new,
// until the quarantine is over; then it makes good what is still owed.
func TestQuarantine(t *testing.T) {
	s := startSingle(t) // makes no calls, so what a close owes stays owed
	budget(t, s.Replica, 100, setting("closeDeadline", func(s *ledger.Settings) { s.CloseDeadline = 1000 * time.Hour }),
		setting("pinRatio", func(s *ledger.Settings) { s.PinRatio = 0.5 }))
	_, err := s.OpenSession(t.Context(), sessions.OpenRequest{Pool: ledger.DefaultPool, ID: "old", Kind: sessions.Radix})
	must(t, err)
	_, err = s.CloseSession(t.Context(), sessions.CloseRequest{Pool: ledger.DefaultPool, ID: "old"})
	must(t, err)
	if v := sessionNow(t, s.Replica, "old"); v.State != sessions.Closing {
		t.Fatalf("session is %+v", v)
	}
	archive, _ := saved(t, s.Replica)
	dir := filepath.Join(t.TempDir(), "r1")
	_, err = DirectoryRestore{Archive: archive, DataDir: dir, NodeID: "r1", RaftAddress: "127.0.0.1:0", Log: quiet, Now: time.Now}.Run()
	must(t, err)
	engines := &toldEngines{}
	r := startSingle(t, func(o *Options) { o.NodeID, o.DataDir, o.Bootstrap, o.Engines = "r1", dir, false, engines })
	_, err = r.OpenSession(t.Context(), sessions.OpenRequest{Pool: ledger.DefaultPool, ID: "new", Kind: sessions.Radix})
	must(t, err)
	_, err = r.CloseSession(t.Context(), sessions.CloseRequest{Pool: ledger.DefaultPool, ID: "new"})
	must(t, err)
	_, err = r.OpenSession(t.Context(), sessions.OpenRequest{Pool: ledger.DefaultPool, ID: "streams", Kind: sessions.Streaming, Engine: "http://e:1"})
	must(t, err)
	_, err = r.PinPrefix(t.Context(), sessions.PinRequest{Pool: ledger.DefaultPool, ID: "p", Tokens: 10}, []int32{1, 2})
	must(t, err)
	if engines.heard() > 0 {
		t.Fatalf("in quarantine engines were asked: %v", engines.calls)
	}
	_, err = r.UpdateSettings(t.Context(), ledger.DefaultPool, ledger.Patch{Fields: []string{"quarantine"}})
	must(t, err)
	for _, id := range []string{"old", "new"} {
		eventually(t, id+" is closed", func() bool { return sessionNow(t, r.Replica, id).State == sessions.Closed })
	}
	if engines.heard() != 2 {
		t.Errorf("engines were asked %v, want the two closes", engines.calls)
	}
}
