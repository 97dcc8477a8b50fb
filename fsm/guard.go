package fsm

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"sync/atomic"
	"syscall"
	"time"

	"kvgate/store"
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

// retryWrite is how long a node waits before it tries again to write to a disk that refuses.
const retryWrite = time.Second

// persistOrWait writes a page, again and again while the disk is full or read-only: the
// node keeps what it has decided and its followers, refuses new writes (see guard) and goes on when the
// disk does. It gives up when the node stops; the entries are in raft's log and are applied at the next
// start. Any other failure is returned.
func (m *Machine) persistOrWait(p *page) error {
	for said := false; ; said = true {
		err := m.scribe.put(p)
		if err == nil || !diskRefuses(err) {
			return err
		}
		m.refusal()
		if !said {
			m.log.Error("state cannot be written; trying again until the disk takes it", "error", err)
		}
		select {
		case <-m.stopping:
			return err
		case <-time.After(retryWrite):
		}
	}
}

// diskRefuses says that the disk is full or read-only, which may pass.
func diskRefuses(err error) bool {
	return errors.Is(err, syscall.ENOSPC) || errors.Is(err, syscall.EDQUOT) || errors.Is(err, syscall.EROFS) ||
		errors.Is(err, store.ErrNoSpace) || errors.Is(err, store.ErrReadOnly)
}
