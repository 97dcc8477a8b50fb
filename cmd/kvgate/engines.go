package main

import (
	"context"
	"fmt"
	"io"

	"github.com/spf13/cobra"

	kvgatev1 "kvgate/rpc/kvgate/v1"
)

func newEnginesCommand(m *Main) *cobra.Command {
	var stale bool
	cmd := &cobra.Command{
		Use: "engines", GroupID: groupObserve, Short: "List the engines of a pool",
		Long: "Lists the engines of a pool as the leader last measured them. Evictable tokens are cached prefixes of idle\n" +
			"sessions and not part of the used ones.",
		Example: "  kvgate engines\n  kvgate engines --pool qwen --output json", Args: maxArgs(0, "flags only"),
	}
	staleFlag(cmd, &stale)
	return clientCommand(m, cmd, func(ctx context.Context, c *client, _ []string) error {
		answer, err := call(ctx, c, (*endpoint).ListEngines, &kvgatev1.ListEnginesRequest{Pool: c.pool, Stale: stale})
		if err != nil {
			return err
		}
		return c.print(
			func(w io.Writer) error { return writeJSON(w, answer) },
			func(w io.Writer) error { return writeEngines(w, answer) },
		)
	})
}

func writeEngines(w io.Writer, answer *kvgatev1.ListEnginesResponse) error {
	rows := make([][]string, len(answer.Engines))
	for i, e := range answer.Engines {
		health := "healthy"
		if !e.Healthy {
			health = orElse(e.Error, "not healthy")
		}
		rows[i] = []string{
			e.Url, word(e.Role), number(e.CapacityTokens), number(e.UsedTokens), number(e.EvictableTokens), percent(e.Usage),
			percent(e.Pressure), number(e.DpRanks), number(e.RunningRequests), number(e.QueuedRequests), health,
		}
	}
	err := writeTable(w, "no engines", []column{
		left("engine"), left("role"), right("capacity"), right("used"), right("evictable"), right("usage"),
		right("pressure"), right("ranks"), right("running"), right("queued"), left("health"),
	}, rows)
	if err == nil && answer.Discovery != "" {
		_, err = fmt.Fprintf(w, "found through %s, measured %s ago\n", clean(answer.Discovery), span(answer.SnapshotAge))
	}
	return err
}
