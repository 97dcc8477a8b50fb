package fsm

import (
	"context"
	"errors"
	"fmt"

	"connectrpc.com/connect"

	"kvgate/fsm/fsmpb"
	"kvgate/store"
)

// A snapshot carries state, not the journal. A node that gets its state from one copies the events that
// led to it from the other nodes, so that its journal has no hole when it leads one day.

// maxFillRecords is about how many records one answer carries.
const maxFillRecords = 5000

var (
	// errNotKept: a node was asked for events that it no longer has.
	errNotKept = errors.New("events are not kept there any more")
	// errNotThere: a node was asked for events that it does not have yet.
	errNotThere = errors.New("events are not there yet")
)

// fill brings the journal up to index, the one that a snapshot stands for. What no node can give is said
// by the first kept index.
func (m *Machine) fill(index uint64) {
	from := m.trail.Last() + 1
	if from > index || m.copyEvents == nil {
		return
	}
	err := m.copyEvents(from, index, func(e store.JournalEntry) error { return m.trail.Append(e) })
	if err == nil {
		m.log.Info("journal copied from another node", "from", from, "to", index)
		return
	}
	m.log.Warn("journal has a hole before the snapshot, so it starts behind it", "from", from, "to", index, "error", err)
	if err := m.trail.TrimBefore(index + 1); err != nil {
		m.log.Error("journal was not cut", "error", err)
	}
}

// copyEvents asks the leader, then the others, for the events of entries from…to, in order.
func (r *Replica) copyEvents(from, to uint64, put func(store.JournalEntry) error) error {
	_, leader := r.leader()
	addresses := []string{leader}
	for _, m := range r.members() {
		if m.ID != r.opts.NodeID && m.Address != leader {
			addresses = append(addresses, m.Address)
		}
	}
	err := errNotKept
	for _, addr := range addresses {
		if addr == "" {
			continue
		}
		var e error
		if from, e = r.copyFrom(addr, from, to, put); e == nil {
			return nil
		}
		err = errors.Join(err, fmt.Errorf("node at %s: %w", addr, e))
	}
	return err
}

// copyFrom returns where another node has to go on.
func (r *Replica) copyFrom(addr string, from, to uint64, put func(store.JournalEntry) error) (uint64, error) {
	for {
		ctx, cancel := context.WithTimeout(r.ctx, memberTimeout)
		res, err := r.peers.client(addr).Events(ctx, connect.NewRequest(&fsmpb.EventsRequest{FromIndex: from, ToIndex: to}))
		cancel()
		if err != nil {
			return from, err
		}
		if res.Msg.FirstKept > from && r.machine.trail.Last() > 0 {
			return from, errNotKept
		}
		for _, e := range res.Msg.Entries {
			if err := put(store.JournalEntry{Index: e.Index, Events: e.Events}); err != nil {
				return from, err
			}
			from = e.Index + 1
		}
		if res.Msg.NextIndex == 0 {
			return from, nil
		}
		from = res.Msg.NextIndex
	}
}

// haveEvents returns nil when every event up to index that there is is on disk here. A node that has not come that
// far, or cannot write them, must say so: what it left out would be a hole in the journal of the node that asks. The
// leader has all there are, also while index is one that a restore by an operator leapt to.
func (r *Replica) haveEvents(ctx context.Context, index uint64) error {
	if applied := r.machine.applied.Load(); applied < index && r.leading() == nil {
		return fmt.Errorf("%w: this node is at entry %d, wanted are events up to %d", errNotThere, applied, index)
	}
	return r.machine.flush(ctx)
}

// Events implements the peer service.
func (p *peers) Events(ctx context.Context, req *connect.Request[fsmpb.EventsRequest]) (*connect.Response[fsmpb.EventsResponse], error) {
	if err := p.replica.haveEvents(ctx, req.Msg.ToIndex); err != nil {
		return nil, connect.NewError(connect.CodeUnavailable, err)
	}
	trail := p.replica.machine.trail
	out := &fsmpb.EventsResponse{FirstKept: trail.First()}
	records := 0
	err := trail.Read(req.Msg.FromIndex, 0, 0, func(index uint64, _ uint32, data []byte) (bool, error) {
		last := len(out.Entries) - 1
		switch {
		case index > req.Msg.ToIndex:
			return false, nil
		case last >= 0 && out.Entries[last].Index == index:
			out.Entries[last].Events = append(out.Entries[last].Events, data)
		case records >= maxFillRecords:
			out.NextIndex = index
			return false, nil
		default:
			out.Entries = append(out.Entries, &fsmpb.EntryEvents{Index: index, Events: [][]byte{data}})
		}
		records++
		return true, nil
	})
	if err != nil {
		return nil, connect.NewError(connect.CodeInternal, err)
	}
	return connect.NewResponse(out), nil
}
