package rpc

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"reflect"
	"strings"
	"testing"
	"time"

	"kvgate/fsm"
	"kvgate/ledger"
	kvgatev1 "kvgate/rpc/kvgate/v1"
)

const oneTicket = `{"ticketId":"req-17:0","promptTokens":100,"maxNewTokens":50}`

func TestAcquireAdmits(t *testing.T) {
	l := fleet(t)
	b := &fakeBackend{ledger: l}
	b.acquire = b.decide
	r := start(t, b)
	got := r.post("AdmissionService/Acquire", oneTicket).ok(t)
	for field, want := range map[string]any{
		"action": "ACTION_ADMIT", "reason": "REASON_CAPACITY_AVAILABLE", "ticketId": "req-17:0", "reservationTokens": "150",
		"leaseId": "1:req-17:0", "ownerEpoch": "1", "waited": "0s", "expiresIn": "600s", "grant": "1",
	} {
		if got[field] != want {
			t.Errorf("%s is %v, want %v", field, got[field], want)
		}
	}
	if w := got["warnings"].([]any); len(w) != 0 {
		t.Errorf("warnings %v", w)
	}
}

func TestAcquireBypassHasNoLease(t *testing.T) {
	b := &fakeBackend{acquire: func(_ context.Context, op ledger.Acquire) (ledger.Decision, error) {
		return ledger.Decision{Ticket: op.Ticket, Action: ledger.ActionBypass, Reason: ledger.Aged, Tokens: 150, Epoch: 4,
			Waited: 1500 * time.Millisecond, Warnings: []string{"of some kind"}}, nil
	}}
	got := start(t, b).post("AdmissionService/Acquire", oneTicket).ok(t)
	for field, want := range map[string]any{
		"action": "ACTION_BYPASS", "reason": "REASON_AGED", "leaseId": "", "ownerEpoch": "0", "waited": "1.500s", "grant": "0", "expiresIn": nil,
	} {
		if got[field] != want {
			t.Errorf("%s is %v, want %v", field, got[field], want)
		}
	}
	if w := got["warnings"].([]any); len(w) != 1 || w[0] != "of some kind" {
		t.Errorf("warnings %v", w)
	}
}

func TestAcquireOnAnUnknownPool(t *testing.T) {
	b := &fakeBackend{ledger: fleet(t)}
	b.acquire = b.decide
	r := start(t, b)
	for body, tokens := range map[string]string{
		`{"pool":"ghost","ticketId":"t","promptTokens":100,"maxNewTokens":50}`: "150",
		`{"pool":"ghost","ticketId":"t","reservationTokens":70}`:               "70",
	} {
		got := r.post("AdmissionService/Acquire", body).ok(t)
		if got["action"] != "ACTION_BYPASS" || got["reason"] != "REASON_DEGRADED" || got["reservationTokens"] != tokens {
			t.Errorf("%s: got %v", body, got)
		}
		want := []any{`unknown_pool: there is no pool "ghost"; this bypass is in no ledger; settings of a pool make it`}
		if !reflect.DeepEqual(got["warnings"], want) {
			t.Errorf("%s: warnings %v", body, got["warnings"])
		}
	}
}

