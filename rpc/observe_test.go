package rpc

import (
	"context"
	"errors"
	"fmt"
	"reflect"
	"slices"
	"strings"
	"testing"
	"time"

	"kvgate/fsm"
	"kvgate/ledger"
)

func TestGetBudget(t *testing.T) {
	l := fleet(t)
	ask(t, l, "a", 600)
	ask(t, l, "b", 500)
	l.Advance(ledger.Time(2*time.Second), 0)
	got := start(t, &fakeBackend{ledger: l}).post("ObserveService/GetBudget", `{}`).ok(t)
	want := map[string]any{
		"ceiling": "1000", "reserved": "600", "available": "400", "epoch": "1", "degraded": false, "pressure": 0.25, "waiting": "1", "leases": "1",
		"degradedReason": "", "oldestWait": "2s", "pool": "default", "pressureThreshold": 0.92, "admission": true,
	}
	if !reflect.DeepEqual(got, want) {
		t.Errorf("got %v", got)
	}
}

func TestReadsPassStaleOnAndFailClosed(t *testing.T) {
	var stale []bool
	b := &fakeBackend{view: func(_ context.Context, s bool) error {
		stale = append(stale, s)
		if !s {
			return fsm.ErrNoLeader
		}
		return nil
	}}
	r := start(t, b)
	for _, method := range []string{"GetBudget", "ListLeases", "ListWaiters", "ListEngines", "ListPools"} {
		stale = nil
		if a := r.post("ObserveService/"+method, `{}`); a.code() != "unavailable" {
			t.Errorf("%s without a leader answered %s", method, a.raw)
		}
		r.post("ObserveService/"+method, `{"stale":true}`).ok(t)
		if !slices.Equal(stale, []bool{false, true}) {
			t.Errorf("%s read stale %v", method, stale)
		}
	}
}

func TestUnknownPool(t *testing.T) {
	r := start(t, &fakeBackend{})
	for method, body := range map[string]string{
		"ObserveService/GetBudget": `{"pool":"nope"}`, "ObserveService/GetTicket": `{"pool":"nope","ticketId":"t"}`,
		"ObserveService/ListLeases": `{"pool":"nope"}`, "ObserveService/ListWaiters": `{"pool":"nope"}`,
		"ObserveService/ListEngines": `{"pool":"nope"}`, "ClusterService/GetSettings": `{"pool":"nope"}`,
	} {
		a := r.post(method, body)
		if a.code() != "not_found" || !strings.Contains(a.message(), `"nope"`) {
			t.Errorf("%s answered %s", method, a.raw)
		}
	}
}

func TestGetTicket(t *testing.T) {
	l := fleet(t)
	ask(t, l, "a", 600)
	ask(t, l, "b", 500)
	ask(t, l, "c", 10)
	l.Advance(ledger.Time(1500*time.Millisecond), 0)
	r := start(t, &fakeBackend{ledger: l})
	for ticket, want := range map[string]map[string]any{
		"a": {
			"state": "TICKET_STATE_LEASED", "leaseId": "1:a", "reservationTokens": "600", "expiresIn": "598.500s", "position": "0", "grant": "1",
			"holderId": "h1", "sessionId": "s1", "explanation": "holds 600 tokens since 1.5s; the lease expires in 9m59s",
		},
		"b": {
			"state": "TICKET_STATE_WAITING", "waitReason": "WAIT_REASON_CAPACITY_EXHAUSTED", "position": "1", "waited": "1.500s", "leaseId": "",
			"explanation": "at the head of the queue, needs 500 tokens: 400 of 1,000 are free; let go as aged in 28.5s",
		},
		"c": {
			"state": "TICKET_STATE_WAITING", "waitReason": "WAIT_REASON_OLDER_WAITER", "position": "2",
			"explanation": `number 2 of 2 in the queue, needs 10 tokens; "b" at the head needs 500: 400 of 1,000 are free; let go as aged in 28.5s`,
		},
		"z": {
			"state": "TICKET_STATE_UNKNOWN", "waitReason": "WAIT_REASON_UNSPECIFIED", "reservationTokens": "0",
			"explanation": `neither waits nor holds a lease in pool "default": it was never asked for, or it has been decided and is over`,
		},
	} {
		got := r.post("ObserveService/GetTicket", `{"ticketId":"`+ticket+`"}`).ok(t)
		for field, value := range want {
			if got[field] != value {
				t.Errorf("%s: %s is %v, want %v", ticket, field, got[field], value)
			}
		}
	}
}

func TestExplanationUnderPressureAndDetached(t *testing.T) {
	l := fleet(t)
	reconcile(l, 0.95)
	ask(t, l, "a", 10)
	l.NewTerm(2, "n2")
	got := start(t, &fakeBackend{ledger: l}).post("ObserveService/GetTicket", `{"ticketId":"a"}`).ok(t)
	want := "at the head of the queue, needs 10 tokens: engine pressure 0.95 is not below the threshold 0.92 (1,000 of 1,000 are free)" +
		"; let go as aged in 30s; no caller is attached"
	if got["explanation"] != want {
		t.Errorf("got  %v\nwant %v", got["explanation"], want)
	}
}

