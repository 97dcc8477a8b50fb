package main

import (
	"context"
	"fmt"
	"io"
	"strings"
	"time"

	"github.com/spf13/cobra"
	"google.golang.org/protobuf/types/known/timestamppb"

	"kvgate/rpc"
	kvgatev1 "kvgate/rpc/kvgate/v1"
)

const sessionHelp = `A session is one agent program: many tickets over time, one id that the engines know. When it
ends, close it: kvgate waits for its tickets in flight and then tells every engine to free its KV.

The first acquire that names a session opens it, so "open" is needed only for a group, an idle timeout,
or a session that is not of kind radix.`

func newSessionCommand(m *Main) *cobra.Command {
	cmd := groupCommand("session", groupTickets, "Open, close and look at agent sessions and their pins",
		newSessionOpenCommand(m), newSessionTouchCommand(m), newSessionBindCommand(m),
		newSessionCloseCommand(m), newSessionCloseGroupCommand(m),
		newSessionListCommand(m), newSessionShowCommand(m),
		newSessionPinCommand(m), newSessionUnpinCommand(m), newSessionPinsCommand(m),
	)
	cmd.Long = sessionHelp
	return cmd
}

// sessionArgument returns the id of a session, the only argument of its command.
func sessionArgument(args []string) (string, error) {
	if len(args) == 0 {
		return "", usagef("a session is missing: give its id as argument")
	}
	return args[0], nil
}

// printSession writes a session as JSON or as details, and warnings beside them.
func (c *client) printSession(ctx context.Context, answer interface {
	GetSession() *kvgatev1.Session
}, asJSON func(io.Writer) error, warnings []string) error {
	for _, w := range warnings {
		c.note("warning: %s", warningText(w))
	}
	return c.print(asJSON, func(w io.Writer) error { return writeSession(w, answer.GetSession(), c.now(ctx)) })
}

// warningText explains a warning that the API names by one word.
func warningText(w string) string {
	if w == rpc.WarningSessionReused {
		return w + ": this id was closed not long ago, and engines may never tag its KV; use a fresh id for each agent program"
	}
	return w
}

// writeSession writes everything about a session. What is still owed, and why, comes last.
func writeSession(w io.Writer, s *kvgatev1.Session, now time.Time) error {
	details := [][2]string{
		{"session", s.SessionId}, {"pool", s.Pool}, {"state", sessionState(s)}, {"kind", word(s.Kind)}, {"group", s.GroupId},
		{"in flight", strings.Join(s.InFlight, ", ")}, {"waiting", countOf(s.Waiting)},
		{"turns", number(s.Turns)}, {"footprint", tokensOf(s.FootprintTokens)},
		{"opened", ago(s.OpenedAt, now)}, {"last turn", ago(s.LastTurnAt, now)}, {"idle timeout", idleOf(s)},
		{"engine", s.EngineUrl}, {"binding", bindingOf(s.Binding)}, {"pins", pinIDs(s.Pins)},
		{"close began", closingOf(s, now)}, {"acknowledged", countOf(s.Acknowledged)}, {"left", countOf(s.Left)},
	}
	if err := writeDetails(w, details); err != nil {
		return err
	}
	if len(s.Aborts) > 0 {
		fmt.Fprintln(w)
		if err := writeAborts(w, s.Aborts); err != nil {
			return err
		}
	}
	if len(s.Owed) == 0 {
		return nil
	}
	fmt.Fprintln(w)
	return writeOwed(w, s.Owed)
}

func writeAborts(w io.Writer, aborts []*kvgatev1.PendingAbort) error {
	rows := make([][]string, len(aborts))
	for i, a := range aborts {
		next := "now"
		switch {
		case a.EngineUrl == "":
			next = ""
		case a.NextTry != nil:
			next = "in " + span(a.NextTry)
		}
		rows[i] = []string{a.TicketId, a.EngineUrl, number(a.Attempts), next, a.LastError}
	}
	return writeTable(w, "", []column{left("ticket to abort"), left("engine"), right("attempts"), left("next try"), left("last error")}, rows)
}

func writeOwed(w io.Writer, owed []*kvgatev1.OwedClose) error {
	rows := make([][]string, len(owed))
	for i, o := range owed {
		next := "now"
		switch {
		case o.Failed:
			next = "given up"
		case o.EngineUrl == "":
			next = "once found"
		case o.NextTry != nil:
			next = "in " + span(o.NextTry)
		}
		rows[i] = []string{engineName(o), number(o.Attempts), next, o.LastError}
	}
	return writeTable(w, "", []column{left("engine that owes the close"), right("attempts"), left("next try"), left("last error")}, rows)
}

// engineName names the engine of a debt. It has none while the pool's engines are not known.
func engineName(o *kvgatev1.OwedClose) string {
	if o.EngineUrl == "" {
		return "engines not found"
	}
	return o.EngineUrl
}

// sessionState adds to the state of a session what a close is busy with.
func sessionState(s *kvgatev1.Session) string {
	if s.Phase == kvgatev1.ClosePhase_CLOSE_PHASE_UNSPECIFIED {
		return word(s.State)
	}
	return word(s.State) + ", " + word(s.Phase)
}

// plural writes a number of things: "1 engine", "2 engines".
func plural(n int64, thing string) string {
	if n == 1 {
		return "1 " + thing
	}
	return number(n) + " " + thing + "s"
}

func countOf(n int64) string {
	if n == 0 {
		return ""
	}
	return number(n)
}

func tokensOf(n int64) string {
	if n == 0 {
		return ""
	}
	return number(n) + " tokens"
}

func ago(t *timestamppb.Timestamp, now time.Time) string {
	if t == nil {
		return ""
	}
	return humanDuration(max(0, now.Sub(t.AsTime()))) + " ago"
}

func idleOf(s *kvgatev1.Session) string {
	if s.IdleTimeout.AsDuration() == 0 {
		return "never"
	}
	return span(s.IdleTimeout)
}

func bindingOf(b *kvgatev1.Binding) string {
	if b == nil {
		return ""
	}
	return fmt.Sprintf("%s rank %d", b.EngineUrl, b.DpRank)
}

func pinIDs(pins []*kvgatev1.Pin) string {
	ids := make([]string, len(pins))
	for i, p := range pins {
		ids[i] = p.PinId
	}
	return strings.Join(ids, ", ")
}

func closingOf(s *kvgatev1.Session, now time.Time) string {
	if s.ClosingSince == nil {
		return ""
	}
	return ago(s.ClosingSince, now) + " (" + closeReason(s.CloseReason) + ")"
}

func closeReason(reason string) string {
	switch reason {
	case "asked":
		return "somebody closed it"
	case "group":
		return "its group was closed"
	case "idle":
		return "idle timeout"
	}
	return reason
}
