package main

import (
	"fmt"
	"strings"

	"github.com/spf13/cobra"
)

const rootHelp = `kvgate coordinates admission for agentic LLM rollouts: before a generate call a worker
asks for a lease on KV-cache tokens, and releases it when the call has ended.

Client commands talk to --server (KVGATE_SERVER, default http://127.0.0.1:7070).
Exit codes: 0 ok, 1 failed, 2 usage, 3 unavailable (no server answers, or no leader).`

func newRootCommand(m *Main) *cobra.Command {
	root := &cobra.Command{
		Use:               "kvgate",
		Short:             "Admission and session coordinator for agentic LLM rollouts",
		Long:              rootHelp,
		Version:           buildVersion(),
		SilenceErrors:     true,
		SilenceUsage:      true,
		PersistentPreRunE: loadConfiguration,
		RunE:              func(cmd *cobra.Command, _ []string) error { return cmd.Help() },
	}
	root.SetVersionTemplate("kvgate {{.Version}}\n")
	root.SetFlagErrorFunc(func(_ *cobra.Command, err error) error { return flagError(err) })
	root.AddGroup(
		&cobra.Group{ID: groupServer, Title: "Servers:"},
		&cobra.Group{ID: groupTickets, Title: "Tickets and leases:"},
		&cobra.Group{ID: groupObserve, Title: "What goes on:"},
		&cobra.Group{ID: groupOperate, Title: "Operation:"},
	)
	root.AddCommand(commands(m)...)
	return root
}

// addCompletion adds cobra's completion command, which would answer an unknown shell with its help and
// success. The output of root must be set before.
func addCompletion(root *cobra.Command) {
	root.InitDefaultCompletionCmd()
	for _, cmd := range root.Commands() {
		if cmd.Name() == "completion" {
			wantChild(cmd, cmd.Commands())
		}
	}
}

// The groups of the help text.
const (
	groupServer  = "server"
	groupTickets = "tickets"
	groupObserve = "observe"
	groupOperate = "operate"
)

// commands lists every subcommand.
func commands(m *Main) []*cobra.Command {
	return []*cobra.Command{
		newServeCommand(m), newDemoCommand(m),
		newAcquireCommand(m),
		newReleaseCommand(m),
		newCancelCommand(m),
		newRenewCommand(m),
		newSessionCommand(m),
		newStatusCommand(m),
		newPoolsCommand(m),
		newLeasesCommand(m),
		newQueueCommand(m),
		newEnginesCommand(m),
		newTopCommand(m),
		newJournalCommand(m),
		newReportCommand(m),
		newReplayCommand(m),
		newSettingsCommand(m),
		newStepCommand(m),
		newNodeCommand(m),
		newRecoverCommand(m),
		newSnapshotCommand(m),
		newCertsCommand(m),
		newBenchCommand(m),
	}
}

// groupCommand makes a command that only holds others: naming none of them is a usage error.
func groupCommand(use, group, short string, children ...*cobra.Command) *cobra.Command {
	cmd := &cobra.Command{Use: use, GroupID: group, Short: short}
	cmd.AddCommand(children...)
	wantChild(cmd, children)
	return cmd
}

// wantChild makes naming none of cmd's subcommands a usage error.
func wantChild(cmd *cobra.Command, children []*cobra.Command) {
	cmd.Args = nil
	cmd.RunE = func(cmd *cobra.Command, args []string) error {
		names := make([]string, len(children))
		for i, child := range children {
			names[i] = child.Name()
		}
		if len(args) == 0 {
			return usagef("%s: a subcommand is missing: use %s", cmd.CommandPath(), oneOf(names))
		}
		return badValue(cmd.CommandPath(), strings.Join(args, " "), oneOf(names))
	}
}

// maxArgs bounds the words after a command and says which are wanted.
func maxArgs(n int, wanted string) cobra.PositionalArgs {
	return func(cmd *cobra.Command, args []string) error {
		if len(args) > n {
			return usagef("%s: unexpected argument %q: use %s", cmd.CommandPath(), args[n], wanted)
		}
		return nil
	}
}

// idArgument returns an id that is given as the only argument, as a flag, or both alike.
func idArgument(args []string, name, flag string) (string, error) {
	switch {
	case len(args) == 0 && flag == "":
		return "", usagef("%s: missing: give it as argument or as --%s", name, name)
	case len(args) == 0:
		return flag, nil
	case flag != "" && flag != args[0]:
		return "", badValue(name, flag, fmt.Sprintf("one %s: the argument says %q", name, args[0]))
	default:
		return args[0], nil
	}
}
