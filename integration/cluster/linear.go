package cluster

import (
	"fmt"
	"math"
	"time"

	"github.com/anishathalye/porcupine"

	kvgatev1 "kvgate/rpc/kvgate/v1"
)

// ticketLimit bounds the search for one ticket's order.
const ticketLimit = 10 * time.Second

// tickets checks each ticket by itself: there must be an order of its operations, in agreement with real
// time, in which each answer fits the ticket's journal read from start to end.
func (c *checker) tickets() {
	ops := map[string][]*Op{}
	for _, o := range c.ops {
		if o.Kind != OpBudget {
			ops[o.Ticket] = append(ops[o.Ticket], o)
		}
	}
	for ticket, list := range ops {
		m := &ticketModel{events: c.byTicket[ticket]}
		switch porcupine.CheckOperationsTimeout(m.model(), m.operations(list), ticketLimit) {
		case porcupine.Illegal:
			c.problems = append(c.problems, m.describe(ticket, list))
		case porcupine.Unknown:
			c.problems = append(c.problems, fmt.Sprintf("ticket %s: no order was found within %v", ticket, ticketLimit))
		}
	}
}

// ticketModel is the journal of one ticket as a state machine. Its state is how many events have
// happened. Events that time or other tickets cause may happen by themselves; those that only a call on
// the ticket causes happen with an operation that could have caused them.
type ticketModel struct{ events []*Event }

// beginning is what times are measured from, so that steps of the wall clock do not matter.
var beginning = time.Now()

// final is an operation that comes after all others: by then, everything has happened.
type final struct{}

func (m *ticketModel) operations(list []*Op) []porcupine.Operation {
	out := make([]porcupine.Operation, 0, len(list)+1)
	for _, o := range list {
		end := int64(o.End.Sub(beginning))
		if !o.Known {
			end = math.MaxInt64 - 2 // it may yet take effect
		}
		out = append(out, porcupine.Operation{Input: o, Output: o, Call: int64(o.Start.Sub(beginning)), Return: end})
	}
	return append(out, porcupine.Operation{Input: final{}, Output: final{}, Call: math.MaxInt64 - 1, Return: math.MaxInt64})
}

func (m *ticketModel) model() porcupine.Model {
	n := porcupine.NondeterministicModel{
		Init: func() []any { return []any{0} },
		Step: func(state, input, _ any) (next []any) {
			at := m.free(state.(int))
			if _, ok := input.(final); ok {
				if at[len(at)-1] == len(m.events) {
					return []any{len(m.events)}
				}
				return nil
			}
			seen := map[int]bool{}
			for _, from := range at {
				for _, to := range m.after(from, input.(*Op)) {
					if !seen[to] {
						seen[to] = true
						next = append(next, to)
					}
				}
			}
			return next
		},
		Equal: func(a, b any) bool { return a == b },
	}
	return n.ToModel()
}

// free returns where the state can be by itself.
func (m *ticketModel) free(at int) []int {
	out := []int{at}
	for at < len(m.events) && m.causedBy(m.events[at]) < 0 {
		at++
		out = append(out, at)
	}
	return out
}

// causedBy returns which kind of operation an event needs, -1 when it happens by itself.
func (m *ticketModel) causedBy(e *Event) int {
	switch e.Kind {
	case "released":
		return int(OpRelease)
	case "renewed":
		return int(OpRenew)
	case "cancelled":
		return int(OpCancel)
	case "bypassed":
		if e.Wait == nil && e.Reason != "aged" && e.Reason != "degraded" {
			return int(OpAcquire) // nobody waited
		}
	}
	return -1
}

