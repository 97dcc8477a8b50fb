package scrape

import (
	"context"
	"sync"
	"time"

	"golang.org/x/sync/semaphore"
)

// slots bounds how many scrapes work at once.
type slots struct {
	sem *semaphore.Weighted
	// hold is how long a scrape that hangs keeps others out.
	hold time.Duration
}

// do runs f in a slot. After hold the slot goes to the next although f still runs: what runs so long is
// waiting for an engine, and takes neither processor nor much memory. The error is ctx's.
func (s *slots) do(ctx context.Context, f func()) error {
	if err := s.sem.Acquire(ctx, 1); err != nil {
		return err
	}
	free := sync.OnceFunc(func() { s.sem.Release(1) })
	timer := time.AfterFunc(s.hold, free)
	defer free()
	defer timer.Stop()
	f()
	return nil
}
