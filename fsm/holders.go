package fsm

import (
	"context"
	"time"

	"kvgate/fsm/fsmpb"
	"kvgate/ledger"
	"kvgate/sessions"
)

// watch finds holders that went silent. Heartbeats live in the leader's memory and cost no log
// entries; a new leader gives every holder one fresh TTL.
type watch struct {
	term  *term
	beats chan string
	// seen and began belong to run. seen holds heartbeats, began the start of the term.
	seen  map[string]time.Time
	began time.Time
}

// scanEvery is how often the watch looks for silent holders.
const scanEvery = 500 * time.Millisecond

func newWatch(t *term) *watch {
	return &watch{term: t, beats: make(chan string, 1024), seen: map[string]time.Time{}, began: t.replica.now()}
}

// beat notes a heartbeat.
func (w *watch) beat(ctx context.Context, holder string) error {
	select {
	case w.beats <- holder:
		return nil
	case <-ctx.Done():
		return ctx.Err()
	case <-w.term.ctx.Done():
		return context.Cause(w.term.ctx)
	}
}

// run is a Duty. When a scan comes late, the leader itself stalled and may have missed heartbeats: the
// stall is added to everybody's last sign of life.
func (w *watch) run(ctx context.Context) {
	ticker := time.NewTicker(scanEvery)
	defer ticker.Stop()
	last := w.term.replica.now()
	for {
		select {
		case <-ctx.Done():
			return
		case h := <-w.beats:
			w.seen[h] = w.term.replica.now()
		case <-ticker.C:
			now := w.term.replica.now()
			if stall := now.Sub(last) - scanEvery; stall > scanEvery {
				w.forgive(stall)
			}
			last = now
			w.scan(ctx, now)
		}
	}
}

// client is a holder in one pool as the watch sees it.
type client struct {
	ledger.HolderView
	// flights counts its attempts in flight without a lease, which the ledger does not know; newest is the
	// number of the newest, once somebody asked.
	flights int
	newest  uint64
}

// clients returns all holders that have something.
func clients(c *core) []client {
	var out []client
	at := map[[2]string]int{}
	c.ledger.Holders(func(h ledger.HolderView) {
		at[[2]string{h.Pool, h.Holder}] = len(out)
		out = append(out, client{HolderView: h})
	})
	c.table.Flying(func(pool, holder string, n int) {
		i, known := at[[2]string{pool, holder}]
		if !known {
			i = len(out)
			out = append(out, client{HolderView: ledger.HolderView{Pool: pool, Holder: holder}})
		}
		out[i].flights = n
	})
	return out
}

// ask looks up the newest attempt without a lease, whose beginning is a sign of life.
func (h *client) ask(t *sessions.Table) (active ledger.Time) {
	if h.flights == 0 {
		return h.LastActive
	}
	newest, since := t.Newest(h.Pool, h.Holder)
	h.newest = newest
	return max(h.LastActive, ledger.Time(since))
}

// lastSeen is the newest sign of life: a heartbeat, an operation in this term, or the term's start.
func (w *watch) lastSeen(holder string, lastActive ledger.Time) time.Time {
	active := w.term.clock.start.Add(lastActive.Sub(w.term.clock.base))
	at := w.seen[holder]
	for _, t := range []time.Time{w.began, active} {
		if t.After(at) {
			at = t
		}
	}
	return at
}

func (w *watch) forgive(stall time.Duration) {
	for h, at := range w.seen {
		w.seen[h] = at.Add(stall)
	}
	w.began = w.began.Add(stall)
	w.term.replica.machine.look(func(c *core) {
		for _, h := range clients(c) {
			active := w.term.clock.start.Add(h.ask(c.table).Sub(w.term.clock.base)).Add(stall)
			if active.After(w.seen[h.Holder]) {
				w.seen[h.Holder] = active
			}
		}
	})
}

// scan proposes to reclaim what silent holders have, and forgets heartbeats of holders that have
// nothing and were not heard of for the longest TTL.
func (w *watch) scan(ctx context.Context, now time.Time) {
	var gone []client
	known := map[string]bool{}
	var longest time.Duration
	w.term.replica.machine.look(func(c *core) {
		ttls := holderTTLs(c.ledger)
		for _, ttl := range ttls {
			longest = max(longest, ttl)
		}
		for _, h := range clients(c) {
			known[h.Holder] = true
			silent := func(active ledger.Time) bool { return now.Sub(w.lastSeen(h.Holder, active)) > ttls[h.Pool] }
			if silent(h.LastActive) && silent(h.ask(c.table)) {
				gone = append(gone, h)
			}
		}
	})
	for h, at := range w.seen {
		if !known[h] && now.Sub(at) > longest {
			delete(w.seen, h)
		}
	}
	for _, h := range gone {
		w.reclaim(ctx, h)
	}
}

func holderTTLs(l *ledger.Ledger) map[string]time.Duration {
	ttls := map[string]time.Duration{}
	for _, name := range l.Pools() {
		set, _ := l.Settings(name)
		ttls[name] = set.HolderTTL
	}
	return ttls
}

// reclaim names the activity it saw: the machine does nothing when the holder was active since.
func (w *watch) reclaim(ctx context.Context, h client) {
	w.term.replica.log.Warn("holder went silent, taking its tickets back",
		"pool", h.Pool, "holder", h.Holder, "leases", h.Leases, "waiters", h.Waiters, "bypassed", h.flights)
	op := &fsmpb.Op{Kind: &fsmpb.Op_ReclaimHolder{ReclaimHolder: &fsmpb.ReclaimHolder{
		Pool: h.Pool, Holder: h.Holder, LastActive: int64(h.LastActive), NewestFlight: h.newest,
	}}}
	for {
		res, err := w.term.do(ctx, op)
		if more, _ := res.Value.(bool); err != nil || !more {
			return
		}
	}
}
