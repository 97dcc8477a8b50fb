package main

import (
	"context"
	"io"

	"github.com/spf13/cobra"

	kvgatev1 "kvgate/rpc/kvgate/v1"
)

const cancelHelp = `Takes a ticket out of the queue, or releases its lease. A ticket that is neither is marked, so
that an acquire that comes later is let go at once.`

func newCancelCommand(m *Main) *cobra.Command {
	var ticket string
	cmd := &cobra.Command{
		Use: "cancel [TICKET]", GroupID: groupTickets, Short: "Cancel a ticket",
		Long: cancelHelp, Example: "  kvgate cancel req-17:0", Args: maxArgs(1, "one TICKET"),
	}
	cmd.Flags().StringVar(&ticket, "ticket", "", "ticket; also the first argument")
	return clientCommand(m, cmd, func(ctx context.Context, c *client, args []string) error {
		id, err := idArgument(args, "ticket", ticket)
		if err != nil {
			return err
		}
		answer, err := call(ctx, c, (*endpoint).Cancel, &kvgatev1.CancelRequest{Pool: c.pool, TicketId: id})
		if err != nil {
			return err
		}
		return c.print(
			func(w io.Writer) error { return writeJSON(w, answer) },
			func(w io.Writer) error {
				return writeDetails(w, [][2]string{{"ticket", id}, {"was", word(answer.Was)}})
			},
		)
	})
}
