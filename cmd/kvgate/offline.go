package main

import (
	"context"
	"errors"
	"io/fs"
	"log/slog"
	"net"
	"net/http"
	"os"
	"os/signal"
	"sync"
	"syscall"
	"time"

	"kvgate/fsm"
	"kvgate/rpc"
	"kvgate/store"
)

// offlineURL stands for the server of --from in messages; nothing listens there.
const offlineURL = "http://snapshot.invalid"

// offlineServer answers the API from an archive or a data directory, inside this process.
type offlineServer struct {
	*fsm.Offline
	pipes *pipeListener
	// dropped takes SIGPIPE: a reader that has seen enough, such as head, must not end the process before the copy
	// on disk is removed. Writing fails then, which ends the command.
	dropped chan os.Signal
	cancel  context.CancelFunc
	served  chan error
}

// serveOffline opens what --from names and begins to answer.
func serveOffline(path string, log *slog.Logger) (s *offlineServer, err error) {
	dropped := make(chan os.Signal, 1)
	signal.Notify(dropped, syscall.SIGPIPE)
	defer func() {
		if err != nil {
			signal.Stop(dropped)
		}
	}()
	source, err := openOffline("from", path, log)
	if err != nil {
		return nil, err
	}
	server, err := rpc.New(rpc.Options{Backend: source, Log: slog.New(slog.DiscardHandler), Now: savedAt(source)})
	if err != nil {
		return nil, errors.Join(err, source.Close())
	}
	ctx, cancel := context.WithCancel(context.Background())
	s = &offlineServer{Offline: source, pipes: newPipeListener(), dropped: dropped, cancel: cancel, served: make(chan error, 1)}
	go func() { s.served <- server.Serve(ctx, s.pipes) }()
	return s, nil
}

// savedAt is the wall time at which the state of a source was the present.
func savedAt(source *fsm.Offline) func() time.Time {
	return func() time.Time { return source.Header.WallTime }
}

// openOffline opens an archive or a data directory and words what may be wrong with it.
func openOffline(flag, path string, log *slog.Logger) (*fsm.Offline, error) {
	source, err := fsm.OpenOffline(path, log)
	switch {
	case errors.Is(err, fs.ErrNotExist) && !exists(path):
		return nil, badValue(flag, path, "a file written by `kvgate snapshot save`, or the data directory of a stopped node")
	case errors.Is(err, store.ErrLocked):
		return nil, usagef("%s: %s; `kvgate snapshot save` takes a snapshot of a running cluster", flag, err)
	case err != nil:
		return nil, err
	}
	return source, nil
}

// httpClient returns a client whose every connection leads to the server.
func (s *offlineServer) httpClient() *http.Client {
	return &http.Client{Transport: &http.Transport{DialContext: s.pipes.dial}}
}

// Close ends the server and removes what it had on disk.
func (s *offlineServer) Close() error {
	s.cancel()
	defer signal.Stop(s.dropped)
	return errors.Join(<-s.served, s.Offline.Close())
}

// pipeListener is a listener whose connections are made in memory.
type pipeListener struct {
	conns  chan net.Conn
	closed chan struct{}
	close  func()
}

func newPipeListener() *pipeListener {
	l := &pipeListener{conns: make(chan net.Conn), closed: make(chan struct{})}
	l.close = sync.OnceFunc(func() { close(l.closed) })
	return l
}

func (l *pipeListener) dial(ctx context.Context, _, _ string) (net.Conn, error) {
	here, there := net.Pipe()
	select {
	case l.conns <- there:
		return here, nil
	case <-l.closed:
		return nil, net.ErrClosed
	case <-ctx.Done():
		return nil, ctx.Err()
	}
}

// Accept implements net.Listener.
func (l *pipeListener) Accept() (net.Conn, error) {
	select {
	case conn := <-l.conns:
		return conn, nil
	case <-l.closed:
		return nil, net.ErrClosed
	}
}

// Close implements net.Listener.
func (l *pipeListener) Close() error { l.close(); return nil }

// Addr implements net.Listener.
func (l *pipeListener) Addr() net.Addr { return &net.UnixAddr{Name: "snapshot", Net: "pipe"} }

func exists(path string) bool {
	_, err := os.Stat(path)
	return err == nil
}
