package main

import (
	"context"
	"log/slog"
	"os"
	"runtime/debug"

	"github.com/KimMachineGun/automemlimit/memlimit"
)

const (
	// gcPercent is how much a heap may grow, in percent of what is alive, before garbage is collected. What
	// is alive on a node is small beside what its calls leave behind, so Go's 100 collects many times a
	// second: that was a tenth of the processor time of a busy node.
	gcPercent = 400
	// memoryShare is how much of the machine's or the cgroup's memory the node may take before garbage is
	// collected as often as needed to stay below. What is alive may take more.
	memoryShare = 0.5
)

// tuneMemory trades memory for processor time. GOGC and GOMEMLIMIT in the environment win.
func tuneMemory(ctx context.Context, log *slog.Logger) {
	if _, set := os.LookupEnv("GOGC"); !set {
		debug.SetGCPercent(gcPercent)
	}
	limit, err := memlimit.Set(
		memlimit.WithRatio(memoryShare),
		memlimit.WithProvider(memlimit.ApplyFallback(memlimit.FromCgroup, memlimit.FromSystem)),
	)
	if err != nil {
		log.WarnContext(ctx, "memory limit not found, set GOMEMLIMIT when memory is short", slog.Any("error", err))
		return
	}
	log.DebugContext(ctx, "memory", slog.Int64("limit_bytes", limit))
}
