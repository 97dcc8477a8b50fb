package fsm

import (
	"time"

	"kvgate/fsm/fsmpb"
	"kvgate/sessions"
)

// This file turns operations and events of sessions into their stored form, and back.

func openOp(r sessions.OpenRequest) *fsmpb.Op {
	return &fsmpb.Op{Kind: &fsmpb.Op_OpenSession{OpenSession: &fsmpb.OpenSession{
		Pool: r.Pool, Id: r.ID, Group: r.Group, Kind: uint32(r.Kind), IdleTimeout: int64(r.IdleTimeout), Engine: r.Engine,
	}}}
}

func decodeOpen(m *fsmpb.OpenSession) sessions.OpenRequest {
	return sessions.OpenRequest{
		Pool: m.Pool, ID: m.Id, Group: m.Group, Kind: sessions.Kind(min(m.Kind, 255)),
		IdleTimeout: time.Duration(m.IdleTimeout), Engine: m.Engine,
	}
}

func bindOp(r sessions.BindRequest) *fsmpb.Op {
	return &fsmpb.Op{Kind: &fsmpb.Op_BindSession{BindSession: &fsmpb.BindSession{
		Pool: r.Pool, Id: r.ID, Engine: r.Engine, DpRank: r.DPRank, Ttl: int64(r.TTL),
	}}}
}

func decodeBind(m *fsmpb.BindSession) sessions.BindRequest {
	return sessions.BindRequest{Pool: m.Pool, ID: m.Id, Engine: m.Engine, DPRank: m.DpRank, TTL: time.Duration(m.Ttl)}
}

func closeOp(r sessions.CloseRequest) *fsmpb.Op {
	return &fsmpb.Op{Kind: &fsmpb.Op_CloseSession{CloseSession: &fsmpb.CloseSession{
		Pool: r.Pool, Id: r.ID, Mode: uint32(r.Mode), Timeout: int64(r.Timeout),
	}}}
}

func decodeClose(m *fsmpb.CloseSession) sessions.CloseRequest {
	return sessions.CloseRequest{Pool: m.Pool, ID: m.Id, Mode: sessions.Mode(min(m.Mode, 255)), Timeout: time.Duration(m.Timeout)}
}

func reportOp(batch []sessions.Report) *fsmpb.Op {
	out := &fsmpb.ReportCloses{Reports: make([]*fsmpb.CloseReport, len(batch))}
	for i, r := range batch {
		out.Reports[i] = &fsmpb.CloseReport{Pool: r.Pool, Session: r.Session, Seq: r.Seq, Acked: r.Acked, Aborted: r.Aborted}
		for _, x := range r.Refused {
			out.Reports[i].Refused = append(out.Reports[i].Refused, &fsmpb.AbortRefusal{Ticket: x.Ticket, Engine: x.Engine, Reason: x.Reason})
		}
	}
	return &fsmpb.Op{Kind: &fsmpb.Op_ReportCloses{ReportCloses: out}}
}

func decodeReports(m *fsmpb.ReportCloses) []sessions.Report {
	out := make([]sessions.Report, len(m.Reports))
	for i, r := range m.Reports {
		out[i] = sessions.Report{Pool: r.GetPool(), Session: r.GetSession(), Seq: r.GetSeq(), Acked: r.GetAcked(), Aborted: r.GetAborted()}
		for _, x := range r.GetRefused() {
			out[i].Refused = append(out[i].Refused, sessions.Refusal{Ticket: x.GetTicket(), Engine: x.GetEngine(), Reason: x.GetReason()})
		}
	}
	return out
}

func pinOp(r sessions.PinRequest) *fsmpb.Op {
	return &fsmpb.Op{Kind: &fsmpb.Op_Pin{Pin: &fsmpb.Pin{
		Pool: r.Pool, Id: r.ID, Session: r.Session, Tokens: r.Tokens, Ttl: int64(r.TTL), Engine: r.Engine,
	}}}
}

func decodePin(m *fsmpb.Pin) sessions.PinRequest {
	return sessions.PinRequest{
		Pool: m.Pool, ID: m.Id, Session: m.Session, Tokens: m.Tokens, TTL: time.Duration(m.Ttl), Engine: m.Engine,
	}
}

func encodeSessionEvent(e *sessions.Event, wall int64, into *fsmpb.Event) {
	into.Reset()
	into.LedgerTime, into.WallTime = int64(e.At), wall
	into.Pool, into.Kind, into.Session, into.Group = e.Pool, string(e.Kind), e.Session, e.Group
	into.Ticket, into.Holder, into.Pin, into.Engines = e.Ticket, e.Holder, e.Pin, e.Engines
	into.Tokens, into.Reason, into.Wait = e.Tokens, e.Reason, int64(e.Wait)
	into.InFlight, into.WaitingAfter = int64(e.InFlight), int64(e.Waiting)
}
