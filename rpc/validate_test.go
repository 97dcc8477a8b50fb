package rpc

import (
	"encoding/json"
	"strings"
	"testing"

	"kvgate/ledger"
	kvgatev1 "kvgate/rpc/kvgate/v1"
	"kvgate/rpc/rules"
)

func TestRequestsOutOfRange(t *testing.T) {
	long := strings.Repeat("x", 257)
	r := start(t, &fakeBackend{}) // no function is set: the backend must not be reached
	for name, c := range map[string]struct{ method, body, field, message string }{
		"ticket missing":            {"AdmissionService/Acquire", `{"promptTokens":1}`, "ticketId", `ticketId is "": must not be empty`},
		"ticket too long":           {"AdmissionService/Acquire", `{"promptTokens":1,"ticketId":"` + long + `"}`, "ticketId", "256 bytes"},
		"ticket with newline":       {"AdmissionService/Acquire", `{"promptTokens":1,"ticketId":"a\nb"}`, "ticketId", `ticketId is "a\nb": must be printable`},
		"ticket with NUL":           {"AdmissionService/Acquire", `{"promptTokens":1,"ticketId":"a\u0000"}`, "ticketId", "printable"},
		"ticket with DEL":           {"AdmissionService/Acquire", `{"promptTokens":1,"ticketId":"a\u007f"}`, "ticketId", "printable"},
		"ticket with bidi override": {"AdmissionService/Acquire", `{"promptTokens":1,"ticketId":"a\u202eb"}`, "ticketId", "printable"},
		"pool with tab":             {"AdmissionService/Acquire", `{"promptTokens":1,"ticketId":"a","pool":"\t"}`, "pool", "printable"},
		"pool too long":             {"ObserveService/GetBudget", `{"pool":"` + long + `"}`, "pool", "256 bytes"},
		"holder too long":           {"AdmissionService/Acquire", `{"promptTokens":1,"ticketId":"a","holderId":"` + long + `"}`, "holderId", "256 bytes"},
		"negative prompt":           {"AdmissionService/Acquire", `{"promptTokens":-5,"ticketId":"a"}`, "promptTokens", "promptTokens is -5: must be greater than or equal to 0"},
		"negative completion":       {"AdmissionService/Acquire", `{"maxNewTokens":-1,"ticketId":"a"}`, "maxNewTokens", "-1"},
		"prompt above the bound":    {"AdmissionService/Acquire", `{"promptTokens":"1000000000001","ticketId":"a"}`, "promptTokens", "1000000000000"},
		"prompt at int64's end":     {"AdmissionService/Acquire", `{"promptTokens":"9223372036854775807","maxNewTokens":"9223372036854775807","ticketId":"a"}`, "promptTokens", "9223372036854775807"},
		"reservation 0":             {"AdmissionService/Acquire", `{"reservationTokens":0,"ticketId":"a"}`, "reservationTokens", "greater than 0"},
		"reservation and prompt":    {"AdmissionService/Acquire", `{"reservationTokens":1,"promptTokens":1,"ticketId":"a"}`, "reservationTokens", "send one or the other"},
		"no tokens at all":          {"AdmissionService/Acquire", `{"ticketId":"a"}`, "reservationTokens", "must be above 0"},
		"mode out of range":         {"AdmissionService/Acquire", `{"promptTokens":1,"ticketId":"a","mode":9}`, "mode", "mode is 9"},
		"negative max wait":         {"AdmissionService/Acquire", `{"promptTokens":1,"ticketId":"a","maxWait":"-1s"}`, "maxWait", "maxWait is -1s"},
		"max wait too long":         {"AdmissionService/Acquire", `{"promptTokens":1,"ticketId":"a","maxWait":"86401s"}`, "maxWait", "24h0m1s"},
		"ttl 0":                     {"AdmissionService/Acquire", `{"promptTokens":1,"ticketId":"a","ttl":"0s"}`, "ttl", "ttl is 0s"},
		"release of nothing":        {"AdmissionService/Release", `{}`, "ticketId", "ticketId: it or leaseId is required"},
		"usage negative":            {"AdmissionService/Release", `{"ticketId":"a","usage":{"cachedTokens":-1}}`, "usage.cachedTokens", "-1"},
		"lease id without colon":    {"AdmissionService/Release", `{"leaseId":"abc"}`, "leaseId", `leaseId is "abc", allowed is "<epoch>:<ticket>"`},
		"ticket against lease":      {"AdmissionService/Release", `{"leaseId":"1:a","ticketId":"b"}`, "leaseId", `a lease of ticketId "b"`},
		"renew nothing":             {"AdmissionService/Renew", `{"leaseIds":[]}`, "leaseIds", "a list of 0"},
		"renew a bad id":            {"AdmissionService/Renew", `{"leaseIds":["1:a","x"]}`, "leaseIds[1]", `"x"`},
		"renew an empty id":         {"AdmissionService/Renew", `{"leaseIds":["1:a",""]}`, "leaseIds[1]", "must not be empty"},
		"renew with few fences":     {"AdmissionService/Renew", `{"leaseIds":["1:a","1:b"],"grants":[1]}`, "grants", "as long as leaseIds"},
		"cancel without ticket":     {"AdmissionService/Cancel", `{}`, "ticketId", "must not be empty"},
		"heartbeat without holder":  {"AdmissionService/Heartbeat", `{}`, "holderId", "must not be empty"},
		"page size negative":        {"ObserveService/ListLeases", `{"pageSize":-1}`, "pageSize", "-1"},
		"page size too large":       {"ObserveService/ListWaiters", `{"pageSize":10001}`, "pageSize", "10000"},
		"page token made up":        {"ObserveService/ListLeases", `{"pageToken":"???"}`, "pageToken", `"???"`},
		"page token of another":     {"ObserveService/ListLeases", `{"pageToken":"` + pageToken{kind: waiterPage}.String() + `"}`, "pageToken", "nextPageToken"},
		"negative step":             {"ObserveService/DrainStep", `{"step":-1}`, "step", "-1"},
		"journal page token":        {"ObserveService/ReadJournal", `{"pageToken":"eA"}`, "pageToken", "nextPageToken"},
		"delete without pool":       {"ClusterService/DeletePool", `{}`, "pool", "must not be empty"},
		"clear an unknown setting":  {"ClusterService/UpdateSettings", `{"clear":["headrom"]}`, "clear", `clear is "headrom", allowed is any of admission, lifecycle, headroom,`},
		"set and clear at once":     {"ClusterService/UpdateSettings", `{"settings":{"headroom":0.5},"clear":["headroom"]}`, "clear", "headroom"},
		"decode cap 0":              {"ClusterService/UpdateSettings", `{"settings":{"expectedDecodeCap":0}}`, "expectedDecodeCap", "clear"},
	} {
		t.Run(name, func(t *testing.T) {
			a := r.post(c.method, c.body)
			if a.code() != "invalid_argument" || !strings.Contains(a.message(), c.message) {
				t.Fatalf("got %s, want invalid_argument with %q", a.raw, c.message)
			}
			info := a.info(t)
			if info.GetCode() != CodeInvalidArgument || (c.field != "" && info.GetField() != c.field) {
				t.Errorf("detail is %v, want field %s", info, c.field)
			}
			if info.GetRetryAfter() != nil {
				t.Errorf("detail tells to retry what cannot succeed: %v", info)
			}
		})
	}
}

