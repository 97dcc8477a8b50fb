package rpc

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"reflect"
	"strings"
	"testing"
	"time"

	"kvgate/fsm"
	"kvgate/ledger"
	"kvgate/sessions"
)

const second = sessions.Time(time.Second)

var testRules = sessions.Rules{
	Lifecycle: true, JoinTimeout: 30 * time.Second, AbortTimeout: 5 * time.Second, CloseDeadline: time.Minute,
	PinRatio: 0.5, Ceiling: 1000,
}

// tabled is a backend whose sessions are those of a real table with two engines.
func tabled() *fakeBackend {
	t := sessions.NewTable()
	t.SetNow(100 * second)
	t.EnginesChanged("default", []sessions.Engine{{URL: "http://e1:30000"}, {URL: "http://e2:30000"}})
	return &fakeBackend{
		table:       t,
		openSession: func(_ context.Context, r sessions.OpenRequest) (sessions.View, error) { return t.Open(r) },
		touchSession: func(_ context.Context, pool, id string) (sessions.View, error) {
			return t.Touch(pool, id)
		},
		bindSession:  func(_ context.Context, r sessions.BindRequest) (sessions.View, error) { return t.Bind(r) },
		closeSession: func(_ context.Context, r sessions.CloseRequest) (sessions.View, error) { return t.Close(r, testRules) },
		closeGroup: func(_ context.Context, pool, group string, mode sessions.Mode) (int, error) {
			return t.CloseGroup(pool, group, mode, testRules)
		},
		pinPrefix: func(_ context.Context, r sessions.PinRequest, _ []int32) (sessions.PinView, error) {
			return t.Pin(r, testRules)
		},
		unpinPrefix: func(_ context.Context, pool, id string) (bool, error) { return t.Unpin(pool, id), nil },
	}
}

// session returns the "session" of an answer.
func session(t *testing.T, a answer) map[string]any {
	t.Helper()
	return a.ok(t)["session"].(map[string]any)
}

func TestSessionFromOpenToClosed(t *testing.T) {
	b := tabled()
	r := start(t, b)
	opened := session(t, r.post("SessionService/OpenSession", `{"sessionId":"s","groupId":"g","idleTimeout":"60s"}`))
	for field, want := range map[string]any{
		"sessionId": "s", "state": "SESSION_STATE_OPEN", "kind": "SESSION_KIND_RADIX", "groupId": "g", "idleTimeout": "60s", "turns": "0",
		"footprintTokens": "0", "pool": "default",
	} {
		if opened[field] != want {
			t.Errorf("%s is %v, want %v", field, opened[field], want)
		}
	}
	b.table.Started("default", "s", "", sessions.Flight{Ticket: "s:0"})
	bound := session(t, r.post("SessionService/BindSession", `{"sessionId":"s","engineUrl":"http://e1:30000@3","dpRank":3}`))
	if want := map[string]any{"engineUrl": "http://e1:30000", "dpRank": 3.0}; !reflect.DeepEqual(bound["binding"], want) {
		t.Errorf("binding %v", bound["binding"])
	}
	closing := session(t, r.post("SessionService/CloseSession", `{"sessionId":"s"}`))
	if closing["state"] != "SESSION_STATE_CLOSING" || closing["phase"] != "CLOSE_PHASE_JOINING" || !reflect.DeepEqual(closing["inFlight"], []any{"s:0"}) {
		t.Errorf("closing %v", closing)
	}
	b.table.Ended("default", "s:0", sessions.Turn{Engine: "http://e1:30000", Tokens: 42})
	b.owedStatus = func(_ context.Context, pool string, ids []string) (map[string][]sessions.OwedStatus, error) {
		if pool != "default" || !reflect.DeepEqual(ids, []string{"s"}) {
			t.Errorf("asked of %s %v", pool, ids)
		}
		return map[string][]sessions.OwedStatus{"s": {{Engine: "http://e2:30000", Attempts: 7, LastError: "key refused: 401", NextTry: time.Second}}}, nil
	}
	got := session(t, r.post("SessionService/GetSession", `{"sessionId":"s"}`))
	want := []any{
		map[string]any{"engineUrl": "http://e1:30000", "attempts": "0", "lastError": "", "failed": false},
		map[string]any{"engineUrl": "http://e2:30000", "attempts": "7", "lastError": "key refused: 401", "failed": false, "nextTry": "1s"},
	}
	if !reflect.DeepEqual(got["owed"], want) || got["phase"] != "CLOSE_PHASE_TELLING" || got["turns"] != "1" || got["footprintTokens"] != "42" {
		t.Errorf("telling %v", got)
	}
	v, _ := b.table.Get("default", "s")
	b.table.Report([]sessions.Report{{Pool: "default", Session: "s", Seq: v.Seq, Acked: []string{"http://e1:30000", "http://e2:30000"}}})
	closed := session(t, r.post("SessionService/CloseSession", `{"sessionId":"s"}`))
	if closed["state"] != "SESSION_STATE_CLOSED" || closed["acknowledged"] != "2" || len(closed["owed"].([]any)) != 0 {
		t.Errorf("closed %v", closed)
	}
	again := r.post("SessionService/OpenSession", `{"sessionId":"s"}`).ok(t)
	if !reflect.DeepEqual(again["warnings"], []any{"session_id_reused"}) {
		t.Errorf("reopened with warnings %v", again["warnings"])
	}
}