func TestAcquireFailsOpenOnOurTroubleOnly(t *testing.T) {
	for name, c := range map[string]struct {
		err  error
		code string // "" means bypass degraded
	}{
		"no leader":       {fsm.ErrNoLeader, ""},
		"not leader":      {&fsm.LeaderError{ID: "n2", Address: "a:1"}, ""},
		"leadership lost": {fsm.ErrLeadershipLost, ""},
		"timeout":         {fsm.ErrTimeout, ""},
		"read only":       {fsm.ErrReadOnly, ""},
		"shutdown":        {fsm.ErrShutdown, ""},
		"internal":        {errors.New("odd"), ""},
		"mismatch":        {ledger.ErrTicketMismatch, "failed_precondition"},
		"queue full":      {ledger.ErrTooManyWaiters, "resource_exhausted"},
		"invalid":         {invalid("ticketId", "x", "y"), "invalid_argument"},
	} {
		t.Run(name, func(t *testing.T) {
			b := &fakeBackend{acquire: func(context.Context, ledger.Acquire) (ledger.Decision, error) {
				return ledger.Decision{}, fmt.Errorf("acquire: %w", c.err)
			}}
			a := start(t, b).post("AdmissionService/Acquire", oneTicket)
			if c.code != "" {
				if a.code() != c.code {
					t.Errorf("got %s, want %s", a.raw, c.code)
				}
				return
			}
			got := a.ok(t)
			if got["action"] != "ACTION_BYPASS" || got["reason"] != "REASON_DEGRADED" || got["reservationTokens"] != "150" || got["leaseId"] != "" {
				t.Errorf("got %v", got)
			}
			w := got["warnings"].([]any)
			if len(w) != 1 || !strings.HasPrefix(w[0].(string), WarningUntracked+": ") || !strings.Contains(w[0].(string), c.err.Error()) {
				t.Errorf("warnings %v", w)
			}
		})
	}
}

// blocking is a backend whose Acquires block until their context ends.
func blocking() (b *fakeBackend, entered chan string, left chan error) {
	entered, left = make(chan string, 1024), make(chan error, 1024)
	return &fakeBackend{
		acquire: func(ctx context.Context, op ledger.Acquire) (ledger.Decision, error) {
			entered <- op.Ticket
			<-ctx.Done()
			left <- ctx.Err()
			return ledger.Decision{}, ctx.Err()
		},
		release: func(context.Context, ledger.Release) (bool, error) { return true, nil },
	}, entered, left
}

func TestAcquireOfAClientThatLeaves(t *testing.T) {
	b, entered, left := blocking()
	r := start(t, b)
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan error, 1)
	go func() {
		req, _ := http.NewRequestWithContext(ctx, http.MethodPost, r.url+"/kvgate.v1.AdmissionService/Acquire", strings.NewReader(oneTicket))
		req.Header.Set("Content-Type", "application/json")
		_, err := r.client.Do(req)
		done <- err
	}()
	<-entered
	cancel()
	if err := <-left; !errors.Is(err, context.Canceled) {
		t.Errorf("the backend saw %v", err)
	}
	<-done
}

func TestAcquireWithATimeoutOfTheCaller(t *testing.T) {
	b, _, _ := blocking()
	r := start(t, b)
	req, _ := http.NewRequest(http.MethodPost, r.url+"/kvgate.v1.AdmissionService/Acquire", strings.NewReader(oneTicket))
	req.Header.Set("Content-Type", "application/json")
	req.Header.Set("Connect-Timeout-Ms", "20")
	res, err := r.client.Do(req)
	if err != nil {
		t.Fatal(err)
	}
	defer res.Body.Close()
	// A caller's own deadline is not our trouble: no bypass.
	if res.StatusCode != http.StatusGatewayTimeout {
		t.Errorf("status %d, want that of deadline_exceeded", res.StatusCode)
	}
}

func TestReleaseMapping(t *testing.T) {
	for name, c := range map[string]struct {
		body string
		want ledger.Release
	}{
		"by ticket":             {`{"ticketId":"a:b"}`, ledger.Release{Pool: "default", Ticket: "a:b"}},
		"by lease, first colon": {`{"leaseId":"12:req-17:0"}`, ledger.Release{Pool: "default", Ticket: "req-17:0", Epoch: 12, HasEpoch: true}},
		"epoch 0 is a fence":    {`{"leaseId":"0:a"}`, ledger.Release{Pool: "default", Ticket: "a", HasEpoch: true}},
		"both, agreeing":        {`{"leaseId":"1:a","ticketId":"a"}`, ledger.Release{Pool: "default", Ticket: "a", Epoch: 1, HasEpoch: true}},
		"everything": {
			`{"pool":"p","ticketId":"a","grant":"7","holderId":"h","usage":{"promptTokens":1,"completionTokens":"2","cachedTokens":3,"engineUrl":"u","outcome":"stop"}}`,
			ledger.Release{Pool: "p", Ticket: "a", Grant: 7, Holder: "h", Usage: &ledger.Usage{PromptTokens: 1, CompletionTokens: 2, CachedTokens: 3, Engine: "u", Outcome: "stop"}},
		},
	} {
		t.Run(name, func(t *testing.T) {
			var got ledger.Release
			r := start(t, &fakeBackend{release: func(_ context.Context, op ledger.Release) (bool, error) { got = op; return false, nil }})
			if answer := r.post("AdmissionService/Release", c.body).ok(t); answer["released"] != false {
				t.Errorf("answer %v", answer)
			}
			if !reflect.DeepEqual(got, c.want) {
				t.Errorf("backend got %+v, want %+v", got, c.want)
			}
		})
	}
}

