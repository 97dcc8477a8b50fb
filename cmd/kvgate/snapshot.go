package main

import (
	"context"
	"errors"
	"fmt"
	"io"

	"connectrpc.com/connect"
	"github.com/spf13/cobra"

	kvgatev1 "kvgate/rpc/kvgate/v1"
	"kvgate/store"
)

const saveHelp = `Saves a snapshot: the whole state and the journal, as one compressed file with checksums. Any node
answers, and decisions go on meanwhile; the state is the one of the node that answers. The file appears
under its name only when it is whole and on disk. FILE may be - for standard output.

With --from DIR it makes a snapshot of a stopped node's data directory.`

func newSnapshotCommand(m *Main) *cobra.Command {
	return groupCommand("snapshot", groupOperate, "Save, look into, serve and restore snapshots",
		newSnapshotSaveCommand(m), newSnapshotInspectCommand(m), newSnapshotDiffCommand(m), newSnapshotServeCommand(m), newSnapshotRestoreCommand(m))
}

func newSnapshotSaveCommand(m *Main) *cobra.Command {
	cmd := &cobra.Command{
		Use: "save FILE", Short: "Save a snapshot of a running cluster", Long: saveHelp,
		Example: "  kvgate snapshot save before-upgrade.kvgate\n  kvgate snapshot save --server http://b:7070 - | ssh archive 'cat > kv.kvgate'",
		Args:    oneFile("save"),
	}
	return clientCommand(m, cmd, func(ctx context.Context, c *client, args []string) error {
		if args[0] == "-" {
			if isTerminal(m.stdout) {
				return badValue("save", "-", "a file name: standard output is a terminal")
			}
			_, err := c.saveSnapshot(ctx, m.stdout)
			return err
		}
		header, err := saveFile(args[0], func(w io.Writer) (store.Header, error) { return c.saveSnapshot(ctx, w) })
		if err != nil {
			return err
		}
		c.note("saved %s: cluster %s, entry %d of term %d", args[0], header.ClusterID, header.Index, header.Term)
		return nil
	})
}

// oneFile wants exactly one argument, a file.
func oneFile(command string) cobra.PositionalArgs {
	return func(cmd *cobra.Command, args []string) error {
		if len(args) == 1 && args[0] != "" {
			return nil
		}
		return usagef("snapshot %s: %d files are named: use one FILE", command, len(args))
	}
}

// saveFile has write fill a file that gets its name only when it is whole.
func saveFile(path string, write func(io.Writer) (store.Header, error)) (header store.Header, err error) {
	err = store.WriteFile(path, func(w io.Writer) error {
		header, err = write(w)
		return err
	})
	return header, err
}

// saveSnapshot streams an archive from the first server that answers and checks it on the way: an answer that
// ends early looks like one that is whole.
func (c *client) saveSnapshot(ctx context.Context, w io.Writer) (store.Header, error) {
	var failed error
	for _, e := range c.endpoints {
		decided := e.applied(ctx)
		stream, err := e.SaveSnapshot(ctx, connect.NewRequest(&kvgatev1.SaveSnapshotRequest{}))
		if err == nil && !stream.Receive() {
			err = errors.Join(stream.Err(), stream.Close())
		}
		if err != nil {
			if failed = errors.Join(failed, withServer(err, e.url)); !unreachable(err) {
				return store.Header{}, failed
			}
			continue
		}
		header, err := copyArchive(w, &savedParts{stream: stream, rest: stream.Msg().GetData()})
		if err == nil && header.Index < decided {
			c.note("the snapshot ends at entry %d, and the node at %s had decided %d entries more: its disk takes no writes. "+
				"Save from another node", header.Index, e.url, decided-header.Index)
		}
		return header, errors.Join(err, stream.Close())
	}
	return store.Header{}, failed
}

// applied returns how far a node has decided, 0 when it does not say.
func (e *endpoint) applied(ctx context.Context) uint64 {
	status, err := e.GetStatus(ctx, connect.NewRequest(&kvgatev1.GetStatusRequest{}))
	if err != nil {
		return 0
	}
	return status.Msg.AppliedIndex
}

// copyArchive copies an archive to w and checks that it is whole.
func copyArchive(w io.Writer, r io.Reader) (store.Header, error) {
	to := &blamed{w: w}
	ar, err := store.NewArchiveReader(io.TeeReader(r, to))
	for err == nil {
		_, _, _, err = ar.Next()
	}
	switch {
	case errors.Is(err, io.EOF):
		return ar.Header(), nil
	case to.err != nil:
		return store.Header{}, to.err
	}
	return store.Header{}, fmt.Errorf("the snapshot arrived damaged: %w", err)
}

// blamed remembers that it was the writing that failed.
type blamed struct {
	w   io.Writer
	err error
}

// Write implements io.Writer.
func (b *blamed) Write(p []byte) (n int, err error) {
	n, b.err = b.w.Write(p)
	return n, b.err
}

// savedParts reads the bytes of a stream of messages.
type savedParts struct {
	stream *connect.ServerStreamForClient[kvgatev1.SaveSnapshotResponse]
	rest   []byte
}

// Read implements io.Reader.
func (p *savedParts) Read(b []byte) (int, error) {
	for len(p.rest) == 0 {
		if !p.stream.Receive() {
			if err := p.stream.Err(); err != nil {
				return 0, err
			}
			return 0, io.EOF
		}
		p.rest = p.stream.Msg().GetData()
	}
	n := copy(b, p.rest)
	p.rest = p.rest[n:]
	return n, nil
}
