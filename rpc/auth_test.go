package rpc

import (
	"context"
	"errors"
	"io"
	"net/http"
	"slices"
	"strings"
	"testing"

	"connectrpc.com/connect"
	"google.golang.org/protobuf/reflect/protoreflect"

	"kvgate/fsm"
	"kvgate/ledger"
	kvgatev1 "kvgate/rpc/kvgate/v1"
	"kvgate/rpc/tokens"
)

const tokenFile = `t-client client
t-pools client a,b
t-default client default
t-observer observer
t-admin admin
`

func tokenList(t *testing.T) *tokens.List {
	t.Helper()
	list, err := tokens.Parse([]byte(tokenFile))
	if err != nil {
		t.Fatal(err)
	}
	return list
}

// as sends a call with a token and returns the answer.
func (r *running) as(token, method, body string) answer {
	r.t.Helper()
	previous := r.client
	defer func() { r.client = previous }()
	r.client = &http.Client{Transport: roundTripper(func(req *http.Request) (*http.Response, error) {
		if token != "" {
			req.Header.Set("Authorization", token)
		}
		return previous.Transport.RoundTrip(req)
	})}
	return r.post(method, body)
}

// Every call of the API is in this table, so that a new one is placed on purpose.
func TestWhoMayCallWhat(t *testing.T) {
	clients, readers, ticket, admins := "client admin", "observer admin", "client observer admin", "admin"
	table := map[string]string{
		"Acquire": clients, "Release": clients, "Renew": clients, "Cancel": clients, "Heartbeat": clients, "Exchange": clients, "Submit": clients, "AwaitGrants": clients,
		"OpenSession": clients, "TouchSession": clients, "BindSession": clients, "CloseSession": clients, "CloseGroup": clients,
		"PinPrefix": clients, "UnpinPrefix": clients, "GetSession": ticket, "ListSessions": ticket, "ListPins": ticket,
		"GetTicket": ticket,
		"GetBudget": readers, "ListLeases": readers, "ListWaiters": readers, "ListEngines": readers, "ListPools": readers,
		"ReadJournal": readers, "WatchEvents": readers, "GetStatus": readers, "GetSettings": readers,
		"DrainStep": admins, "UpdateSettings": admins, "DeletePool": admins, "AddNode": admins, "RemoveNode": admins, "TransferLeadership": admins,
		"SaveSnapshot": admins, "RestoreSnapshot": admins,
	}
	for _, method := range apiMethods() {
		may, ok := table[string(method.Name())]
		if !ok {
			t.Errorf("%s is not in the table", method.Name())
			continue
		}
		for _, role := range []tokens.Role{tokens.Client, tokens.Observer, tokens.Admin} {
			header := http.Header{"Authorization": {"Bearer t-" + string(role)}}
			_, err := authorise(tokenList(t), header, procedureOf(method), rolesFor(procedureOf(method)))
			if want := strings.Contains(may, string(role)); (err == nil) != want || err != nil && !errors.Is(err, ErrDenied) {
				t.Errorf("%s as %s: %v, want allowed %t", method.Name(), role, err, want)
			}
		}
	}
}

func procedureOf(m protoreflect.MethodDescriptor) string {
	return "/" + string(m.Parent().FullName()) + "/" + string(m.Name())
}

