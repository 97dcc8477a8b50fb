package main

import (
	"context"
	"fmt"
	"io"

	"github.com/spf13/cobra"

	kvgatev1 "kvgate/rpc/kvgate/v1"
)

func newLeasesCommand(m *Main) *cobra.Command {
	var (
		req   kvgatev1.ListLeasesRequest
		limit int64
	)
	cmd := &cobra.Command{
		Use: "leases", GroupID: groupObserve, Short: "List the leases of a pool",
		Long:    "Lists the leases of a pool in the order they were granted.",
		Example: "  kvgate leases\n  kvgate leases --holder worker-3 --output json", Args: maxArgs(0, "flags only"),
	}
	cmd.Flags().StringVar(&req.HolderId, "holder", "", "only leases of this holder")
	cmd.Flags().StringVar(&req.SessionId, "session", "", "only leases of this session")
	staleFlag(cmd, &req.Stale)
	limitFlag(cmd, &limit, 0)
	return clientCommand(m, cmd, func(ctx context.Context, c *client, _ []string) error {
		req.Pool = c.pool
		leases, next, err := pages(limit, func(size int32, token string) ([]*kvgatev1.Lease, string, error) {
			req.PageSize, req.PageToken = size, token
			answer, err := call(ctx, c, (*endpoint).ListLeases, &req)
			return answer.GetLeases(), answer.GetNextPageToken(), err
		})
		if err != nil {
			return err
		}
		return c.print(
			func(w io.Writer) error {
				return writeJSON(w, &kvgatev1.ListLeasesResponse{Leases: leases, NextPageToken: next})
			},
			func(w io.Writer) error { return writeLeases(w, leases) },
		)
	})
}

func writeLeases(w io.Writer, leases []*kvgatev1.Lease) error {
	rows := make([][]string, len(leases))
	for i, l := range leases {
		rows[i] = []string{l.LeaseId, l.TicketId, number(l.ReservationTokens), span(l.Held), span(l.ExpiresIn), l.HolderId, l.SessionId, fmt.Sprint(l.Grant)}
	}
	return writeTable(w, "no leases", []column{
		left("lease"), left("ticket"), right("tokens"), right("held"), right("expires in"), left("holder"), left("session"), right("grant"),
	}, rows)
}
