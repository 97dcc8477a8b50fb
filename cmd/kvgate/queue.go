package main

import (
	"context"
	"io"

	"github.com/spf13/cobra"

	kvgatev1 "kvgate/rpc/kvgate/v1"
)

func newQueueCommand(m *Main) *cobra.Command {
	var (
		req   kvgatev1.ListWaitersRequest
		limit int64
	)
	cmd := &cobra.Command{
		Use: "queue", GroupID: groupObserve, Short: "List the waiting tickets of a pool",
		Long: "Lists the waiting tickets of a pool in queue order: what each waits for, since when, and when it is let go\n" +
			"as aged. A waiter is attached while a call is blocked on it.",
		Example: "  kvgate queue\n  kvgate queue --limit 20", Args: maxArgs(0, "flags only"),
	}
	staleFlag(cmd, &req.Stale)
	limitFlag(cmd, &limit, 0)
	return clientCommand(m, cmd, func(ctx context.Context, c *client, _ []string) error {
		req.Pool = c.pool
		waiters, next, err := pages(limit, func(size int32, token string) ([]*kvgatev1.Waiter, string, error) {
			req.PageSize, req.PageToken = size, token
			answer, err := call(ctx, c, (*endpoint).ListWaiters, &req)
			return answer.GetWaiters(), answer.GetNextPageToken(), err
		})
		if err != nil {
			return err
		}
		return c.print(
			func(w io.Writer) error {
				return writeJSON(w, &kvgatev1.ListWaitersResponse{Waiters: waiters, NextPageToken: next})
			},
			func(w io.Writer) error { return writeWaiters(w, waiters) },
		)
	})
}

func writeWaiters(w io.Writer, waiters []*kvgatev1.Waiter) error {
	rows := make([][]string, len(waiters))
	for i, x := range waiters {
		rows[i] = []string{
			number(x.Position), x.TicketId, number(x.ReservationTokens), word(x.WaitReason), span(x.Waited), span(x.AgesIn),
			yesNo(x.Attached), x.HolderId, number(x.Priority),
		}
	}
	return writeTable(w, "nothing waits", []column{
		right("position"), left("ticket"), right("tokens"), left("reason"), right("waited"), right("ages in"),
		left("attached"), left("holder"), right("priority"),
	}, rows)
}
