package client

import (
	"context"
	"math/rand/v2"
	"sync"
)

// ticketKey names a ticket.
type ticketKey struct{ pool, ticket string }

// ticketState is what this process has to do with one ticket.
type ticketState struct {
	// call is the call id of the Acquires that share the state. They end together: the last of them has the
	// coordinator remember that they are over, and whoever comes after that gets a new state.
	call uint64
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
}

func newTickets() *tickets { return &tickets{states: map[ticketKey]*ticketState{}} }

// newCallID draws the id of a call, which is not 0.
func newCallID() uint64 { return rand.Uint64N(1<<64-1) + 1 }

// enter starts an Acquire of key, when nothing of an earlier one is pending, and returns its call id. Each
// enter needs one leave or release.
func (t *tickets) enter(ctx context.Context, key ticketKey) (call uint64, err error) {
	for {
		t.mu.Lock()
		state := t.states[key]
		if state == nil {
			state = &ticketState{call: newCallID()}
			t.states[key] = state
		}
		if state.settling == 0 {
			state.using++
			t.mu.Unlock()
			return state.call, nil
		}
		settled := state.settled
		t.mu.Unlock()
		select {
		case <-settled:
		case <-ctx.Done():
			return 0, ctx.Err()
		}
	}
}

// leave ends a use of key. dirty: an Acquire may have left a waiter or a lease behind, or a copy of it may
// still be under way. When leave returns a call, the caller must cancel it and then call settled.
func (t *tickets) leave(key ticketKey, dirty bool) (ended uint64) {
	t.mu.Lock()
	defer t.mu.Unlock()
	state := t.states[key]
	state.using--
	state.dirty = state.dirty || dirty
	if state.using == 0 && state.dirty {
		state.settle()
		return state.call
	}
	t.drop(key, state)
	return 0
}

// release ends a use of key whose lease is about to be released. The caller must call settled when
// the release, and the end of the call that is returned, is known. dirty as in leave.
func (t *tickets) release(key ticketKey, dirty bool) (ended uint64) {
	t.mu.Lock()
	defer t.mu.Unlock()
	state := t.states[key]
	state.using--
	state.dirty = state.dirty || dirty
	if state.using == 0 && state.dirty {
		ended = state.call
	}
	state.settle()
	return ended
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
