package cluster

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"maps"
	"slices"
	"strings"

	"connectrpc.com/connect"

	kvgatev1 "kvgate/rpc/kvgate/v1"
	"kvgate/rpc/story"
	"kvgate/rpc/whatif"
	"kvgate/store"
)

// Verify ends an episode: it checks what the clients saw and the journal, that every lease which nothing
// ended is still held, and that all nodes have the same state. It kills the nodes. The cluster must be
// healed. clocks says that wall clocks were not stepped.
func (c *Cluster) Verify(h *History, clocks bool) Result {
	c.t.Helper()
	events := c.checkLeases()
	res, err := Check(h.Ops(), events, clocks)
	if err != nil {
		c.t.Errorf("%v", err)
	}
	c.checkStates()
	return res
}

// checkLeases reads the journal and the leases at a moment when both are the same, and compares them.
func (c *Cluster) checkLeases() (events []Event) {
	c.t.Helper()
	var held map[uint64]string
	c.Eventually("journal and leases can be read while nothing happens", func(ctx context.Context) error {
		before, err := c.Journal()
		if err != nil {
			return err
		}
		if held, err = c.nodes[0].heldLeases(ctx); err != nil {
			return err
		}
		if events, err = c.Journal(); err == nil && len(events) != len(before) {
			err = errors.New("events came in between")
		}
		return err
	})
	r := newReplay()
	for i := range events {
		r.step(&events[i])
	}
	want := map[uint64]string{}
	for ticket, l := range r.leases {
		want[l.grant.Grant] = ticket
	}
	if !maps.Equal(held, want) {
		c.t.Errorf("leases held are %v, the journal leaves %v", held, want)
	}
	c.checkReplay(events, held)
	return events
}

// checkReplay runs the journal through a ledger once more: it must decide the same and end with the same leases. What
// the journal tells is all that decides, then.
func (c *Cluster) checkReplay(events []Event, held map[uint64]string) {
	c.t.Helper()
	if len(events) == 0 || events[0].Kind != "leader" {
		return // the journal's beginning is not kept
	}
	all := make([]*kvgatev1.JournalEvent, len(events))
	for i := range events {
		all[i] = events[i].JournalEvent
	}
	leases, err := whatif.Verify(whatif.Input{Journal: story.Slice(all), Pool: "default"})
	if err != nil {
		c.t.Errorf("the journal replayed through the ledger: %v", err)
		return
	}
	want := slices.Sorted(maps.Values(held))
	if got := slices.Sorted(maps.Keys(leases)); !slices.Equal(got, want) {
		c.t.Errorf("leases held are %v, the replay leaves %v", want, got)
	}
}

// heldLeases returns the tickets that hold leases by grant, in one page.
func (n *Node) heldLeases(ctx context.Context) (map[uint64]string, error) {
	res, err := n.observe.ListLeases(ctx, connect.NewRequest(&kvgatev1.ListLeasesRequest{PageSize: 10_000}))
	if err != nil {
		return nil, err
	}
	held := map[uint64]string{}
	for _, l := range res.Msg.Leases {
		held[l.Grant] = l.TicketId
	}
	return held, nil
}

// stateTries is how often the nodes are killed to find them at the same entry.
const stateTries = 8

// checkStates kills the nodes while they are at the same entry and compares what they have on disk.
func (c *Cluster) checkStates() {
	c.t.Helper()
	for range stateTries {
		c.waitEqualIndex()
		for _, n := range c.nodes {
			n.Pause() // all stop before the first one is gone
		}
		for _, n := range c.nodes {
			n.Kill9()
		}
		sums := map[string][]string{}
		indices := map[uint64]bool{}
		for _, n := range c.nodes {
			sum, index, err := n.hash()
			if err != nil {
				c.t.Errorf("state of node %s: %v", n.id, err)
				return
			}
			sums[sum] = append(sums[sum], n.id)
			indices[index] = true
		}
		if len(indices) == 1 {
			if len(sums) > 1 {
				c.t.Errorf("the nodes are at entry %v with different states: %v", slices.Collect(maps.Keys(indices)), sums)
			}
			return
		}
		for _, n := range c.nodes {
			n.Start()
		}
		c.WaitReady()
	}
	c.t.Errorf("the nodes were not found at the same entry in %d tries", stateTries)
}

// waitEqualIndex waits until all nodes have applied the same entry.
func (c *Cluster) waitEqualIndex() {
	c.t.Helper()
	c.Eventually("the nodes have applied the same", func(ctx context.Context) error {
		var at []string
		same := map[uint64]bool{}
		for _, n := range c.nodes {
			s, err := n.status(ctx)
			if err != nil {
				return err
			}
			same[s.AppliedIndex] = true
			at = append(at, fmt.Sprint(n.id, " ", s.AppliedIndex))
		}
		if len(same) > 1 {
			return errors.New(strings.Join(at, ", "))
		}
		return nil
	})
}

// hash returns the hash of the node's state on disk and the entry it stands for. The node must not run.
func (n *Node) hash() (sum string, index uint64, err error) {
	quiet := slog.New(slog.NewTextHandler(io.Discard, nil))
	dir, err := store.OpenDir(n.spec.DataDir, n.id)
	if err != nil {
		return "", 0, err
	}
	defer func() { err = errors.Join(err, dir.Close()) }()
	state, verdict, err := store.OpenState(dir, store.StateOptions{Log: quiet})
	if err != nil {
		return "", 0, err
	}
	defer func() { err = errors.Join(err, state.Close()) }()
	if sum, index, err = state.Hash(); err == nil && index == 0 {
		err = fmt.Errorf("the state on disk was not trusted: %+v", verdict)
	}
	return sum, index, err
}
