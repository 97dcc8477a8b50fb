package client

import (
	"context"
	"log/slog"
	"slices"
	"time"

	"google.golang.org/protobuf/types/known/durationpb"

	kvgatev1 "kvgate/rpc/kvgate/v1"
)

const (
	// renewBatch is the most leases one Renew may name.
	renewBatch = 10000
	// renewRetry is the shortest pause after a Renew that failed.
	renewRetry = 250 * time.Millisecond
)

// renew is the renew loop: it sleeps until the first lease is at half its time, and renews together
// all that are nearly there.
func (k *keeper) renew() {
	for {
		due, next, ok := k.due(time.Now())
		if !ok {
			return
		}
		for pool, grants := range byPool(due) {
			k.renewDue(pool, grants)
		}
		if len(due) > 0 {
			continue
		}
		timer := time.NewTimer(time.Until(next))
		select {
		case <-timer.C:
		case <-k.wake:
			timer.Stop()
		case <-k.c.base.Done():
			timer.Stop()
			return
		}
	}
}

// due returns the grants to renew now, or when the next one is due. ok is false, and the loop over,
// when there is nothing to renew.
func (k *keeper) due(now time.Time) (due []*Grant, next time.Time, ok bool) {
	k.mu.Lock()
	defer k.mu.Unlock()
	if len(k.renewable) == 0 || k.c.base.Err() != nil {
		k.renewing = false
		return nil, time.Time{}, false
	}
	var soon []*Grant
	for g := range k.renewable {
		at, early := g.renewal()
		switch {
		case !at.After(now):
			due = append(due, g)
		case !early.After(now):
			soon = append(soon, g)
		}
		if next.IsZero() || at.Before(next) {
			next = at
		}
	}
	if len(due) > 0 {
		due = append(due, soon...)
	}
	return due, next, true
}

// renewal is when the lease is to be renewed, and from when on it may be, in company.
func (g *Grant) renewal() (at, early time.Time) {
	g.mu.Lock()
	defer g.mu.Unlock()
	return g.renewAt, g.renewAt.Add(-g.expiresAt.Sub(g.renewAt) / 4)
}

func byPool(grants []*Grant) map[string][]*Grant {
	pools := map[string][]*Grant{}
	for _, g := range grants {
		pools[g.Pool] = append(pools[g.Pool], g)
	}
	return pools
}

func (k *keeper) renewDue(pool string, grants []*Grant) {
	for batch := range slices.Chunk(grants, renewBatch) {
		_, err := k.c.renew(k.c.base, pool, batch, 0)
		if err == nil || k.c.base.Err() != nil {
			continue
		}
		k.c.logs.renew.warn(slog.String("pool", pool), slog.Int("leases", len(batch)), slog.Any("error", err))
		for _, g := range batch {
			g.postpone(time.Now())
		}
	}
}

// postpone plans the next try after a Renew that failed; a lease whose time is up is lost.
func (g *Grant) postpone(now time.Time) {
	g.mu.Lock()
	left := g.expiresAt.Sub(now)
	g.renewAt = now.Add(max(left/4, renewRetry))
	g.mu.Unlock()
	if left <= 0 {
		g.lose()
	}
}

// renew renews grants of one pool in one call and returns those whose lease is gone, which are lost.
func (c *Client) renew(ctx context.Context, pool string, grants []*Grant, ttl time.Duration) ([]*Grant, error) {
	ids, fences := make([]string, len(grants)), make([]uint64, len(grants))
	for i, g := range grants {
		ids[i], fences[i] = g.LeaseID, g.Number
	}
	asked := time.Now()
	leases, err := c.renewLeases(ctx, pool, ids, fences, ttl)
	if err != nil {
		return nil, err
	}
	var gone []*Grant
	for i, g := range grants {
		if leases[i].GetRenewed() {
			g.extend(asked, leases[i].GetExpiresIn().AsDuration())
			continue
		}
		gone = append(gone, g)
		g.lose()
	}
	return gone, nil
}

// Renew moves the deadline of leases, by id, to now + ttl; ttl 0 means the one each was granted with.
// The answers are in the order of leaseIDs. Grants of this client are better renewed by [Grant.Renew],
// which fences; with auto-renewal on (the default) neither is needed.
func (c *Client) Renew(ctx context.Context, pool string, leaseIDs []string, ttl time.Duration) ([]*kvgatev1.RenewedLease, error) {
	return c.renewLeases(ctx, c.poolName(pool), leaseIDs, nil, ttl)
}

func (c *Client) renewLeases(ctx context.Context, pool string, ids []string, fences []uint64, ttl time.Duration) ([]*kvgatev1.RenewedLease, error) {
	msg := &kvgatev1.RenewRequest{Pool: pool, LeaseIds: ids, Grants: fences}
	if ttl != 0 {
		msg.Ttl = durationpb.New(ttl)
	}
	if err := validate(msg); err != nil {
		return nil, err
	}
	resp, err := call(ctx, c, c.admission.Renew, msg)
	if err != nil {
		return nil, err
	}
	return matchRenewed(ids, resp.GetLeases())
}

// matchRenewed checks that the answers are those of ids.
func matchRenewed(ids []string, leases []*kvgatev1.RenewedLease) ([]*kvgatev1.RenewedLease, error) {
	same := slices.EqualFunc(ids, leases, func(id string, l *kvgatev1.RenewedLease) bool { return id == l.GetLeaseId() })
	if !same {
		return nil, nonsense("renew answered %d leases for %d, or others", len(leases), len(ids))
	}
	return leases, nil
}
