package ledger_test

import (
	"fmt"
	"testing"
	"time"

	"kvgate/ledger"
)

// hundred returns a ledger whose default pool has 100 tokens.
func hundred(t *testing.T) *ledger.Ledger {
	t.Helper()
	l := ledger.New()
	_, err := l.UpdateSettings(ledger.DefaultPool, ledger.Patch{
		Set: ledger.Settings{Headroom: 1, Staleness: time.Hour, MaxWait: time.Hour}, Fields: []string{"headroom", "staleness", "maxWait"},
	})
	if err != nil {
		t.Fatal(err)
	}
	l.Reconcile(ledger.DefaultPool, ledger.Round{Fresh: true, Engines: []ledger.Engine{{URL: "http://a:1", Healthy: true, Capacity: 100}}})
	return l
}

func turn(t *testing.T, l *ledger.Ledger, session, ticket string, tokens ledger.Tokens) ledger.Action {
	t.Helper()
	d, err := l.Acquire(ledger.Acquire{Pool: ledger.DefaultPool, Ticket: ticket, Session: session, RID: "rid-" + ticket, ReservationTokens: tokens, MaxWait: -1})
	if err != nil {
		t.Fatal(err)
	}
	return d.Action
}

func told(l *ledger.Ledger) (out []string) {
	for _, d := range l.Decisions() {
		out = append(out, d.Ticket+" "+d.Reason.String())
	}
	return out
}

// TestEndSessions: all that the sessions have is gone before the queue advances, and nothing of others.
func TestEndSessions(t *testing.T) {
	l := hundred(t)
	turn(t, l, "s1", "a", 60)
	turn(t, l, "other", "b", 40)
	for i, s := range []string{"s1", "s2", "other"} {
		turn(t, l, s, fmt.Sprint("w", i), 60)
	}
	l.EndSessions([]ledger.Leave{
		{Pool: ledger.DefaultPool, Session: "s1", Waiters: []string{"w0", "none"}, Leases: []string{"a", "b"}},
		{Pool: ledger.DefaultPool, Session: "s2", Waiters: []string{"w1", "w2"}},
		{Pool: "none", Session: "s1", Leases: []string{"a"}},
	})
	if got, want := fmt.Sprint(told(l)), "[w0 session_closing w1 session_closing w2 capacity_available]"; got != want {
		t.Errorf("decisions %s, want %s", got, want)
	}
	if b, _ := l.Budget(ledger.DefaultPool); b.Reserved != 100 || b.Leases != 2 || b.Waiting != 0 {
		t.Errorf("budget %+v", b)
	}
	total, _ := l.Totals(ledger.DefaultPool)
	if total.Bypass[ledger.SessionClosing] != 2 || total.Released != 1 {
		t.Errorf("counters %+v", total)
	}
}

// TestPinnedTokens are kept out of what leases may take, also of a ledger that is loaded.
func TestPinnedTokens(t *testing.T) {
	l := hundred(t)
	turn(t, l, "", "a", 50)
	turn(t, l, "", "big", 90)
	turn(t, l, "", "small", 40)
	l.SetPinned(ledger.DefaultPool, 30)
	if got := fmt.Sprint(told(l)); got != "[big oversized]" {
		t.Errorf("decisions %s: 90 of 70 never fit, and 40 do not now", got)
	}
	m, err := l.DrainStep(ledger.DefaultPool, "", 1)
	if err != nil || m["agentic_kv/budget/available_tokens"] != 20 || m["agentic_kv/budget/ceiling"] != 100 {
		t.Errorf("metrics %v, %v", m, err)
	}
	ld := ledger.NewLoader()
	l.Export(ld.Add)
	ld.SetPinned(ledger.DefaultPool, 30)
	loaded, err := ld.Finish()
	if err != nil {
		t.Fatal(err)
	}
	for _, x := range []*ledger.Ledger{l, loaded} {
		x.Reset()
		x.SetPinned(ledger.DefaultPool, 30)
		if len(told(x)) > 0 {
			t.Errorf("the same again decides %v", told(x))
		}
		x.SetPinned(ledger.DefaultPool, 10)
		if got := fmt.Sprint(told(x)); got != "[small capacity_available]" {
			t.Errorf("decisions %s", got)
		}
	}
}

func TestRequestsNamesEveryLease(t *testing.T) {
	l := hundred(t)
	turn(t, l, "s", "a", 10)
	if _, err := l.Acquire(ledger.Acquire{Pool: ledger.DefaultPool, Ticket: "b", ReservationTokens: 10}); err != nil {
		t.Fatal(err)
	}
	turn(t, l, "s", "waits", 100)
	var got []string
	for _, pool := range []string{ledger.DefaultPool, "none"} {
		l.Requests(pool, func(ticket, session, rid string) { got = append(got, ticket+"/"+session+"/"+rid) })
	}
	if want := "[a/s/rid-a b//b]"; fmt.Sprint(got) != want {
		t.Errorf("requests %v, want %s", got, want)
	}
}

// TestPassCounts what it lets go, and SetNow lets nothing go.
func TestPassCounts(t *testing.T) {
	l := hundred(t)
	for i := range 5 {
		turn(t, l, "", fmt.Sprint(i), 10)
	}
	l.SetNow(ledger.Time(time.Second))
	l.SetNow(0)
	if b, _ := l.Budget(ledger.DefaultPool); l.Now() != ledger.Time(time.Second) || b.Leases != 5 {
		t.Fatalf("now %v with %d leases", l.Now(), b.Leases)
	}
	for _, want := range []struct {
		n    int
		more bool
	}{{3, true}, {2, false}, {0, false}} {
		if n, more := l.Pass(ledger.Time(650*time.Second), 3); n != want.n || more != want.more {
			t.Errorf("let %d go, more %v; want %+v", n, more, want)
		}
	}
}
