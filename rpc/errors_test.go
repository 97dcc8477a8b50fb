package rpc

import (
	"context"
	"errors"
	"fmt"
	"testing"
	"time"

	"connectrpc.com/connect"

	"kvgate/fsm"
	"kvgate/ledger"
	"kvgate/sessions"
)

// failRelease makes every Release fail with err: unlike Acquire it never fails open.
func failRelease(err error) *fakeBackend {
	return &fakeBackend{
		release: func(context.Context, ledger.Release) (bool, error) { return false, err },
		status: fsm.Status{NodeID: "n1", LeaderID: "n2", LeaderAddress: "10.0.0.2:7071", Nodes: []fsm.NodeStatus{
			{ID: "n1", APIAddress: "10.0.0.1:7070"}, {ID: "n2", APIAddress: "10.0.0.2:7070"}, {ID: "n3", APIAddress: "10.0.0.3:7070"},
		}},
	}
}

func TestErrorTable(t *testing.T) {
	for name, c := range map[string]struct {
		err        error
		code       string
		name       string
		retryAfter time.Duration
		hint       string
	}{
		"field":           {&ledger.FieldError{Field: "headroom", Value: 2, Allowed: "(0, 1]"}, "invalid_argument", "invalid_argument", 0, ""},
		"mismatch":        {ledger.ErrTicketMismatch, "failed_precondition", "ticket_mismatch", 0, ""},
		"queue full":      {ledger.ErrTooManyWaiters, "resource_exhausted", "too_many_waiters", time.Second, ""},
		"session field":   {&sessions.FieldError{Field: "ttl", Value: -1, Allowed: "0s"}, "invalid_argument", "invalid_argument", 0, ""},
		"session closing": {sessions.ErrClosing, "failed_precondition", "session_closing", 0, ""},
		"session kind":    {sessions.ErrKind, "failed_precondition", "session_kind", 0, ""},
		"session unknown": {sessions.ErrUnknown, "not_found", "not_found", 0, ""},
		"pin unknown":     {sessions.ErrUnknownPin, "not_found", "not_found", 0, ""},
		"pins off":        {sessions.ErrPinsDisabled, "failed_precondition", "pins_disabled", 0, ""},
		"pin budget":      {sessions.ErrPinBudget, "resource_exhausted", "pin_budget_exhausted", 0, ""},
		"engine not here": {sessions.ErrUnknownEngine, "invalid_argument", "invalid_argument", 0, ""},
		"engine's key":    {sessions.ErrUnauthorized, "failed_precondition", "engine_key_refused", 0, ""},
		"engine down":     {sessions.ErrUnreachable, "aborted", "engine_unreachable", time.Second, ""},
		"engine refuses":  {sessions.ErrStreamingOff, "failed_precondition", "engine_refused", 0, ""},
		"unknown pool":    {ledger.ErrUnknownPool, "not_found", "not_found", 0, ""},
		"default pool":    {ErrDefaultPool, "failed_precondition", "default_pool", 0, ""},
		"no leader":       {fsm.ErrNoLeader, "unavailable", "no_leader", 500 * time.Millisecond, "10.0.0.2:7070"},
		"not leader":      {fsm.ErrNotLeader, "unavailable", "no_leader", 100 * time.Millisecond, "10.0.0.2:7070"},
		"leads elsewhere": {&fsm.LeaderError{ID: "n3", Address: "10.0.0.3:7071"}, "unavailable", "no_leader", 100 * time.Millisecond, "10.0.0.3:7070"},
		"leadership lost": {fsm.ErrLeadershipLost, "unavailable", "no_leader", 500 * time.Millisecond, "10.0.0.2:7070"},
		"timeout":         {fsm.ErrTimeout, "unavailable", "timeout", 500 * time.Millisecond, ""},
		"read only":       {fsm.ErrReadOnly, "unavailable", "read_only", 5 * time.Second, ""},
		"shutdown":        {fsm.ErrShutdown, "unavailable", "shutdown", 0, "10.0.0.2:7070"},
		"last voter":      {fsm.ErrLastVoter, "failed_precondition", "last_voter", 0, ""},
		"unknown node":    {fsm.ErrUnknownNode, "not_found", "unknown_node", 0, ""},
		"address taken":   {fsm.ErrAddressTaken, "failed_precondition", "address_taken", 0, ""},
		"old node":        {fsm.ErrOldNode, "failed_precondition", "old_node", 0, ""},
		"wrong node":      {fsm.ErrWrongNode, "failed_precondition", "wrong_node", 0, ""},
		"not transferred": {fsm.ErrNotTransferred, "failed_precondition", "not_transferred", 0, ""},
		"no token":        {ErrUnauthenticated, "unauthenticated", "unauthenticated", 0, ""},
		"denied":          {ErrDenied, "permission_denied", "permission_denied", 0, ""},
		"canceled":        {context.Canceled, "canceled", "canceled", 0, ""},
		"deadline":        {context.DeadlineExceeded, "deadline_exceeded", "deadline_exceeded", 0, ""},
		"corrupt":         {fsm.ErrCorrupt, "internal", "internal", 0, ""},
		"anything else":   {errors.New("odd"), "internal", "internal", 0, ""},
	} {
		t.Run(name, func(t *testing.T) {
			r := start(t, failRelease(fmt.Errorf("release t: %w", c.err)))
			a := r.post("AdmissionService/Release", `{"ticketId":"t"}`)
			info := a.info(t)
			if a.code() != c.code || info.GetCode() != c.name {
				t.Errorf("got %s / %s, want %s / %s", a.code(), info.GetCode(), c.code, c.name)
			}
			if got := info.GetRetryAfter().AsDuration(); got != c.retryAfter || (info.RetryAfter != nil) != (c.retryAfter > 0 || c.name == CodeShutdown) {
				t.Errorf("retryAfter %v, want %v", info.GetRetryAfter(), c.retryAfter)
			}
			if info.GetLeaderHint() != c.hint {
				t.Errorf("leaderHint %q, want %q", info.GetLeaderHint(), c.hint)
			}
			if a.message() != "release t: "+c.err.Error() {
				t.Errorf("message %q", a.message())
			}
		})
	}
}