func TestCallsNeedAToken(t *testing.T) {
	b := &fakeBackend{
		ledger: fleet(t), status: fsm.Status{NodeID: "n1", LeaderID: "n1", Ready: true},
		cancel:    func(context.Context, ledger.Cancel) (ledger.CancelState, error) { return ledger.CancelUnknown, nil },
		heartbeat: func(context.Context, string) (fsm.HolderStatus, error) { return fsm.HolderStatus{}, nil },
	}
	r := startWith(t, b, Options{Tokens: tokenList(t)})
	const cancel = `{"ticketId":"t"}`
	for _, test := range []struct {
		token, method, body, code, says string
	}{
		{"", "AdmissionService/Cancel", cancel, "unauthenticated", "Authorization: Bearer"},
		{"Basic t-admin", "AdmissionService/Cancel", cancel, "unauthenticated", "Authorization: Bearer"},
		{"Bearer ", "AdmissionService/Cancel", cancel, "unauthenticated", "Authorization: Bearer"},
		{"Bearer t-adm", "AdmissionService/Cancel", cancel, "unauthenticated", "not in the token file"},
		{"Bearer t-admin t-admin", "AdmissionService/Cancel", cancel, "unauthenticated", "not in the token file"},
		{"bearer t-client", "AdmissionService/Cancel", cancel, "", ""},
		{"Bearer t-client", "AdmissionService/Cancel", `{}`, "invalid_argument", ""},
		{"Bearer x", "AdmissionService/Cancel", `{}`, "unauthenticated", ""},
		{"Bearer t-default", "AdmissionService/Cancel", cancel, "", ""},
		{"Bearer t-pools", "AdmissionService/Cancel", cancel, "permission_denied", `role client for pool a, b, the call is about pool "default"`},
		{"Bearer t-pools", "AdmissionService/Cancel", `{"ticketId":"t","pool":"b"}`, "", ""},
		{"Bearer t-pools", "AdmissionService/Cancel", `{"ticketId":"t","pool":"c"}`, "permission_denied", `pool "c"`},
		{"Bearer t-pools", "AdmissionService/Heartbeat", `{"holderId":"h"}`, "", ""},
		{"Bearer t-pools", "ObserveService/GetTicket", `{"ticketId":"t","pool":"c"}`, "permission_denied", `pool "c"`},
		{"Bearer t-client", "ObserveService/GetTicket", `{"ticketId":"t"}`, "", ""},
		{"Bearer t-client", "ObserveService/GetBudget", `{}`, "permission_denied", "role client, /kvgate.v1.ObserveService/GetBudget needs observer or admin"},
		{"Bearer t-observer", "ObserveService/GetBudget", `{}`, "", ""},
		{"Bearer t-observer", "ClusterService/GetStatus", `{}`, "", ""},
		{"Bearer t-observer", "ClusterService/DeletePool", `{"pool":"p"}`, "permission_denied", "needs admin"},
		{"Bearer t-admin", "ObserveService/GetBudget", `{}`, "", ""},
	} {
		got := r.as(test.token, test.method, test.body)
		if got.code() != test.code || !strings.Contains(got.message(), test.says) {
			t.Errorf("%q %s %s: %s", test.token, test.method, test.body, got.raw)
		}
		if code := test.code; code == "unauthenticated" || code == "permission_denied" {
			if info := got.info(t); info.GetCode() != code {
				t.Errorf("%q %s: ErrorInfo %v", test.token, test.method, info)
			}
			if _, token, _ := strings.Cut(test.token, " "); len(token) > 1 && strings.Contains(got.raw, token) {
				t.Errorf("the answer shows the token: %s", got.raw)
			}
		}
	}
}

func TestWhatElseThePortServesWithTokens(t *testing.T) {
	b := &fakeBackend{ledger: fleet(t), status: fsm.Status{LeaderID: "n1", Ready: true}}
	r := startWith(t, b, Options{Tokens: tokenList(t)})
	for _, test := range []struct {
		path, token string
		want        int
	}{
		{"/healthz", "", 200}, {"/readyz", "", 200}, {"/", "", 200},
		{"/metrics", "", 401}, {"/metrics", "Bearer x", 401}, {"/metrics", "Bearer t-client", 403},
		{"/metrics", "Bearer t-observer", 200}, {"/metrics", "Bearer t-admin", 200},
	} {
		req, err := http.NewRequest(http.MethodGet, r.url+test.path, nil)
		if err != nil {
			t.Fatal(err)
		}
		req.Header.Set("Authorization", test.token)
		res, err := r.client.Do(req)
		if err != nil {
			t.Fatal(err)
		}
		body, _ := io.ReadAll(res.Body)
		res.Body.Close()
		if res.StatusCode != test.want || (res.StatusCode == 401) != (res.Header.Get("WWW-Authenticate") == "Bearer") {
			t.Errorf("%s as %q: %d %v", test.path, test.token, res.StatusCode, res.Header)
		}
		if test.want == 200 && test.path == "/metrics" && !strings.Contains(string(body), "agentic_kv_") {
			t.Errorf("metrics are %s", body)
		}
	}
}

