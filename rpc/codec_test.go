package rpc

import (
	"bytes"
	"context"
	"errors"
	"io"
	"net/http"
	"strings"
	"testing"
	"time"

	"google.golang.org/protobuf/encoding/protowire"
	"google.golang.org/protobuf/proto"

	"kvgate/ledger"
	kvgatev1 "kvgate/rpc/kvgate/v1"
)

// recordAcquire keeps the last operation that reached the backend and admits it.
func recordAcquire(into *ledger.Acquire) *fakeBackend {
	return &fakeBackend{acquire: func(_ context.Context, op ledger.Acquire) (ledger.Decision, error) {
		*into = op
		return ledger.Decision{Pool: op.Pool, Ticket: op.Ticket, Action: ledger.ActionAdmit, Reason: ledger.CapacityAvailable}, nil
	}}
}

func TestJSONReadsWhatPeopleWrite(t *testing.T) {
	base := ledger.Acquire{Pool: "default", Ticket: "t", PromptTokens: 7, MaxWait: -1}
	with := func(change func(*ledger.Acquire)) ledger.Acquire {
		op := base
		change(&op)
		return op
	}
	for name, c := range map[string]struct {
		body string
		want ledger.Acquire
	}{
		"int64 as a number":       {`{"ticketId":"t","promptTokens":7}`, base},
		"int64 as a string":       {`{"ticketId":"t","promptTokens":"7"}`, base},
		"int64 in exponent form":  {`{"ticketId":"t","promptTokens":7e0}`, base},
		"proto field names":       {`{"ticket_id":"t","prompt_tokens":7}`, base},
		"enum by name":            {`{"ticketId":"t","promptTokens":7,"mode":"MODE_EVAL"}`, with(func(op *ledger.Acquire) { op.Mode = ledger.ModeEval })},
		"duration with fraction":  {`{"ticketId":"t","promptTokens":7,"maxWait":"1.5s"}`, with(func(op *ledger.Acquire) { op.MaxWait = 1500 * time.Millisecond })},
		"zero max wait is a wish": {`{"ticketId":"t","promptTokens":7,"maxWait":"0s"}`, with(func(op *ledger.Acquire) { op.MaxWait = 0 })},
		"null is unset":           {`{"ticketId":"t","promptTokens":7,"maxWait":null}`, base},
		"outright reservation": {`{"ticketId":"t","reservationTokens":"9"}`, with(func(op *ledger.Acquire) {
			op.PromptTokens, op.ReservationTokens = 0, 9
		})},
		"every field": {
			`{"pool":"p","ticketId":"t","promptTokens":7,"maxNewTokens":8,"mode":"MODE_TRAIN","protected":true,"priority":-2,
			  "sessionId":"s","groupId":"g","holderId":"h","rid":"r","maxWait":"2s","ttl":"60s"}`,
			ledger.Acquire{Pool: "p", Ticket: "t", PromptTokens: 7, MaxNewTokens: 8, Mode: ledger.ModeTrain, Protected: true, Priority: -2,
				Session: "s", Group: "g", Holder: "h", RID: "r", MaxWait: 2 * time.Second, TTL: time.Minute},
		},
	} {
		t.Run(name, func(t *testing.T) {
			var got ledger.Acquire
			r := start(t, recordAcquire(&got))
			r.post("AdmissionService/Acquire", c.body).ok(t)
			if got != c.want {
				t.Errorf("backend got\n%+v, want\n%+v", got, c.want)
			}
		})
	}
}

func TestJSONRefusesWhatItDoesNotKnow(t *testing.T) {
	var got ledger.Acquire
	r := start(t, recordAcquire(&got))
	for name, c := range map[string]struct{ contentType, body, want string }{
		"unknown field":            {"application/json", `{"ticketId":"t","promptTokens":1,"maxWiat":"1s"}`, `unknown field "maxWiat"`},
		"unknown field, charset":   {"application/json; charset=utf-8", `{"ticketId":"t","promptTokens":1,"maxWiat":"1s"}`, `unknown field "maxWiat"`},
		"says what there is":       {"application/json", `{"nope":1}`, "it has pool, ticketId, promptTokens"},
		"unknown enum":             {"application/json", `{"ticketId":"t","promptTokens":1,"mode":"MODE_TRIAN"}`, "MODE_TRIAN"},
		"duration without unit":    {"application/json", `{"ticketId":"t","promptTokens":1,"maxWait":"1.5"}`, "1.5"},
		"number beyond int64":      {"application/json", `{"ticketId":"t","promptTokens":9223372036854775808}`, "9223372036854775808"},
		"fraction of a token":      {"application/json", `{"ticketId":"t","promptTokens":1.5}`, "1.5"},
		"duplicate field":          {"application/json", `{"ticketId":"t","ticketId":"u","promptTokens":1}`, "ticketId"},
		"empty body":               {"application/json", ``, "empty"},
		"not an object":            {"application/json", `[]`, "AcquireRequest"},
		"invalid UTF-8":            {"application/json", "{\"ticketId\":\"\xff\",\"promptTokens\":1}", "UTF-8"},
		"unpaired surrogate":       {"application/json", `{"ticketId":"\ud800","promptTokens":1}`, "AcquireRequest"},
		"something after the body": {"application/json", `{"ticketId":"t","promptTokens":1} {}`, "AcquireRequest"},
	} {
		t.Run(name, func(t *testing.T) {
			got = ledger.Acquire{}
			a := r.postAs("AdmissionService/Acquire", c.contentType, []byte(c.body))
			if a.code() != "invalid_argument" || !strings.Contains(a.message(), c.want) {
				t.Errorf("got %s, want invalid_argument with %q", a.raw, c.want)
			}
			if got.Ticket != "" {
				t.Errorf("the backend was called with %+v", got)
			}
		})
	}
}

