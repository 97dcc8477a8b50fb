package main

import (
	"context"
	"fmt"
	"io"
	"slices"

	kvgatev1 "kvgate/rpc/kvgate/v1"
)

// poolSections are the sections of a pool in the order in which they are shown.
var poolSections = []struct {
	name string
	read func(context.Context, *client, string, *inspectFilter) (view, error)
}{
	{"budget", inspectBudget}, {"queue", inspectQueue}, {"leases", inspectLeases}, {"sessions", inspectSessions},
	{"owed", inspectOwed}, {"pins", inspectPins}, {"engines", inspectEngines}, {"settings", inspectSettings},
}

func readCluster(ctx context.Context, c *client) (view, error) {
	status, err := call(ctx, c, (*endpoint).GetStatus, &kvgatev1.GetStatusRequest{})
	return view{name: "cluster", message: status, table: func(w io.Writer) error {
		rows := make([][]string, len(status.Nodes))
		for i, n := range status.Nodes {
			rows[i] = []string{n.Id, n.Address, nodeRole(n, status.LeaderId), n.Version}
		}
		return writeTable(w, "no nodes", []column{left("node"), left("address"), left("role"), left("version")}, rows)
	}}, err
}

// readJournalRange reads how far the journal reaches: its first and its last events.
func readJournalRange(ctx context.Context, c *client) (view, error) {
	first, err := call(ctx, c, (*endpoint).ReadJournal, &kvgatev1.ReadJournalRequest{PageSize: 1})
	if err != nil {
		return view{}, err
	}
	last, err := call(ctx, c, (*endpoint).ReadJournal, &kvgatev1.ReadJournalRequest{FromIndex: first.LastIndex, PageSize: 1000})
	if err != nil {
		return view{}, err
	}
	answer := &kvgatev1.ReadJournalResponse{FirstKeptIndex: first.FirstKeptIndex, LastIndex: first.LastIndex}
	answer.Events = append(first.Events, last.Events[max(0, len(last.Events)-1):]...)
	return view{name: "journal", message: answer, table: func(w io.Writer) error {
		if len(answer.Events) == 0 {
			_, err := fmt.Fprintln(w, "no events")
			return err
		}
		from, to := answer.Events[0], answer.Events[len(answer.Events)-1]
		return writeDetails(w, [][2]string{
			{"events", number(c.offline.JournalEvents())},
			{"first", fmt.Sprintf("entry %s, %s", number(from.Index), wallTime(from, c.m.Location))},
			{"last", fmt.Sprintf("entry %s, %s", number(to.Index), wallTime(to, c.m.Location))},
		})
	}}, nil
}

func inspectBudget(ctx context.Context, c *client, pool string, _ *inspectFilter) (view, error) {
	b, err := call(ctx, c, (*endpoint).GetBudget, &kvgatev1.GetBudgetRequest{Pool: pool})
	return view{message: b, table: func(w io.Writer) error { return writeBudgets(w, []*kvgatev1.GetBudgetResponse{b}) }}, err
}

func inspectQueue(ctx context.Context, c *client, pool string, f *inspectFilter) (view, error) {
	rows, _, err := pages(0, func(size int32, token string) ([]*kvgatev1.Waiter, string, error) {
		answer, err := call(ctx, c, (*endpoint).ListWaiters, &kvgatev1.ListWaitersRequest{Pool: pool, PageSize: size, PageToken: token})
		return answer.GetWaiters(), answer.GetNextPageToken(), err
	})
	rows = slices.DeleteFunc(rows, func(x *kvgatev1.Waiter) bool { return !f.concerns(x.HolderId, x.SessionId, x.TicketId) })
	return view{message: &kvgatev1.ListWaitersResponse{Waiters: rows}, table: func(w io.Writer) error { return writeWaiters(w, rows) }}, err
}

