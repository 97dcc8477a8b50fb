package client

import (
	"context"
	"sync"
)

// group counts what is running, so that Close can wait for it. Unlike a sync.WaitGroup it may be
// entered while somebody waits, and it can be sealed.
type group struct {
	mu     sync.Mutex
	n      int
	sealed bool
	idle   chan struct{} // closed when n returns to 0
}

// enter counts one more, or returns false when the group is sealed.
func (g *group) enter() bool {
	g.mu.Lock()
	defer g.mu.Unlock()
	if g.sealed {
		return false
	}
	if g.n == 0 {
		g.idle = make(chan struct{})
	}
	g.n++
	return true
}

func (g *group) leave() {
	g.mu.Lock()
	defer g.mu.Unlock()
	if g.n--; g.n == 0 {
		close(g.idle)
	}
}

// start runs fn in a goroutine of the group, or returns false when the group is sealed.
func (g *group) start(fn func()) bool {
	if !g.enter() {
		return false
	}
	go func() {
		defer g.leave()
		fn()
	}()
	return true
}

func (g *group) seal() {
	g.mu.Lock()
	defer g.mu.Unlock()
	g.sealed = true
}

// wait returns when nothing runs, or with the error of ctx.
func (g *group) wait(ctx context.Context) error {
	for {
		g.mu.Lock()
		n, idle := g.n, g.idle
		g.mu.Unlock()
		if n == 0 {
			return nil
		}
		select {
		case <-idle:
		case <-ctx.Done():
			return ctx.Err()
		}
	}
}
