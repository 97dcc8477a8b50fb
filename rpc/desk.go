package rpc

import (
	"context"
	"crypto/rand"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"

	"golang.org/x/sync/semaphore"

	"kvgate/fsm"
	"kvgate/ledger"
	kvgatev1 "kvgate/rpc/kvgate/v1"
)

// Bounds of how long a holder's waiters stay attached between its calls.
const (
	minGap = time.Second
	maxGap = 30 * time.Second
)

// deskKey names a desk. Tokens for different pools have desks of their own, so that none hears of
// another's pools.
type deskKey struct{ holder, pools string }

// desks are the holders that use Submit on this node. Safe for concurrent use.
type desks struct {
	mu     sync.Mutex
	open   map[deskKey]*desk
	ending bool
}

// desk keeps what one holder has submitted between its calls: tickets that wait, and decisions that it
// has not acknowledged. It closes when no call was open for the gap.
type desk struct {
	s    *admissionService
	key  deskKey
	id   string
	lane fsm.Lane
	// room bounds the operations without a first answer.
	room *semaphore.Weighted
	// order keeps the operations of two Submits apart.
	order sync.Mutex

	// mu guards what follows.
	mu      sync.Mutex
	waiting map[ticketName]*ticketAtDesk
	// ready are decisions by number, last that of the newest.
	ready []numbered
	last  uint64
	// changed is closed and replaced when something became ready.
	changed chan struct{}
	// polling ends the open AwaitGrants.
	polling context.CancelFunc
	calls   int
	idle    *time.Timer
	closed  bool
}

type ticketName struct{ pool, ticket string }

// ticketAtDesk is one submission of a ticket; a later one takes its place.
type ticketAtDesk struct{ seq uint64 }

type numbered struct {
	n uint64
	// told: an answer carried it. Should that be lost, the holder asks again, or its TTL ends it.
	told bool
	name ticketName
	reply
	message *kvgatev1.WaiterDecision
}

// enter returns the holder's desk with one more call open, making the desk when there is none. The
// caller must leave it.
func (s *admissionService) enter(key deskKey) (*desk, error) {
	all := &s.many.desks
	all.mu.Lock()
	defer all.mu.Unlock()
	if all.ending {
		return nil, fsm.ErrShutdown
	}
	d := all.open[key]
	if d == nil {
		d = &desk{
			s: s, key: key, id: rand.Text()[:12], lane: s.many.lanes.OpenLane(s.stopping), room: semaphore.NewWeighted(maxUnanswered),
			waiting: map[ticketName]*ticketAtDesk{}, changed: make(chan struct{}),
		}
		all.open[key] = d
		s.many.calls.desks.Inc()
	}
	d.mu.Lock()
	defer d.mu.Unlock()
	d.calls++
	if d.idle != nil {
		d.idle.Stop()
	}
	return d, nil
}

// leave ends a call. The last one starts the gap.
func (d *desk) leave() {
	gap := d.gap()
	d.mu.Lock()
	defer d.mu.Unlock()
	d.calls--
	if d.calls == 0 {
		d.idle = time.AfterFunc(gap, d.expire)
	}
}

// gap is the smallest detach grace of the pools concerned, within bounds.
func (d *desk) gap() time.Duration {
	pools := map[string]bool{}
	d.mu.Lock()
	for name := range d.waiting {
		pools[name.pool] = true
	}
	for _, r := range d.ready {
		pools[r.name.pool] = true
	}
	d.mu.Unlock()
	gap := maxGap
	err := d.s.many.view.View(context.Background(), true, func(l *ledger.Ledger) {
		for pool := range pools {
			if set, ok := l.Settings(pool); ok {
				gap = min(gap, set.DetachGrace)
			}
		}
	})
	if err != nil || len(pools) == 0 {
		gap = ledger.DefaultSettings().DetachGrace
	}
	return max(gap, minGap)
}

// expire closes the desk unless a call came meanwhile.
func (d *desk) expire() {
	all := &d.s.many.desks
	all.mu.Lock()
	d.mu.Lock()
	ends := d.calls == 0 && !d.closed
	d.closed = d.closed || ends
	if ends {
		delete(all.open, d.key)
	}
	d.mu.Unlock()
	all.mu.Unlock()
	if ends {
		d.end()
	}
}

