package main

import (
	"context"
	"io"

	"github.com/spf13/cobra"

	kvgatev1 "kvgate/rpc/kvgate/v1"
)

const releaseHelp = `Releases the lease of a ticket, or the lease with an id. Releasing what is gone is no error.
With --grant only that very grant is released. The usage flags report what the attempt really used.`

const releaseExample = `  kvgate release req-17:0
  kvgate release --lease 3:req-17:0 --grant 4711
  kvgate release req-17:0 --prompt-tokens 12000 --completion-tokens 812 --outcome stop`

func newReleaseCommand(m *Main) *cobra.Command {
	var (
		req   kvgatev1.ReleaseRequest
		usage kvgatev1.Usage
	)
	cmd := &cobra.Command{
		Use: "release [TICKET]", GroupID: groupTickets, Short: "Release a lease",
		Long: releaseHelp, Example: releaseExample, Args: maxArgs(1, "one TICKET"),
	}
	fs := cmd.Flags()
	fs.StringVar(&req.TicketId, "ticket", "", "ticket; also the first argument")
	fs.StringVar(&req.LeaseId, "lease", "", "lease id, EPOCH:TICKET")
	fs.Uint64Var(&req.Grant, "grant", 0, "release only this grant; 0 means any")
	fs.StringVar(&req.HolderId, "holder", "", "holder of the ticket")
	countVar(fs, &usage.PromptTokens, "prompt-tokens", 0, "prompt tokens used")
	countVar(fs, &usage.CompletionTokens, "completion-tokens", 0, "completion tokens used")
	countVar(fs, &usage.CachedTokens, "cached-tokens", 0, "prompt tokens that came from the cache")
	fs.StringVar(&usage.EngineUrl, "engine-url", "", "engine that served the attempt")
	fs.StringVar(&usage.Outcome, "outcome", "", "how the attempt ended, e.g. stop, length, abort, error")
	return clientCommand(m, cmd, func(ctx context.Context, c *client, args []string) error {
		if req.LeaseId == "" || len(args) > 0 {
			ticket, err := idArgument(args, "ticket", req.TicketId)
			if err != nil {
				return err
			}
			req.TicketId = ticket
		}
		req.Pool = c.pool
		for _, name := range []string{"prompt-tokens", "completion-tokens", "cached-tokens", "engine-url", "outcome"} {
			if fs.Changed(name) {
				req.Usage = &usage
			}
		}
		return release(ctx, c, &req)
	})
}

func release(ctx context.Context, c *client, req *kvgatev1.ReleaseRequest) error {
	answer, err := call(ctx, c, (*endpoint).Release, req)
	if err != nil {
		return err
	}
	return c.print(
		func(w io.Writer) error { return writeJSON(w, answer) },
		func(w io.Writer) error {
			text := "released"
			if !answer.Released {
				text = "nothing to release"
			}
			return writeDetails(w, [][2]string{{text, orElse(req.LeaseId, req.TicketId)}})
		},
	)
}
