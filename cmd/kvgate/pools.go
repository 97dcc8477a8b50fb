package main

import (
	"context"
	"fmt"
	"io"

	"github.com/spf13/cobra"

	kvgatev1 "kvgate/rpc/kvgate/v1"
)

func newPoolsCommand(m *Main) *cobra.Command {
	var stale bool
	cmd := &cobra.Command{
		Use: "pools", GroupID: groupObserve, Short: "Show the pools and their budgets",
		Long:    "Shows every pool (or --pool) with its ceiling, what is reserved, and its queue. Numbers are tokens.",
		Example: "  kvgate pools\n  kvgate pools --pool qwen --output json", Args: maxArgs(0, "flags only"),
	}
	staleFlag(cmd, &stale)
	return clientCommand(m, cmd, func(ctx context.Context, c *client, _ []string) error {
		pools, budgets, err := readBudgets(ctx, c, stale)
		if err != nil {
			return err
		}
		return c.print(
			func(w io.Writer) error { return writeJSONWith(w, pools, "budgets", budgets) },
			func(w io.Writer) error { return writeBudgets(w, budgets) },
		)
	})
}

func staleFlag(cmd *cobra.Command, p *bool) {
	cmd.Flags().BoolVar(p, "stale", false, "answer from the server's own node, even if it lags or has no leader")
}

// readBudgets returns the budget of every pool, or of the one that --pool names.
func readBudgets(ctx context.Context, c *client, stale bool) (*kvgatev1.ListPoolsResponse, []*kvgatev1.GetBudgetResponse, error) {
	pools := &kvgatev1.ListPoolsResponse{Pools: []string{c.pool}}
	if c.pool == "" {
		var err error
		if pools, err = call(ctx, c, (*endpoint).ListPools, &kvgatev1.ListPoolsRequest{Stale: stale}); err != nil {
			return nil, nil, err
		}
	}
	var budgets []*kvgatev1.GetBudgetResponse
	for _, pool := range pools.Pools {
		budget, err := call(ctx, c, (*endpoint).GetBudget, &kvgatev1.GetBudgetRequest{Pool: pool, Stale: stale})
		if err != nil {
			return nil, nil, err
		}
		budget.Pool = orElse(budget.Pool, pool)
		budgets = append(budgets, budget)
	}
	return pools, budgets, nil
}

func writeBudgets(w io.Writer, budgets []*kvgatev1.GetBudgetResponse) error {
	rows := make([][]string, len(budgets))
	for i, b := range budgets {
		rows[i] = []string{
			b.Pool, number(b.Ceiling), number(b.Reserved), number(b.Available), number(b.Leases), number(b.Waiting),
			span(b.OldestWait), percent(b.Pressure) + " of " + percent(b.PressureThreshold), fmt.Sprint(b.Epoch), budgetState(b),
		}
	}
	return writeTable(w, "no pools", []column{
		left("pool"), right("ceiling"), right("reserved"), right("available"), right("leases"), right("waiting"),
		right("oldest wait"), right("pressure"), right("epoch"), left("state"),
	}, rows)
}

func budgetState(b *kvgatev1.GetBudgetResponse) string {
	switch {
	case !b.Admission:
		return "admission off"
	case b.Degraded && b.DegradedReason != "":
		return "degraded: " + b.DegradedReason
	case b.Degraded:
		return "degraded"
	default:
		return "ok"
	}
}
