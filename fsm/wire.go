package fsm

import (
	"errors"
	"fmt"
	"slices"
	"time"

	"kvgate/fsm/fsmpb"
	"kvgate/ledger"
	"kvgate/sessions"
)

// This file turns results into what travels between nodes, and back.

// failures names the errors that travel by code. The first match wins.
var failures = []struct {
	code string
	err  error
}{
	{"ticket_mismatch", ledger.ErrTicketMismatch},
	{"too_many_waiters", ledger.ErrTooManyWaiters},
	{"unknown_pool", ledger.ErrUnknownPool},
	{"step_drained", ledger.ErrStepDrained},
	{"session_closing", sessions.ErrClosing},
	{"unknown_session", sessions.ErrUnknown},
	{"unknown_pin", sessions.ErrUnknownPin},
	{"session_kind", sessions.ErrKind},
	{"unknown_engine", sessions.ErrUnknownEngine},
	{"pins_disabled", sessions.ErrPinsDisabled},
	{"pin_budget_exhausted", sessions.ErrPinBudget},
	{"leadership_lost", ErrLeadershipLost},
	{"not_leader", ErrNotLeader},
	{"no_leader", ErrNoLeader},
	{"read_only", ErrReadOnly},
	{"timeout", ErrTimeout},
	{"shutdown", ErrShutdown},
	{"unknown_version", ErrUnknownVersion},
	{"last_voter", ErrLastVoter},
	{"unknown_node", ErrUnknownNode},
	{"address_taken", ErrAddressTaken},
	{"old_node", ErrOldNode},
	{"wrong_node", ErrWrongNode},
	{"not_transferred", ErrNotTransferred},
}

func encodeFailure(err error) *fsmpb.Failure {
	if err == nil {
		return nil
	}
	var field *ledger.FieldError
	if errors.As(err, &field) {
		return &fsmpb.Failure{
			Code: "invalid", Message: err.Error(), Field: field.Field, Value: fmt.Sprint(field.Value), Allowed: field.Allowed,
		}
	}
	var ofSession *sessions.FieldError
	if errors.As(err, &ofSession) {
		return &fsmpb.Failure{
			Code: "invalid_session", Message: err.Error(), Field: ofSession.Field, Value: fmt.Sprint(ofSession.Value),
			Allowed: ofSession.Allowed,
		}
	}
	for _, f := range failures {
		if errors.Is(err, f.err) {
			return &fsmpb.Failure{Code: f.code, Message: err.Error()}
		}
	}
	return &fsmpb.Failure{Code: "internal", Message: err.Error()}
}

// relayed is an error of another node, in its words.
type relayed struct {
	is   error
	text string
}

func (e *relayed) Error() string { return e.text }
func (e *relayed) Unwrap() error { return e.is }

func decodeFailure(f *fsmpb.Failure) error {
	switch {
	case f == nil:
		return nil
	case f.Code == "invalid":
		return &ledger.FieldError{Field: f.Field, Value: f.Value, Allowed: f.Allowed}
	case f.Code == "invalid_session":
		return &sessions.FieldError{Field: f.Field, Value: f.Value, Allowed: f.Allowed}
	}
	for _, known := range failures {
		if known.code == f.Code {
			return &relayed{is: known.err, text: f.Message}
		}
	}
	return errors.New(f.Message)
}

