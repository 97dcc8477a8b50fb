package main

import (
	"context"
	"fmt"
	"io"

	"github.com/spf13/cobra"

	"kvgate/fsm"
	kvgatev1 "kvgate/rpc/kvgate/v1"
)

func newNodeCommand(m *Main) *cobra.Command {
	return groupCommand("node", groupOperate, "Show and change the members of the cluster",
		newNodeStatusCommand(m), newNodeAddCommand(m), newNodeRemoveCommand(m), newNodeTransferCommand(m))
}

const nodeStatusHelp = `Shows every member: its addresses, whether it votes and can be reached, how many log entries it
is behind, and its version; and how many more voters may fail. The leader is marked with *.
While the cluster has no leader it shows what that node last knew and ends with 3.`

func newNodeStatusCommand(m *Main) *cobra.Command {
	cmd := &cobra.Command{
		Use: "status", Short: "Show the members", Long: nodeStatusHelp,
		Example: "  kvgate node status\n  kvgate node status --server a:7070,b:7070 --output json",
		Args:    maxArgs(0, "flags only"),
	}
	return clientCommand(m, cmd, func(ctx context.Context, c *client, _ []string) error {
		status, err := call(ctx, c, (*endpoint).GetStatus, &kvgatev1.GetStatusRequest{})
		if err != nil {
			return err
		}
		err = c.print(
			func(w io.Writer) error { return writeJSON(w, status) },
			func(w io.Writer) error { return writeNodes(w, status) },
		)
		if err == nil && status.LeaderId == "" {
			err = errNoLeader
		}
		return err
	})
}

func writeNodes(w io.Writer, s *kvgatev1.GetStatusResponse) error {
	rows := make([][]string, len(s.Nodes))
	for i, n := range s.Nodes {
		mark := ""
		if n.Id == s.LeaderId {
			mark = "*"
		}
		lag := "-"
		if n.Lag != nil {
			lag = number(n.GetLag())
		}
		rows[i] = []string{mark, n.Id, n.Address, orElse(n.ApiAddress, "-"), yesNo(n.Voter), yesNo(n.Reachable), lag, orElse(n.Version, "-")}
	}
	columns := []column{left(""), left("node"), left("raft address"), left("api address"), left("voter"), left("reachable"), right("lag"), left("version")}
	if err := writeTable(w, "no nodes", columns, rows); err != nil {
		return err
	}
	_, err := fmt.Fprintf(w, "\n%s\n", toleranceSentence(s))
	return err
}

// toleranceSentence says how much may still go wrong.
func toleranceSentence(s *kvgatev1.GetStatusResponse) string {
	voters, reachable := 0, 0
	for _, n := range s.Nodes {
		if n.Voter {
			voters++
			if n.Reachable {
				reachable++
			}
		}
	}
	if s.State == fsm.StateOffline {
		return "The members as they were saved; nothing of them runs here."
	}
	standing := fmt.Sprintf("%d of %d voters can be reached", reachable, voters)
	switch n := s.FailureTolerance; {
	case s.LeaderId == "":
		return standing + "; there is no leader, so nothing is decided."
	case voters == 1:
		return "The only voter may not fail: without it nothing is decided."
	case n == 0:
		return standing + "; if one more fails, nothing is decided until it is back."
	case n == 1:
		return standing + "; 1 more may fail."
	default:
		return fmt.Sprintf("%s; %d more may fail.", standing, n)
	}
}

const nodeAddHelp = `Adds a node without a vote. It gets one by itself once it has caught up. A node that is started with
--join adds itself, so this is for nodes that are yet to be started, and for a member whose raft
address has changed. Any node takes the command.`

func newNodeAddCommand(m *Main) *cobra.Command {
	cmd := &cobra.Command{
		Use: "add ID HOST:PORT", Short: "Add a member, or change its raft address", Long: nodeAddHelp,
		Example: "  kvgate node add n4 d:7071",
		Args:    exactArgs("ID", "HOST:PORT"),
	}
	return clientCommand(m, cmd, func(ctx context.Context, c *client, args []string) error {
		if !reachable(args[1]) {
			return badValue("address", args[1], "the raft HOST:PORT under which the other nodes reach it")
		}
		answer, err := call(ctx, c, (*endpoint).AddNode, &kvgatev1.AddNodeRequest{Id: args[0], Address: args[1]})
		if err != nil {
			return err
		}
		return c.print(
			func(w io.Writer) error { return writeJSON(w, answer) },
			sayf("node %s is a member at %s; it votes once it has caught up", args[0], args[1]),
		)
	})
}

const nodeRemoveHelp = `Takes a node out of the cluster; a leader hands over first. Stop the node afterwards: its directory
cannot come back under the same cluster without being emptied. The last voter cannot be removed.
Any node takes the command.`

func newNodeRemoveCommand(m *Main) *cobra.Command {
	cmd := &cobra.Command{
		Use: "remove ID", Short: "Remove a member", Long: nodeRemoveHelp,
		Example: "  kvgate node remove n4",
		Args:    exactArgs("ID"),
	}
	return clientCommand(m, cmd, func(ctx context.Context, c *client, args []string) error {
		answer, err := call(ctx, c, (*endpoint).RemoveNode, &kvgatev1.RemoveNodeRequest{Id: args[0]})
		if err != nil {
			return err
		}
		return c.print(
			func(w io.Writer) error { return writeJSON(w, answer) },
			sayf("node %s is no longer a member", args[0]),
		)
	})
}

const nodeTransferHelp = `Hands leadership to a voter, to the most up to date one when none is named. Waiting tickets keep
their places. Any node takes the command.`

func newNodeTransferCommand(m *Main) *cobra.Command {
	cmd := &cobra.Command{
		Use: "transfer-leadership [ID]", Short: "Have another node lead", Long: nodeTransferHelp,
		Example: "  kvgate node transfer-leadership\n  kvgate node transfer-leadership n2",
		Args:    maxArgs(1, "at most one node ID"),
	}
	return clientCommand(m, cmd, func(ctx context.Context, c *client, args []string) error {
		req := &kvgatev1.TransferLeadershipRequest{}
		if len(args) == 1 {
			req.NodeId = args[0]
		}
		answer, err := call(ctx, c, (*endpoint).TransferLeadership, req)
		if err != nil {
			return err
		}
		return c.print(
			func(w io.Writer) error { return writeJSON(w, answer) },
			sayf("node %s leads", orElse(answer.LeaderId, "another")),
		)
	})
}

// sayf returns what writes one sentence.
func sayf(format string, args ...any) func(io.Writer) error {
	return func(w io.Writer) error {
		_, err := fmt.Fprintln(w, clean(fmt.Sprintf(format, args...)))
		return err
	}
}

// exactArgs wants one word for each name.
func exactArgs(names ...string) cobra.PositionalArgs {
	return func(cmd *cobra.Command, args []string) error {
		if len(args) < len(names) {
			return usagef("%s: %s is missing", cmd.CommandPath(), names[len(args)])
		}
		return maxArgs(len(names), oneOf(names)+" only")(cmd, args)
	}
}