func TestRenew(t *testing.T) {
	b := &fakeBackend{renew: func(_ context.Context, pool string, refs []ledger.LeaseRef, ttl time.Duration) ([]ledger.Renewed, error) {
		want := []ledger.LeaseRef{{Ticket: "a:0", Epoch: 3, HasEpoch: true, Grant: 9}, {Ticket: "b", Epoch: 4, HasEpoch: true}}
		if pool != "default" || ttl != 90*time.Second || !reflect.DeepEqual(refs, want) {
			t.Errorf("backend got %s %+v %s", pool, refs, ttl)
		}
		return []ledger.Renewed{{OK: true, ExpiresIn: ttl}, {}}, nil
	}}
	got := start(t, b).post("AdmissionService/Renew", `{"leaseIds":["3:a:0","4:b"],"grants":[9,0],"ttl":"90s"}`).ok(t)
	want := []any{
		map[string]any{"leaseId": "3:a:0", "renewed": true, "expiresIn": "90s"},
		map[string]any{"leaseId": "4:b", "renewed": false},
	}
	if !reflect.DeepEqual(got["leases"], want) {
		t.Errorf("got %v", got)
	}
}

func TestCancelAndHeartbeat(t *testing.T) {
	b := &fakeBackend{
		cancel: func(_ context.Context, op ledger.Cancel) (ledger.CancelState, error) {
			if want := (ledger.Cancel{Pool: "p", Ticket: "t", Call: 7, Ended: 1<<64 - 1}); op != want {
				t.Errorf("backend got %+v, want %+v", op, want)
			}
			return ledger.CancelLeased, nil
		},
		heartbeat: func(_ context.Context, holder string) (fsm.HolderStatus, error) {
			return fsm.HolderStatus{TTL: 15 * time.Second, Leases: int64(len(holder))}, nil
		},
	}
	r := start(t, b)
	if got := r.post("AdmissionService/Cancel", `{"pool":"p","ticketId":"t","callId":7,"endedCallId":"18446744073709551615"}`).ok(t); got["was"] != "CANCEL_STATE_LEASED" {
		t.Errorf("cancel answered %v", got)
	}
	got := r.post("AdmissionService/Heartbeat", `{"holderId":"abc"}`).ok(t)
	if want := map[string]any{"ttl": "15s", "leases": "3", "waiters": "0"}; !reflect.DeepEqual(got, want) {
		t.Errorf("heartbeat answered %v", got)
	}
}

func TestParseLeaseID(t *testing.T) {
	for id, want := range map[string]struct {
		epoch  uint64
		ticket string
		ok     bool
	}{
		"1:a":                    {1, "a", true},
		"18446744073709551615:a": {1<<64 - 1, "a", true},
		"7::x":                   {7, ":x", true},
		"18446744073709551616:a": {}, "-1:a": {}, "+1:a": {}, "01:a": {}, "1_0:a": {}, ":a": {}, "1:": {}, "1": {}, " 1:a": {}, "a:1": {}, "": {},
		"1:" + strings.Repeat("x", 257): {},
	} {
		epoch, ticket, err := parseLeaseID("leaseId", id)
		if (err == nil) != want.ok || (want.ok && (epoch != want.epoch || ticket != want.ticket)) {
			t.Errorf("%q: %d %q %v", id, epoch, ticket, err)
		}
	}
}