// pages reads a list to its end and returns one field of every row.
func pages(t *testing.T, r *running, method, list, field string, between func()) []string {
	t.Helper()
	var out []string
	token := ""
	for {
		got := r.post(method, fmt.Sprintf(`{"pageSize":2,"pageToken":%q}`, token)).ok(t)
		for _, row := range got[list].([]any) {
			out = append(out, row.(map[string]any)[field].(string))
		}
		if token = got["nextPageToken"].(string); token == "" {
			return out
		}
		between()
	}
}

func TestLeasesPageInGrantOrder(t *testing.T) {
	l := fleet(t)
	for _, ticket := range []string{"c", "a", "b", "e", "d"} {
		ask(t, l, ticket, 10)
	}
	r := start(t, &fakeBackend{ledger: l})
	got := pages(t, r, "ObserveService/ListLeases", "leases", "ticketId", func() {
		// A lease that goes between pages moves nobody.
		l.Release(ledger.Release{Pool: ledger.DefaultPool, Ticket: "c"})
	})
	if want := []string{"c", "a", "b", "e", "d"}; !slices.Equal(got, want) {
		t.Errorf("got %v", got)
	}
}

func TestLeaseFilter(t *testing.T) {
	l := fleet(t)
	ask(t, l, "a", 10)
	r := start(t, &fakeBackend{ledger: l})
	for filter, want := range map[string]int{`{"holderId":"h1"}`: 1, `{"holderId":"h2"}`: 0, `{"sessionId":"s1"}`: 1, `{"sessionId":"s2","holderId":"h1"}`: 0} {
		got := r.post("ObserveService/ListLeases", filter).ok(t)
		if rows := got["leases"].([]any); len(rows) != want {
			t.Errorf("%s: %v", filter, rows)
		}
	}
}

func TestWaitersPageThroughAMovingQueue(t *testing.T) {
	l := fleet(t)
	ask(t, l, "big", 1000)
	for _, ticket := range []string{"a", "b", "c", "d", "e"} {
		ask(t, l, ticket, 600)
	}
	r := start(t, &fakeBackend{ledger: l})
	gone := false
	got := pages(t, r, "ObserveService/ListWaiters", "waiters", "ticketId", func() {
		if !gone {
			// The head leaves: positions shift by one, which must not skip "c".
			l.Cancel(ledger.Cancel{Pool: ledger.DefaultPool, Ticket: "a"})
			gone = true
		}
	})
	if want := []string{"a", "b", "c", "d", "e"}; !slices.Equal(got, want) {
		t.Errorf("got %v", got)
	}
	// The last ticket of a page leaves: the next page may repeat, never skip.
	l.Cancel(ledger.Cancel{Pool: ledger.DefaultPool, Ticket: "c"})
	token := pageToken{kind: waiterPage, a: 2, text: "c"}.String()
	next := r.post("ObserveService/ListWaiters", fmt.Sprintf(`{"pageToken":%q}`, token)).ok(t)["waiters"].([]any)
	if first := next[0].(map[string]any); first["ticketId"] != "d" || first["position"] != "2" {
		t.Errorf("the next page starts with %v", first)
	}
}

func TestListEngines(t *testing.T) {
	l := fleet(t)
	l.Advance(ledger.Time(time.Second), 0)
	got := start(t, &fakeBackend{ledger: l}).post("ObserveService/ListEngines", `{}`).ok(t)
	want := map[string]any{"discovery": "static", "snapshotAge": "1s", "engines": []any{map[string]any{
		"url": "http://e1:30000", "healthy": true, "error": "", "capacityTokens": "1000", "usedTokens": "250", "evictableTokens": "0",
		"usage": 0.25, "pressure": 0.25, "dpRanks": 2.0, "role": "ENGINE_ROLE_DECODE", "evictionRate": 0.0, "runningRequests": "0", "queuedRequests": "0",
	}}}
	if !reflect.DeepEqual(got, want) {
		t.Errorf("got %v", got)
	}
}

func TestDrainStep(t *testing.T) {
	b := &fakeBackend{drainStep: func(_ context.Context, pool, run string, step int64) (map[string]float64, error) {
		if step == 3 {
			return nil, ledger.ErrUnknownPool
		}
		return map[string]float64{"agentic_kv/admission/admit": 2, pool + run: float64(step)}, nil
	}}
	r := start(t, b)
	got := r.post("ObserveService/DrainStep", `{"step":7,"runId":"run"}`).ok(t)
	want := map[string]any{"step": "7", "metrics": map[string]any{"agentic_kv/admission/admit": 2.0, "defaultrun": 7.0}}
	if !reflect.DeepEqual(got, want) {
		t.Errorf("got %v", got)
	}
	a := r.post("ObserveService/DrainStep", `{"step":3,"pool":"ghost"}`)
	if a.info(t).GetCode() != CodeNotFound || a.message() != `unknown pool "ghost"` {
		t.Errorf("got %s", a.raw)
	}
}

func FuzzPageToken(f *testing.F) {
	f.Add("")
	f.Add(pageToken{kind: leasePage, a: 7, b: 1, text: "req:0"}.String())
	f.Add("____")
	f.Fuzz(func(t *testing.T, s string) {
		got, err := parsePageToken(leasePage, s)
		if err != nil {
			if !errors.Is(err, ledger.ErrInvalid) {
				t.Errorf("%q: %v is no invalid argument", s, err)
			}
			return
		}
		again, err := parsePageToken(leasePage, got.String())
		if err != nil || again != got {
			t.Errorf("%q: %+v became %+v, %v", s, got, again, err)
		}
	})
}
