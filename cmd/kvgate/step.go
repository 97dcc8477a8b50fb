package main

import (
	"context"
	"io"

	"github.com/spf13/cobra"

	kvgatev1 "kvgate/rpc/kvgate/v1"
)

const drainHelp = `Returns the metrics since the previous drain and starts a new window; once for each rollout step.
The same --run-id and STEP again return the same answer, so a retry loses nothing.`

func newStepCommand(m *Main) *cobra.Command {
	return groupCommand("step", groupObserve, "Metrics of a rollout step", newStepDrainCommand(m))
}

func newStepDrainCommand(m *Main) *cobra.Command {
	req := &kvgatev1.DrainStepRequest{}
	cmd := &cobra.Command{
		Use: "drain STEP", Short: "Return the metrics since the previous drain and start a new window", Long: drainHelp,
		Example: "  kvgate step drain 42\n  kvgate step drain 42 --run-id run-7 --output json",
		Args: func(cmd *cobra.Command, args []string) error {
			if len(args) == 0 {
				return usagef("step: missing: use kvgate step drain STEP")
			}
			return maxArgs(1, "one STEP")(cmd, args)
		},
	}
	cmd.Flags().StringVar(&req.RunId, "run-id", "", "training run, so that another run may count from 0 again")
	return clientCommand(m, cmd, func(ctx context.Context, c *client, args []string) error {
		step, err := parseCount(args[0])
		if err != nil {
			return badValue("step", args[0], "a whole number, 0 or above")
		}
		req.Pool, req.Step = c.pool, step
		answer, err := call(ctx, c, (*endpoint).DrainStep, req)
		if err != nil {
			return err
		}
		return c.print(
			func(w io.Writer) error { return writeJSON(w, answer) },
			func(w io.Writer) error { return writeMetrics(w, answer.Metrics) },
		)
	})
}

func writeMetrics(w io.Writer, metrics map[string]float64) error {
	var rows [][]string
	for _, key := range sortedKeys(metrics) {
		rows = append(rows, []string{key, quantity(metrics[key])})
	}
	return writeTable(w, "no metrics", []column{left("metric"), right("value")}, rows)
}
