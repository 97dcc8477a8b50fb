package enginesim

import (
	"fmt"
	"slices"
	"time"

	"kvgate/integration/enginesim/radix"
)

// slot is an opened session on one rank. A streaming one pins the KV of its conversation between
// turns: no eviction touches it until the session is closed or times out [sglang 19171, 27024].
type slot struct {
	id        string
	streaming bool
	timeout   time.Duration // idle time after which the rank drops it; 0 means never
	touched   time.Duration
	tokens    []int32 // the conversation so far; a turn appends to it
	busy      bool    // a turn is in flight
	closing   bool    // closed during a turn; goes when the turn ends
	lent      bool    // its KV is with the turn in flight
	node      *radix.Node
	prefix    int
	private   int
}

// holds reports whether the slot has KV that a turn can take over.
func (s *slot) holds() bool { return s.node != nil }

func (s *slot) lend(q *request) {
	q.node, q.prefix, q.private = s.node, s.prefix, s.private
	s.node, s.prefix, s.private, s.lent = nil, 0, 0, true
}

func (s *slot) takeBack(q *request) {
	s.node, s.prefix, s.private, s.lent = q.node, q.prefix, q.private, false
	q.node, q.prefix, q.private = nil, 0, 0
}

// keep ends a turn. It reports whether the slot took the KV; otherwise the caller caches it.
func (s *slot) keep(k *rank, q *request) bool {
	s.tokens = slices.Clone(q.fill)
	if s.streaming {
		s.takeBack(q)
	}
	s.idle(k)
	return s.streaming
}

// idle notes that no turn is in flight, and finishes a close that waited for that.
func (s *slot) idle(k *rank) {
	s.busy, s.touched = false, k.now
	if s.closing {
		k.dropSlot(s)
	}
}

// openSlot opens a session on this rank.
func (k *rank) openSlot(id string, streaming bool, timeout time.Duration) error {
	if _, ok := k.slots[id]; ok {
		return fmt.Errorf("%w: %q", ErrSessionExists, id)
	}
	k.slots[id] = &slot{id: id, streaming: streaming, timeout: timeout, touched: k.now}
	return nil
}

// closeSession does what the engine does on POST /close_session. Unknown ids are no error.
func (k *rank) closeSession(id string) {
	if s := k.slots[id]; s != nil {
		if s.busy {
			s.closing = true
			return
		}
		k.dropSlot(s)
	}
	if !k.cfg.SessionRadix {
		return
	}
	if k.cfg.CloseMode == CloseForgets {
		k.tree.Forget(id)
		return
	}
	k.count.released += k.tree.Release(id)
}

func (k *rank) dropSlot(s *slot) {
	if s.node != nil {
		k.tree.Unlock(s.node)
		k.private -= s.private
		k.count.released += s.private
	}
	delete(k.slots, s.id)
}

// touchSlot keeps a session alive on ranks that do not serve its turns.
func (k *rank) touchSlot(id string) {
	if s := k.slots[id]; s != nil {
		s.touched = k.now
	}
}

// held is the number of streaming sessions and of tokens that only their slots hold.
func (k *rank) held() (sessions, tokens int) {
	for _, s := range k.slots {
		if s.streaming {
			sessions++
			tokens += s.private
		}
	}
	return sessions, tokens
}

// pin is a prefix locked for a while by /hicache/pin_prefix.
type pin struct {
	node  *radix.Node
	until time.Duration
}

// pinPrefix locks what is cached of tokens and returns how many that are.
func (k *rank) pinPrefix(tokens []int32, ttl time.Duration) int {
	node, n := k.tree.Match(tokens)
	if n > 0 {
		k.tree.Lock(node)
		k.pins = append(k.pins, pin{node: node, until: k.now + ttl})
	}
	return n
}

// expire drops sessions and pins whose time is over.
func (k *rank) expire() {
	for _, s := range k.slots {
		if s.timeout > 0 && !s.busy && k.now-s.touched >= s.timeout {
			k.dropSlot(s)
		}
	}
	k.pins = slices.DeleteFunc(k.pins, func(p pin) bool {
		if k.now < p.until {
			return false
		}
		k.tree.Unlock(p.node)
		return true
	})
}

// nextDeadline is when an idle rank has something to do at the latest.
func (k *rank) nextDeadline() time.Duration {
	next := k.shownAt + idleRefresh
	for _, s := range k.slots {
		if s.timeout > 0 && !s.busy {
			next = min(next, s.touched+s.timeout)
		}
	}
	for _, p := range k.pins {
		next = min(next, p.until)
	}
	return next
}

// flush empties the prefix cache and reports whether it could: not while requests are in flight.
// Tombstones go with the cache, unless opened sessions or pins hold locks in it.
func (k *rank) flush() bool {
	if len(k.waiting)+len(k.running) > 0 || k.chunked != nil {
		return false
	}
	if k.tree.Protected() > 0 {
		k.tree.Evict(k.tree.Evictable())
		return true
	}
	k.tree = radix.New()
	k.tree.KeepReferenced = k.cfg.CloseMode == CloseForgets
	return true
}
