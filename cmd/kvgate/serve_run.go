package main

import (
	"context"
	"errors"
	"log/slog"
)

// runServe runs a node until ctx ends or the node halts.
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
	return errors.Join(err, n.Close())
}