// Ledger time counts from the cluster's first start; people read the time of day.
func TestSessionTimesAreWallTimes(t *testing.T) {
	b := tabled()
	r := start(t, b)
	before := time.Now()
	r.post("SessionService/OpenSession", `{"sessionId":"s"}`).ok(t)
	b.table.SetNow(160 * second)
	got := session(t, r.post("SessionService/CloseSession", `{"sessionId":"s"}`))
	after := time.Now()
	at := func(field string) time.Time {
		stamp, err := time.Parse(time.RFC3339Nano, got[field].(string))
		if err != nil {
			t.Fatal(err)
		}
		return stamp
	}
	if opened := at("openedAt"); opened.Before(before.Add(-time.Minute)) || opened.After(after.Add(-time.Minute)) {
		t.Errorf("opened at %v, want a minute before %v", opened, before)
	}
	if since := at("closingSince"); since.Before(before) || since.After(after) {
		t.Errorf("closing since %v, want about %v", since, before)
	}
	if got["lastTurnAt"] != nil {
		t.Errorf("there was no turn, but one at %v", got["lastTurnAt"])
	}
}

func TestOwedIsAnsweredWithoutALeader(t *testing.T) {
	b := tabled()
	b.owedStatus = func(context.Context, string, []string) (map[string][]sessions.OwedStatus, error) {
		return nil, fsm.ErrNoLeader
	}
	r := start(t, b)
	r.post("SessionService/OpenSession", `{"sessionId":"s"}`).ok(t)
	r.post("SessionService/CloseSession", `{"sessionId":"s"}`).ok(t)
	owed := session(t, r.post("SessionService/GetSession", `{"sessionId":"s","stale":true}`))["owed"].([]any)
	if len(owed) != 2 {
		t.Fatalf("owed %v", owed)
	}
	first := owed[0].(map[string]any)
	if first["attempts"] != "0" || !strings.Contains(first["lastError"].(string), fsm.ErrNoLeader.Error()) {
		t.Errorf("owed %v", first)
	}
}

// abortingSession makes session "s" ask engines to abort its ticket "t".
func abortingSession(t *testing.T, b *fakeBackend, r *running) {
	t.Helper()
	r.post("SessionService/OpenSession", `{"sessionId":"s"}`).ok(t)
	b.table.Started("default", "s", "", sessions.Flight{Ticket: "t"})
	r.post("SessionService/CloseSession", `{"sessionId":"s","mode":"CLOSE_MODE_ABORT"}`).ok(t)
}

func TestAbortsUnderWayAreShown(t *testing.T) {
	b := tabled()
	b.owedStatus = func(context.Context, string, []string) (map[string][]sessions.OwedStatus, error) {
		return map[string][]sessions.OwedStatus{"s": {
			{Engine: "http://e1:30000", Ticket: "released meanwhile", Attempts: 1},
			{Engine: "http://e2:30000", Ticket: "t", Attempts: 7, LastError: "key refused: 401", NextTry: time.Second},
		}}, nil
	}
	r := start(t, b)
	abortingSession(t, b, r)
	got := session(t, r.post("SessionService/GetSession", `{"sessionId":"s"}`))
	want := []any{map[string]any{"ticketId": "t", "engineUrl": "http://e2:30000", "attempts": "7", "lastError": "key refused: 401", "nextTry": "1s"}}
	if !reflect.DeepEqual(got["aborts"], want) || got["phase"] != "CLOSE_PHASE_ABORTING" {
		t.Errorf("aborting %v", got)
	}
	b.table.Ended("default", "t", sessions.Turn{})
	if got := session(t, r.post("SessionService/GetSession", `{"sessionId":"s"}`)); len(got["aborts"].([]any)) != 0 {
		t.Errorf("nothing is in flight any more: %v", got)
	}
}

