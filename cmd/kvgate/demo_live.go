package main

import (
	"context"
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"

	"connectrpc.com/connect"

	"kvgate/ledger"
	kvgatev1 "kvgate/rpc/kvgate/v1"
)

const liveFormat = "%-10s %8s %6s %7s %8s %7s %8s %9s  %-34s %8s %19s %9s %8s\n"

// waiterPage bounds how many waiters are looked at for their reasons.
const waiterPage = 10_000

// live prints how a run is doing.
type live struct {
	lastTurns int
	lastAt    time.Duration
}

func (l *live) begin(a *arm) {
	fmt.Fprintf(a.d.out, "\nadmission %s, pools of %s tokens on %d engines\n", onOff(a.admission), number(int64(a.regime.pool)), a.d.engines)
	fmt.Fprintf(a.d.out, liveFormat, "run", "time", "turns", "turns/s", "in tools", "calling", "running", "admitted",
		"waiting in kvgate", "pressure", "reserved/ceiling", "evicted", "retracted")
}

// line prints one row. What the node does not answer is a question mark.
func (l *live) line(ctx context.Context, a *arm) {
	p, s, now := a.run.Progress(), a.fleet.Stats(), a.run.Elapsed()
	rate := 0.0
	if now > l.lastAt {
		rate = float64(p.Turns-l.lastTurns) / (now - l.lastAt).Seconds()
	}
	l.lastTurns, l.lastAt = p.Turns, now
	admitted := "-"
	if a.gate != nil {
		admitted = number(a.gate.Stats().Admitted)
	}
	waiting, pressure, reserved := l.budget(ctx, a)
	fmt.Fprintf(a.d.out, liveFormat, a.label, fmt.Sprintf("%.0fs", now.Seconds()), number(int64(p.Turns)), fmt.Sprintf("%.1f", rate),
		number(int64(p.Tools)), number(int64(p.AtEngine)), number(int64(s.Running)), admitted,
		waiting, pressure, reserved, short(s.Evicted), number(int64(s.Retractions)))
}

// budget words what the node says of the pool: who waits and why, pressure, reserved against ceiling.
func (l *live) budget(ctx context.Context, a *arm) (waiting, pressure, reserved string) {
	ctx, cancel := context.WithTimeout(ctx, demoCall)
	defer cancel()
	observe := a.d.node.watch.Observe()
	answer, err := observe.GetBudget(ctx, connect.NewRequest(&kvgatev1.GetBudgetRequest{Pool: ledger.DefaultPool, Stale: true}))
	if err != nil {
		return "?", "?", "?"
	}
	b := answer.Msg
	waiting, pressure = number(b.GetWaiting()), percent(b.GetPressure())
	reserved = short(int(b.GetReserved())) + "/" + short(int(b.GetCeiling()))
	if !a.admission {
		return "-", pressure, "-/" + short(int(b.GetCeiling()))
	}
	if b.GetWaiting() == 0 {
		return waiting, pressure, reserved
	}
	queue, err := observe.ListWaiters(ctx, connect.NewRequest(&kvgatev1.ListWaitersRequest{
		Pool: ledger.DefaultPool, PageSize: waiterPage, Stale: true,
	}))
	if err == nil {
		waiting = waitWords(queue.Msg.GetWaiters())
	}
	return waiting, pressure, reserved
}

// waitWords counts waiters by reason: "1 capacity_exhausted, 30 older_waiter".
func waitWords(waiters []*kvgatev1.Waiter) string {
	count := map[kvgatev1.WaitReason]int{}
	for _, w := range waiters {
		count[w.GetWaitReason()]++
	}
	var words []string
	for _, reason := range slices.Sorted(maps.Keys(count)) {
		words = append(words, fmt.Sprintf("%d %s", count[reason], word(reason)))
	}
	return joinOr(words, "0")
}

func joinOr(words []string, none string) string {
	if len(words) == 0 {
		return none
	}
	return strings.Join(words, ", ")
}

// short writes a number of tokens in few characters: 512, 64.2k, 3.1M.
func short(n int) string {
	switch {
	case n >= 1_000_000:
		return fmt.Sprintf("%.1fM", float64(n)/1e6)
	case n >= 1000:
		return fmt.Sprintf("%.1fk", float64(n)/1e3)
	default:
		return fmt.Sprint(n)
	}
}