// A stream is checked when it opens, and with each of its messages.
func TestStreamsAreGuarded(t *testing.T) {
	for _, test := range []struct {
		token, pool, procedure string
		want                   connect.Code // 0: allowed
	}{
		{"", "a", "/kvgate.v1.AdmissionService/Exchange", connect.CodeUnauthenticated},
		{"Bearer t-observer", "a", "/kvgate.v1.AdmissionService/Exchange", connect.CodePermissionDenied},
		{"Bearer t-pools", "c", "/kvgate.v1.AdmissionService/Exchange", connect.CodePermissionDenied},
		{"Bearer t-pools", "b", "/kvgate.v1.AdmissionService/Exchange", 0},
		{"Bearer t-client", "c", "/kvgate.v1.AdmissionService/Exchange", 0},
		{"Bearer t-observer", "a", "/kvgate.v1.ClusterService/SaveSnapshot", connect.CodePermissionDenied},
		{"Bearer t-admin", "a", "/kvgate.v1.ClusterService/SaveSnapshot", 0},
	} {
		g := &guard{tokenList(t), func() fsm.Status { return fsm.Status{} }}
		handler := g.WrapStreamingHandler(func(_ context.Context, conn connect.StreamingHandlerConn) error {
			return conn.Receive(&kvgatev1.CancelRequest{Pool: test.pool})
		})
		err := handler(t.Context(), &fakeStream{procedure: test.procedure, header: http.Header{"Authorization": {test.token}}})
		if test.want == 0 && err != nil || test.want != 0 && connect.CodeOf(err) != test.want {
			t.Errorf("%q, pool %s, %s: %v", test.token, test.pool, test.procedure, err)
		}
	}
}

type fakeStream struct {
	connect.StreamingHandlerConn
	procedure string
	header    http.Header
}

func (s *fakeStream) Spec() connect.Spec         { return connect.Spec{Procedure: s.procedure} }
func (s *fakeStream) RequestHeader() http.Header { return s.header }
func (s *fakeStream) Receive(any) error          { return nil }

func TestThePageAsksForATokenAndSendsIt(t *testing.T) {
	for _, part := range []string{`<form id="token" hidden`, `type="password"`, `sessionStorage.setItem(TOKEN`, `headers.Authorization = "Bearer " + token`} {
		if !strings.Contains(page, part) {
			t.Errorf("the page lacks %s", part)
		}
	}
}

// TestChangesNameWhoAskedForThem: the journal gets the role, where there are tokens, and never the token.
func TestChangesNameWhoAskedForThem(t *testing.T) {
	var by []string
	b := &fakeBackend{
		status:     fsm.Status{NodeID: "n1", LeaderID: "n1", Ready: true},
		deletePool: func(_ context.Context, _, who string) (bool, error) { by = append(by, who); return true, nil },
		updateSettings: func(_ context.Context, _ string, p ledger.Patch) (ledger.Settings, error) {
			by = append(by, p.By)
			return ledger.DefaultSettings(), nil
		},
	}
	guarded := startWith(t, b, Options{Tokens: tokenList(t)})
	guarded.as("Bearer t-admin", "ClusterService/UpdateSettings", `{"settings":{"headroom":0.5}}`).ok(t)
	guarded.as("Bearer t-admin", "ClusterService/DeletePool", `{"pool":"p"}`).ok(t)
	start(t, b).post("ClusterService/UpdateSettings", `{"settings":{"headroom":0.5}}`).ok(t)
	want := []string{"admin at 127.0.0.1 through n1", "admin at 127.0.0.1 through n1", "a caller at 127.0.0.1 through n1"}
	if !slices.Equal(by, want) {
		t.Errorf("got %q, want %q", by, want)
	}
}
