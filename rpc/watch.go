package rpc

import (
	"context"
	"errors"
	"time"

	"connectrpc.com/connect"

	"kvgate/fsm"
	kvgatev1 "kvgate/rpc/kvgate/v1"
	"kvgate/store"
)

// JournalWaiter is a backend whose journal grows. WatchEvents ends at the newest event of a backend that
// is none, such as a file.
type JournalWaiter interface {
	// WaitApplied waits until more than after is applied and returns how far it is. It ends with ctx.
	WaitApplied(ctx context.Context, after uint64) (applied uint64, err error)
}

const (
	// watchPage is how many events one message carries at most.
	watchPage = 1000
	// watchIdle is how often a silent stream says that it is alive, and makes sure that this node is still
	// part of the cluster: one that was cut off would be silent for ever.
	watchIdle = 5 * time.Second
)

// WatchEvents implements the service. Any node answers from its own journal, which is the same on all.
func (s *observeService) WatchEvents(ctx context.Context, req *connect.Request[kvgatev1.WatchEventsRequest], stream *connect.ServerStream[kvgatev1.WatchEventsResponse]) error {
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	defer context.AfterFunc(s.stopping, func() { cancel(fsm.ErrShutdown) })()
	w, err := s.newWatch(ctx, req.Msg, stream)
	if err == nil {
		err = w.run(ctx)
	}
	if cause := context.Cause(ctx); cause != nil && errors.Is(err, context.Canceled) {
		err = cause
	}
	if err == nil {
		return nil
	}
	return newError(err, s.status)
}

// watch is one stream of events.
type watch struct {
	service *observeService
	stream  *connect.ServerStream[kvgatev1.WatchEventsResponse]
	query   store.JournalQuery
	// wanted: events from query.FromIndex on must be there, or their loss is told.
	wanted bool
}

func (s *observeService) newWatch(ctx context.Context, m *kvgatev1.WatchEventsRequest, stream *connect.ServerStream[kvgatev1.WatchEventsResponse]) (*watch, error) {
	if err := checkKinds(m.GetKinds()); err != nil {
		return nil, err
	}
	w := &watch{service: s, stream: stream, query: store.JournalQuery{
		FromIndex: m.GetFromIndex(), FromN: m.GetFromN(), Pool: m.GetPool(), Ticket: m.GetTicketId(),
		Session: m.GetSessionId(), Holder: m.GetHolderId(), Group: m.GetGroupId(), Kinds: m.GetKinds(), Limit: watchPage,
	}}
	w.wanted = w.query.FromIndex > 1
	if w.query.FromIndex == 0 {
		page, err := s.backend.Journal(ctx, false, store.JournalQuery{FromIndex: 1<<63 - 1, Limit: 1})
		if err != nil {
			return nil, err
		}
		w.query.FromIndex = page.Last + 1
		if m.GetFromStart() {
			w.query.FromIndex = 1
		}
	}
	return w, nil
}

func (w *watch) run(ctx context.Context) error {
	waiter, grows := w.service.backend.(JournalWaiter)
	if err := w.drain(ctx, true); err != nil || !grows {
		return err
	}
	applied := uint64(0)
	for {
		bounded, cancel := context.WithTimeout(ctx, watchIdle)
		next, err := waiter.WaitApplied(bounded, applied)
		cancel()
		idle := err != nil && errors.Is(err, context.DeadlineExceeded) && ctx.Err() == nil
		switch {
		case idle:
			if err := w.alive(ctx); err != nil {
				return err
			}
		case err != nil:
			return err
		default:
			applied = next
		}
		if err := w.drain(ctx, idle); err != nil {
			return err
		}
	}
}

// alive makes sure by a linearizable read that this node still hears the leader.
func (w *watch) alive(ctx context.Context) error {
	_, err := w.service.backend.Journal(ctx, false, store.JournalQuery{FromIndex: 1<<63 - 1, Limit: 1})
	return err
}

// drain sends what there is from the place on. always sends a message even when nothing matched.
func (w *watch) drain(ctx context.Context, always bool) error {
	for {
		page, err := w.service.backend.Journal(ctx, true, w.query)
		if err != nil {
			return err
		}
		m := &kvgatev1.WatchEventsResponse{}
		if first := page.FirstKept; first > w.query.FromIndex {
			if w.wanted {
				m.TrimmedBefore = first
			}
			w.query.FromIndex, w.query.FromN = first, 0
		}
		for _, r := range page.Events {
			event, err := journalEvent(r)
			if err != nil {
				return err
			}
			m.Events = append(m.Events, event)
		}
		w.move(&page)
		m.NextIndex, m.NextN = w.query.FromIndex, w.query.FromN
		if always || len(m.Events) > 0 || m.TrimmedBefore > 0 {
			if err := w.stream.Send(m); err != nil {
				return err
			}
		}
		if !page.More {
			return nil
		}
		always = false
	}
}

// move puts the place behind what the page covered.
func (w *watch) move(page *store.JournalPage) {
	w.wanted = true
	if page.More {
		w.query.FromIndex, w.query.FromN = page.NextIndex, page.NextN
		return
	}
	if n := len(page.Events); n > 0 && page.Events[n-1].Index >= page.Last {
		w.query.FromIndex = page.Events[n-1].Index + 1
	}
	w.query.FromIndex, w.query.FromN = max(w.query.FromIndex, page.Last+1), 0
}