func TestAbortsAreAnsweredWithoutALeader(t *testing.T) {
	b := tabled()
	b.owedStatus = func(context.Context, string, []string) (map[string][]sessions.OwedStatus, error) {
		return nil, fsm.ErrNoLeader
	}
	r := start(t, b)
	abortingSession(t, b, r)
	aborts := session(t, r.post("SessionService/GetSession", `{"sessionId":"s","stale":true}`))["aborts"].([]any)
	if len(aborts) != 1 {
		t.Fatalf("aborts %v", aborts)
	}
	first := aborts[0].(map[string]any)
	if first["ticketId"] != "t" || first["engineUrl"] != "" || !strings.Contains(first["lastError"].(string), fsm.ErrNoLeader.Error()) {
		t.Errorf("abort %v", first)
	}
}

// A close answers at once: what was tried of it is asked of the leader only later.
func TestAFreshCloseAsksNobody(t *testing.T) {
	b := tabled()
	asked := 0
	b.owedStatus = func(context.Context, string, []string) (map[string][]sessions.OwedStatus, error) {
		asked++
		return nil, nil
	}
	r := start(t, b)
	r.post("SessionService/OpenSession", `{"sessionId":"s"}`).ok(t)
	if got := session(t, r.post("SessionService/CloseSession", `{"sessionId":"s"}`)); asked != 0 || len(got["owed"].([]any)) != 2 {
		t.Errorf("asked %d times: %v", asked, got)
	}
	b.table.SetNow(102 * second)
	if r.post("SessionService/CloseSession", `{"sessionId":"s"}`).ok(t); asked != 1 {
		t.Errorf("asked %d times about a close that goes on, want once", asked)
	}
}

func TestCloseOfAnUnknownSessionIsClosed(t *testing.T) {
	r := start(t, tabled())
	got := session(t, r.post("SessionService/CloseSession", `{"sessionId":"never","wait":true}`))
	if got["state"] != "SESSION_STATE_CLOSED" || got["openedAt"] != nil || len(got["owed"].([]any)) != 0 {
		t.Errorf("got %v", got)
	}
	for _, method := range []string{"GetSession", "TouchSession"} {
		if a := r.post("SessionService/"+method, `{"sessionId":"never"}`); a.code() != "not_found" || a.info(t).GetCode() != CodeNotFound {
			t.Errorf("%s: %s", method, a.raw)
		}
	}
}

func TestCloseWaits(t *testing.T) {
	b := tabled()
	waiting, done := make(chan uint64, 1), make(chan struct{})
	b.awaitClosed = func(ctx context.Context, pool, id string, seq uint64) (sessions.View, error) {
		waiting <- seq
		select {
		case <-ctx.Done():
			return sessions.View{}, ctx.Err()
		case <-done:
		}
		v, _ := b.table.Get(pool, id)
		v.State = sessions.Closed
		return v, nil
	}
	r := start(t, b)
	r.post("SessionService/OpenSession", `{"sessionId":"s"}`).ok(t)
	answered := make(chan answer, 1)
	go func() { answered <- r.post("SessionService/CloseSession", `{"sessionId":"s","wait":true}`) }()
	asked := <-waiting // after which nothing changes the table
	if v, _ := b.table.Get("default", "s"); asked != v.Seq {
		t.Error("waits for another incarnation")
	}
	select {
	case a := <-answered:
		t.Fatalf("answered before the session was closed: %s", a.raw)
	default:
	}
	close(done)
	if got := session(t, <-answered); got["state"] != "SESSION_STATE_CLOSED" {
		t.Errorf("got %v", got)
	}
}

