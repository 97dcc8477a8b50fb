package crash

import (
	"sync"
	"testing"
	"time"

	"connectrpc.com/connect"

	"kvgate/integration/procs"
	kvgatev1 "kvgate/rpc/kvgate/v1"
)

// fate is what the client of a ticket was told.
type fate int

const (
	// held: admitted, and nothing that could have ended it was tried.
	held fate = iota
	// gone: released, cancelled or never admitted, and the node said so.
	gone
	// doubtful: a call that could change it got no answer.
	doubtful
)

// entry is what the book has on one ticket.
type entry struct {
	ticket  string
	fate    fate
	grant   uint64
	renewed bool
}

// book keeps what clients were told. Its methods may be called from several goroutines; an entry
// belongs to whoever took it.
type book struct {
	t *testing.T
	// mu guards the fields below.
	mu     sync.Mutex
	all    map[string]*entry
	idle   []*entry
	grants map[uint64]string
	// told counts answers; at is closed when told reaches goal.
	told, goal int
	at         chan struct{}
}

func newBook(t *testing.T) *book {
	return &book{t: t, all: map[string]*entry{}, grants: map[uint64]string{}, at: make(chan struct{})}
}

// alarm returns a channel that is closed after n more answers.
func (b *book) alarm(n int) <-chan struct{} {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.goal, b.at = b.told+n, make(chan struct{})
	return b.at
}

// answered counts an answer.
func (b *book) answered() {
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.told++; b.told == b.goal {
		close(b.at)
	}
}

// open begins an entry.
func (b *book) open(ticket string) *entry {
	b.mu.Lock()
	defer b.mu.Unlock()
	e := &entry{ticket: ticket, fate: doubtful}
	b.all[ticket] = e
	return e
}

// admitted notes a grant. No number is ever given to two tickets, or twice to one.
func (b *book) admitted(e *entry, grant uint64) {
	b.mu.Lock()
	defer b.mu.Unlock()
	if other, taken := b.grants[grant]; taken || grant == 0 {
		b.t.Errorf("grant %d of ticket %s was given to ticket %q before", grant, e.ticket, other)
	}
	b.grants[grant] = e.ticket
	e.fate, e.grant = held, grant
	b.idle = append(b.idle, e)
}

// take hands out a held entry that nobody works on, nil when there is none.
func (b *book) take(pick int) *entry {
	b.mu.Lock()
	defer b.mu.Unlock()
	if len(b.idle) == 0 {
		return nil
	}
	i := pick % len(b.idle)
	e := b.idle[i]
	b.idle = append(b.idle[:i], b.idle[i+1:]...)
	return e
}

// back returns an entry that is still held.
func (b *book) back(e *entry) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.idle = append(b.idle, e)
}

// audit compares a node with the book while no client is at work. Waiters of clients that are gone may
// still be granted and taken back, so it looks until two readings agree.
func (b *book) audit(s *site) {
	b.t.Helper()
	var leases map[string]*kvgatev1.Lease
	var after *kvgatev1.GetBudgetResponse
	procs.Eventually(b.t, patience, func() bool {
		before, err := s.budget()
		if err != nil {
			b.t.Fatal(err)
		}
		leases = s.leases()
		if after, err = s.budget(); err != nil {
			b.t.Fatal(err)
		}
		return before.Waiting == 0 && after.Waiting == 0 && before.Reserved == after.Reserved && before.Leases == after.Leases
	}, func() string { return "waiters of clients that are gone stay in the queue" })
	b.compare(s, leases)
	sum := int64(0)
	for _, l := range leases {
		sum += l.ReservationTokens
	}
	if sum != after.Reserved || int64(len(leases)) != after.Leases || sum > after.Ceiling {
		b.t.Errorf("reserved %d in %d leases, ceiling %d; the leases listed are %d with %d",
			after.Reserved, after.Leases, after.Ceiling, len(leases), sum)
	}
}

func (b *book) compare(s *site, leases map[string]*kvgatev1.Lease) {
	b.t.Helper()
	b.mu.Lock()
	defer b.mu.Unlock()
	for ticket, e := range b.all {
		l := leases[ticket]
		switch {
		case e.fate == held && l == nil:
			b.t.Errorf("ticket %s was admitted with grant %d, and its lease is gone", ticket, e.grant)
		case e.fate == held && s.ticket(ticket).Grant != e.grant:
			b.t.Errorf("ticket %s holds grant %d, its client was told %d", ticket, s.ticket(ticket).Grant, e.grant)
		case e.fate == held && e.renewed && l.ExpiresIn.AsDuration() < 15*time.Minute:
			b.t.Errorf("ticket %s was renewed for an hour and has %v left", ticket, l.ExpiresIn.AsDuration())
		case e.fate == gone && l != nil:
			b.t.Errorf("ticket %s was ended, and holds a lease again", ticket)
		}
	}
	for ticket := range leases {
		if b.all[ticket] == nil {
			b.t.Errorf("nobody asked for ticket %s, which holds a lease", ticket)
		}
	}
}

// settle ends the tickets that are in doubt, so that they do not fill the budget.
func (b *book) settle(s *site) {
	b.t.Helper()
	b.mu.Lock()
	defer b.mu.Unlock()
	for ticket, e := range b.all {
		switch e.fate {
		case doubtful:
			_, err := s.admission.Cancel(b.t.Context(), connect.NewRequest(&kvgatev1.CancelRequest{TicketId: ticket}))
			if err != nil {
				b.t.Fatalf("cancel %s: %v", ticket, err)
			}
			e.fate = gone
		case gone:
			delete(b.all, ticket) // it was compared
		}
	}
}
