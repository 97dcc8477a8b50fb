package fsm

import (
	"time"

	"kvgate/fsm/fsmpb"
	"kvgate/sessions"
)

// This file turns what commands on sessions answer into what travels between nodes, and back.

func encodeView(v *sessions.View) *fsmpb.SessionView {
	out := &fsmpb.SessionView{Row: encodeSession(&v.SessionRow), Owed: encodeCreditors(v.Owed)}
	for i := range v.Tickets {
		out.Tickets = append(out.Tickets, encodeSessionTicket(&v.Tickets[i]))
	}
	for i := range v.Pins {
		out.Pins = append(out.Pins, encodePinView(&v.Pins[i]))
	}
	return out
}

func decodeView(m *fsmpb.SessionView) sessions.View {
	v := sessions.View{SessionRow: *decodeSession(m.GetRow()), Owed: decodeCreditors(m.GetOwed())}
	for _, x := range m.GetTickets() {
		row := *decodeSessionTicket(x)
		if row.Waiting {
			v.Waiting++
		} else {
			v.InFlight++
		}
		v.Tickets = append(v.Tickets, row)
	}
	for _, p := range m.GetPins() {
		v.Pins = append(v.Pins, decodePinView(p))
	}
	return v
}

func encodePinView(p *sessions.PinView) *fsmpb.PinView {
	return &fsmpb.PinView{
		Id: p.ID, Engine: p.Engine, Session: p.Session, Tokens: p.Tokens, ExpiresIn: int64(p.ExpiresIn),
		LedgerOnly: p.LedgerOnly, Held: p.Held, Refused: p.Refused,
	}
}

func decodePinView(m *fsmpb.PinView) sessions.PinView {
	return sessions.PinView{
		ID: m.GetId(), Engine: m.GetEngine(), Session: m.GetSession(), Tokens: m.GetTokens(),
		ExpiresIn: time.Duration(m.GetExpiresIn()), LedgerOnly: m.GetLedgerOnly(), Held: m.GetHeld(), Refused: m.GetRefused(),
	}
}

func encodeOwed(ids []string, status map[string][]sessions.OwedStatus) *fsmpb.OwedResponse {
	out := &fsmpb.OwedResponse{Sessions: make([]*fsmpb.OwedList, len(ids))}
	for i, id := range ids {
		out.Sessions[i] = &fsmpb.OwedList{}
		for _, s := range status[id] {
			out.Sessions[i].Engines = append(out.Sessions[i].Engines, &fsmpb.OwedEngine{
				Engine: s.Engine, Attempts: int64(s.Attempts), LastError: s.LastError, NextTry: int64(s.NextTry), Ticket: s.Ticket,
			})
		}
	}
	return out
}

func decodeOwed(ids []string, m *fsmpb.OwedResponse) map[string][]sessions.OwedStatus {
	out := map[string][]sessions.OwedStatus{}
	for i, list := range m.GetSessions() {
		if i >= len(ids) {
			break
		}
		for _, e := range list.GetEngines() {
			out[ids[i]] = append(out[ids[i]], sessions.OwedStatus{
				Engine: e.GetEngine(), Attempts: int(e.GetAttempts()), LastError: e.GetLastError(), NextTry: time.Duration(e.GetNextTry()), Ticket: e.GetTicket(),
			})
		}
	}
	return out
}