func TestShutdownLetsWaitingClosesGo(t *testing.T) {
	b := tabled()
	entered := make(chan struct{})
	b.awaitClosed = func(ctx context.Context, _, _ string, _ uint64) (sessions.View, error) {
		close(entered)
		<-ctx.Done()
		return sessions.View{}, ctx.Err()
	}
	r := start(t, b)
	r.post("SessionService/OpenSession", `{"sessionId":"s"}`).ok(t)
	answered := make(chan answer, 1)
	go func() { answered <- r.post("SessionService/CloseSession", `{"sessionId":"s","wait":true}`) }()
	<-entered
	if err := r.stop(); err != nil {
		t.Error(err)
	}
	if a := <-answered; a.code() != "unavailable" || a.info(t).GetCode() != CodeShutdown {
		t.Errorf("got %s", a.raw)
	}
}

// TestDebtsOfEnginesThatAreNotFound say so, first while the close waits for them and then for good.
func TestDebtsOfEnginesThatAreNotFound(t *testing.T) {
	b := tabled()
	b.table = sessions.NewTable()
	rules := testRules
	rules.Discovers = true
	if _, err := b.table.Open(sessions.OpenRequest{Pool: "default", ID: "s"}); err != nil {
		t.Fatal(err)
	}
	if _, err := b.table.Close(sessions.CloseRequest{Pool: "default", ID: "s"}, rules); err != nil {
		t.Fatal(err)
	}
	r := start(t, b)
	for _, want := range []string{"the pool's engines are not found yet: no discovery has succeeded", "the pool's engines were not found by the close deadline"} {
		owed := session(t, r.post("SessionService/GetSession", `{"sessionId":"s"}`))["owed"].([]any)
		if len(owed) != 1 || owed[0].(map[string]any)["lastError"] != want || owed[0].(map[string]any)["engineUrl"] != "" {
			t.Errorf("owed %v, want one without a name that says %q", owed, want)
		}
		b.table.Expire(60*second, 10, nil)
	}
}

func TestSessionsPage(t *testing.T) {
	r := start(t, tabled())
	for i := range 5 {
		r.post("SessionService/OpenSession", fmt.Sprintf(`{"sessionId":"s%d","groupId":"g%d"}`, i, i%2)).ok(t)
	}
	var ids []any
	token := ""
	for page := 0; page == 0 || token != ""; page++ {
		got := r.post("SessionService/ListSessions", `{"pageSize":2,"pageToken":"`+token+`"}`).ok(t)
		for _, s := range got["sessions"].([]any) {
			ids = append(ids, s.(map[string]any)["sessionId"])
		}
		token = got["nextPageToken"].(string)
	}
	if !reflect.DeepEqual(ids, []any{"s0", "s1", "s2", "s3", "s4"}) {
		t.Errorf("listed %v", ids)
	}
	if n := r.post("SessionService/CloseGroup", `{"groupId":"g0"}`).ok(t)["closing"]; n != "3" {
		t.Errorf("closing %v sessions of the group, want 3", n)
	}
	for body, want := range map[string]int{
		`{"state":"SESSION_STATE_CLOSING"}`: 3, `{"state":"SESSION_STATE_OPEN"}`: 2, `{"groupId":"g1"}`: 2, `{"groupId":"g7"}`: 0,
		`{"state":"SESSION_STATE_OPEN","groupId":"g0"}`: 0,
	} {
		if got := r.post("SessionService/ListSessions", body).ok(t)["sessions"].([]any); len(got) != want {
			t.Errorf("%s: %d sessions, want %d", body, len(got), want)
		}
	}
}

func TestPins(t *testing.T) {
	b := tabled()
	var ids []int32
	pin := b.pinPrefix
	b.pinPrefix = func(ctx context.Context, r sessions.PinRequest, tokens []int32) (sessions.PinView, error) {
		ids = tokens
		return pin(ctx, r, tokens)
	}
	r := start(t, b)
	got := r.post("SessionService/PinPrefix", `{"pinId":"p1","tokens":"300","ttl":"10m"}`).ok(t)["pin"].(map[string]any)
	if got["pinId"] != "p1" || got["tokens"] != "300" || got["expiresIn"] != "600s" || got["ledgerOnly"] != true {
		t.Errorf("pin %v", got)
	}
	got = r.post("SessionService/PinPrefix", `{"pinId":"p2","tokenIds":[5,6,7],"ttl":"nonsense"}`).ok(t)["pin"].(map[string]any)
	if got["tokens"] != "3" || got["expiresIn"] != "300s" || !reflect.DeepEqual(ids, []int32{5, 6, 7}) {
		t.Errorf("pin %v of %v", got, ids)
	}
	if a := r.post("SessionService/PinPrefix", `{"pinId":"p3","tokens":198}`); a.code() != "resource_exhausted" || a.info(t).GetCode() != "pin_budget_exhausted" {
		t.Errorf("over budget: %s", a.raw)
	}
	page := r.post("SessionService/ListPins", `{"pageSize":1}`).ok(t)
	rest := r.post("SessionService/ListPins", `{"pageToken":"`+page["nextPageToken"].(string)+`"}`).ok(t)["pins"].([]any)
	if len(rest) != 1 || rest[0].(map[string]any)["pinId"] != "p2" {
		t.Errorf("second page %v", rest)
	}
	for _, want := range []bool{true, false} {
		if got := r.post("SessionService/UnpinPrefix", `{"pinId":"p1"}`).ok(t)["unpinned"]; got != want {
			t.Errorf("unpinned %v, want %v", got, want)
		}
	}
}

