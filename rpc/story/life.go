package story

import (
	"time"

	kvgatev1 "kvgate/rpc/kvgate/v1"
)

// Event is one event of the journal.
type Event = kvgatev1.JournalEvent

// Life is one incarnation of a ticket: from its arrival to its end. The same ticket may come again later.
type Life struct {
	Pool, Ticket, Session, Holder, Group string
	Tokens                               int64
	Priority                             int32
	// First is the first event that is known of it. It is no arrival when what lies before was trimmed.
	First *Event
	// Waiting is the event with which it joined the queue, Granted that of its lease, Ended the one that ended it.
	Waiting, Granted, Ended *Event
	// Steps are all its events in order, and changes of leader while it waited.
	Steps []*Event
	// Met is what it met when it joined the queue, Blocks what held it back over time, and Freed the event that
	// let it be granted. They are kept for watched tickets only.
	Met    *Met
	Blocks []Block
	Freed  *Event
}

// Met is the pool as a ticket found it on arrival.
type Met struct {
	Reserved, Ceiling int64
	Holders           []Share
	Ahead             []Share
	Leases            int
	Pressure          float64
	Threshold         float64
}

// Share is what one ticket holds or waits for.
type Share struct {
	Ticket, Holder string
	Tokens         int64
	// Since is the ledger time of its grant or arrival; 0 when that is not known.
	Since int64
}

// Block is a time in the queue with one reason.
type Block struct {
	// From is ledger time, At wall time.
	From   int64
	At     time.Time
	Reason string
	// Ahead waiters asked for AheadTokens when the time began.
	Ahead             int
	AheadTokens       int64
	Reserved, Ceiling int64
	Pressure          float64
}

// Reasons for waiting, as the journal has them.
const (
	pressureGuard     = "pressure_guard"
	capacityExhausted = "capacity_exhausted"
	olderWaiter       = "older_waiter"
)

// Arrived reports that the journal still holds the ticket's arrival.
func (l *Life) Arrived() bool { return l.First != nil && l.First.Arrival != nil || l.Waiting != nil }

// Waited returns how long the ticket waited, until now when it still does.
func (l *Life) Waited(now int64) time.Duration {
	switch {
	case l.Granted != nil:
		return max(0, l.Granted.Wait.AsDuration())
	case l.Ended != nil && l.Ended.Wait != nil && l.Ended.Grant == 0:
		return max(0, l.Ended.Wait.AsDuration())
	case l.Waiting == nil:
		return 0
	case l.Ended != nil:
		now = l.Ended.LedgerTime
	}
	return time.Duration(max(0, now-l.Waiting.LedgerTime))
}

// Held returns how long the ticket held its lease, until now when it still does; false when it held none, or
// its grant is not known.
func (l *Life) Held(now int64) (time.Duration, bool) {
	if l.Granted == nil {
		return 0, false
	}
	if l.Ended != nil {
		now = l.Ended.LedgerTime
	}
	return time.Duration(now - l.Granted.LedgerTime), true
}

// WaitFrom returns the wall time at which the ticket began to wait; the zero time when it never did.
func (l *Life) WaitFrom() time.Time {
	switch {
	case l.Waiting != nil:
		return wall(l.Waiting)
	case l.Granted != nil && l.Granted.Wait != nil:
		return wall(l.Granted).Add(-l.Granted.Wait.AsDuration())
	case l.Ended != nil && l.Granted == nil && l.Ended.Wait != nil:
		return wall(l.Ended).Add(-l.Ended.Wait.AsDuration())
	}
	return time.Time{}
}

// DecidedAt returns the wall time at which the wait ended; the zero time while it lasts.
func (l *Life) DecidedAt() time.Time {
	switch {
	case l.Granted != nil:
		return wall(l.Granted)
	case l.Ended != nil:
		return wall(l.Ended)
	}
	return time.Time{}
}

func wall(e *Event) time.Time {
	if e.GetWallTime() == nil {
		return time.Time{}
	}
	return e.WallTime.AsTime()
}
