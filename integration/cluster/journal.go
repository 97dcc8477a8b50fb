package cluster

import (
	"context"
	"errors"
	"fmt"
	"time"

	"connectrpc.com/connect"
	"google.golang.org/protobuf/proto"

	kvgatev1 "kvgate/rpc/kvgate/v1"
)

// Event is one event of the journal with its place in it.
type Event struct {
	*kvgatev1.JournalEvent
	// Pos counts the events before it.
	Pos int
}

// wall returns the wall time of the leader that proposed it.
func (e *Event) wall() time.Time { return e.WallTime.AsTime() }

// readJournal reads everything that a node has kept.
func (n *Node) readJournal(ctx context.Context, stale bool) (out []*kvgatev1.JournalEvent, err error) {
	req := &kvgatev1.ReadJournalRequest{PageSize: 10_000, Stale: stale}
	for {
		res, err := n.observe.ReadJournal(ctx, connect.NewRequest(req))
		if err != nil {
			return nil, fmt.Errorf("journal of node %s: %w", n.id, err)
		}
		out = append(out, res.Msg.Events...)
		if req.PageToken = res.Msg.NextPageToken; req.PageToken == "" {
			return out, nil
		}
	}
}

// snapshotInstalled is what a node logs when its state came from another node. It copies the events that
// led to it, so its journal has no hole.
const snapshotInstalled = "state restored from a snapshot"

type eventKey struct {
	index uint64
	n     uint32
}

func keyOf(e *kvgatev1.JournalEvent) eventKey { return eventKey{e.Index, e.N} }

// Journal reads the leader's journal by a linearizable read and compares it with the other nodes': what
// two of them have must be the same, without holes. A node that could not copy what lies before a snapshot
// says that its journal begins behind it.
func (c *Cluster) Journal() ([]Event, error) {
	ctx, cancel := context.WithTimeout(context.Background(), settleLimit)
	defer cancel()
	whole, err := c.longest(ctx)
	if err != nil {
		return nil, err
	}
	known := make(map[eventKey]*kvgatev1.JournalEvent, len(whole))
	for _, e := range whole {
		known[keyOf(e)] = e
	}
	var bad error
	for _, n := range c.nodes {
		events, err := n.readJournal(ctx, false)
		if err != nil {
			return nil, err
		}
		bad = errors.Join(bad, compareJournals(n, events, whole, known))
	}
	out := make([]Event, len(whole))
	for i, e := range whole {
		out[i] = Event{e, i}
	}
	return out, bad
}

// longest returns the journal of the node that has kept most.
func (c *Cluster) longest(ctx context.Context) (whole []*kvgatev1.JournalEvent, err error) {
	for _, n := range c.nodes {
		events, err := n.readJournal(ctx, false)
		if err != nil {
			return nil, err
		}
		if len(events) > len(whole) {
			whole = events
		}
	}
	return whole, nil
}

// compareJournals checks that a node's journal is the end of the whole one, as far as both go.
func compareJournals(n *Node, events, whole []*kvgatev1.JournalEvent, known map[eventKey]*kvgatev1.JournalEvent) error {
	if len(events) == 0 || len(whole) == 0 {
		return nil
	}
	end := whole[len(whole)-1].Index
	for _, e := range events {
		if e.Index > end {
			break
		}
		other, ok := known[keyOf(e)]
		if !ok || !proto.Equal(e, other) {
			return fmt.Errorf("node %s has event %d.%d as %v, another node as %v", n.id, e.Index, e.N, e, other)
		}
	}
	first, have := events[0].Index, 0
	for _, e := range whole {
		if e.Index >= first {
			have++
		}
	}
	last := events[len(events)-1].Index
	if last >= end && len(events) < have {
		return fmt.Errorf("node %s has %d events from entry %d on, another node has %d", n.id, len(events), first, have)
	}
	return nil
}
