package rpc

import (
	"fmt"
	"time"

	"golang.org/x/text/language"
	"golang.org/x/text/message"

	"kvgate/ledger"
)

// standing is what one sentence about a ticket needs to know, read in one view.
type standing struct {
	ticket ledger.TicketView
	budget ledger.Budget
	// head is the waiter at the head of the queue; nil when nobody waits.
	head *ledger.WaiterView
}

func readStanding(l *ledger.Ledger, pool, ticket string) (standing, bool) {
	var st standing
	var known bool
	if st.ticket, known = l.Ticket(pool, ticket); !known {
		return st, false
	}
	st.budget, _ = l.Budget(pool)
	if head, _ := l.Waiters(pool, 1, 1); len(head) > 0 {
		st.head = &head[0]
	}
	return st, true
}

// printer writes token counts the way people read them: 90,000.
var printer = message.NewPrinter(language.English)

// explain says in one sentence where the ticket stands and why.
func (st standing) explain() string {
	switch {
	case st.ticket.Lease != nil:
		x := st.ticket.Lease
		return printer.Sprintf("holds %d tokens since %s; the lease expires in %s", x.Tokens, brief(x.Held), brief(x.ExpiresIn))
	case st.ticket.Waiter != nil:
		return st.explainWaiter(st.ticket.Waiter)
	}
	return fmt.Sprintf("neither waits nor holds a lease in pool %s: it was never asked for, or it has been decided and is over", quote(st.budget.Pool))
}

func (st standing) explainWaiter(w *ledger.WaiterView) string {
	tail := "; let go as aged in " + brief(w.AgesIn)
	if !w.Attached {
		tail += "; no caller is attached"
	}
	if w.Position <= 1 || st.head == nil {
		return printer.Sprintf("at the head of the queue, needs %d tokens: %s", w.Tokens, st.obstacle(w)) + tail
	}
	return printer.Sprintf("number %d of %d in the queue, needs %d tokens; %s at the head needs %d: %s",
		w.Position, st.budget.Waiting, w.Tokens, quote(st.head.Ticket), st.head.Tokens, st.obstacle(st.head)) + tail
}

// obstacle says what holds the head back now. The reason that the waiter remembers is the one it
// arrived with, which may have passed since.
func (st standing) obstacle(head *ledger.WaiterView) string {
	b := st.budget
	free := printer.Sprintf("%d of %d are free", b.Available(), b.Ceiling)
	switch {
	case b.Pressure >= b.PressureThreshold:
		return fmt.Sprintf("engine pressure %.2f is not below the threshold %.2f (%s)", b.Pressure, b.PressureThreshold, free)
	case head.Tokens > b.Available():
		return free
	}
	return free + ", it is about to be granted"
}

// brief cuts a duration to what a reader cares for.
func brief(d time.Duration) string {
	switch {
	case d >= time.Minute:
		return d.Round(time.Second).String()
	case d >= time.Second:
		return d.Round(100 * time.Millisecond).String()
	}
	return d.Round(time.Millisecond).String()
}
