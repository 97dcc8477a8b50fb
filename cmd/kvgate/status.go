package main

import (
	"context"
	"fmt"
	"io"

	"github.com/spf13/cobra"

	kvgatev1 "kvgate/rpc/kvgate/v1"
)

const statusHelp = `Shows the cluster as the server sees it, and a summary of every pool (or of --pool).
While the cluster has no leader it shows what that node last knew and ends with 3.`

func newStatusCommand(m *Main) *cobra.Command {
	cmd := &cobra.Command{
		Use: "status", GroupID: groupObserve, Short: "Show the cluster and its pools",
		Long: statusHelp, Example: "  kvgate status\n  kvgate status --server http://a:7070,http://b:7070 --output json",
		Args: maxArgs(0, "flags only"),
	}
	return clientCommand(m, cmd, func(ctx context.Context, c *client, _ []string) error {
		status, err := call(ctx, c, (*endpoint).GetStatus, &kvgatev1.GetStatusRequest{})
		if err != nil {
			return err
		}
		leaderless := status.LeaderId == ""
		_, budgets, err := readBudgets(ctx, c, leaderless)
		if err != nil {
			return err
		}
		err = c.print(
			func(w io.Writer) error { return writeJSONWith(w, status, "budgets", budgets) },
			func(w io.Writer) error { return writeStatus(w, status, budgets) },
		)
		if err == nil && leaderless {
			err = errNoLeader
		}
		return err
	})
}

func writeStatus(w io.Writer, s *kvgatev1.GetStatusResponse, budgets []*kvgatev1.GetBudgetResponse) error {
	err := writeDetails(w, [][2]string{
		{"node", s.NodeId},
		{"state", s.State},
		{"leader", orElse(s.LeaderId, "none")},
		{"term", fmt.Sprint(s.Term)},
		{"applied index", number(s.AppliedIndex)},
		{"commit index", number(s.CommitIndex)},
		{"may still fail", fmt.Sprintf("%d of %d nodes", s.FailureTolerance, len(s.Nodes))},
		{"writable", yesNo(s.Writable)},
		{"health", s.Health},
		{"cluster", s.ClusterId},
		{"version", s.Version},
	})
	if err != nil {
		return err
	}
	fmt.Fprintln(w)
	rows := make([][]string, len(s.Nodes))
	for i, n := range s.Nodes {
		rows[i] = []string{n.Id, n.Address, nodeRole(n, s.LeaderId), yesNo(n.Reachable), number(n.AppliedIndex), n.Version}
	}
	columns := []column{left("node"), left("address"), left("role"), left("reachable"), right("applied"), left("version")}
	if err := writeTable(w, "no nodes", columns, rows); err != nil {
		return err
	}
	fmt.Fprintln(w)
	return writeBudgets(w, budgets)
}

func nodeRole(n *kvgatev1.Node, leader string) string {
	switch {
	case n.Id == leader:
		return "leader"
	case n.Voter:
		return "voter"
	case n.Address == "": // saved by a release that kept only ids and versions
		return "unknown"
	default:
		return "non-voter"
	}
}