func encodeResult(r Result) *fsmpb.Result {
	out := &fsmpb.Result{Error: encodeFailure(r.Err)}
	switch v := r.Value.(type) {
	case ledger.Decision:
		out.Value = &fsmpb.Result_Decision{Decision: encodeDecision(v)}
	case bool:
		out.Value = &fsmpb.Result_Flag{Flag: v}
	case []ledger.Renewed:
		list := &fsmpb.Renewals{Leases: make([]*fsmpb.Renewal, len(v))}
		for i, x := range v {
			list.Leases[i] = &fsmpb.Renewal{Ok: x.OK, ExpiresIn: int64(x.ExpiresIn)}
		}
		out.Value = &fsmpb.Result_Renewals{Renewals: list}
	case ledger.CancelState:
		out.Value = &fsmpb.Result_Cancel{Cancel: uint32(v)}
	case ledger.Settings:
		out.Value = &fsmpb.Result_Settings{Settings: encodeSettings(&v, ledger.SettingNames())}
	case map[string]float64:
		out.Value = &fsmpb.Result_Metrics{Metrics: &fsmpb.Metrics{Values: v}}
	case sessions.View:
		out.Value = &fsmpb.Result_Session{Session: encodeView(&v)}
	case sessions.PinView:
		out.Value = &fsmpb.Result_Pin{Pin: encodePinView(&v)}
	case int:
		out.Value = &fsmpb.Result_Count{Count: int64(v)}
	case string:
		out.Value = &fsmpb.Result_Text{Text: v}
	}
	return out
}

func decodeResult(m *fsmpb.Result) Result {
	r := Result{Err: decodeFailure(m.GetError())}
	switch v := m.GetValue().(type) {
	case *fsmpb.Result_Decision:
		r.Value = decodeDecision(v.Decision)
	case *fsmpb.Result_Flag:
		r.Value = v.Flag
	case *fsmpb.Result_Renewals:
		list := make([]ledger.Renewed, len(v.Renewals.Leases))
		for i, x := range v.Renewals.Leases {
			list[i] = ledger.Renewed{OK: x.Ok, ExpiresIn: time.Duration(x.ExpiresIn)}
		}
		r.Value = list
	case *fsmpb.Result_Cancel:
		r.Value = ledger.CancelState(v.Cancel)
	case *fsmpb.Result_Settings:
		r.Value = decodeSettings(v.Settings)
	case *fsmpb.Result_Metrics:
		r.Value = v.Metrics.Values
	case *fsmpb.Result_Session:
		r.Value = decodeView(v.Session)
	case *fsmpb.Result_Pin:
		r.Value = decodePinView(v.Pin)
	case *fsmpb.Result_Count:
		r.Value = int(v.Count)
	case *fsmpb.Result_Text:
		r.Value = v.Text
	}
	return r
}

func encodeDecision(d ledger.Decision) *fsmpb.Decision {
	out := &fsmpb.Decision{
		Pool: d.Pool, Ticket: d.Ticket, Action: uint32(d.Action), Reason: uint32(d.Reason), Wait: uint32(d.Wait),
		Tokens: int64(d.Tokens), Seq: uint64(d.Seq), Waiter: uint64(d.Waiter), Attempt: d.Attempt, Epoch: d.Epoch,
		Waited: int64(d.Waited), ExpiresIn: int64(d.ExpiresIn), Warnings: slices.Clone(d.Warnings), SessionReused: d.SessionReused,
	}
	if b := d.Binding; b != nil {
		out.Binding = &fsmpb.Binding{Engine: b.Engine, DpRank: b.DPRank}
	}
	return out
}

func decodeDecision(m *fsmpb.Decision) ledger.Decision {
	out := ledger.Decision{
		Pool: m.Pool, Ticket: m.Ticket, Action: ledger.Action(m.Action), Reason: ledger.Reason(m.Reason),
		Wait: ledger.WaitReason(m.Wait), Tokens: ledger.Tokens(m.Tokens), Seq: ledger.Seq(m.Seq),
		Waiter: ledger.Seq(m.Waiter), Attempt: m.Attempt, Epoch: m.Epoch, Waited: time.Duration(m.Waited),
		ExpiresIn: time.Duration(m.ExpiresIn), Warnings: m.Warnings, SessionReused: m.SessionReused,
	}
	if b := m.Binding; b != nil {
		out.Binding = &ledger.Binding{Engine: b.Engine, DPRank: b.DpRank}
	}
	return out
}

// decodeSettings reads settings; those that are not stored have their defaults.
func decodeSettings(m *fsmpb.Settings) ledger.Settings {
	set := ledger.DefaultSettings()
	if m == nil {
		return set
	}
	for _, f := range settingFields {
		f.get(&set, m)
	}
	return set
}
