package main

import (
	"context"
	"fmt"
	"io"
	"slices"
	"strings"
	"time"

	"github.com/spf13/cobra"

	kvgatev1 "kvgate/rpc/kvgate/v1"
)

const sessionListHelp = `Lists the sessions of a pool by id. Below the table stands what engines still owe: how many
acknowledgements, by how many engines, and the oldest of them. "session show" says why.`

func newSessionListCommand(m *Main) *cobra.Command {
	var (
		req   kvgatev1.ListSessionsRequest
		state string
		limit int64
	)
	cmd := &cobra.Command{
		Use: "list", Short: "List the sessions of a pool", Long: sessionListHelp,
		Example: "  kvgate session list\n  kvgate session list --state closing\n  kvgate session list --group step-42 --output json",
		Args:    maxArgs(0, "flags only"),
	}
	choiceVar(cmd.Flags(), &state, "state", "any", "only sessions in this state", "any", "open", "closing", "closed", "closed_with_failures")
	cmd.Flags().StringVar(&req.GroupId, "group", "", "only sessions of this group")
	staleFlag(cmd, &req.Stale)
	limitFlag(cmd, &limit, 0)
	return clientCommand(m, cmd, func(ctx context.Context, c *client, _ []string) error {
		req.Pool = c.pool
		if state != "any" {
			req.State = kvgatev1.SessionState(kvgatev1.SessionState_value["SESSION_STATE_"+strings.ToUpper(state)])
		}
		list, next, err := pages(limit, func(size int32, token string) ([]*kvgatev1.Session, string, error) {
			req.PageSize, req.PageToken = size, token
			answer, err := call(ctx, c, (*endpoint).ListSessions, &req)
			return answer.GetSessions(), answer.GetNextPageToken(), err
		})
		if err != nil {
			return err
		}
		return c.print(
			func(w io.Writer) error {
				return writeJSON(w, &kvgatev1.ListSessionsResponse{Sessions: list, NextPageToken: next})
			},
			func(w io.Writer) error { return writeSessions(w, list, c.now(ctx)) },
		)
	})
}

func writeSessions(w io.Writer, list []*kvgatev1.Session, now time.Time) error {
	rows := make([][]string, len(list))
	for i, s := range list {
		rows[i] = []string{
			s.SessionId, sessionState(s), word(s.Kind), s.GroupId, number(len64(s.InFlight)), number(s.Turns), number(s.FootprintTokens),
			ago(s.OpenedAt, now), ago(s.ClosingSince, now), number(len64(s.Owed)),
		}
	}
	err := writeTable(w, "no sessions", []column{
		left("session"), left("state"), left("kind"), left("group"), right("in flight"), right("turns"), right("footprint"),
		right("opened"), right("closing"), right("owed by"),
	}, rows)
	if line := owedLine(list, now); err == nil && line != "" {
		_, err = fmt.Fprintln(w, line)
	}
	return err
}

func len64[T any](list []T) int64 { return int64(len(list)) }

// owedLine sums up what engines still owe; it is empty when they owe nothing.
func owedLine(list []*kvgatev1.Session, now time.Time) string {
	var (
		engines []string
		oldest  *kvgatev1.Session
		owed    int
	)
	for _, s := range list {
		for _, o := range s.Owed {
			if o.Failed {
				continue
			}
			owed++
			engines = append(engines, engineName(o))
			if oldest == nil || s.ClosingSince.AsTime().Before(oldest.ClosingSince.AsTime()) {
				oldest = s
			}
		}
	}
	if oldest == nil {
		return ""
	}
	slices.Sort(engines)
	engines = slices.Compact(engines)
	names := strings.Join(engines[:min(len(engines), 3)], ", ")
	if len(engines) > 3 {
		names += ", …"
	}
	return clean(fmt.Sprintf("%s owed by %s (%s); the oldest close began %s: %s",
		plural(int64(owed), "acknowledgement"), plural(len64(engines), "engine"), names, ago(oldest.ClosingSince, now), oldest.SessionId))
}

func newSessionShowCommand(m *Main) *cobra.Command {
	var req kvgatev1.GetSessionRequest
	cmd := &cobra.Command{
		Use: "show SESSION", Short: "Show a session, and which engine still owes its close or an abort, and why",
		Long: "Shows everything about a session. While it closes, each engine that has not acknowledged is listed with the\n" +
			"attempts so far and the last error; before that, each engine that has not taken the abort of a ticket. A\n" +
			"closed session is kept for 10 minutes.",
		Example: "  kvgate session show agent-17", Args: maxArgs(1, "one SESSION"),
	}
	staleFlag(cmd, &req.Stale)
	return clientCommand(m, cmd, func(ctx context.Context, c *client, args []string) (err error) {
		if req.SessionId, err = sessionArgument(args); err != nil {
			return err
		}
		req.Pool = c.pool
		answer, err := call(ctx, c, (*endpoint).GetSession, &req)
		if err != nil {
			return err
		}
		return c.printSession(ctx, answer, func(w io.Writer) error { return writeJSON(w, answer) }, nil)
	})
}
