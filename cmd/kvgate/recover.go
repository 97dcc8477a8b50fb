package main

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"slices"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"kvgate/fsm"
	"kvgate/store"
)

// errNotConfirmed ends a command whose question was not answered with the word it asked for.
var errNotConfirmed = errors.New("not confirmed, nothing was changed")

const recoverHelp = `For a cluster that lost the majority of its voters for good: makes the nodes of --peers, or this node
alone, the cluster, from what this node has on disk. Works offline, on the data directory of a stopped
node, and keeps a decision that no majority has confirmed as if one had.

What is lost: whatever the other nodes acknowledged and this one never got. So stop every node, and
choose the one with the newest entry; "recover" shows it before it asks. Then start that node as usual,
empty the data directories of the others, and start those with --join.

It refuses while the node runs, and while another member still answers.`

type recoverOptions struct {
	dataDir string
	peers   []string
	yes     bool
	force   bool
}

func newRecoverCommand(m *Main) *cobra.Command {
	o := &recoverOptions{}
	cmd := &cobra.Command{
		Use: "recover", GroupID: groupOperate, Short: "Rebuild a cluster that lost its majority (offline)", Long: recoverHelp,
		Example: "  kvgate recover --data-dir /var/lib/kvgate\n  kvgate recover --data-dir /var/lib/kvgate --peers n1=a:7071,n2=b:7071 --yes",
		Args:    maxArgs(0, "flags only"),
	}
	fs := cmd.Flags()
	fs.StringVar(&o.dataDir, "data-dir", "", "data directory of the stopped node (required)")
	fs.StringSliceVar(&o.peers, "peers", nil, "all voters from now on as ID=HOST:PORT,… (default: this node alone)")
	fs.BoolVar(&o.yes, "yes", false, "do it without asking")
	fs.BoolVar(&o.force, "ignore-running", false, "go on although something answers at another member's address")
	allow(fs, "peers", "ID=HOST:PORT pairs separated by commas")
	cmd.RunE = m.run(func(ctx context.Context, _ []string) error { return m.recover(ctx, o) })
	return cmd
}

func (m *Main) recover(ctx context.Context, o *recoverOptions) (err error) {
	peers, err := parsePeers(o.peers)
	if err != nil {
		return err
	}
	if o.dataDir == "" || emptyDir(o.dataDir) {
		return badValue("data-dir", o.dataDir, "the data directory of a stopped node")
	}
	r, err := fsm.OpenRecovery(o.dataDir, slog.New(slog.NewTextHandler(m.stderr, &slog.HandlerOptions{Level: slog.LevelWarn})))
	if errors.Is(err, store.ErrLocked) {
		return fmt.Errorf("the node runs: stop it first: %w", err)
	}
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, r.Close()) }()
	if peers, err = newMembers(r, peers); err != nil {
		return err
	}
	if err := refuseRunning(ctx, r, o.force); err != nil {
		return err
	}
	m.explainRecovery(r, peers)
	if err := m.confirm(r.NodeID(), o.yes); err != nil {
		return err
	}
	if err := r.Rewrite(raftServers(peers)); err != nil {
		return err
	}
	fmt.Fprintf(m.stdout, "done: start node %s as usual%s\n", r.NodeID(), nextStep(peers))
	return nil
}

func nextStep(peers []Peer) string {
	if len(peers) > 1 {
		return "; recover the other nodes of --peers with the same list before you start any"
	}
	return "; empty the other nodes' data directories and start them with --join"
}

// newMembers returns who is to be in the cluster: as given, or the node alone at its old address.
func newMembers(r *fsm.Recovery, peers []Peer) ([]Peer, error) {
	if slices.ContainsFunc(peers, func(p Peer) bool { return p.ID == r.NodeID() }) {
		return peers, nil
	}
	if len(peers) > 0 {
		return nil, badValue("peers", peers[0].ID+"=…", "a list that also names this node, "+r.NodeID())
	}
	for _, known := range r.Members() {
		if known.ID == r.NodeID() {
			return []Peer{{ID: known.ID, Address: known.Address}}, nil
		}
	}
	return nil, usagef("peers: node %s is no member of its cluster any more, so its address is not known: give --peers %s=HOST:PORT",
		r.NodeID(), r.NodeID())
}

// answerLimit bounds how long a member may take to answer before it counts as stopped.
const answerLimit = time.Second

// refuseRunning refuses while something listens at another member's address: two clusters would come
// of one.
func refuseRunning(ctx context.Context, r *fsm.Recovery, force bool) error {
	dialer := net.Dialer{Timeout: answerLimit}
	for _, known := range r.Members() {
		if known.ID == r.NodeID() || force {
			continue
		}
		conn, err := dialer.DialContext(ctx, "tcp", known.Address)
		if err != nil {
			continue
		}
		_ = conn.Close()
		return fmt.Errorf("node %s still answers at %s: stop every node first, or give --ignore-running when that is another program", known.ID, known.Address)
	}
	return ctx.Err()
}

// explainRecovery says what there is, what will be, and what will be lost.
func (m *Main) explainRecovery(r *fsm.Recovery, peers []Peer) {
	index, term := r.Last()
	had := each(r.Members(), func(n fsm.NodeStatus) string { return n.ID + "=" + n.Address })
	will := each(peers, func(p Peer) string { return p.ID + "=" + p.Address })
	fmt.Fprintf(m.stderr, "cluster      %s\n", orElse(r.ClusterID(), "not named yet"))
	fmt.Fprintf(m.stderr, "members now  %s\n", strings.Join(had, ", "))
	fmt.Fprintf(m.stderr, "members then %s\n", strings.Join(will, ", "))
	fmt.Fprintf(m.stderr, "kept         everything up to entry %d of term %d, the newest on node %s, whether or not a majority had it\n", index, term, r.NodeID())
	fmt.Fprintf(m.stderr, "lost         whatever the other nodes acknowledged after entry %d: nothing if node %s has the newest entry of all\n", index, r.NodeID())
}

// confirm wants the word typed, unless yes.
func (m *Main) confirm(word string, yes bool) error {
	if yes {
		return nil
	}
	fmt.Fprintf(m.stderr, "Type %s to go on: ", word)
	line, err := bufio.NewReader(m.stdin).ReadString('\n')
	if strings.TrimSpace(line) == word {
		return nil
	}
	if err != nil {
		fmt.Fprintln(m.stderr)
	}
	return errNotConfirmed
}
