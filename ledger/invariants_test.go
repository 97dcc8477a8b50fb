package ledger_test

import (
	"cmp"
	"fmt"
	"maps"
	"slices"
	"testing"

	"kvgate/ledger"
)

// image is the rows by key, as a durable store would hold them.
type image map[string]string

// apply takes over the changes since the last Reset.
func (m image) apply(l *ledger.Ledger) {
	l.Changes(func(c ledger.Change) {
		if c.Deleted {
			delete(m, rowKey(c))
			return
		}
		m[rowKey(c)] = rowText(c)
	})
}

func imageOf(rows []ledger.Change) image {
	m := image{}
	for _, c := range rows {
		m[rowKey(c)] = rowText(c)
	}
	return m
}

// sameImage names the rows that differ.
func sameImage(t failer, got, want image) {
	t.Helper()
	for k, v := range want {
		if got[k] != v {
			t.Fatalf("row %s:\n got %s\nwant %s", k, got[k], v)
		}
	}
	for k, v := range got {
		if _, ok := want[k]; !ok {
			t.Fatalf("row %s should be gone: %s", k, v)
		}
	}
}

func rowKey(c ledger.Change) string {
	switch {
	case c.Meta != nil:
		return "meta"
	case c.Pool != nil:
		return "pool " + c.Pool.Name
	case c.Capacity != nil:
		return "capacity " + c.Name
	case c.Counters != nil:
		return "counters " + c.Name
	case c.Lease != nil:
		return fmt.Sprint("lease ", c.Lease.Grant)
	case c.Waiter != nil:
		return fmt.Sprint("waiter ", c.Waiter.Seq)
	case c.Mark != nil:
		return fmt.Sprint("mark ", c.Mark.Seq)
	case c.Holder != nil:
		return "holder " + c.Holder.Pool + " " + c.Holder.Holder
	}
	return "empty change"
}

// sameRows demands the same rows in the same order.
func sameRows(t failer, got, want []ledger.Change) {
	t.Helper()
	sameImage(t, imageOf(got), imageOf(want))
	for i := range want {
		if rowKey(got[i]) != rowKey(want[i]) {
			t.Fatalf("row %d of the export is %s, want %s", i, rowKey(got[i]), rowKey(want[i]))
		}
	}
}

// rowText prints the one pointer that is set; maps print in the order of their keys.
func rowText(c ledger.Change) string {
	switch {
	case c.Meta != nil:
		return fmt.Sprintf("%+v", *c.Meta)
	case c.Pool != nil:
		return fmt.Sprintf("%+v", *c.Pool)
	case c.Capacity != nil:
		return fmt.Sprintf("%+v", *c.Capacity)
	case c.Counters != nil:
		return fmt.Sprintf("%+v", *c.Counters)
	case c.Lease != nil:
		return fmt.Sprintf("%+v", *c.Lease)
	case c.Waiter != nil:
		return fmt.Sprintf("%+v", *c.Waiter)
	case c.Mark != nil:
		return fmt.Sprintf("%+v", *c.Mark)
	}
	return fmt.Sprintf("%+v", *c.Holder)
}

// exported returns copies of all rows, in the order of Export.
func exported(l *ledger.Ledger) (rows []ledger.Change) {
	l.Export(func(c ledger.Change) { rows = append(rows, copied(c)) })
	return rows
}

func copied(c ledger.Change) ledger.Change {
	out := ledger.Change{
		Meta: fresh(c.Meta), Pool: fresh(c.Pool), Capacity: fresh(c.Capacity), Counters: fresh(c.Counters),
		Lease: fresh(c.Lease), Waiter: fresh(c.Waiter), Mark: fresh(c.Mark), Holder: fresh(c.Holder),
		Name: c.Name, Deleted: c.Deleted,
	}
	if out.Pool != nil {
		out.Pool.Settings.EngineURLs = slices.Clone(out.Pool.Settings.EngineURLs)
	}
	if out.Capacity != nil {
		out.Capacity.Engines = slices.Clone(out.Capacity.Engines)
	}
	if out.Counters != nil {
		out.Counters.Answer = maps.Clone(out.Counters.Answer)
	}
	return out
}

func fresh[T any](p *T) *T {
	if p == nil {
		return nil
	}
	v := *p
	return &v
}

func holdersOf(l *ledger.Ledger) (out []ledger.HolderView) {
	l.Holders(func(h ledger.HolderView) { out = append(out, h) })
	return sortedHolders(out)
}

// sortedHolders orders by pool and name: the order of Holders is not part of the contract.
func sortedHolders(in []ledger.HolderView) []ledger.HolderView {
	slices.SortFunc(in, func(a, b ledger.HolderView) int {
		return cmp.Or(cmp.Compare(a.Pool, b.Pool), cmp.Compare(a.Holder, b.Holder))
	})
	return in
}

// failer is what checkInvariants needs of a test.
type failer interface {
	Helper()
	Fatalf(format string, args ...any)
}

var _ failer = (*testing.T)(nil)

