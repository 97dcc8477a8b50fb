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
	// KindRestored: an operator replaced the state. The ledger never emits it.
	KindRestored Kind = "restored"
	// KindUsage samples what the engines report, each time it changed and the ceiling did not.
	KindUsage Kind = "usage"
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
	// By is who asked for a change of a pool.
	By string `json:",omitzero"`
	// Arrival is set where a ticket that the ledger did not know was decided on: with the events of the
	// pool it is all that a replay needs.
	Arrival Arrival `json:",omitzero"`
	// Measured is what the engines report, on capacity, usage and epoch events; nil on others.
	Measured *Measured `json:",omitzero"`
	// Before and After are a pool's settings around a change; nil on other events.
	Before, After *Settings `json:",omitzero"`
}

// Arrival is what a ticket asked for.
type Arrival struct {
	// Known is false on events that are no arrival.
	Known                    bool
	Protected                bool
	Mode                     Mode
	Prompt, MaxNew, Outright Tokens
	// MaxWait is negative where the pool's max wait was asked for. PoolWait: it was, and was filled in on the way.
	MaxWait  time.Duration
	PoolWait bool
	// TTL is 0 where the pool's lease TTL was asked for.
	TTL time.Duration
}

// Measured sums up a pool's healthy engines.
type Measured struct {
	// Capacity is that of the engines which make the ceiling, before the headroom.
	Capacity  Tokens
	Used      Tokens
	Evictable Tokens
	// Pressure is the worst usage over engines and DP ranks, in [0,1].
	Pressure float64
	// EvictionRate is in tokens per second.
	EvictionRate float64
	Running      int64
	Queued       int64
	Healthy      int64
	Known        int64
}
