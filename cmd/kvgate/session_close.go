package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"strings"
	"time"

	"github.com/spf13/cobra"

	kvgatev1 "kvgate/rpc/kvgate/v1"
)

// errCloseFailed ends `session close --wait` when an engine never acknowledged the close.
var errCloseFailed = errors.New("closed with failures")

const sessionCloseHelp = `Begins to close a session: waiters leave the queue, tickets in flight are waited for (--mode join) or
aborted on the engines (--mode abort), and then every engine is told to free the session's KV, again and
again until it has heard. The command answers at once; --wait answers when it is over, and ends with 1
when an engine never acknowledged. A session that is not known counts as closed.`

func newSessionCloseCommand(m *Main) *cobra.Command {
	var (
		req     kvgatev1.CloseSessionRequest
		mode    string
		timeout time.Duration
	)
	cmd := &cobra.Command{
		Use: "close SESSION", Short: "Close a session and have its KV freed", Long: sessionCloseHelp,
		Example: "  kvgate session close agent-17\n  kvgate session close agent-17 --mode abort --wait", Args: maxArgs(1, "one SESSION"),
	}
	modeFlag(cmd, &mode)
	cmd.Flags().DurationVar(&timeout, "join-timeout", 0, "longest wait for tickets in flight (default: the pool's join_timeout)")
	cmd.Flags().BoolVar(&req.Wait, "wait", false, "answer when the session is closed; --timeout, when given, bounds it")
	return clientCommand(m, cmd, func(ctx context.Context, c *client, args []string) (err error) {
		if req.SessionId, err = sessionArgument(args); err != nil {
			return err
		}
		req.Pool, req.Mode = c.pool, closeMode(mode)
		if req.Timeout, err = durationFlag(cmd, "join-timeout", timeout); err != nil {
			return err
		}
		if req.Timeout != nil && timeout == 0 {
			return badValue("join-timeout", "0s", "a duration above 0s, or --mode abort")
		}
		limit := c.timeout
		if req.Wait && !cmd.Flags().Changed("timeout") {
			limit = 0
		}
		answer, err := callEach(ctx, c, (*endpoint).CloseSession, func() *kvgatev1.CloseSessionRequest { return &req }, limit)
		if err != nil {
			return err
		}
		if answer.Session.GetOpenedAt() == nil {
			c.note("session %q is not known in pool %q: nothing was closed, and no engine is told", req.SessionId, answer.Session.GetPool())
		}
		err = c.printSession(ctx, answer, func(w io.Writer) error { return writeJSON(w, answer) }, nil)
		return errors.Join(err, closeFailure(answer.Session))
	})
}

// closeFailure returns an error that names the engines that never acknowledged a close that is over.
func closeFailure(s *kvgatev1.Session) error {
	if s.State != kvgatev1.SessionState_SESSION_STATE_CLOSED_WITH_FAILURES {
		return nil
	}
	engines := make([]string, len(s.Owed))
	for i, o := range s.Owed {
		engines[i] = engineName(o)
	}
	return fmt.Errorf("%w: no acknowledgement by %s", errCloseFailed, strings.Join(engines, ", "))
}

func newSessionCloseGroupCommand(m *Main) *cobra.Command {
	var mode string
	cmd := &cobra.Command{
		Use: "close-group GROUP", Short: "Close all open sessions of a rollout group",
		Long:    "Begins to close all open sessions of a rollout group in one step, and says how many those are.",
		Example: "  kvgate session close-group step-42", Args: maxArgs(1, "one GROUP"),
	}
	modeFlag(cmd, &mode)
	return clientCommand(m, cmd, func(ctx context.Context, c *client, args []string) error {
		if len(args) == 0 {
			return usagef("a group is missing: give its id as argument")
		}
		req := &kvgatev1.CloseGroupRequest{Pool: c.pool, GroupId: args[0], Mode: closeMode(mode)}
		answer, err := call(ctx, c, (*endpoint).CloseGroup, req)
		if err != nil {
			return err
		}
		return c.print(
			func(w io.Writer) error { return writeJSON(w, answer) },
			func(w io.Writer) error {
				return writeDetails(w, [][2]string{{"group", args[0]}, {"closing", plural(answer.Closing, "session")}})
			},
		)
	})
}

func modeFlag(cmd *cobra.Command, mode *string) {
	choiceVar(cmd.Flags(), mode, "mode", "join", "what happens to tickets in flight", "join", "abort")
}

func closeMode(mode string) kvgatev1.CloseMode {
	return kvgatev1.CloseMode(kvgatev1.CloseMode_value["CLOSE_MODE_"+strings.ToUpper(mode)])
}
