package store

import (
	"encoding/binary"
	"time"
)

// JournalQuery selects events. The fields inside events are matched by package fsm, which can decode them.
type JournalQuery struct {
	FromIndex uint64 // where to begin; zero is the first kept event
	FromN     uint32
	Limit     int
	Pool      string
	Ticket    string
	Session   string
	Holder    string
	Group     string
	Kinds     []string
	Since     time.Time
	Until     time.Time
	// SinceLedger and UntilLedger bound ledger time in nanoseconds, the latter exclusive and 0 for none.
	SinceLedger, UntilLedger int64
}

// JournalPage is one answer to a query.
type JournalPage struct {
	Events    []JournalRecord
	NextIndex uint64 // where the next page begins
	NextN     uint32
	More      bool
	FirstKept uint64 // older events were trimmed
	Last      uint64
}

// JournalRecord is one event: the N-th of log entry Index.
type JournalRecord struct {
	Index uint64
	N     uint32
	Data  []byte
}

const journalKeySize = 12

// JournalKey returns the key of an event, in segments and in archives: index, then n, big-endian.
func JournalKey(index uint64, n uint32) []byte {
	b := binary.BigEndian.AppendUint64(make([]byte, 0, journalKeySize), index)
	return binary.BigEndian.AppendUint32(b, n)
}

// ParseJournalKey is the inverse of [JournalKey].
func ParseJournalKey(key []byte) (index uint64, n uint32, ok bool) {
	if len(key) != journalKeySize {
		return 0, 0, false
	}
	return binary.BigEndian.Uint64(key), binary.BigEndian.Uint32(key[8:]), true
}
