package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"strings"

	"connectrpc.com/connect"
	"github.com/spf13/cobra"

	"kvgate/fsm"
	kvgatev1 "kvgate/rpc/kvgate/v1"
)

const restoreHelp = `Restores a snapshot. It replaces, it never merges.

With --data-dir: makes an empty directory the data directory of one node that is a new cluster with a new
id. All pools are in quarantine: nobody polls their engines or closes sessions on them, since the cluster
that was saved may still be alive. "kvgate settings set quarantine=false" ends that, pool by pool.

With --into-cluster: replaces the state of a running cluster, whose id --confirm repeats. It is refused
when decisions that are newer than the snapshot would be lost, unless --force. The cluster keeps its id,
members and journal, which tells of the restore. Pools of another cluster's snapshot are in quarantine.

Either way leases and waiters have as much time left as when the snapshot was saved.`

const restoreExample = `  kvgate snapshot restore last-night.kvgate --data-dir /var/lib/kvgate --node-id n1 --raft-listen 127.0.0.1:7071
  kvgate serve --node-id n1 --data-dir /var/lib/kvgate
  kvgate snapshot restore before.kvgate --into-cluster --confirm 8d3c… --server http://a:7070`

// restorePart is how many bytes of an archive one message carries.
const restorePart = 256 << 10

type restoreFlags struct {
	dataDir, nodeID           string
	raftListen, raftAdvertise string
	intoCluster, force        bool
	confirm                   string
}

func newSnapshotRestoreCommand(m *Main) *cobra.Command {
	f := &restoreFlags{}
	cmd := &cobra.Command{
		Use: "restore FILE", Short: "Restore a snapshot", Long: restoreHelp, Example: restoreExample, Args: oneFile("restore"),
	}
	fs := cmd.Flags()
	fs.StringVar(&f.dataDir, "data-dir", "", "empty directory that becomes the new cluster's")
	fs.StringVar(&f.nodeID, "node-id", "", "name of the new cluster's node")
	fs.StringVar(&f.raftListen, "raft-listen", "127.0.0.1:7071", "HOST:PORT at which other nodes will reach the node, as serve is to get it")
	fs.StringVar(&f.raftAdvertise, "raft-advertise", "", "HOST:PORT under which other nodes will reach it (default: the same)")
	fs.BoolVar(&f.intoCluster, "into-cluster", false, "replace the state of the cluster behind --server")
	fs.StringVar(&f.confirm, "confirm", "", "with --into-cluster: id of that cluster, as status shows it")
	fs.BoolVar(&f.force, "force", false, "with --into-cluster: also lose what is newer than the snapshot")
	return clientCommand(m, cmd, func(ctx context.Context, c *client, args []string) error {
		switch {
		case f.intoCluster == (f.dataDir != ""):
			return usagef("snapshot restore: use either --data-dir or --into-cluster")
		case f.intoCluster:
			return f.restoreInto(ctx, c, args[0])
		}
		return f.restoreDir(c, args[0])
	})
}

// restoreDir makes a data directory.
func (f *restoreFlags) restoreDir(c *client, path string) error {
	cfg := ServeConfig{
		NodeID: f.nodeID, DataDir: f.dataDir, Listen: "127.0.0.1:0", RaftListen: f.raftListen, RaftAdvertise: f.raftAdvertise,
	}
	if err := errors.Join(cfg.checkNode(), cfg.checkAddresses()); err != nil {
		return err
	}
	if f.confirm != "" || f.force {
		return usagef("snapshot restore: --confirm and --force belong to --into-cluster")
	}
	done, err := fsm.DirectoryRestore{
		Archive: path, DataDir: f.dataDir, NodeID: f.nodeID, RaftAddress: cfg.RaftAdvertise,
		Log: newLogger(c.m.stderr, "error", "text"), Now: c.m.Now,
	}.Run()
	if err != nil {
		return err
	}
	if c.output == outputJSON {
		return writeJSON(c.m.stdout, restoreAnswer(done))
	}
	return writeDetails(c.m.stdout, [][2]string{
		{"cluster", done.ClusterID},
		{"index", number(done.Index)},
		{"in quarantine", strings.Join(done.Quarantined, ", ")},
		{"start it", fmt.Sprintf("kvgate serve --node-id %s --data-dir %s --raft-listen %s", f.nodeID, f.dataDir, f.raftListen)},
		{"let it act", "kvgate settings set quarantine=false [--pool POOL]"},
	})
}