// checkInvariants asserts what holds after every step, from what can be seen of the ledger alone.
func checkInvariants(t failer, l *ledger.Ledger) {
	t.Helper()
	for _, name := range l.Pools() {
		checkBudget(t, l, name)
		checkQueue(t, l, name)
		checkCounts(t, l, name)
	}
	checkGrants(t, l)
	checkCeilingAtGrant(t, l)
}

func checkBudget(t failer, l *ledger.Ledger, pool string) {
	t.Helper()
	b, _ := l.Budget(pool)
	leases, _ := l.Leases(pool, 0, int(b.Leases)+1, ledger.LeaseFilter{})
	var sum ledger.Tokens
	seen := map[string]bool{}
	for _, x := range leases {
		if seen[x.Ticket] || x.Tokens < 0 {
			t.Fatalf("pool %s: lease %+v is a second one or negative", pool, x)
		}
		seen[x.Ticket] = true
		sum += x.Tokens
	}
	if b.Reserved != sum || b.Reserved < 0 || int(b.Leases) != len(leases) {
		t.Fatalf("pool %s: reserved %d in %d leases, they hold %d in %d", pool, b.Reserved, b.Leases, sum, len(leases))
	}
	if b.Degraded && b.Waiting > 0 {
		t.Fatalf("pool %s: degraded with %d waiters", pool, b.Waiting)
	}
}

// checkQueue: one lease or waiter per ticket, priorities descending, arrival ascending within one, and
// the head is blocked.
func checkQueue(t failer, l *ledger.Ledger, pool string) {
	t.Helper()
	b, _ := l.Budget(pool)
	waiters, _ := l.Waiters(pool, 1, int(b.Waiting)+1)
	if len(waiters) != int(b.Waiting) {
		t.Fatalf("pool %s: %d waiters listed, %d counted", pool, len(waiters), b.Waiting)
	}
	for i, w := range waiters {
		v, _ := l.Ticket(pool, w.Ticket)
		if v.Lease != nil || v.Waiter == nil || *v.Waiter != w {
			t.Fatalf("pool %s: waiter %+v is seen as %+v", pool, w, v)
		}
		if i > 0 && !(waiters[i-1].Priority > w.Priority || waiters[i-1].Priority == w.Priority && waiters[i-1].Seq < w.Seq) {
			t.Fatalf("pool %s: %+v is ahead of %+v", pool, waiters[i-1], w)
		}
	}
	if len(waiters) > 0 && b.Pressure < b.PressureThreshold && b.Reserved+waiters[0].Tokens <= b.Ceiling {
		t.Fatalf("pool %s: the head %+v fits into %+v", pool, waiters[0], b)
	}
}

// checkCounts: what came in either left or is still there.
func checkCounts(t failer, l *ledger.Ledger, pool string) {
	t.Helper()
	b, _ := l.Budget(pool)
	c, _ := l.Totals(pool)
	var bypassed int64
	for _, n := range c.Bypass {
		bypassed += n
	}
	left := c.Wait - c.WaitedGrants - b.Waiting
	if left < 0 || left > bypassed {
		t.Fatalf("pool %s: %d waiters left without a grant, %d bypasses", pool, left, bypassed)
	}
	ended := c.Admit - b.Leases
	if certain := c.Released + c.LeaseExpired + c.Unclaimed; ended < certain || ended > certain+c.Cancelled+c.HolderExpired {
		t.Fatalf("pool %s: %d leases ended, counters say %+v", pool, ended, c)
	}
}

// checkGrants: within a pool and priority, grants after waiting come in the order of arrival, and no
// waiter of the same class that was there before is left behind.
func checkGrants(t failer, l *ledger.Ledger) {
	t.Helper()
	type class struct {
		pool     string
		priority int32
	}
	last := map[class]ledger.Seq{}
	for _, e := range l.Events() {
		if e.Kind == ledger.KindPoolDeleted {
			return
		}
	}
	for _, d := range l.Decisions() {
		if d.Action != ledger.ActionAdmit {
			continue
		}
		waiters, _ := l.Waiters(d.Pool, 1, 1<<20)
		for _, e := range l.Events() {
			if e.Kind == ledger.KindAdmitted && e.Grant == d.Seq {
				c := class{d.Pool, e.Priority}
				if d.Waiter < last[c] {
					t.Fatalf("waiter %d was granted after %d", d.Waiter, last[c])
				}
				last[c] = d.Waiter
			}
		}
		for _, w := range waiters {
			if c := (class{d.Pool, w.Priority}); w.Seq < last[c] {
				t.Fatalf("waiter %d was passed over by %d", w.Seq, last[c])
			}
		}
	}
}

// checkCeilingAtGrant: at grant time what is reserved fits under the ceiling.
func checkCeilingAtGrant(t failer, l *ledger.Ledger) {
	t.Helper()
	for _, e := range l.Events() {
		if e.Kind == ledger.KindAdmitted && (e.ReservedAfter > e.CeilingAfter || e.ReservedAfter < e.Tokens) {
			t.Fatalf("granted over the ceiling: %+v", e)
		}
	}
}
