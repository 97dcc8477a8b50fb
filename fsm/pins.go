package fsm

import (
	"context"
	"log/slog"

	"golang.org/x/sync/errgroup"

	"kvgate/fsm/fsmpb"
	"kvgate/sessions"
)

// parallelPins bounds the calls that pin one prefix on the engines of a pool.
const parallelPins = 8

// PinPrefix reserves tokens for a prefix and, where token ids are given, asks the engine to keep it: the one
// that is named, else all of the pool. An engine that does not keep it does not fail the call; the answer says
// which do.
func (r *Replica) PinPrefix(ctx context.Context, p sessions.PinRequest, tokens []int32) (sessions.PinView, error) {
	v, err := decide[sessions.PinView](ctx, r, pinOp(p))
	if err != nil || len(tokens) == 0 || r.opts.Engines == nil {
		return v, err
	}
	var g errgroup.Group
	g.SetLimit(parallelPins)
	engines := r.pinTargets(p, v)
	ledgerOnly, failed := make([]bool, len(engines)), make([]error, len(engines))
	for i, engine := range engines {
		g.Go(func() error {
			bounded, cancel := context.WithTimeout(ctx, engineTimeout)
			defer cancel()
			ledgerOnly[i], failed[i] = r.opts.Engines.PinPrefix(bounded, engine, tokens, v.ExpiresIn)
			return nil
		})
	}
	_ = g.Wait()
	for i, engine := range engines {
		if failed[i] != nil {
			r.log.Warn("engine did not pin the prefix", slog.String("engine", engine), slog.String("pin", p.ID), slog.Any("error", failed[i]))
			continue
		}
		v, err = decide[sessions.PinView](ctx, r, &fsmpb.Op{Kind: &fsmpb.Op_ReportPin{ReportPin: &fsmpb.ReportPin{
			Pool: p.Pool, Id: p.ID, Engine: engine, LedgerOnly: ledgerOnly[i],
		}}})
		if err != nil {
			return v, err
		}
	}
	return v, nil
}

// pinTargets are the engines to ask, none while the pool tells engines nothing.
func (r *Replica) pinTargets(p sessions.PinRequest, v sessions.PinView) (out []string) {
	r.machine.look(func(c *core) {
		switch {
		case c.silent(p.Pool) != "":
		case v.Engine != "":
			out = []string{v.Engine}
		default:
			for _, e := range c.table.Engines(p.Pool) {
				out = append(out, e.URL)
			}
		}
	})
	return out
}

// UnpinPrefix drops a pin and reports whether there was one.
func (r *Replica) UnpinPrefix(ctx context.Context, pool, id string) (bool, error) {
	return decide[bool](ctx, r, &fsmpb.Op{Kind: &fsmpb.Op_Unpin{Unpin: &fsmpb.Unpin{Pool: pool, Id: id}}})
}
