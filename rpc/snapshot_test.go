package rpc

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"slices"
	"testing"

	"connectrpc.com/connect"

	"kvgate/fsm"
	kvgatev1 "kvgate/rpc/kvgate/v1"
	"kvgate/rpc/kvgate/v1/kvgatev1connect"
	"kvgate/store"
)

func clusterClient(t *testing.T, b *fakeBackend) kvgatev1connect.ClusterServiceClient {
	t.Helper()
	r := start(t, b)
	return kvgatev1connect.NewClusterServiceClient(r.client, r.url)
}

// TestSaveSnapshotStreams: what the backend writes arrives in order; an error on the way ends the stream with its
// code, whatever was sent before.
func TestSaveSnapshotStreams(t *testing.T) {
	want := bytes.Repeat([]byte("archive "), 100_000)
	for name, fails := range map[string]error{"whole": nil, "cut short": store.ErrTrimmed, "stopping": fsm.ErrShutdown} {
		t.Run(name, func(t *testing.T) {
			client := clusterClient(t, &fakeBackend{save: func(_ context.Context, w io.Writer) (store.Header, error) {
				for part := range slices.Chunk(want, 70_001) {
					if _, err := w.Write(part); err != nil {
						return store.Header{}, err
					}
				}
				return store.Header{}, fails
			}})
			stream, err := client.SaveSnapshot(t.Context(), connect.NewRequest(&kvgatev1.SaveSnapshotRequest{}))
			if err != nil {
				t.Fatal(err)
			}
			defer stream.Close()
			var got bytes.Buffer
			for stream.Receive() {
				got.Write(stream.Msg().GetData())
			}
			switch {
			case fails == nil && (stream.Err() != nil || !bytes.Equal(got.Bytes(), want)):
				t.Errorf("%d bytes of %d, %v", got.Len(), len(want), stream.Err())
			case fails != nil && connect.CodeOf(stream.Err()) != faultOf(fails).code:
				t.Errorf("ends with %v, want %v", stream.Err(), faultOf(fails).code)
			}
		})
	}
}

// TestRestoreSnapshotStreams: confirmation and bytes reach the backend, its refusals have their codes.
func TestRestoreSnapshotStreams(t *testing.T) {
	for name, fails := range map[string]error{
		"done": nil, CodeWrongCluster: fsm.ErrWrongCluster, CodeNewerState: fsm.ErrNewerState, CodeBadArchive: fsm.ErrBadArchive,
		CodeNoLeader: &fsm.LeaderError{ID: "n2"}, CodeReadOnlySnapshot: fsm.ErrReadOnlySnapshot,
	} {
		t.Run(name, func(t *testing.T) {
			client := clusterClient(t, &fakeBackend{restore: func(_ context.Context, r io.Reader, o fsm.RestoreOptions) (fsm.Restored, error) {
				data, err := io.ReadAll(r)
				if err != nil || string(data) != "one two three " || o != (fsm.RestoreOptions{Confirm: "c", Force: true}) {
					return fsm.Restored{}, fmt.Errorf("got %q %+v: %w", data, o, err)
				}
				return fsm.Restored{Index: 9, ArchiveIndex: 3, Dropped: 2, Quarantined: []string{"a"}}, fails
			}})
			stream := client.RestoreSnapshot(t.Context())
			req := &kvgatev1.RestoreSnapshotRequest{Confirm: "c", Force: true}
			for _, part := range []string{"one ", "two ", "", "three "} {
				req.Data = []byte(part)
				if err := stream.Send(req); err != nil && !errors.Is(err, io.EOF) {
					t.Fatal(err)
				}
				req = &kvgatev1.RestoreSnapshotRequest{}
			}
			res, err := stream.CloseAndReceive()
			if fails != nil {
				if info := errorInfo(err); info.GetCode() != name {
					t.Errorf("answer %v, %v", err, info)
				}
				return
			}
			if err != nil || res.Msg.Index != 9 || res.Msg.ArchiveIndex != 3 || res.Msg.Dropped != 2 || len(res.Msg.Quarantined) != 1 {
				t.Errorf("answer %v, %v", res, err)
			}
		})
	}
}
