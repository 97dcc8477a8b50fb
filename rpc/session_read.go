package rpc

import (
	"context"
	"fmt"
	"slices"
	"time"

	"connectrpc.com/connect"
	"google.golang.org/protobuf/types/known/durationpb"
	"google.golang.org/protobuf/types/known/timestamppb"

	"kvgate/ledger"
	kvgatev1 "kvgate/rpc/kvgate/v1"
	"kvgate/sessions"
)

// owedTimeout bounds how long an answer waits for what the leader knows of attempts: without it the
// engines that owe a close are still named.
const owedTimeout = time.Second

// maxUnasked bounds how many aborts of one session are listed without a leader.
const maxUnasked = 256

// freshClose: a close that began so recently has no attempts worth asking the leader for. It keeps the
// answer to a CloseSession from waiting for another node.
const freshClose = time.Second

// read calls fn with the table. A pool that does not exist is an error.
func (s *sessionService) read(ctx context.Context, pool string, stale bool, fn func(*sessions.Table)) error {
	has := false
	err := s.reader.Sessions(ctx, stale, func(t *sessions.Table) {
		has = t.HasPool(pool)
		fn(t)
	})
	if err != nil || has {
		return err
	}
	_, err = readPool(ctx, s.pools, pool, true, (*ledger.Ledger).Budget)
	return err
}

// GetSession implements the service.
func (s *sessionService) GetSession(ctx context.Context, req *connect.Request[kvgatev1.GetSessionRequest]) (*connect.Response[kvgatev1.GetSessionResponse], error) {
	var (
		view  sessions.View
		now   sessions.Time
		known bool
	)
	pool, id := poolName(req.Msg.GetPool()), req.Msg.GetSessionId()
	err := s.read(ctx, pool, req.Msg.GetStale(), func(t *sessions.Table) {
		view, known = t.Get(pool, id)
		now = t.Now()
	})
	if err != nil {
		return nil, err
	}
	if !known {
		return nil, fmt.Errorf("%w %s in pool %s", sessions.ErrUnknown, quote(id), quote(pool))
	}
	m := s.messages(ctx, now, []sessions.View{view})
	return connect.NewResponse(&kvgatev1.GetSessionResponse{Session: m[0]}), nil
}

// ListSessions implements the service. Sessions come by id, so paging neither skips nor repeats one
// that stays.
func (s *sessionService) ListSessions(ctx context.Context, req *connect.Request[kvgatev1.ListSessionsRequest]) (*connect.Response[kvgatev1.ListSessionsResponse], error) {
	token, err := parsePageToken(sessionPage, req.Msg.GetPageToken())
	if err != nil {
		return nil, err
	}
	var (
		page []sessions.View
		now  sessions.Time
		more bool
	)
	filter := sessions.Filter{State: sessions.State(req.Msg.GetState()), Group: req.Msg.GetGroupId()}
	pool := poolName(req.Msg.GetPool())
	err = s.read(ctx, pool, req.Msg.GetStale(), func(t *sessions.Table) {
		page, more = t.List(pool, filter, token.text, pageSize(req.Msg.GetPageSize()))
		now = t.Now()
	})
	if err != nil {
		return nil, err
	}
	m := &kvgatev1.ListSessionsResponse{Sessions: s.messages(ctx, now, page)}
	if more {
		m.NextPageToken = pageToken{kind: sessionPage, text: page[len(page)-1].ID}.String()
	}
	return connect.NewResponse(m), nil
}

// ListPins implements the service. Pins come by id.
func (s *sessionService) ListPins(ctx context.Context, req *connect.Request[kvgatev1.ListPinsRequest]) (*connect.Response[kvgatev1.ListPinsResponse], error) {
	token, err := parsePageToken(pinPage, req.Msg.GetPageToken())
	if err != nil {
		return nil, err
	}
	var (
		page []sessions.PinView
		more bool
	)
	pool := poolName(req.Msg.GetPool())
	err = s.read(ctx, pool, req.Msg.GetStale(), func(t *sessions.Table) {
		page, more = t.Pins(pool, req.Msg.GetSessionId(), token.text, pageSize(req.Msg.GetPageSize()))
	})
	if err != nil {
		return nil, err
	}
	m := &kvgatev1.ListPinsResponse{Pins: pinMessages(page)}
	if more {
		m.NextPageToken = pageToken{kind: pinPage, text: page[len(page)-1].ID}.String()
	}
	return connect.NewResponse(m), nil
}

func pinMessages(views []sessions.PinView) []*kvgatev1.Pin {
	out := make([]*kvgatev1.Pin, len(views))
	for i, v := range views {
		out[i] = pinMessage(v)
	}
	return out
}

// message returns one session as a change left it.
func (s *sessionService) message(ctx context.Context, v sessions.View) *kvgatev1.Session {
	// The table's time: the view's own newest time is never later than the leader's, and this node may
	// not have applied the change yet.
	now := max(v.ActiveAt, v.Close.Since, v.OpenedAt)
	_ = s.reader.Sessions(ctx, true, func(t *sessions.Table) { now = max(now, t.Now()) })
	if now.Sub(v.Close.Since) < freshClose {
		return s.render(now, []sessions.View{v}, tries{})[0]
	}
	return s.messages(ctx, now, []sessions.View{v})[0]
}

// messages returns sessions as the API shows them. now is the ledger time of the views.
func (s *sessionService) messages(ctx context.Context, now sessions.Time, views []sessions.View) []*kvgatev1.Session {
	return s.render(now, views, s.tried(ctx, views))
}