func TestFieldErrorsOfTheLedgerKeepTheirField(t *testing.T) {
	r := start(t, &fakeBackend{updateSettings: func(_ context.Context, pool string, p ledger.Patch) (ledger.Settings, error) {
		return ledger.New().UpdateSettings(pool, p)
	}})
	a := r.post("ClusterService/UpdateSettings", `{"settings":{"pressureThreshold":1.5}}`)
	if info := a.info(t); a.code() != "invalid_argument" || info.GetField() != "pressureThreshold" {
		t.Errorf("got %s with field %q", a.raw, info.GetField())
	}
}

func TestConnectErrorsPassUnchanged(t *testing.T) {
	r := start(t, failRelease(connect.NewError(connect.CodePermissionDenied, errors.New("not yours"))))
	a := r.post("AdmissionService/Release", `{"ticketId":"t"}`)
	if a.code() != "permission_denied" || a.message() != "not yours" {
		t.Errorf("got %s", a.raw)
	}
}

func TestPanicEndsOneCallOnly(t *testing.T) {
	b := failRelease(nil)
	b.release = func(_ context.Context, op ledger.Release) (bool, error) {
		if op.Ticket == "bad" {
			panic("a bug")
		}
		return true, nil
	}
	r := start(t, b)
	if a := r.post("AdmissionService/Release", `{"ticketId":"bad"}`); a.code() != "internal" || a.info(t).GetCode() != CodeInternal {
		t.Errorf("got %s", a.raw)
	}
	if got := r.post("AdmissionService/Release", `{"ticketId":"good"}`).ok(t); got["released"] != true {
		t.Errorf("got %v", got)
	}
}