// TestUnreadableRequestsNameTheField, as any other bad value does, also where messages are streamed.
func TestUnreadableRequestsNameTheField(t *testing.T) {
	r := start(t, &fakeBackend{})
	for body, field := range map[string]string{
		`{"ticketId":"t","promptTokens":1,"maxWiat":"1s"}`: "maxWiat",
		`{"ticketId":"t","ticketId":"u"}`:                  "ticketId",
		`{"ticketId":"t","mode":"MODE_TRIAN"}`:             "mode",
		`{"ticketId":"t","promptTokens":1.5}`:              "promptTokens",
		`{"ticketId":5}`:                                   "ticketId",
		`[]`:                                               "",
		``:                                                 "",
	} {
		a := r.postAs("AdmissionService/Acquire", "application/json", []byte(body))
		if info := a.info(t); a.code() != "invalid_argument" || info.GetCode() != CodeInvalidArgument || info.GetField() != field {
			t.Errorf("%s: got %s, want field %q", body, a.raw, field)
		}
	}
	envelope := []byte(`{"formIndex":1}`)
	res, err := r.client.Post(r.url+"/kvgate.v1.ObserveService/WatchEvents", "application/connect+json",
		bytes.NewReader(append([]byte{0, 0, 0, 0, byte(len(envelope))}, envelope...)))
	if err != nil {
		t.Fatal(err)
	}
	defer res.Body.Close()
	got, err := io.ReadAll(res.Body)
	for _, want := range []string{`"invalid_argument"`, "formIndex", "ErrorInfo"} {
		if err != nil || !strings.Contains(string(got), want) {
			t.Errorf("stream: got %q, %v, want %s", got, err, want)
		}
	}
}

// TestNotesOfClients: a client that sends the field in which the codec leaves its notes is refused.
func TestNotesOfClients(t *testing.T) {
	m := &kvgatev1.AcquireRequest{TicketId: "t", PromptTokens: 1}
	if err := unreadable(m); err != nil {
		t.Fatal(err)
	}
	m.ProtoReflect().SetUnknown(protowire.AppendVarint(protowire.AppendTag(nil, 99, protowire.VarintType), 1))
	if err := unreadable(m); err != nil {
		t.Errorf("an unknown field of a newer client: %v", err)
	}
	noteUnreadable(m, errors.New("mine"))
	raw, err := proto.Marshal(m)
	if err != nil {
		t.Fatal(err)
	}
	a := start(t, &fakeBackend{}).postAs("AdmissionService/Acquire", "application/proto", raw)
	if a.code() != "invalid_argument" || a.message() != "mine" {
		t.Errorf("got %s", a.raw)
	}
}

func TestJSONAnswersCarryZeroValuesAndNoNulls(t *testing.T) {
	r := start(t, &fakeBackend{})
	body := r.post("ObserveService/GetBudget", `{}`).ok(t)
	for field, want := range map[string]any{
		"ceiling": "0", "reserved": "0", "available": "0", "epoch": "0", "waiting": "0", "leases": "0",
		"pressure": 0.0, "oldestWait": "0s", "pool": "default",
	} {
		if got, ok := body[field]; !ok || got != want {
			t.Errorf("%s is %v (present %v), want %v", field, got, ok, want)
		}
	}
	engines := r.post("ObserveService/ListEngines", `{}`).ok(t)
	if list, ok := engines["engines"].([]any); !ok || len(list) != 0 {
		t.Errorf("engines is %v, want an empty list", engines["engines"])
	}
	if age, ok := engines["snapshotAge"]; ok {
		t.Errorf("snapshotAge is %v although there was no snapshot", age)
	}
	ticket := r.post("ObserveService/GetTicket", `{"ticketId":"t"}`).ok(t)
	if ticket["waitReason"] != "WAIT_REASON_UNSPECIFIED" {
		t.Errorf("a zero enum is %v, want its name", ticket["waitReason"])
	}
}

func TestOversizedBodyIsRefused(t *testing.T) {
	var got ledger.Acquire
	r := start(t, recordAcquire(&got))
	body := `{"ticketId":"t","promptTokens":1` + strings.Repeat(" ", maxBodyBytes) + `}`
	a := r.post("AdmissionService/Acquire", body)
	if a.code() != "resource_exhausted" || a.status != http.StatusTooManyRequests {
		t.Errorf("got %d %s, want resource_exhausted", a.status, a.raw)
	}
	if got.Ticket != "" {
		t.Error("the backend was called")
	}
}
