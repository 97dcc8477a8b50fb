package ledger_test

import (
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"kvgate/ledger"
)

// TestLoaderRefuses lists rows that contradict each other.
func TestLoaderRefuses(t *testing.T) {
	settings := ledger.Change{Pool: &ledger.PoolRow{Name: ledger.DefaultPool, Settings: ledger.DefaultSettings()}}
	lease := func(grant ledger.Seq) ledger.Change {
		return ledger.Change{Lease: &ledger.LeaseRow{Pool: ledger.DefaultPool, Ticket: "t", Grant: grant}}
	}
	waiter := func(seq ledger.Seq) ledger.Change {
		return ledger.Change{Waiter: &ledger.WaiterRow{Pool: ledger.DefaultPool, Ticket: "t", Seq: seq}}
	}
	cases := map[string][]ledger.Change{
		`no pool "default"`:                {{Pool: &ledger.PoolRow{Name: "b"}}},
		`no settings row`:                  {lease(1)},
		`two leases of ticket "t"`:         {settings, lease(1), lease(2)},
		`"t" of pool "default" is there t`: {settings, lease(1), waiter(2)},
		`"default" is there twice`:         {settings, waiter(1), waiter(2)},
	}
	for want, rows := range cases {
		loader := ledger.NewLoader()
		for _, c := range rows {
			loader.Add(c)
		}
		if _, err := loader.Finish(); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("error %v, want %s", err, want)
		}
	}
}

// TestLoaderOfNothing gives a new ledger, whose rows are all to be stored.
func TestLoaderOfNothing(t *testing.T) {
	l, err := ledger.NewLoader().Finish()
	if err != nil {
		t.Fatal(err)
	}
	rows := image{}
	rows.apply(l)
	sameImage(t, rows, imageOf(exported(ledger.New())))
}

// TestLoaderOrder: rows in reverse give the same order of everything that has one.
func TestLoaderOrder(t *testing.T) {
	l := newPool(t, 3)
	for i := range 8 {
		acquire(t, l, fmt.Sprint("t", i), 1, "h")
	}
	rows := exported(l)
	slices.Reverse(rows)
	loader := ledger.NewLoader()
	for _, c := range rows {
		loader.Add(c)
	}
	again, err := loader.Finish()
	if err != nil {
		t.Fatal(err)
	}
	sameRows(t, exported(again), exported(l))
	l.Reset()
	l.ReclaimHolder(ledger.DefaultPool, "h", 0)
	again.ReclaimHolder(ledger.DefaultPool, "h", 0)
	same(t, "events of the reclaim", again.Events(), l.Events())
}

// TestChangesLeaveOutWhatCameAndWent: a pair within one batch costs the image no row of a lease.
func TestChangesLeaveOutWhatCameAndWent(t *testing.T) {
	l := newPool(t, 100)
	acquire(t, l, "t", 10, "h")
	l.Release(ledger.Release{Pool: ledger.DefaultPool, Ticket: "t"})
	l.Changes(func(c ledger.Change) {
		if c.Lease != nil || c.Holder != nil {
			t.Errorf("row %s of a lease that came and went", rowKey(c))
		}
	})
}

// TestReclaimIsBounded: a holder with many tickets is reclaimed in several steps, waiters first.
func TestReclaimIsBounded(t *testing.T) {
	const extra = 10
	l := newPool(t, ledger.MaxReclaim)
	for i := range ledger.MaxReclaim + extra {
		acquire(t, l, fmt.Sprint("t", i), 1, "h")
	}
	n, more := l.ReclaimHolder(ledger.DefaultPool, "h", 0)
	if n != ledger.MaxReclaim || !more {
		t.Fatalf("first step reclaimed %d, more %v", n, more)
	}
	if b, _ := l.Budget(ledger.DefaultPool); b.Waiting != 0 || b.Leases != extra {
		t.Fatalf("after the first step: %+v", b)
	}
	checkInvariants(t, l)
	if n, more = l.ReclaimHolder(ledger.DefaultPool, "h", 0); n != extra || more {
		t.Fatalf("second step reclaimed %d, more %v", n, more)
	}
	if hs := l.Holder("h"); len(hs) != 0 {
		t.Fatalf("holder is still there: %+v", hs)
	}
}

