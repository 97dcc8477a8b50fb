package rpc

import (
	"context"
	"errors"
	"fmt"
	"io"

	"connectrpc.com/connect"

	"kvgate/fsm"
	kvgatev1 "kvgate/rpc/kvgate/v1"
)

// snapshotPart is how many bytes of an archive one message carries.
const snapshotPart = 256 << 10

// SaveSnapshot implements the service.
func (s *clusterService) SaveSnapshot(ctx context.Context, _ *connect.Request[kvgatev1.SaveSnapshotRequest], stream *connect.ServerStream[kvgatev1.SaveSnapshotResponse]) error {
	w := &partWriter{send: func(part []byte) error { return stream.Send(&kvgatev1.SaveSnapshotResponse{Data: part}) }}
	_, err := s.archive.Save(ctx, w)
	if err == nil {
		err = w.flush()
	}
	return s.streamError(err)
}

// RestoreSnapshot implements the service.
func (s *clusterService) RestoreSnapshot(ctx context.Context, stream *connect.ClientStream[kvgatev1.RestoreSnapshotRequest]) (*connect.Response[kvgatev1.RestoreSnapshotResponse], error) {
	if !stream.Receive() {
		return nil, s.streamError(errors.Join(stream.Err(), invalid("confirm", `""`, "the id of the cluster, in the first message")))
	}
	o := fsm.RestoreOptions{Confirm: stream.Msg().GetConfirm(), Force: stream.Msg().GetForce()}
	done, err := s.archive.Restore(ctx, &partReader{stream: stream, rest: stream.Msg().GetData()}, o)
	if err != nil {
		return nil, s.streamError(err)
	}
	return connect.NewResponse(&kvgatev1.RestoreSnapshotResponse{
		Index: done.Index, ArchiveIndex: done.ArchiveIndex, Dropped: done.Dropped, Quarantined: done.Quarantined,
	}), nil
}

// streamError does for streams what mapErrors does for single calls.
func (s *clusterService) streamError(err error) error {
	if err == nil {
		return nil
	}
	if done := (*connect.Error)(nil); errors.As(err, &done) {
		return done
	}
	return newError(err, s.backend.Status)
}

// partWriter cuts what is written into messages.
type partWriter struct {
	part []byte
	send func([]byte) error
}

// Write implements io.Writer.
func (w *partWriter) Write(b []byte) (int, error) {
	w.part = append(w.part, b...)
	for len(w.part) >= snapshotPart {
		if err := w.send(w.part[:snapshotPart]); err != nil {
			return 0, err
		}
		w.part = append(w.part[:0], w.part[snapshotPart:]...)
	}
	return len(b), nil
}

func (w *partWriter) flush() error {
	if len(w.part) == 0 {
		return nil
	}
	return w.send(w.part)
}

// partReader reads the bytes of the messages of a stream one after another.
type partReader struct {
	stream *connect.ClientStream[kvgatev1.RestoreSnapshotRequest]
	rest   []byte
}

// Read implements io.Reader.
func (r *partReader) Read(b []byte) (int, error) {
	for len(r.rest) == 0 {
		if !r.stream.Receive() {
			if err := r.stream.Err(); err != nil {
				return 0, fmt.Errorf("receive the archive: %w", err)
			}
			return 0, io.EOF
		}
		r.rest = r.stream.Msg().GetData()
	}
	n := copy(b, r.rest)
	r.rest = r.rest[n:]
	return n, nil
}