func inspectLeases(ctx context.Context, c *client, pool string, f *inspectFilter) (view, error) {
	req := &kvgatev1.ListLeasesRequest{Pool: pool, HolderId: f.holder, SessionId: f.session}
	rows, _, err := pages(0, func(size int32, token string) ([]*kvgatev1.Lease, string, error) {
		req.PageSize, req.PageToken = size, token
		answer, err := call(ctx, c, (*endpoint).ListLeases, req)
		return answer.GetLeases(), answer.GetNextPageToken(), err
	})
	rows = slices.DeleteFunc(rows, func(x *kvgatev1.Lease) bool { return !f.concerns(x.HolderId, x.SessionId, x.TicketId) })
	return view{message: &kvgatev1.ListLeasesResponse{Leases: rows}, table: func(w io.Writer) error { return writeLeases(w, rows) }}, err
}

// concerns reports whether something with these ids is of interest.
func (f *inspectFilter) concerns(holder, session, ticket string) bool {
	return (f.holder == "" || f.holder == holder) && (f.session == "" || f.session == session) && (f.ticket == "" || f.ticket == ticket)
}

func (f *inspectFilter) listSessions(ctx context.Context, c *client, pool string) ([]*kvgatev1.Session, error) {
	rows, _, err := pages(0, func(size int32, token string) ([]*kvgatev1.Session, string, error) {
		answer, err := call(ctx, c, (*endpoint).ListSessions, &kvgatev1.ListSessionsRequest{Pool: pool, PageSize: size, PageToken: token})
		return answer.GetSessions(), answer.GetNextPageToken(), err
	})
	return slices.DeleteFunc(rows, func(x *kvgatev1.Session) bool {
		return f.session != "" && x.SessionId != f.session || f.ticket != "" && !slices.Contains(x.InFlight, f.ticket)
	}), err
}

func inspectSessions(ctx context.Context, c *client, pool string, f *inspectFilter) (view, error) {
	sessions, err := f.listSessions(ctx, c, pool)
	return view{message: &kvgatev1.ListSessionsResponse{Sessions: sessions}, table: func(w io.Writer) error {
		return writeSessions(w, sessions, c.offline.Header.WallTime)
	}}, err
}

// inspectOwed lists the closes that engines have not acknowledged, one line an engine.
func inspectOwed(ctx context.Context, c *client, pool string, f *inspectFilter) (view, error) {
	sessions, err := f.listSessions(ctx, c, pool)
	sessions = slices.DeleteFunc(sessions, func(s *kvgatev1.Session) bool { return len(s.Owed) == 0 })
	at := c.offline.Header.WallTime
	return view{message: &kvgatev1.ListSessionsResponse{Sessions: sessions}, table: func(w io.Writer) error {
		var rows [][]string
		for _, s := range sessions {
			for _, o := range s.Owed {
				state := "owed"
				if o.Failed {
					state = "given up"
				}
				rows = append(rows, []string{s.SessionId, o.EngineUrl, state, ago(s.ClosingSince, at)})
			}
		}
		return writeTable(w, "no closes are owed", []column{left("session"), left("engine"), left("state"), right("closing")}, rows)
	}}, err
}

func inspectPins(ctx context.Context, c *client, pool string, f *inspectFilter) (view, error) {
	req := &kvgatev1.ListPinsRequest{Pool: pool, SessionId: f.session}
	pins, _, err := pages(0, func(size int32, token string) ([]*kvgatev1.Pin, string, error) {
		req.PageSize, req.PageToken = size, token
		answer, err := call(ctx, c, (*endpoint).ListPins, req)
		return answer.GetPins(), answer.GetNextPageToken(), err
	})
	return view{message: &kvgatev1.ListPinsResponse{Pins: pins}, table: func(w io.Writer) error { return writePins(w, pins) }}, err
}

func inspectEngines(ctx context.Context, c *client, pool string, _ *inspectFilter) (view, error) {
	answer, err := call(ctx, c, (*endpoint).ListEngines, &kvgatev1.ListEnginesRequest{Pool: pool})
	return view{message: answer, table: func(w io.Writer) error { return writeEngines(w, answer) }}, err
}

func inspectSettings(ctx context.Context, c *client, pool string, _ *inspectFilter) (view, error) {
	answer, err := call(ctx, c, (*endpoint).GetSettings, &kvgatev1.GetSettingsRequest{Pool: pool})
	return view{message: answer, table: func(w io.Writer) error { return writeSettings(w, answer.GetSettings(), nil) }}, err
}