// TestPages: leases and waiters can be listed in pages, leases by holder and session.
func TestPages(t *testing.T) {
	l := newPool(t, 6)
	for i := range 10 {
		acquire(t, l, fmt.Sprint("t", i), 1, fmt.Sprint("h", i%2))
	}
	var tickets []string
	for after := ledger.Seq(0); ; {
		page, _ := l.Leases(ledger.DefaultPool, after, 2, ledger.LeaseFilter{Holder: "h1"})
		if len(page) == 0 {
			break
		}
		for _, x := range page {
			tickets, after = append(tickets, x.Ticket), x.Grant
		}
	}
	same(t, "leases of h1", tickets, []string{"t1", "t3", "t5"})
	page, _ := l.Waiters(ledger.DefaultPool, 3, 5)
	if len(page) != 2 || page[0].Ticket != "t8" || page[0].Position != 3 || page[1].Ticket != "t9" {
		t.Errorf("waiters from the third on: %+v", page)
	}
	if head, _ := l.Waiters(ledger.DefaultPool, -1, 1); len(head) != 1 || head[0].Position != 1 {
		t.Errorf("waiters from before the head: %+v", head)
	}
	if got, _ := l.Leases(ledger.DefaultPool, 0, 9, ledger.LeaseFilter{Session: "none"}); len(got) != 0 {
		t.Errorf("leases of an unknown session: %+v", got)
	}
}

// TestUnknownPool: questions and commands about a pool that does not exist answer so and change nothing.
func TestUnknownPool(t *testing.T) {
	l := ledger.New()
	l.Reset()
	const p = "absent"
	known := map[string]bool{
		"release": l.Release(ledger.Release{Pool: p, Ticket: "t"}), "detach": l.Detach(p, "t", 1, 1),
		"reconcile": l.Reconcile(p, ledger.Round{Fresh: true}), "delete": l.DeletePool(p, ""),
		"renew": l.Renew(p, []ledger.LeaseRef{{Ticket: "t"}}, time.Second)[0].OK,
	}
	_, known["budget"] = l.Budget(p)
	_, known["ticket"] = l.Ticket(p, "t")
	_, known["leases"] = l.Leases(p, 0, 1, ledger.LeaseFilter{})
	_, known["waiters"] = l.Waiters(p, 1, 1)
	_, known["capacity"] = l.Capacity(p)
	_, known["totals"] = l.Totals(p)
	_, known["settings"] = l.Settings(p)
	_, known["reclaim"] = l.ReclaimHolder(p, "h", 0)
	for what, ok := range known {
		if ok {
			t.Errorf("%s knows the pool", what)
		}
	}
	if l.Cancel(ledger.Cancel{Pool: p, Ticket: "t"}) != ledger.CancelUnknown || changed(l) != 0 || len(l.Events()) != 0 {
		t.Error("something changed")
	}
}

func TestClusterIsNamedOnce(t *testing.T) {
	l := ledger.New()
	if a, b := l.SetCluster("one"), l.SetCluster("two"); a != "one" || b != "one" || l.Meta().ClusterID != "one" {
		t.Errorf("cluster ids %q, %q", a, b)
	}
}

// newPool returns a ledger whose default pool can reserve tokens.
func newPool(t testing.TB, tokens ledger.Tokens) *ledger.Ledger {
	t.Helper()
	l := ledger.New()
	patch := ledger.Patch{Fields: []string{"headroom", "staleness"}, Set: ledger.Settings{Headroom: 1, Staleness: time.Hour}}
	if _, err := l.UpdateSettings(ledger.DefaultPool, patch); err != nil {
		t.Fatal(err)
	}
	l.Reconcile(ledger.DefaultPool, ledger.Round{Fresh: true, Engines: []ledger.Engine{{URL: "a", Healthy: true, Capacity: tokens}}})
	l.Reset()
	return l
}

func acquire(t testing.TB, l *ledger.Ledger, ticket string, tokens ledger.Tokens, holder string) ledger.Decision {
	t.Helper()
	d, err := l.Acquire(ledger.Acquire{Pool: ledger.DefaultPool, Ticket: ticket, ReservationTokens: tokens, Holder: holder, MaxWait: -1})
	if err != nil {
		t.Fatal(err)
	}
	return d
}
