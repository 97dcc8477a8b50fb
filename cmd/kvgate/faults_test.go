//go:build faults

package main

import (
	"testing"
	"time"
)

func TestStepClockMovesOnlyTheWallClock(t *testing.T) {
	for _, d := range []time.Duration{time.Hour, -time.Hour, 0} {
		before := time.Now()
		after := stepClock(before, d)
		if got := after.Sub(before); got != 0 {
			t.Errorf("step by %v moved the monotonic clock by %v", d, got)
		}
		if got := after.UnixNano() - before.UnixNano(); got != int64(d) {
			t.Errorf("step by %v moved the wall clock by %v", d, time.Duration(got))
		}
	}
}
