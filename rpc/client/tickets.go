package client

import (
	"context"
	"sync"
	"time"
)

// markLife is how long the client remembers that its own Cancel may have left a mark: the
// coordinator keeps marks for one lease TTL, which is at most max_ttl (3600 s by default).
const markLife = time.Hour

// ticketKey names a ticket.
type ticketKey struct{ pool, ticket string }

// ticketState is what this process has to do with one ticket.
type ticketState struct {
	// using counts Acquires in progress and grants held.
	using int
	// dirty: an Acquire was abandoned while others used the ticket; the last of them cancels it.
	dirty bool
	// settling counts releases and cancels whose outcome is not known yet.
	settling int
	// settled is closed when settling returns to 0.
	settled chan struct{}
}

// tickets keeps the calls on one ticket in order: a new Acquire waits until the client's own releases
// and cancels of the same ticket are known, since one that arrived late would take away the new lease.
// Safe for concurrent use.
type tickets struct {
	mu     sync.Mutex
	states map[ticketKey]*ticketState
	// marks holds the tickets for which a Cancel of this client (not of its user) may have left a mark.
	marks     map[ticketKey]time.Time
	nextPurge time.Time
}

func newTickets() *tickets {
	return &tickets{states: map[ticketKey]*ticketState{}, marks: map[ticketKey]time.Time{}}
}

// enter starts an Acquire of key, when nothing of an earlier one is pending. Each enter needs one
// leave or release.
func (t *tickets) enter(ctx context.Context, key ticketKey) error {
	for {
		t.mu.Lock()
		state := t.states[key]
		if state == nil {
			state = &ticketState{}
			t.states[key] = state
		}
		if state.settling == 0 {
			state.using++
			t.mu.Unlock()
			return nil
		}
		settled := state.settled
		t.mu.Unlock()
		select {
		case <-settled:
		case <-ctx.Done():
			return ctx.Err()
		}
	}
}

// leave ends a use of key. dirty: an Acquire may have left a waiter or a lease behind. When leave
// returns true the caller must cancel the ticket and then call settled.
func (t *tickets) leave(key ticketKey, dirty bool) (cancel bool) {
	t.mu.Lock()
	defer t.mu.Unlock()
	state := t.states[key]
	state.using--
	state.dirty = state.dirty || dirty
	if state.using == 0 && state.dirty {
		state.settle()
		return true
	}
	t.drop(key, state)
	return false
}

// release ends a use of key whose lease is about to be released. The caller must call settled when
// the release, and the cancel where asked for, is known. dirty as in leave.
func (t *tickets) release(key ticketKey, dirty bool) (cancel bool) {
	t.mu.Lock()
	defer t.mu.Unlock()
	state := t.states[key]
	state.using--
	state.dirty = state.dirty || dirty
	cancel = state.using == 0 && state.dirty
	state.settle()
	return cancel
}

func (s *ticketState) settle() {
	if s.using == 0 {
		s.dirty = false
	}
	if s.settling == 0 {
		s.settled = make(chan struct{})
	}
	s.settling++
}

// settled ends what leave or release began.
func (t *tickets) settled(key ticketKey) {
	t.mu.Lock()
	defer t.mu.Unlock()
	state := t.states[key]
	if state.settling--; state.settling == 0 {
		close(state.settled)
		t.drop(key, state)
	}
}

func (t *tickets) drop(key ticketKey, state *ticketState) {
	if state.using == 0 && state.settling == 0 {
		delete(t.states, key)
	}
}

// mark remembers that the client's own Cancel may make the next Acquire of key bypass cancelled.
func (t *tickets) mark(key ticketKey) {
	t.mu.Lock()
	defer t.mu.Unlock()
	now := time.Now()
	t.marks[key] = now
	if now.Before(t.nextPurge) {
		return
	}
	t.nextPurge = now.Add(markLife / 4)
	for k, at := range t.marks {
		if now.Sub(at) > markLife {
			delete(t.marks, k)
		}
	}
}

// takeMark reports whether such a mark may have existed, and forgets it.
func (t *tickets) takeMark(key ticketKey) bool {
	t.mu.Lock()
	defer t.mu.Unlock()
	at, ok := t.marks[key]
	delete(t.marks, key)
	return ok && time.Since(at) <= markLife
}
