package recording

import (
	"fmt"
	"runtime"
	"time"

	"google.golang.org/protobuf/types/known/durationpb"
	"google.golang.org/protobuf/types/known/timestamppb"

	kvgatev1 "kvgate/rpc/kvgate/v1"
)

// Endless is a journal that is made while it is read: tickets of ten sessions that come, wait for 1 ms, are admitted
// and release, eight of them at a time. What reads it and needs memory in proportion to its length is found out by Peak.
type Endless struct {
	Tickets int
	// Peak is the most memory that was in use while it was read, beyond what was before, in bytes.
	Peak int64
}

const (
	endlessAtATime = 8
	// endlessLook is after how many tickets it looks at the memory.
	endlessLook = 20_000
)

// Each calls fn with every event.
func (j *Endless) Each(fn func(*kvgatev1.JournalEvent)) error {
	base := inUse()
	m := &endlessEvents{fn: fn}
	m.event("recovered", -1)
	for i := range j.Tickets {
		m.event("waiting", i)
		m.event("admitted", i)
		if i >= endlessAtATime {
			m.event("released", i-endlessAtATime)
		}
		if i%endlessLook == endlessLook-1 {
			j.Peak = max(j.Peak, inUse()-base)
		}
	}
	return nil
}

// inUse returns the bytes that are alive.
func inUse() int64 {
	runtime.GC()
	var m runtime.MemStats
	runtime.ReadMemStats(&m)
	return int64(m.HeapAlloc) // #nosec G115 -- far less
}

type endlessEvents struct {
	fn    func(*kvgatev1.JournalEvent)
	index uint64
}

func (m *endlessEvents) event(kind string, ticket int) {
	m.index++
	at := time.Duration(m.index) * time.Millisecond
	e := &kvgatev1.JournalEvent{
		Index: m.index, Pool: "default", Kind: kind, LedgerTime: int64(at), WallTime: timestamppb.New(NightStart.Add(at)),
		CeilingAfter: 1000, ReservedAfter: 10 * endlessAtATime,
	}
	switch kind {
	case "recovered":
		e.Measured = &kvgatev1.Measured{CapacityTokens: 1000}
	case "waiting":
		e.Arrival, e.Reason = &kvgatev1.Arrival{ReservationTokens: 10}, "capacity_exhausted"
	case "admitted":
		e.Wait, e.Grant = durationpb.New(time.Millisecond), m.index
	case "released":
		e.Grant = m.index
	}
	if ticket >= 0 {
		e.TicketId, e.SessionId, e.Tokens = fmt.Sprintf("ticket-%d", ticket), fmt.Sprintf("session-%d", ticket%10), 10
	}
	m.fn(e)
}
