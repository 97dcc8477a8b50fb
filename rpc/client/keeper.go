package client

import (
	"context"
	"log/slog"
	"maps"
	"slices"
	"sync"
	"time"

	kvgatev1 "kvgate/rpc/kvgate/v1"
)

const (
	// firstHolderTTL is what the client takes the holder TTL to be until a heartbeat tells.
	firstHolderTTL = 15 * time.Second
	// shortestBeat keeps a nonsense TTL from turning into a flood.
	shortestBeat = 200 * time.Millisecond
)

// keeper keeps alive what this process has: it heartbeats for the holder while anything is held or
// waits, and renews leases at half their time. Both loops start on demand and end when there is
// nothing to do, or when the client closes. Safe for concurrent use.
type keeper struct {
	c *Client
	// wake tells the renew loop that a lease was added.
	wake chan struct{}

	mu sync.Mutex
	// live counts what needs heartbeats: Acquires in progress and tracked grants.
	live     int
	beating  bool
	renewing bool
	// held are the grants, with a lease or not, whose release somebody waits for.
	held map[*Grant]struct{}
	// renewable are those of held whose lease is not known to be gone.
	renewable map[*Grant]struct{}
}

func newKeeper(c *Client) *keeper {
	return &keeper{
		c: c, wake: make(chan struct{}, 1),
		held: map[*Grant]struct{}{}, renewable: map[*Grant]struct{}{},
	}
}

// enter notes that something needs heartbeats from now on. Each enter needs one leave or drop.
func (k *keeper) enter() {
	k.mu.Lock()
	defer k.mu.Unlock()
	k.live++
	if k.c.cfg.holder != "" && !k.beating {
		k.beating = k.c.loops.start(k.beat)
	}
}

func (k *keeper) leave() {
	k.mu.Lock()
	defer k.mu.Unlock()
	k.live--
}

// hold takes a tracked grant into care.
func (k *keeper) hold(g *Grant) {
	k.mu.Lock()
	defer k.mu.Unlock()
	k.held[g] = struct{}{}
	if g.Action != Admit {
		return
	}
	k.renewable[g] = struct{}{}
	if k.c.cfg.autoRenew && !k.renewing {
		k.renewing = k.c.loops.start(k.renew)
	}
	select {
	case k.wake <- struct{}{}:
	default:
	}
}

// drop ends the care for a tracked grant.
func (k *keeper) drop(g *Grant) {
	k.mu.Lock()
	defer k.mu.Unlock()
	k.live--
	delete(k.held, g)
	delete(k.renewable, g)
}

// unrenew stops renewing a lease that is gone.
func (k *keeper) unrenew(g *Grant) {
	k.mu.Lock()
	defer k.mu.Unlock()
	delete(k.renewable, g)
}

// grants returns the grants that were not released.
func (k *keeper) grants() []*Grant {
	k.mu.Lock()
	defer k.mu.Unlock()
	return slices.Collect(maps.Keys(k.held))
}

// leased returns the grants whose lease is not known to be gone.
func (k *keeper) leased() []*Grant {
	k.mu.Lock()
	defer k.mu.Unlock()
	return slices.Collect(maps.Keys(k.renewable))
}

// beat is the heartbeat loop. The first beat goes out at once, to learn the holder TTL.
func (k *keeper) beat() {
	ttl := firstHolderTTL
	for {
		ttl = k.beatOnce(ttl)
		if !sleep(k.c.base, interval(ttl)) || k.idle() {
			return
		}
	}
}

// interval is a third of the holder TTL, so that two lost heartbeats lose nothing.
func interval(ttl time.Duration) time.Duration { return max(ttl/3, shortestBeat) }

// idle ends the heartbeat loop when nothing needs it.
func (k *keeper) idle() bool {
	k.mu.Lock()
	defer k.mu.Unlock()
	if k.live == 0 {
		k.beating = false
	}
	return !k.beating
}

func (k *keeper) beatOnce(ttl time.Duration) time.Duration {
	ctx, cancel := context.WithTimeout(k.c.base, interval(ttl))
	defer cancel()
	before := k.leased()
	resp, err := k.c.Heartbeat(ctx)
	if err != nil {
		if k.c.base.Err() == nil {
			k.c.logs.heartbeat.warn(slog.Any("error", err))
		}
		return ttl
	}
	if resp.GetLeases() == 0 && resp.GetWaiters() == 0 {
		for _, g := range before {
			g.lose()
		}
	}
	if told := resp.GetTtl().AsDuration(); told > 0 {
		return told
	}
	return ttl
}

// Heartbeat tells the coordinator that this process is alive. The client does so by itself while it
// holds or waits for anything; a caller that keeps leases by other means may call it too.
func (c *Client) Heartbeat(ctx context.Context) (*kvgatev1.HeartbeatResponse, error) {
	resp, err := call(ctx, c, c.admission.Heartbeat, &kvgatev1.HeartbeatRequest{HolderId: c.cfg.holder})
	if err == nil {
		c.record(Event{Kind: EventHeartbeat})
	}
	return resp, err
}
