package cluster

import (
	"fmt"
	"sync"
	"time"

	kvgatev1 "kvgate/rpc/kvgate/v1"
)

// Kind is what a client asked for.
type Kind uint8

// The kinds of operations.
const (
	OpAcquire Kind = iota
	OpRelease
	OpRenew
	OpCancel
	OpTicket // read of one ticket
	OpBudget // read of the pool's budget
)

var kindNames = [...]string{"acquire", "release", "renew", "cancel", "ticket", "budget"}

func (k Kind) String() string { return kindNames[k] }

// Op is one attempt of one operation and what became of it.
type Op struct {
	Kind   Kind
	Client int
	// Chain numbers the operation; attempts of the same one share it.
	Chain  int64
	Ticket string
	Node   *Node
	// Start and End are when the attempt was made and answered, on the monotonic clock.
	Start, End time.Time

	// What was asked.
	Tokens       int64
	MaxWait, TTL time.Duration
	// Fence is the grant that Release and Renew carry.
	Fence uint64

	// Known: the answer below says what became of it. Otherwise it may have taken effect, or may yet.
	Known bool
	// Code is ErrorInfo's code of an error answer, "transport" where there was no answer, "" for none.
	Code string
	Err  error

	Action    kvgatev1.Action
	Reason    kvgatev1.Reason
	Grant     uint64
	Lease     string
	ExpiresIn time.Duration
	// OK is released of a Release, renewed of a Renew.
	OK       bool
	Was      kvgatev1.CancelState
	State    kvgatev1.TicketState
	Reserved int64
}

func (o *Op) String() string {
	s := fmt.Sprintf("client %d %s %s on %s, took %v", o.Client, o.Kind, o.Ticket, o.Node.id, o.End.Sub(o.Start).Round(time.Millisecond))
	switch {
	case o.Err != nil:
		s += fmt.Sprintf(": %s: %v", o.Code, o.Err)
	case o.Kind == OpAcquire:
		s += fmt.Sprintf(": %v %v grant %d", o.Action, o.Reason, o.Grant)
	case o.Kind == OpCancel:
		s += fmt.Sprintf(": was %v", o.Was)
	case o.Kind == OpTicket:
		s += fmt.Sprintf(": %v grant %d", o.State, o.Grant)
	case o.Kind == OpBudget:
		s += fmt.Sprintf(": reserved %d", o.Reserved)
	default:
		s += fmt.Sprintf(" fence %d: %v", o.Fence, o.OK)
	}
	return s
}

// History records what clients did. It is safe for concurrent use.
type History struct {
	mu    sync.Mutex
	ops   []*Op
	chain int64
}

func (h *History) newChain() int64 {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.chain++
	return h.chain
}

func (h *History) add(o *Op) {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.ops = append(h.ops, o)
}

// Ops returns what was recorded so far.
func (h *History) Ops() []*Op {
	h.mu.Lock()
	defer h.mu.Unlock()
	return append([]*Op(nil), h.ops...)
}
