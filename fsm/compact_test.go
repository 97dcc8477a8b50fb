package fsm

import (
	"strconv"
	"testing"

	"kvgate/ledger"
)

// TestLogIsCutSoon: a busy log gets a snapshot within seconds, and what it covers goes.
func TestLogIsCutSoon(t *testing.T) {
	const threshold = 32
	s := startSingle(t, func(o *Options) { o.SnapshotThreshold = threshold })
	for i := range 3 * threshold {
		_, err := s.Cancel(t.Context(), ledger.Cancel{Pool: ledger.DefaultPool, Ticket: "t" + strconv.Itoa(i)})
		must(t, err)
	}
	eventually(t, "the log is cut", func() bool {
		first, err := s.disk.logs.FirstIndex()
		must(t, err)
		last, err := s.disk.logs.LastIndex()
		must(t, err)
		return first > threshold && last-first <= 2*threshold
	})
}
