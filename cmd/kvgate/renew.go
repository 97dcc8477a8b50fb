package main

import (
	"context"
	"fmt"
	"io"
	"strconv"
	"time"

	"github.com/spf13/cobra"
	"google.golang.org/protobuf/types/known/durationpb"

	kvgatev1 "kvgate/rpc/kvgate/v1"
)

const renewHelp = `Moves the deadline of leases to now + --ttl, or to the time they were granted with. With --grant,
once for each lease and in the same order, only that very grant is renewed. Ends with 1 when a lease is gone.`

const renewExample = `  kvgate renew 3:req-17:0
  kvgate renew 3:req-17:0 3:req-18:0 --ttl 20m --grant 4711 --grant 4712`

func newRenewCommand(m *Main) *cobra.Command {
	var (
		ttl    time.Duration
		grants []string
	)
	cmd := &cobra.Command{
		Use: "renew LEASE…", GroupID: groupTickets, Short: "Renew leases", Long: renewHelp, Example: renewExample,
		Args: func(_ *cobra.Command, args []string) error {
			if len(args) == 0 {
				return usagef("renew: a lease is missing: use lease ids as `kvgate leases` lists them")
			}
			return nil
		},
	}
	cmd.Flags().DurationVar(&ttl, "ttl", 0, "new time to live (default: the one each was granted with)")
	cmd.Flags().StringSliceVar(&grants, "grant", nil, "renew only this grant; once for each lease, 0 means any")
	return clientCommand(m, cmd, func(ctx context.Context, c *client, args []string) error {
		req := &kvgatev1.RenewRequest{Pool: c.pool, LeaseIds: args}
		if cmd.Flags().Changed("ttl") {
			if ttl <= 0 {
				return badValue("ttl", ttl.String(), "a duration above 0s")
			}
			req.Ttl = durationpb.New(ttl)
		}
		var err error
		if req.Grants, err = parseGrants(grants, len(args)); err != nil {
			return err
		}
		return renew(ctx, c, req)
	})
}

func parseGrants(words []string, leases int) ([]uint64, error) {
	if len(words) != 0 && len(words) != leases {
		return nil, usagef("grant: given %d times: use it once for each of the %d leases", len(words), leases)
	}
	grants := make([]uint64, len(words))
	for i, w := range words {
		n, err := strconv.ParseUint(w, 10, 64)
		if err != nil {
			return nil, badValue("grant", w, "a whole number, 0 or above")
		}
		grants[i] = n
	}
	return grants, nil
}

func renew(ctx context.Context, c *client, req *kvgatev1.RenewRequest) error {
	answer, err := call(ctx, c, (*endpoint).Renew, req)
	if err != nil {
		return err
	}
	gone := 0
	rows := make([][]string, len(answer.Leases))
	for i, l := range answer.Leases {
		state := "renewed"
		if !l.Renewed {
			state, gone = "gone", gone+1
		}
		rows[i] = []string{l.LeaseId, state, span(l.ExpiresIn)}
	}
	err = c.print(
		func(w io.Writer) error { return writeJSON(w, answer) },
		func(w io.Writer) error {
			return writeTable(w, "no leases", []column{left("lease"), left("state"), right("expires in")}, rows)
		},
	)
	if err == nil && gone > 0 {
		err = fmt.Errorf("%w: %d of %d leases", errLeaseGone, gone, len(rows))
	}
	return err
}
