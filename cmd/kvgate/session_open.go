package main

import (
	"context"
	"io"
	"strings"
	"time"

	"github.com/spf13/cobra"
	"google.golang.org/protobuf/types/known/durationpb"

	kvgatev1 "kvgate/rpc/kvgate/v1"
)

const sessionOpenHelp = `Opens a session, or starts the idle clock of an open one anew. Kinds: radix sessions have their KV
tagged by the session id of each request; streaming sessions hold a slot of one engine, which --engine
names and which is asked to open it; bind sessions only remember a placement.`

const sessionOpenExample = `  kvgate session open agent-17 --group step-42
  kvgate session open agent-17 --idle-timeout 10m
  kvgate session open chat-3 --kind streaming --engine http://e1:30000`

func newSessionOpenCommand(m *Main) *cobra.Command {
	var (
		req  kvgatev1.OpenSessionRequest
		kind string
		idle time.Duration
	)
	cmd := &cobra.Command{
		Use: "open SESSION", Short: "Open a session", Long: sessionOpenHelp, Example: sessionOpenExample, Args: maxArgs(1, "one SESSION"),
	}
	cmd.Flags().StringVar(&req.GroupId, "group", "", "rollout group of the session")
	cmd.Flags().StringVar(&req.EngineUrl, "engine", "", "engine that a streaming session lives on")
	cmd.Flags().DurationVar(&idle, "idle-timeout", 0, "close it when it had no ticket for so long; 0s never (default: never for radix, else 5m)")
	choiceVar(cmd.Flags(), &kind, "kind", "radix", "kind of the session", "radix", "streaming", "bind")
	return clientCommand(m, cmd, func(ctx context.Context, c *client, args []string) (err error) {
		if req.SessionId, err = sessionArgument(args); err != nil {
			return err
		}
		req.Pool = c.pool
		if cmd.Flags().Changed("kind") {
			req.Kind = kvgatev1.SessionKind(kvgatev1.SessionKind_value["SESSION_KIND_"+strings.ToUpper(kind)])
		}
		if req.IdleTimeout, err = durationFlag(cmd, "idle-timeout", idle); err != nil {
			return err
		}
		answer, err := call(ctx, c, (*endpoint).OpenSession, &req)
		if err != nil {
			return err
		}
		return c.printSession(ctx, answer, func(w io.Writer) error { return writeJSON(w, answer) }, answer.Warnings)
	})
}

func newSessionTouchCommand(m *Main) *cobra.Command {
	cmd := &cobra.Command{
		Use: "touch SESSION", Short: "Start the idle clock of a session anew",
		Long:    "Starts the idle clock of an open session anew, for an agent that is busy elsewhere, say with a tool.",
		Example: "  kvgate session touch agent-17", Args: maxArgs(1, "one SESSION"),
	}
	return clientCommand(m, cmd, func(ctx context.Context, c *client, args []string) error {
		id, err := sessionArgument(args)
		if err != nil {
			return err
		}
		answer, err := call(ctx, c, (*endpoint).TouchSession, &kvgatev1.TouchSessionRequest{Pool: c.pool, SessionId: id})
		if err != nil {
			return err
		}
		return c.printSession(ctx, answer, func(w io.Writer) error { return writeJSON(w, answer) }, nil)
	})
}

const sessionBindHelp = `Records where the router placed the first turn of a session, so that every later acquire is told.
kvgate never chooses a placement. It is forgotten when its engine leaves the pool, and --ttl after the
last turn.`

func newSessionBindCommand(m *Main) *cobra.Command {
	var (
		req kvgatev1.BindSessionRequest
		ttl time.Duration
	)
	cmd := &cobra.Command{
		Use: "bind SESSION --engine URL", Short: "Record where a session was placed", Long: sessionBindHelp,
		Example: "  kvgate session bind agent-17 --engine http://e1:30000 --rank 3 --ttl 10m", Args: maxArgs(1, "one SESSION"),
	}
	cmd.Flags().StringVar(&req.EngineUrl, "engine", "", "engine that the session was placed on")
	cmd.Flags().Int32Var(&req.DpRank, "rank", 0, "data-parallel rank within the engine")
	cmd.Flags().DurationVar(&ttl, "ttl", 0, "forget it so long after the last turn (default: while the session is open)")
	return clientCommand(m, cmd, func(ctx context.Context, c *client, args []string) (err error) {
		if req.SessionId, err = sessionArgument(args); err != nil {
			return err
		}
		if req.EngineUrl == "" {
			return usagef("engine: missing: use --engine URL")
		}
		req.Pool = c.pool
		if req.Ttl, err = durationFlag(cmd, "ttl", ttl); err != nil {
			return err
		}
		answer, err := call(ctx, c, (*endpoint).BindSession, &req)
		if err != nil {
			return err
		}
		return c.printSession(ctx, answer, func(w io.Writer) error { return writeJSON(w, answer) }, nil)
	})
}

// durationFlag returns a duration that was given, nil for one that was not.
func durationFlag(cmd *cobra.Command, name string, d time.Duration) (*durationpb.Duration, error) {
	switch {
	case !cmd.Flags().Changed(name):
		return nil, nil
	case d < 0:
		return nil, badValue(name, d.String(), "a duration of 0s or above")
	}
	return durationpb.New(d), nil
}
