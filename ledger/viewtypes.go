package ledger

import "time"

// Budget is what a pool has and what is taken.
type Budget struct {
	Pool    string
	Ceiling Tokens
	// Pinned is kept out of the ceiling by pins of prefixes.
	Pinned            Tokens
	Reserved          Tokens
	Epoch             uint64
	Degraded          bool
	DegradedReason    string
	Pressure          float64
	PressureThreshold float64
	Admission         bool
	Waiting           int64
	Leases            int64
	// OldestWait is how long the head of the queue has waited.
	OldestWait time.Duration
}

// Available returns the tokens that may still be reserved, never below 0.
func (b Budget) Available() Tokens { return max(0, b.Ceiling-b.Pinned-b.Reserved) }

// LeaseView is one lease as people see it.
type LeaseView struct {
	Ticket    string
	Grant     Seq
	Epoch     uint64
	Tokens    Tokens
	Holder    string
	Session   string
	Group     string
	RID       string
	Held      time.Duration
	ExpiresIn time.Duration
}

// WaiterView is one waiter as people see it. Position 1 is the head.
type WaiterView struct {
	Ticket   string
	Seq      Seq
	Position int
	Tokens   Tokens
	Priority int32
	Reason   WaitReason
	Waited   time.Duration
	AgesIn   time.Duration
	Attached bool
	Holder   string
	Session  string
	Group    string
}

// TicketView tells what the ledger knows of a ticket: at most one of the two is set.
type TicketView struct {
	Lease  *LeaseView
	Waiter *WaiterView
}

// CapacityView is a pool's newest knowledge of its engines.
type CapacityView struct {
	Engines   []Engine
	Discovery string
	// Snapshot is false when no fresh round was ever seen.
	Snapshot bool
	// Age of the newest fresh round.
	Age time.Duration
}

// LeaseFilter keeps the leases that match every field that is not empty.
type LeaseFilter struct {
	Holder  string
	Session string
}

// Counters count decisions. They are part of the state, so they survive failover.
type Counters struct {
	Admit         int64
	Wait          int64
	Bypass        [reasonCount]int64
	Cancelled     int64
	LeaseExpired  int64
	Released      int64
	Renewed       int64
	Abandoned     int64
	Unclaimed     int64
	HolderExpired int64
	WaitedGrants  int64
	// WaitedTime sums the time in the queue of requests granted after waiting.
	WaitedTime time.Duration
	// Reported… sum over releases that reported usage.
	ReportedReserved Tokens
	ReportedUsed     Tokens
	ReportedCached   Tokens
	Reports          int64
	// Closed counts closes of sessions that are over, CloseFailures those of them with an engine that never
	// acknowledged: as NoteCloses said last.
	Closed        int64
	CloseFailures int64
}
