package main

import (
	"context"
	"errors"
	"log/slog"
	"time"
)

// stopGrace bounds how long a node may take to close what it has open, after the time that calls in
// flight get.
const stopGrace = 20 * time.Second

// errNotClosed: the process ends although something is still open.
var errNotClosed = errors.New("the disk or the network did not let go in time; what was acknowledged is in the log")

// runServe runs a node until ctx ends or the node halts. Its disk may hang or refuse writes, so closing
// it is given up after a while: the process is on its way out, and what was acknowledged is in the log.
func runServe(ctx context.Context, cfg ServeConfig, log *slog.Logger) error {
	n, err := startNode(ctx, cfg, log)
	if err != nil {
		return err
	}
	failed := make(chan error, 1)
	go func() { failed <- n.Wait() }()
	select {
	case <-ctx.Done():
		log.Info("stopping")
		err = nil
	case err = <-failed:
	}
	closed := make(chan error, 1)
	go func() { closed <- n.Close() }()
	select {
	case e := <-closed:
		return errors.Join(err, e)
	case <-time.After(stopGrace):
		return errors.Join(err, errNotClosed)
	}
}