func (s *sessionService) render(now sessions.Time, views []sessions.View, tried tries) []*kvgatev1.Session {
	wall := wallClock{at: s.now(), now: now}
	out := make([]*kvgatev1.Session, len(views))
	for i := range views {
		out[i] = sessionMessage(&views[i], wall)
		out[i].Owed = tried.messages(&views[i])
		out[i].Aborts = tried.aborts(&views[i])
	}
	return out
}

// wallClock turns ledger time into wall time: it is at when the ledger says now.
type wallClock struct {
	at  time.Time
	now sessions.Time
}

// stamp returns nil for 0, which means never.
func (w wallClock) stamp(t sessions.Time) *timestamppb.Timestamp {
	if t == 0 {
		return nil
	}
	return timestamppb.New(w.at.Add(-w.now.Sub(t)))
}

func sessionMessage(v *sessions.View, wall wallClock) *kvgatev1.Session {
	m := &kvgatev1.Session{
		SessionId: v.ID, Pool: v.Pool, GroupId: v.Group, EngineUrl: v.Engine,
		State: kvgatev1.SessionState(v.State), Kind: kvgatev1.SessionKind(v.Kind),
		Turns: v.Turns, FootprintTokens: v.Footprint, Waiting: int64(v.Waiting),
		IdleTimeout: durationpb.New(v.IdleTimeout),
		OpenedAt:    wall.stamp(v.OpenedAt), LastTurnAt: wall.stamp(v.LastTurnAt), ClosingSince: wall.stamp(v.Close.Since),
		Phase: closePhase(v), CloseReason: v.Close.Reason, Acknowledged: int64(v.Close.Acked), Left: int64(v.Close.Left),
		Pins: pinMessages(v.Pins),
	}
	if v.Binding != nil {
		m.Binding = &kvgatev1.Binding{EngineUrl: v.Binding.Engine, DpRank: v.Binding.DPRank}
	}
	for i := range v.Tickets {
		if !v.Tickets[i].Waiting {
			m.InFlight = append(m.InFlight, v.Tickets[i].Ticket)
		}
	}
	return m
}

// closePhase is shown of sessions that are closing only: a closed one has none.
func closePhase(v *sessions.View) kvgatev1.ClosePhase {
	if v.State != sessions.Closing {
		return kvgatev1.ClosePhase_CLOSE_PHASE_UNSPECIFIED
	}
	return kvgatev1.ClosePhase(v.Close.Phase)
}

// tries is what is known of the calls to engines, by pool and session.
type tries struct {
	known map[string]map[string][]sessions.OwedStatus
	// err says why nothing is known.
	err error
}

// tried asks the leader about the sessions that engines still owe something.
func (s *sessionService) tried(ctx context.Context, views []sessions.View) tries {
	ids := map[string][]string{}
	for i := range views {
		if v := &views[i]; v.State == sessions.Closing && (len(v.Owed) > 0 || len(v.Aborting()) > 0) {
			ids[v.Pool] = append(ids[v.Pool], v.ID)
		}
	}
	out := tries{known: map[string]map[string][]sessions.OwedStatus{}}
	if len(ids) == 0 {
		return out
	}
	ctx, cancel := context.WithTimeout(ctx, owedTimeout)
	defer cancel()
	for pool, of := range ids {
		if out.known[pool], out.err = s.reader.OwedStatus(ctx, pool, of); out.err != nil {
			return out
		}
	}
	return out
}

func (t tries) unasked() string {
	return "attempts are not known here, the leader could not be asked: " + t.err.Error()
}

// unknown says what is to say of a debt of which no call is known.
func (t tries) unknown(c sessions.Creditor) string {
	switch {
	case c.Debt == sessions.Failed && c.Engine == "":
		return "the pool's engines were not found by the close deadline"
	case c.Debt == sessions.Failed:
		return "no acknowledgement by the close deadline"
	case c.Engine == "":
		return "the pool's engines are not found yet: no discovery has succeeded"
	case t.err != nil:
		return t.unasked()
	}
	return ""
}

// messages lists the engines that a session's close is owed by. Who owes is the table's to say; how
// often each was called is the leader's, and it may not have begun.
func (t tries) messages(v *sessions.View) []*kvgatev1.OwedClose {
	out := make([]*kvgatev1.OwedClose, len(v.Owed))
	for i, c := range v.Owed {
		m := &kvgatev1.OwedClose{EngineUrl: c.Engine, Failed: c.Debt == sessions.Failed}
		m.LastError = t.unknown(c)
		for _, x := range t.known[v.Pool][v.ID] {
			if x.Ticket == "" && x.Engine == c.Engine && !m.Failed {
				m.Attempts, m.LastError = int64(x.Attempts), x.LastError
				if x.NextTry > 0 {
					m.NextTry = durationpb.New(x.NextTry)
				}
			}
		}
		out[i] = m
	}
	return out
}

// aborts lists the aborts that engines have not taken. Which tickets those are is the table's to say, all else is the
// leader's: it may not have begun, or spare a ticket.
func (t tries) aborts(v *sessions.View) []*kvgatev1.PendingAbort {
	var out []*kvgatev1.PendingAbort
	tickets := v.Aborting()
	for _, x := range t.known[v.Pool][v.ID] {
		if !slices.Contains(tickets, x.Ticket) {
			continue
		}
		m := &kvgatev1.PendingAbort{TicketId: x.Ticket, EngineUrl: x.Engine, Attempts: int64(x.Attempts), LastError: x.LastError}
		if x.NextTry > 0 {
			m.NextTry = durationpb.New(x.NextTry)
		}
		out = append(out, m)
	}
	if t.err != nil {
		for _, ticket := range tickets[:min(len(tickets), maxUnasked)] {
			out = append(out, &kvgatev1.PendingAbort{TicketId: ticket, LastError: t.unasked()})
		}
	}
	return out
}