// after returns where the state may be after an operation that began when it was at from.
func (m *ticketModel) after(from int, o *Op) (out []int) {
	// A node that loses the answer of its leader asks again, so an operation may have caused several
	// events of its kind; only the last one is answered for. Others may happen by themselves in between. What
	// cannot be repeated without harm happens once: calls are told by their numbers.
	for to := from; ; to++ {
		own := to == from || m.causedBy(m.events[to-1]) == int(o.Kind) || o.Kind == OpAcquire && m.events[to-1].Kind == "admitted"
		if own && (!o.Known || m.fits(from, to, o)) {
			out = append(out, to)
		}
		if to > from && once(m.events[to-1]) {
			return out
		}
		if to == len(m.events) || m.causedBy(m.events[to]) >= 0 && m.causedBy(m.events[to]) != int(o.Kind) {
			return out
		}
	}
}

// once says that a call causes no more after that event: it cancelled, or used a mark up.
func once(e *Event) bool {
	return e.Kind == "cancelled" || e.Kind == "bypassed" && e.Reason == "cancelled"
}

// fits says whether the answer of o is right when the events between from and to are its own.
func (m *ticketModel) fits(from, to int, o *Op) bool {
	var newest *Event
	if to > from {
		newest = m.events[to-1]
	}
	phase, grant := m.phase(to)
	switch o.Kind {
	case OpAcquire:
		if o.Action == kvgatev1.Action_ACTION_ADMIT {
			return phase == kvgatev1.TicketState_TICKET_STATE_LEASED && grant == o.Grant
		}
		return phase == kvgatev1.TicketState_TICKET_STATE_UNKNOWN && m.letGo(to)
	case OpRelease:
		if o.OK {
			return newest != nil && newest.Grant == o.Fence
		}
		return phase != kvgatev1.TicketState_TICKET_STATE_LEASED || grant != o.Fence
	case OpRenew:
		if o.OK {
			return newest != nil && newest.Grant == o.Fence
		}
		return phase != kvgatev1.TicketState_TICKET_STATE_LEASED || grant != o.Fence
	case OpCancel:
		return newest != nil && newest.Reason == cancelReason[o.Was]
	}
	return o.State == phase && (phase != kvgatev1.TicketState_TICKET_STATE_LEASED || o.Grant == grant)
}

var cancelReason = map[kvgatev1.CancelState]string{
	kvgatev1.CancelState_CANCEL_STATE_WAITING: "cancelled",
	kvgatev1.CancelState_CANCEL_STATE_LEASED:  "leased",
	kvgatev1.CancelState_CANCEL_STATE_UNKNOWN: "unknown",
}

// letGo says that the ticket has been told to go without a lease by the first n events.
func (m *ticketModel) letGo(n int) bool {
	for _, e := range m.events[:n] {
		switch e.Kind {
		case "bypassed", "abandoned", "cancelled", "holder_expired":
			return true
		}
	}
	return false
}

// phase returns the ticket's state after the first n events, and its grant.
func (m *ticketModel) phase(n int) (kvgatev1.TicketState, uint64) {
	phase, grant := kvgatev1.TicketState_TICKET_STATE_UNKNOWN, uint64(0)
	for _, e := range m.events[:n] {
		switch e.Kind {
		case "waiting":
			phase = kvgatev1.TicketState_TICKET_STATE_WAITING
		case "admitted":
			phase, grant = kvgatev1.TicketState_TICKET_STATE_LEASED, e.Grant
		case "released", "lease_expired", "unclaimed", "cancelled", "abandoned", "holder_expired", "bypassed":
			phase, grant = kvgatev1.TicketState_TICKET_STATE_UNKNOWN, 0
		}
	}
	return phase, grant
}

func (m *ticketModel) describe(ticket string, list []*Op) string {
	s := "ticket " + ticket + ": no order of its operations explains the answers; it had"
	for _, o := range list {
		s += fmt.Sprintf("\n    %s at %s", o, o.Start.Format("05.000"))
	}
	s += "\n  and the journal tells"
	for _, e := range m.events {
		s += fmt.Sprintf("\n    %s %s grant %d at %s", e.Kind, e.Reason, e.Grant, e.wall().Format("05.000"))
	}
	return s
}
