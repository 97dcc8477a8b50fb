package main

import (
	"context"
	"errors"
	"log/slog"
	"time"
)

// stopGrace bounds how long a node that failed may take to close what it has open.
const stopGrace = 5 * time.Second

// runServe runs a node until ctx ends or the node halts. A node that halts may hang in a disk that does
// not answer, so closing it is given up after a while: the process is on its way out, and what was
// acknowledged is in the log.
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
		return n.Close()
	case err = <-failed:
	}
	closed := make(chan error, 1)
	go func() { closed <- n.Close() }()
	select {
	case e := <-closed:
		return errors.Join(err, e)
	case <-time.After(stopGrace):
		return err
	}
}