func restoreAnswer(done fsm.Restored) *kvgatev1.RestoreSnapshotResponse {
	return &kvgatev1.RestoreSnapshotResponse{
		Index: done.Index, ArchiveIndex: done.ArchiveIndex, Dropped: done.Dropped, Quarantined: done.Quarantined,
	}
}

// restoreInto sends an archive to the leader.
func (f *restoreFlags) restoreInto(ctx context.Context, c *client, path string) error {
	if f.confirm == "" {
		return badValue("confirm", "", "the id of the cluster whose state is to be replaced, as `kvgate status` shows it")
	}
	file, err := os.Open(path)
	if err != nil {
		return badValue("FILE", path, "a file written by `kvgate snapshot save`")
	}
	defer file.Close()
	e, err := c.leader(ctx)
	if err != nil {
		return err
	}
	answer, err := sendArchive(ctx, e, file, f)
	if err != nil {
		return withServer(err, e.url)
	}
	return c.print(
		func(w io.Writer) error { return writeJSON(w, answer) },
		func(w io.Writer) error {
			return writeDetails(w, [][2]string{
				{"restored", fmt.Sprintf("state of entry %s, as entry %s", number(answer.ArchiveIndex), number(answer.Index))},
				{"dropped", number(answer.Dropped) + " newer events"},
				{"in quarantine", strings.Join(answer.Quarantined, ", ")},
			})
		},
	)
}

func sendArchive(ctx context.Context, e *endpoint, file io.Reader, f *restoreFlags) (*kvgatev1.RestoreSnapshotResponse, error) {
	stream := e.RestoreSnapshot(ctx)
	req := &kvgatev1.RestoreSnapshotRequest{Confirm: f.confirm, Force: f.force}
	part := make([]byte, restorePart)
	for {
		n, err := io.ReadFull(file, part)
		last := errors.Is(err, io.EOF) || errors.Is(err, io.ErrUnexpectedEOF)
		if err != nil && !last {
			return nil, fmt.Errorf("read the snapshot: %w", err)
		}
		req.Data = part[:n]
		// A failed send says only that the stream is over; the answer says why.
		if sent := stream.Send(req); sent != nil || last {
			break
		}
		req = &kvgatev1.RestoreSnapshotRequest{}
	}
	res, err := stream.CloseAndReceive()
	if err != nil {
		return nil, err
	}
	return res.Msg, nil
}

// leader returns the endpoint of the node that leads, as the first server that answers knows it.
func (c *client) leader(ctx context.Context) (*endpoint, error) {
	status, err := call(ctx, c, (*endpoint).GetStatus, &kvgatev1.GetStatusRequest{})
	if err != nil {
		return nil, err
	}
	here := c.endpoints[c.current]
	// A snapshot that is served names the leader of its time; it says itself that it takes no changes.
	if status.LeaderId == status.NodeId || status.State == fsm.StateOffline {
		return here, nil
	}
	for _, n := range status.Nodes {
		if n.Id != status.LeaderId || n.ApiAddress == "" {
			continue
		}
		base, err := serverURL(n.ApiAddress, c.secure())
		if err != nil {
			return nil, err
		}
		token, err := readToken(c.tokenFile)
		if err != nil {
			return nil, err
		}
		return newEndpoint(c.http, base, token), nil
	}
	return nil, connect.NewError(connect.CodeUnavailable, errNoLeader)
}