func TestIDsInRange(t *testing.T) {
	for _, id := range []string{"a", strings.Repeat("x", 256), "req-17:0", "with space", "日本語", "héé", `"quoted"`, "a/b?c=d&e", "😀"} {
		var got ledger.Acquire
		r := start(t, recordAcquire(&got))
		body, err := json.Marshal(map[string]any{"ticketId": id, "promptTokens": 1})
		if err != nil {
			t.Fatal(err)
		}
		answer := r.post("AdmissionService/Acquire", string(body)).ok(t)
		if got.Ticket != id || answer["ticketId"] != id {
			t.Errorf("%q reached the backend as %q and came back as %v", id, got.Ticket, answer["ticketId"])
		}
	}
}

func TestLongValuesAreCutInMessages(t *testing.T) {
	r := start(t, &fakeBackend{})
	a := r.post("AdmissionService/Cancel", `{"ticketId":"`+strings.Repeat("é", 5000)+`"}`)
	if len(a.message()) > 300 || !strings.Contains(a.message(), "(10000 bytes)") {
		t.Errorf("message has %d bytes: %.200s", len(a.message()), a.message())
	}
}

// The ledger bounds the sum that a valid request can ask for; the proto must not let more through.
func TestTokenBoundIsTheLedgers(t *testing.T) {
	v, err := newValidator()
	if err != nil {
		t.Fatal(err)
	}
	limit := int64(ledger.MaxTokens)
	for _, c := range []struct {
		tokens int64
		ok     bool
	}{{limit, true}, {limit + 1, false}} {
		err := v.Validate(&kvgatev1.AcquireRequest{TicketId: "t", PromptTokens: c.tokens})
		if (err == nil) != c.ok {
			t.Errorf("%d tokens: %v", c.tokens, err)
		}
	}
}

func BenchmarkValidateAcquire(b *testing.B) {
	v, err := newValidator()
	if err != nil {
		b.Fatal(err)
	}
	m := &kvgatev1.AcquireRequest{TicketId: "req-17:0", PromptTokens: 4096, MaxNewTokens: 1024, HolderId: "worker-3", SessionId: "agent-9"}
	for name, validate := range map[string]func() error{
		"plain":     func() error { return rules.Validate(v, m) },
		"validator": func() error { return v.Validate(m) },
	} {
		b.Run(name, func(b *testing.B) {
			b.ReportAllocs()
			for b.Loop() {
				if err := validate(); err != nil {
					b.Fatal(err)
				}
			}
		})
	}
}