// A context of millions of tokens is more than other calls may carry.
func TestOnlyPinPrefixTakesLargeBodies(t *testing.T) {
	b := tabled()
	got := 0
	b.pinPrefix = func(_ context.Context, _ sessions.PinRequest, ids []int32) (sessions.PinView, error) {
		got = len(ids)
		return sessions.PinView{}, nil
	}
	r := start(t, b)
	ids := make([]int32, 600_000)
	body, err := json.Marshal(map[string]any{"pinId": "p", "tokenIds": ids})
	if err != nil {
		t.Fatal(err)
	}
	if len(body) <= maxBodyBytes {
		t.Fatal("the body is too small to prove anything")
	}
	r.post("SessionService/PinPrefix", string(body)).ok(t)
	if got != len(ids) {
		t.Errorf("%d ids arrived", got)
	}
	if a := r.post("SessionService/UnpinPrefix", string(body)); a.code() != "resource_exhausted" {
		t.Errorf("unpin took a large body: %.200s", a.raw)
	}
}

func TestSessionRequestsOutOfRange(t *testing.T) {
	long := strings.Repeat("x", 257)
	r := start(t, tabled())
	r.post("SessionService/OpenSession", `{"sessionId":"open"}`).ok(t)
	r.post("SessionService/OpenSession", `{"sessionId":"shut"}`).ok(t)
	r.post("SessionService/CloseSession", `{"sessionId":"shut"}`).ok(t)
	for name, c := range map[string]struct{ method, body, code, info, field, message string }{
		"id missing":               {"OpenSession", `{}`, "invalid_argument", "invalid_argument", "sessionId", "must not be empty"},
		"id too long":              {"OpenSession", `{"sessionId":"` + long + `"}`, "invalid_argument", "invalid_argument", "sessionId", "256 bytes"},
		"id with newline":          {"CloseSession", `{"sessionId":"a\nb"}`, "invalid_argument", "invalid_argument", "sessionId", "printable"},
		"kind out of range":        {"OpenSession", `{"sessionId":"a","kind":9}`, "invalid_argument", "invalid_argument", "kind", "kind is 9"},
		"kind by a wrong name":     {"OpenSession", `{"sessionId":"a","kind":"SESSION_KIND_RADISH"}`, "invalid_argument", "", "", `"SESSION_KIND_RADISH"; allowed are SESSION_KIND_RADIX, SESSION_KIND_STREAMING, SESSION_KIND_BIND`},
		"field misspelt":           {"OpenSession", `{"sesionId":"a"}`, "invalid_argument", "", "", "sessionId"},
		"negative idle timeout":    {"OpenSession", `{"sessionId":"a","idleTimeout":"-1s"}`, "invalid_argument", "invalid_argument", "idleTimeout", "-1s"},
		"streaming, no engine":     {"OpenSession", `{"sessionId":"a","kind":"SESSION_KIND_STREAMING"}`, "invalid_argument", "invalid_argument", "engineUrl", "must name the engine"},
		"streaming, not its pool":  {"OpenSession", `{"sessionId":"a","kind":"SESSION_KIND_STREAMING","engineUrl":"http://e9:1"}`, "invalid_argument", "invalid_argument", "engineUrl", "http://e9:1"},
		"open as another kind":     {"OpenSession", `{"sessionId":"open","kind":"SESSION_KIND_BIND"}`, "failed_precondition", "session_kind", "", "another kind"},
		"open while closing":       {"OpenSession", `{"sessionId":"shut"}`, "failed_precondition", "session_closing", "", "shut"},
		"touch while closing":      {"TouchSession", `{"sessionId":"shut"}`, "failed_precondition", "session_closing", "", "shut"},
		"bind while closing":       {"BindSession", `{"sessionId":"shut","engineUrl":"http://e1:30000"}`, "failed_precondition", "session_closing", "", "shut"},
		"bind without engine":      {"BindSession", `{"sessionId":"a"}`, "invalid_argument", "invalid_argument", "engineUrl", "must not be empty"},
		"bind elsewhere":           {"BindSession", `{"sessionId":"a","engineUrl":"http://e9:1"}`, "invalid_argument", "invalid_argument", "engineUrl", "allowed is an engine that ListEngines names"},
		"bind to a negative rank":  {"BindSession", `{"sessionId":"a","engineUrl":"http://e1:30000","dpRank":-1}`, "invalid_argument", "invalid_argument", "dpRank", "-1"},
		"bind with negative ttl":   {"BindSession", `{"sessionId":"a","engineUrl":"http://e1:30000","ttl":"-5s"}`, "invalid_argument", "invalid_argument", "ttl", "-5s"},
		"close with a wrong mode":  {"CloseSession", `{"sessionId":"a","mode":7}`, "invalid_argument", "invalid_argument", "mode", "7"},
		"negative close timeout":   {"CloseSession", `{"sessionId":"a","timeout":"-1s"}`, "invalid_argument", "invalid_argument", "timeout", "-1s"},
		"list of an unknown pool":  {"ListSessions", `{"pool":"nope"}`, "not_found", "not_found", "", "unknown pool \"nope\""},
		"pins of an unknown pool":  {"ListPins", `{"pool":"nope"}`, "not_found", "not_found", "", "unknown pool \"nope\""},
		"get in an unknown pool":   {"GetSession", `{"pool":"nope","sessionId":"a"}`, "not_found", "not_found", "", "unknown pool \"nope\""},
		"group missing":            {"CloseGroup", `{}`, "invalid_argument", "invalid_argument", "groupId", "must not be empty"},
		"state out of range":       {"ListSessions", `{"state":12}`, "invalid_argument", "invalid_argument", "state", "12"},
		"page token of leases":     {"ListSessions", `{"pageToken":"` + pageToken{kind: leasePage}.String() + `"}`, "invalid_argument", "invalid_argument", "pageToken", "nextPageToken"},
		"pin without id":           {"PinPrefix", `{"tokens":1}`, "invalid_argument", "invalid_argument", "pinId", "must not be empty"},
		"pin of nothing":           {"PinPrefix", `{"pinId":"p"}`, "invalid_argument", "invalid_argument", "tokens", "required"},
		"pin, both forms":          {"PinPrefix", `{"pinId":"p","tokens":1,"tokenIds":[1]}`, "invalid_argument", "invalid_argument", "tokens", "one or the other"},
		"pin of negative tokens":   {"PinPrefix", `{"pinId":"p","tokens":-1}`, "invalid_argument", "invalid_argument", "tokens", "-1"},
		"pin of a negative id":     {"PinPrefix", `{"pinId":"p","tokenIds":[1,-2]}`, "invalid_argument", "invalid_argument", "tokenIds[1]", "-2"},
		"pin for nobody":           {"PinPrefix", `{"pinId":"p","tokens":1,"sessionId":"never"}`, "not_found", "not_found", "", "never"},
		"pin for a closing":        {"PinPrefix", `{"pinId":"p","tokens":1,"sessionId":"shut"}`, "failed_precondition", "session_closing", "", "shut"},
		"pin over budget":          {"PinPrefix", `{"pinId":"p","tokens":501}`, "resource_exhausted", "pin_budget_exhausted", "", "501"},
		"pin on an unknown engine": {"PinPrefix", `{"pinId":"p","tokens":1,"engineUrl":"http://e9:1"}`, "invalid_argument", "invalid_argument", "engineUrl", "not in the pool"},
	} {
		t.Run(name, func(t *testing.T) {
			a := r.post("SessionService/"+c.method, c.body)
			if a.code() != c.code || !strings.Contains(a.message(), c.message) {
				t.Fatalf("got %s, want %s with %q", a.raw, c.code, c.message)
			}
			if c.info == "" {
				return
			}
			if info := a.info(t); info.GetCode() != c.info || info.GetField() != c.field {
				t.Errorf("detail is %v, want %s of field %q", info, c.info, c.field)
			}
		})
	}
}

