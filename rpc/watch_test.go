package rpc

import (
	"context"
	"errors"
	"testing"

	"connectrpc.com/connect"

	"kvgate/fsm/fsmpb"
	kvgatev1 "kvgate/rpc/kvgate/v1"
	"kvgate/rpc/kvgate/v1/kvgatev1connect"
	"kvgate/store"
)

// growing is a backend whose journal grows when the test says so.
type growing struct {
	*fakeBackend
	applied chan uint64
}

func (g *growing) WaitApplied(ctx context.Context, _ uint64) (uint64, error) {
	select {
	case n := <-g.applied:
		return n, nil
	case <-ctx.Done():
		return 0, ctx.Err()
	}
}

// journalOf serves records from a list that the test may extend between signals.
func journalOf(first uint64, records *[]store.JournalRecord) func(context.Context, bool, store.JournalQuery) (store.JournalPage, error) {
	return func(_ context.Context, _ bool, q store.JournalQuery) (store.JournalPage, error) {
		page := store.JournalPage{FirstKept: first}
		for _, r := range *records {
			page.Last = r.Index
			if r.Index < q.FromIndex || r.Index == q.FromIndex && r.N < q.FromN {
				continue
			}
			if len(page.Events) == q.Limit {
				page.More, page.NextIndex, page.NextN = true, r.Index, r.N
				continue
			}
			page.Events = append(page.Events, r)
		}
		return page, nil
	}
}

func TestWatchEventsFollowsAndTellsWhatWasTrimmed(t *testing.T) {
	records := []store.JournalRecord{
		record(t, 5, 0, &fsmpb.Event{Kind: "waiting", Ticket: "a"}), record(t, 5, 1, &fsmpb.Event{Kind: "waiting", Ticket: "b"}),
	}
	b := &growing{&fakeBackend{journal: journalOf(5, &records)}, make(chan uint64)}
	r := startWith(t, b.fakeBackend, Options{Backend: b})
	c := kvgatev1connect.NewObserveServiceClient(r.client, r.url)
	stream, err := c.WatchEvents(t.Context(), connect.NewRequest(&kvgatev1.WatchEventsRequest{FromIndex: 2}))
	if err != nil {
		t.Fatal(err)
	}
	defer stream.Close()
	expectWatched(t, stream, 5, 6, "a", "b")
	records = append(records, record(t, 9, 0, &fsmpb.Event{Kind: "admitted", Ticket: "a"}))
	b.applied <- 9
	expectWatched(t, stream, 0, 10, "a")
}

func TestWatchEventsOfAFileEnds(t *testing.T) {
	records := []store.JournalRecord{record(t, 3, 0, &fsmpb.Event{Kind: "waiting", Ticket: "a"})}
	r := start(t, &fakeBackend{journal: journalOf(3, &records)})
	c := kvgatev1connect.NewObserveServiceClient(r.client, r.url)
	stream, err := c.WatchEvents(t.Context(), connect.NewRequest(&kvgatev1.WatchEventsRequest{FromStart: true}))
	if err != nil {
		t.Fatal(err)
	}
	defer stream.Close()
	expectWatched(t, stream, 0, 4, "a")
	if stream.Receive() || stream.Err() != nil {
		t.Errorf("more than the file holds, or %v", stream.Err())
	}
}

func TestWatchEventsRefusesKindsThatDoNotExist(t *testing.T) {
	r := start(t, &fakeBackend{})
	c := kvgatev1connect.NewObserveServiceClient(r.client, r.url)
	stream, err := c.WatchEvents(t.Context(), connect.NewRequest(&kvgatev1.WatchEventsRequest{Kinds: []string{"admission"}}))
	if err != nil {
		t.Fatal(err)
	}
	defer stream.Close()
	var failure *connect.Error
	if stream.Receive() || !errors.As(stream.Err(), &failure) || failure.Code() != connect.CodeInvalidArgument || errorInfo(failure).GetField() != "kinds" {
		t.Errorf("got %v", stream.Err())
	}
}

func expectWatched(t *testing.T, s *connect.ServerStreamForClient[kvgatev1.WatchEventsResponse], trimmed, next uint64, tickets ...string) {
	t.Helper()
	if !s.Receive() {
		t.Fatalf("the stream ended: %v", s.Err())
	}
	m := s.Msg()
	if m.TrimmedBefore != trimmed || m.NextIndex != next || len(m.Events) != len(tickets) {
		t.Fatalf("got %v", m)
	}
	for i, ticket := range tickets {
		if m.Events[i].TicketId != ticket {
			t.Errorf("event %d is of %q, want %q", i, m.Events[i].TicketId, ticket)
		}
	}
}
