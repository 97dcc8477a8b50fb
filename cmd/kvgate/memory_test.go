package main

import (
	"log/slog"
	"math"
	"os"
	"runtime/debug"
	"testing"
)

// TestGarbageIsCollectedLessOften unless the environment says how often.
func TestGarbageIsCollectedLessOften(t *testing.T) {
	percent, limit := debug.SetGCPercent(50), debug.SetMemoryLimit(-1)
	t.Cleanup(func() {
		debug.SetGCPercent(percent)
		debug.SetMemoryLimit(limit)
	})
	for _, name := range []string{"GOGC", "GOMEMLIMIT", "AUTOMEMLIMIT"} {
		t.Setenv(name, "") // restores it afterwards
		_ = os.Unsetenv(name)
	}
	tuneMemory(t.Context(), slog.Default())
	if got := debug.SetGCPercent(50); got != gcPercent {
		t.Errorf("GC percent is %d, want %d", got, gcPercent)
	}
	if got := debug.SetMemoryLimit(math.MaxInt64); got <= 0 || got == math.MaxInt64 {
		t.Errorf("memory limit is %d, want a share of the memory", got)
	}

	t.Setenv("GOGC", "50")
	t.Setenv("GOMEMLIMIT", "1GiB")
	tuneMemory(t.Context(), slog.Default())
	if got := debug.SetGCPercent(50); got != 50 {
		t.Errorf("with GOGC set the GC percent is %d, want it left alone at 50", got)
	}
	if got := debug.SetMemoryLimit(-1); got != math.MaxInt64 {
		t.Errorf("with GOMEMLIMIT set the memory limit is %d, want it left alone", got)
	}
}