func TestPinsOff(t *testing.T) {
	b := tabled()
	b.pinPrefix = func(_ context.Context, r sessions.PinRequest, _ []int32) (sessions.PinView, error) {
		return b.table.Pin(r, sessions.Rules{})
	}
	if a := start(t, b).post("SessionService/PinPrefix", `{"pinId":"p","tokens":1}`); a.code() != "failed_precondition" || a.info(t).GetCode() != "pins_disabled" {
		t.Errorf("got %s", a.raw)
	}
}

func TestAcquireOfASession(t *testing.T) {
	b := &fakeBackend{acquire: func(_ context.Context, op ledger.Acquire) (ledger.Decision, error) {
		if op.Session == "shut" {
			return ledger.Decision{}, fmt.Errorf("%w: %q", sessions.ErrClosing, op.Session)
		}
		return ledger.Decision{Action: ledger.ActionAdmit, Binding: &ledger.Binding{Engine: "http://e1", DPRank: 2}, SessionReused: true}, nil
	}}
	r := start(t, b)
	got := r.post("AdmissionService/Acquire", `{"ticketId":"t","promptTokens":1,"sessionId":"s"}`).ok(t)
	if want := map[string]any{"engineUrl": "http://e1", "dpRank": 2.0}; !reflect.DeepEqual(got["binding"], want) {
		t.Errorf("binding %v", got["binding"])
	}
	if !reflect.DeepEqual(got["warnings"], []any{WarningSessionReused}) {
		t.Errorf("warnings %v", got["warnings"])
	}
	if a := r.post("AdmissionService/Acquire", `{"ticketId":"t","promptTokens":1,"sessionId":"shut"}`); a.info(t).GetCode() != CodeSessionClosing {
		t.Errorf("got %s", a.raw)
	}
}