// end detaches what waits and gives back what no answer carried.
func (d *desk) end() {
	d.s.many.calls.desks.Dec()
	d.lane.Close()
	d.mu.Lock()
	left := d.ready
	d.ready, d.waiting = nil, nil
	d.mu.Unlock()
	for _, r := range left {
		if !r.told {
			d.s.many.unheard(r.reply)
		}
	}
}

// closeAll ends all desks when the server stops. Calls that are open see that by themselves.
func (all *desks) closeAll() {
	all.mu.Lock()
	open := make([]*desk, 0, len(all.open))
	for _, d := range all.open {
		open = append(open, d)
	}
	all.open, all.ending = map[deskKey]*desk{}, true
	all.mu.Unlock()
	for _, d := range open {
		d.mu.Lock()
		first := !d.closed
		d.closed = true
		if d.idle != nil {
			d.idle.Stop()
		}
		d.mu.Unlock()
		if first {
			d.end()
		}
	}
}

// full reports whether the desk takes no more tickets that may wait.
func (d *desk) full() bool {
	d.mu.Lock()
	defer d.mu.Unlock()
	return len(d.waiting)+len(d.ready) >= maxWaiting
}

// answered takes what became of an acquire. first is its first answer. One that was refused changes
// nothing: an earlier submission of the ticket may wait still, and its decision is yet to be told.
func (d *desk) answered(name ticketName, t *ticketAtDesk, r reply, first bool) {
	d.mu.Lock()
	defer d.mu.Unlock()
	switch {
	case d.closed:
		d.s.many.unheard(r)
	case r.waits:
		d.forget(name)
		d.waiting[name] = t
	case first && r.msg.GetError() != nil:
	case first:
		d.forget(name)
		delete(d.waiting, name)
	case d.waiting[name] == t:
		delete(d.waiting, name)
		d.keep(name, t, r)
	default: // a later submission was answered, maybe without the ledger
		d.s.many.unheard(r)
	}
}

// forget drops decisions on a ticket that was submitted again: the new answer says what holds now.
func (d *desk) forget(name ticketName) {
	d.ready = slices.DeleteFunc(d.ready, func(r numbered) bool { return r.name == name })
}

func (d *desk) keep(name ticketName, t *ticketAtDesk, r reply) {
	m := &kvgatev1.WaiterDecision{Pool: name.pool, TicketId: name.ticket, Seq: t.seq}
	if a := r.msg.GetAcquire(); a != nil {
		m.Result = &kvgatev1.WaiterDecision_Acquire{Acquire: a}
	} else {
		m.Result = &kvgatev1.WaiterDecision_Error{Error: r.msg.GetError()}
	}
	d.last++
	d.ready = append(d.ready, numbered{n: d.last, name: name, reply: r, message: m})
	close(d.changed)
	d.changed = make(chan struct{})
}

// acknowledge drops the decisions up to a cursor and reports whether the cursor is one of this desk. An
// empty one acknowledges nothing.
func (d *desk) acknowledge(cursor string) (known bool) {
	if cursor == "" {
		return true
	}
	id, number, _ := strings.Cut(cursor, ".")
	n, err := strconv.ParseUint(number, 10, 64)
	if err != nil || id != d.id {
		return false
	}
	d.mu.Lock()
	defer d.mu.Unlock()
	if n > d.last {
		return false
	}
	d.ready = slices.DeleteFunc(d.ready, func(r numbered) bool { return r.n <= n })
	return true
}

// look returns what is ready, and what is closed when there is more.
func (d *desk) look() (*kvgatev1.AwaitGrantsResponse, <-chan struct{}) {
	d.mu.Lock()
	defer d.mu.Unlock()
	m := &kvgatev1.AwaitGrantsResponse{Waiting: int64(len(d.waiting))}
	through := d.last
	for i := range d.ready[:min(len(d.ready), maxOpsAtOnce)] {
		r := &d.ready[i]
		r.told = true
		m.Decisions = append(m.Decisions, r.message)
		through = r.n
	}
	m.Cursor = fmt.Sprintf("%s.%d", d.id, through)
	return m, d.changed
}

// poll ends the poll that is open and makes the caller's the open one.
func (d *desk) poll(ctx context.Context) (context.Context, context.CancelFunc) {
	ctx, cancel := context.WithCancel(ctx)
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.polling != nil {
		d.polling()
	}
	d.polling = cancel
	return ctx, cancel
}
