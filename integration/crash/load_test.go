package crash

import (
	"context"
	"fmt"
	"math/rand/v2"
	"sync"
	"time"

	"connectrpc.com/connect"
	"google.golang.org/protobuf/types/known/durationpb"

	kvgatev1 "kvgate/rpc/kvgate/v1"
)

// clients is how many goroutines call at once.
const clients = 24

// load calls a node from many goroutines until ctx ends, and writes down every answer.
type load struct {
	site *site
	book *book
	name string
	wg   sync.WaitGroup
}

// startLoad begins; stop ends it and waits.
func startLoad(s *site, b *book, name string) (stop func()) {
	ctx, cancel := context.WithCancel(s.t.Context())
	l := &load{site: s, book: b, name: name}
	for i := range clients {
		l.wg.Go(func() { l.client(ctx, i) })
	}
	return func() { cancel(); l.wg.Wait() }
}

// client works until its context ends. After a call without an answer it pauses a little: the node is
// down or refuses.
func (l *load) client(ctx context.Context, i int) {
	for n := 0; ctx.Err() == nil; n++ {
		var err error
		if e := l.pick(); e != nil {
			err = l.work(ctx, e)
		} else {
			err = l.acquire(ctx, fmt.Sprintf("%s-%d-%d", l.name, i, n))
		}
		if err == nil {
			l.book.answered()
			continue
		}
		select {
		case <-ctx.Done():
		case <-time.After(10 * time.Millisecond):
		}
	}
}

// pick takes a lease to work on for two of three calls.
func (l *load) pick() *entry {
	if rand.IntN(3) == 0 {
		return nil
	}
	return l.book.take(rand.Int())
}

func (l *load) acquire(ctx context.Context, ticket string) error {
	e := l.book.open(ticket)
	res, err := l.site.admission.Acquire(ctx, connect.NewRequest(acquireRequest(ticket)))
	switch {
	case err != nil:
		return err
	case res.Msg.Action == kvgatev1.Action_ACTION_ADMIT:
		l.book.admitted(e, res.Msg.Grant)
	case res.Msg.Reason == kvgatev1.Reason_REASON_DEGRADED:
		return nil // the node could not decide: whether it has, nobody knows
	default:
		l.book.ended(e)
	}
	return nil
}

// work does something with a lease that is held. While it gets no answer the ticket is in doubt.
func (l *load) work(ctx context.Context, e *entry) error {
	switch rand.IntN(4) {
	case 0:
		return l.renew(ctx, e)
	case 1:
		return l.cancel(ctx, e)
	case 2:
		if err := l.releaseOther(ctx, e); err != nil {
			l.book.back(e)
			return err
		}
	}
	return l.release(ctx, e)
}

func (l *load) release(ctx context.Context, e *entry) error {
	l.book.doubt(e)
	res, err := l.site.admission.Release(ctx, connect.NewRequest(&kvgatev1.ReleaseRequest{TicketId: e.ticket, Grant: e.grant}))
	if err != nil {
		return err
	}
	if !res.Msg.Released {
		l.site.t.Errorf("the lease of %s with grant %d was gone when it was released", e.ticket, e.grant)
	}
	l.book.ended(e)
	return nil
}

// releaseOther carries another grant's number, and so does nothing.
func (l *load) releaseOther(ctx context.Context, e *entry) error {
	res, err := l.site.admission.Release(ctx, connect.NewRequest(&kvgatev1.ReleaseRequest{TicketId: e.ticket, Grant: e.grant + 1<<40}))
	if err == nil && res.Msg.Released {
		l.site.t.Errorf("a release with another grant's number ended the lease of %s", e.ticket)
	}
	return err
}

func (l *load) cancel(ctx context.Context, e *entry) error {
	l.book.doubt(e)
	res, err := l.site.admission.Cancel(ctx, connect.NewRequest(&kvgatev1.CancelRequest{TicketId: e.ticket}))
	if err != nil {
		return err
	}
	if res.Msg.Was != kvgatev1.CancelState_CANCEL_STATE_LEASED {
		l.site.t.Errorf("ticket %s was %v when it was cancelled, its client held grant %d", e.ticket, res.Msg.Was, e.grant)
	}
	l.book.ended(e)
	return nil
}

// renew never puts the lease in doubt: it is held before and after.
func (l *load) renew(ctx context.Context, e *entry) error {
	defer l.book.back(e)
	res, err := l.site.admission.Renew(ctx, connect.NewRequest(&kvgatev1.RenewRequest{
		LeaseIds: []string{"1:" + e.ticket}, Grants: []uint64{e.grant}, Ttl: durationpb.New(time.Hour),
	}))
	if err != nil {
		return err
	}
	if len(res.Msg.Leases) != 1 || !res.Msg.Leases[0].Renewed {
		l.site.t.Errorf("the lease of %s with grant %d was gone when it was renewed", e.ticket, e.grant)
		return nil
	}
	l.book.renewedFor(e)
	return nil
}

func (b *book) doubt(e *entry)      { b.set(func() { e.fate = doubtful }) }
func (b *book) ended(e *entry)      { b.set(func() { e.fate = gone }) }
func (b *book) renewedFor(e *entry) { b.set(func() { e.renewed = true }) }

func (b *book) set(change func()) {
	b.mu.Lock()
	defer b.mu.Unlock()
	change()
}
