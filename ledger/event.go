package ledger

import "time"

// Kind names what a journal event tells.
type Kind string

// The kinds of events.
const (
	KindAdmitted      Kind = "admitted"
	KindWaiting       Kind = "waiting"
	KindBypassed      Kind = "bypassed"
	KindReleased      Kind = "released"
	KindRenewed       Kind = "renewed"
	KindLeaseExpired  Kind = "lease_expired"
	KindCancelled     Kind = "cancelled"
	KindAbandoned     Kind = "abandoned"
	KindUnclaimed     Kind = "unclaimed"
	KindHolderExpired Kind = "holder_expired"
	KindDetached      Kind = "detached"
	KindAttached      Kind = "attached"
	KindCapacity      Kind = "capacity"
	KindEpoch         Kind = "epoch"
	KindDegraded      Kind = "degraded"
	KindRecovered     Kind = "recovered"
	KindSettings      Kind = "settings"
	KindPoolDeleted   Kind = "pool_deleted"
	KindDrained       Kind = "drained"
	KindLeader        Kind = "leader"
	KindTrimmed       Kind = "trimmed"
)

// Event is one thing that happened. Fields that do not apply are zero.
type Event struct {
	At      Time
	Pool    string
	Kind    Kind
	Ticket  string
	Session string
	Holder  string
	Group   string
	Tokens  Tokens
	// Epoch is the lease's owner epoch, or the pool's for events of the pool.
	Epoch  uint64
	Grant  Seq
	Reason string
	// Wait is the time spent in the queue.
	Wait          time.Duration
	ReservedAfter Tokens
	CeilingAfter  Tokens
	WaitingAfter  int64
	Priority      int32
	// Deadline the event set: a lease's expiry or a waiter's ageing.
	Deadline Time
	// Detail is text for what else belongs to the kind.
	Detail string
}
