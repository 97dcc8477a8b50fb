package rpc

import (
	"context"
	"go/ast"
	"go/parser"
	"go/token"
	"reflect"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"google.golang.org/protobuf/proto"

	"kvgate/fsm/fsmpb"
	"kvgate/store"
)

func record(t *testing.T, index uint64, n uint32, e *fsmpb.Event) store.JournalRecord {
	t.Helper()
	data, err := proto.Marshal(e)
	if err != nil {
		t.Fatal(err)
	}
	return store.JournalRecord{Index: index, N: n, Data: data}
}

func TestReadJournal(t *testing.T) {
	var asked []store.JournalQuery
	b := &fakeBackend{journal: func(_ context.Context, stale bool, q store.JournalQuery) (store.JournalPage, error) {
		asked = append(asked, q)
		page := store.JournalPage{FirstKept: 2, Last: 9}
		if len(asked) == 1 {
			page.NextIndex, page.NextN, page.More = 7, 3, true
			page.Events = append(page.Events, record(t, 5, 1, &fsmpb.Event{
				LedgerTime: 12, WallTime: 1_000_000_000, Pool: "p", Kind: "admitted", Ticket: "t:0", Session: "s", Holder: "h", Group: "g", Tokens: 8,
				Epoch: 4, Grant: 6, Reason: "capacity_available", Wait: int64(time.Second), ReservedAfter: 9, CeilingAfter: 10, Priority: -1,
				Deadline: 11, Detail: "d", WaitingAfter: 13, Engines: []string{"http://e1"}, Pin: "pin", InFlight: 14, By: "admin",
			}))
		}
		return page, nil
	}}
	r := start(t, b)
	body := `{"fromIndex":"3","pool":"p","ticketId":"t","sessionId":"s","holderId":"h","groupId":"g","kinds":["admitted"],
	  "since":"2026-01-02T03:04:05Z","until":"2026-01-02T03:04:06Z","pageSize":50,"stale":true}`
	first := r.post("ObserveService/ReadJournal", body).ok(t)
	want := map[string]any{
		"index": "5", "n": 1.0, "ledgerTime": "12", "wallTime": "1970-01-01T00:00:01Z", "pool": "p", "kind": "admitted", "ticketId": "t:0",
		"sessionId": "s", "holderId": "h", "groupId": "g", "tokens": "8", "leaseId": "4:t:0", "grant": "6", "epoch": "4", "reason": "capacity_available",
		"wait": "1s", "reservedAfter": "9", "ceilingAfter": "10", "priority": -1.0, "deadline": "11", "detail": "d", "waitingAfter": "13",
		"engines": []any{"http://e1"}, "pinId": "pin", "inFlight": "14", "by": "admin",
	}
	if events := first["events"].([]any); len(events) != 1 || !reflect.DeepEqual(events[0], want) {
		t.Errorf("events %v", events)
	}
	if first["firstKeptIndex"] != "2" || first["lastIndex"] != "9" {
		t.Errorf("bounds %v", first)
	}
	second := r.post("ObserveService/ReadJournal", `{"pageToken":"`+first["nextPageToken"].(string)+`"}`).ok(t)
	if second["nextPageToken"] != "" {
		t.Errorf("second page %v", second)
	}
	since := time.Date(2026, 1, 2, 3, 4, 5, 0, time.UTC)
	wantAsked := []store.JournalQuery{
		{FromIndex: 3, Pool: "p", Ticket: "t", Session: "s", Holder: "h", Group: "g", Kinds: []string{"admitted"}, Since: since, Until: since.Add(time.Second), Limit: 50},
		{Limit: 1}, // when the first kept event happened
		{FromIndex: 7, FromN: 3, Limit: defaultPageSize},
	}
	if !reflect.DeepEqual(asked, wantAsked) {
		t.Errorf("backend got\n%+v, want\n%+v", asked, wantAsked)
	}
}

func TestJournalOfALeaderChangeHasNoLease(t *testing.T) {
	b := &fakeBackend{journal: func(context.Context, bool, store.JournalQuery) (store.JournalPage, error) {
		return store.JournalPage{Events: []store.JournalRecord{record(t, 1, 0, &fsmpb.Event{Kind: "leader", Epoch: 2})}}, nil
	}}
	got := start(t, b).post("ObserveService/ReadJournal", `{}`).ok(t)["events"].([]any)[0].(map[string]any)
	if got["leaseId"] != "" || got["wallTime"] != nil || got["wait"] != nil {
		t.Errorf("got %v", got)
	}
}

func TestJournalThatCannotBeDecoded(t *testing.T) {
	b := &fakeBackend{journal: func(context.Context, bool, store.JournalQuery) (store.JournalPage, error) {
		return store.JournalPage{Events: []store.JournalRecord{{Index: 5, N: 1, Data: []byte{0xff}}}}, nil
	}}
	if a := start(t, b).post("ObserveService/ReadJournal", `{}`); a.code() != "internal" {
		t.Errorf("got %s", a.raw)
	}
}

func TestUnknownJournalKind(t *testing.T) {
	a := start(t, &fakeBackend{}).post("ObserveService/ReadJournal", `{"kinds":["admitted","nope"]}`)
	if a.code() != "invalid_argument" || a.info(t).GetField() != "kinds" {
		t.Fatalf("got %s", a.raw)
	}
	for _, word := range []string{`"nope"`, "abandoned, abort_refused, abort_sent, admitted, ", "lease_expired"} {
		if !strings.Contains(a.message(), word) {
			t.Errorf("%s is not in %q", word, a.message())
		}
	}
}

// The list of kinds is that of the ledger and of sessions.
func TestJournalKindsAreComplete(t *testing.T) {
	kinds := append(constants(t, "../ledger/event.go", "Kind"), constants(t, "../sessions/event.go", "EventKind")...)
	slices.Sort(kinds)
	if len(kinds) < 30 || !slices.Equal(kinds, journalKinds) {
		t.Errorf("there are the kinds\n%v, the API knows\n%v", kinds, journalKinds)
	}
}

// constants returns the values of the constants of a type, as a file has them.
func constants(t *testing.T, path, of string) (kinds []string) {
	file, err := parser.ParseFile(token.NewFileSet(), path, nil, 0)
	if err != nil {
		t.Fatal(err)
	}
	ast.Inspect(file, func(n ast.Node) bool {
		v, ok := n.(*ast.ValueSpec)
		if !ok {
			return true
		}
		if name, ok := v.Type.(*ast.Ident); ok && name.Name == of {
			kind, err := strconv.Unquote(v.Values[0].(*ast.BasicLit).Value)
			if err != nil {
				t.Error(err)
			}
			kinds = append(kinds, kind)
		}
		return true
	})
	return kinds
}