func TestSessionMetrics(t *testing.T) {
	b := tabled()
	closes := NewCloseMetrics()
	r := startWith(t, b, Options{Closes: closes})
	for _, id := range []string{"a", "b", "c"} {
		r.post("SessionService/OpenSession", `{"sessionId":"`+id+`"}`).ok(t)
	}
	r.post("SessionService/CloseSession", `{"sessionId":"a"}`).ok(t)
	r.post("SessionService/PinPrefix", `{"pinId":"p","tokens":300}`).ok(t)
	b.table.SetNow(105 * second)
	closes.Observe(sessions.Call{Path: "/close_session", SinceDue: 20 * time.Millisecond})
	closes.Observe(sessions.Call{Path: "/close_session", Err: fmt.Errorf("%w: 401", sessions.ErrUnauthorized)})
	closes.Observe(sessions.Call{Path: "/abort_request", Err: errors.New("odd")})
	families := r.scrape()
	pool := map[string]string{"pool": "default"}
	for _, c := range []struct {
		name   string
		labels map[string]string
		want   float64
	}{
		{"agentic_kv_sessions_open", pool, 2}, {"agentic_kv_sessions_closing", pool, 1}, {"agentic_kv_session_owed_closes", pool, 2},
		{"agentic_kv_session_oldest_owed_seconds", pool, 5}, {"agentic_kv_pins", pool, 1}, {"agentic_kv_pinned_tokens", pool, 300},
		{"agentic_kv_session_open_total", pool, 3}, {"agentic_kv_session_close_total", pool, 0}, {"agentic_kv_session_close_failure_total", pool, 0},
		{"agentic_kv_lifecycle_enabled", pool, 1}, {"agentic_kv_session_close_seconds", nil, 1},
		{"agentic_kv_session_engine_calls_total", map[string]string{"call": "close", "outcome": "acknowledged"}, 1},
		{"agentic_kv_session_engine_calls_total", map[string]string{"call": "close", "outcome": "key_refused"}, 1},
		{"agentic_kv_session_engine_calls_total", map[string]string{"call": "abort", "outcome": "error"}, 1},
	} {
		if got := value(families, c.name, c.labels); got != c.want {
			t.Errorf("%s %v is %v, want %v", c.name, c.labels, got, c.want)
		}
	}
}
