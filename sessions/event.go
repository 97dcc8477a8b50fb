package sessions

import "time"

// EventKind names what a journal event tells.
type EventKind string

// The kinds of events.
const (
	SessionOpened  EventKind = "session_opened"
	SessionBound   EventKind = "session_bound"
	SessionUnbound EventKind = "session_unbound"
	SessionClosing EventKind = "session_closing"
	// SessionPhase: the close of a session entered a phase, which Reason names.
	SessionPhase EventKind = "session_phase"
	// AbortSent: every engine was asked to abort the ticket.
	AbortSent EventKind = "abort_sent"
	// AbortRefused: the engines did not take the abort, for a reason, and are asked again. It is told once for an
	// engine and ticket under one leader.
	AbortRefused EventKind = "abort_refused"
	// CloseSent: the engines acknowledged the close.
	CloseSent EventKind = "close_sent"
	// CloseFailed: the engines had not acknowledged the close by its deadline.
	CloseFailed EventKind = "close_failed"
	// CloseVoided: the engines left the set or were restarted, and owe nothing any more.
	CloseVoided   EventKind = "close_voided"
	SessionClosed EventKind = "session_closed"
	// TicketForgotten: a bypassed attempt was not released within the lease TTL, when it has no holder, or
	// its holder went silent.
	TicketForgotten EventKind = "ticket_forgotten"
	Pinned          EventKind = "pinned"
	Unpinned        EventKind = "unpinned"
)

// Event is one thing that happened to a session or a pin. Fields that do not apply are zero.
type Event struct {
	At      Time
	Kind    EventKind
	Pool    string
	Session string
	Group   string
	Ticket  string
	Holder  string
	Pin     string
	// Engines are those that the event is about. The slice must not be changed.
	Engines []string
	// Tokens of a pin, or of the session's last reported turn.
	Tokens int64
	Reason string
	// Wait is how long the session had been closing.
	Wait time.Duration
	// InFlight and Waiting count the session's tickets after the event.
	InFlight, Waiting int
}

// Effect is what the ledger must do because of a session, in the same log entry.
type Effect struct {
	Pool, Session string
	// Drop names waiters that leave the queue with bypass session_closing.
	Drop []string
	// Release names tickets whose leases end.
	Release []string
}

// Events returns what happened since the last Forget, which reuses the slice.
func (t *Table) Events() []Event { return t.events }

// TakeEffects returns what the ledger must do, each effect once.
func (t *Table) TakeEffects() []Effect {
	out := t.effects
	t.effects = nil
	return out
}

// emit notes an event; s is nil for a pin without a session.
func (t *Table) emit(p *pool, s *session, e Event) {
	e.At, e.Pool = t.now, p.name
	if s != nil {
		e.Session, e.Group, e.InFlight, e.Waiting = s.ID, s.Group, s.flights, s.waiting
		if s.State >= Closing {
			e.Wait = t.now.Sub(s.Close.Since)
		}
	}
	t.events = append(t.events, e)
}
