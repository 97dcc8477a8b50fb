package fsm

import (
	"context"
	"fmt"
	"log/slog"
	"sync/atomic"
	"time"
)

// guard refuses writes while the disk is too full or cannot be written, so that nothing on it is ever
// half written for want of space.
type guard struct {
	check func() error
	log   *slog.Logger
	why   atomic.Pointer[error]
}

// guardEvery is how often the disk is looked at.
const guardEvery = time.Second

// refuses returns why writes are refused, nil when they are not.
func (g *guard) refuses() error {
	if p := g.why.Load(); p != nil {
		return *p
	}
	return nil
}

func (g *guard) look() {
	err := g.check()
	was := g.refuses()
	if err == nil {
		g.why.Store(nil)
		if was != nil {
			g.log.Info("disk can be written again")
		}
		return
	}
	wrapped := fmt.Errorf("%w: %w", ErrReadOnly, err)
	g.why.Store(&wrapped)
	if was == nil {
		g.log.Error("writes are refused until the disk has room", "error", err)
	}
}

func (g *guard) run(ctx context.Context) {
	ticker := time.NewTicker(guardEvery)
	defer ticker.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case <-ticker.C:
			g.look()
		}
	}
}