func FuzzParseLeaseID(f *testing.F) {
	for _, s := range []string{"1:a", "0::", "18446744073709551615:x", "01:a", "\xff:a"} {
		f.Add(s)
	}
	f.Fuzz(func(t *testing.T, s string) {
		epoch, ticket, err := parseLeaseID("leaseId", s)
		if err == nil && ledger.LeaseID(epoch, ticket) != s {
			t.Errorf("%q parsed to %d, %q, which is another id", s, epoch, ticket)
		}
		if err != nil && !errors.Is(err, ledger.ErrInvalid) {
			t.Errorf("%q: %v is no invalid argument", s, err)
		}
	})
}

// The API's enums and the ledger's share their numbers; the mapping is a conversion.
func TestEnumNumbersAgree(t *testing.T) {
	same := func(api string, prefix, own string) {
		t.Helper()
		if want := prefix + strings.ToUpper(own); api != want {
			t.Errorf("%s is the ledger's %s", api, own)
		}
	}
	for n := range kvgatev1.Reason_name {
		same(kvgatev1.Reason(n).String(), "REASON_", ledger.Reason(n).String())
	}
	for n := range kvgatev1.WaitReason_name {
		same(kvgatev1.WaitReason(n).String(), "WAIT_REASON_", ledger.WaitReason(n).String())
	}
	pairs := []struct{ api, own int32 }{
		{int32(kvgatev1.Mode_MODE_TRAIN), int32(ledger.ModeTrain)}, {int32(kvgatev1.Mode_MODE_EVAL), int32(ledger.ModeEval)},
		{int32(kvgatev1.Action_ACTION_ADMIT), int32(ledger.ActionAdmit)}, {int32(kvgatev1.Action_ACTION_BYPASS), int32(ledger.ActionBypass)},
		{int32(kvgatev1.Action_ACTION_WAIT), int32(ledger.ActionWait)},
		{int32(kvgatev1.CancelState_CANCEL_STATE_WAITING), int32(ledger.CancelWaiting)}, {int32(kvgatev1.CancelState_CANCEL_STATE_LEASED), int32(ledger.CancelLeased)},
		{int32(kvgatev1.CancelState_CANCEL_STATE_UNKNOWN), int32(ledger.CancelUnknown)},
		{int32(kvgatev1.Scope_SCOPE_TRAIN), int32(ledger.ScopeTrain)}, {int32(kvgatev1.Scope_SCOPE_ALL), int32(ledger.ScopeAll)},
		{int32(kvgatev1.Oversize_OVERSIZE_BYPASS), int32(ledger.OversizeBypass)}, {int32(kvgatev1.Oversize_OVERSIZE_WAIT), int32(ledger.OversizeWait)},
		{int32(kvgatev1.CapacityRoles_CAPACITY_ROLES_AUTO), int32(ledger.RolesAuto)}, {int32(kvgatev1.CapacityRoles_CAPACITY_ROLES_REGULAR), int32(ledger.RolesRegular)},
		{int32(kvgatev1.CapacityRoles_CAPACITY_ROLES_DECODE), int32(ledger.RolesDecode)}, {int32(kvgatev1.CapacityRoles_CAPACITY_ROLES_PREFILL), int32(ledger.RolesPrefill)},
		{int32(kvgatev1.CloseScope_CLOSE_SCOPE_BROADCAST), int32(ledger.CloseBroadcast)}, {int32(kvgatev1.CloseScope_CLOSE_SCOPE_SERVED), int32(ledger.CloseServed)},
		{int32(kvgatev1.EngineRole_ENGINE_ROLE_REGULAR), int32(ledger.RoleRegular)}, {int32(kvgatev1.EngineRole_ENGINE_ROLE_PREFILL), int32(ledger.RolePrefill)},
		{int32(kvgatev1.EngineRole_ENGINE_ROLE_DECODE), int32(ledger.RoleDecode)}, {int32(kvgatev1.EngineRole_ENGINE_ROLE_ENCODE), int32(ledger.RoleEncode)},
	}
	for i, p := range pairs {
		if p.api != p.own {
			t.Errorf("pair %d: %d is %d in the ledger", i, p.api, p.own)
		}
	}
}
