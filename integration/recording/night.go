package recording

import (
	"container/heap"
	"fmt"
	"math/rand/v2"
	"time"

	"kvgate/ledger"
)

// What is planted in a Night.
const (
	DeadEngine  = "http://engine-3:30000"
	DeadHolder  = "worker-7"
	EngineDies  = 12 * time.Minute
	EngineBack  = 17 * time.Minute
	HolderDies  = 8 * time.Minute
	HolderGone  = HolderDies + 15*time.Second
	MistakeMade = 20 * time.Minute
	MistakeUndo = 22*time.Minute + 30*time.Second
	NewLeader   = 26 * time.Minute
	NightLength = 30 * time.Minute
)

// NightStart is when a Night begins.
var NightStart = time.Date(2026, 11, 30, 3, 0, 0, 0, time.UTC)

// night is the state of the simulation.
type night struct {
	*Recorder
	rng  *rand.Rand
	todo agenda
	seq  int
	next map[string]int // turns of each session so far
}

// Night records half an hour of sixty agents on four engines: a worker dies at 03:08 holding more than 40 % of the
// budget, an engine is away from 03:12 to 03:17, at 03:20 somebody sets headroom to 0.09 instead of 0.9 and mends it
// later, and at 03:26 another node leads. The same seed makes the same journal.
func Night(seed uint64) *Recorder {
	n := &night{Recorder: New(NightStart), rng: rand.New(rand.NewPCG(seed, 1)), next: map[string]int{}}
	n.Set(0, ledger.Settings{Headroom: 0.9, ExpectedDecodeCap: 4096}, "headroom", "expectedDecodeCap")
	n.poll(0)
	for i := range 60 {
		n.later(time.Duration(i)*900*time.Millisecond, func(at time.Duration) { n.turn(at, fmt.Sprintf("prog-%02d", i), i%10) })
	}
	n.plant()
	for len(n.todo) > 0 {
		next := heap.Pop(&n.todo).(job)
		if next.at >= NightLength {
			break
		}
		next.run(next.at)
	}
	return n.Recorder
}

func (n *night) plant() {
	for i := range 8 {
		n.later(HolderDies-time.Minute+time.Duration(i)*time.Second, func(at time.Duration) { n.hoard(at, i) })
	}
	n.later(HolderGone, func(at time.Duration) { n.Expire(at, DeadHolder) })
	n.later(MistakeMade, func(at time.Duration) { n.Set(at, ledger.Settings{Headroom: 0.09}, "headroom") })
	n.later(MistakeUndo, func(at time.Duration) { n.Set(at, ledger.Settings{Headroom: 0.9}, "headroom") })
	n.later(NewLeader, func(at time.Duration) {
		n.Do(at, func(l *ledger.Ledger) { l.NewTerm(2, "n2") })
		waiters, _ := n.Ledger.Waiters(ledger.DefaultPool, 1, 1000)
		for _, w := range waiters {
			n.later(at+time.Duration(300+n.rng.IntN(900))*time.Millisecond, func(at time.Duration) {
				if v, _ := n.Ledger.Ticket(ledger.DefaultPool, w.Ticket); v.Waiter != nil {
					n.Acquire(at, ledger.Acquire{Ticket: w.Ticket, ReservationTokens: w.Tokens, Holder: w.Holder, Session: w.Session, MaxWait: -1})
				}
			})
		}
	})
}

// hoard has one worker take a large part of the budget.
func (n *night) hoard(at time.Duration, i int) {
	n.Acquire(at, ledger.Acquire{
		Ticket: fmt.Sprintf("bulk-%02d:0", i), PromptTokens: 30_000, MaxNewTokens: 8_192, Priority: 1, MaxWait: -1, Holder: DeadHolder, Session: "bulk",
	})
}

// turn is one generate call of a session: it asks, generates when it is let go, thinks, and comes again.
func (n *night) turn(at time.Duration, session string, worker int) {
	turn := n.next[session]
	n.next[session]++
	ticket := fmt.Sprintf("%s/%d:0", session, turn)
	prompt := ledger.Tokens(2_000 + min(turn, 12)*2_500 + n.rng.IntN(2_000))
	holder := fmt.Sprintf("worker-%d", worker)
	if holder == DeadHolder && at > HolderDies {
		holder = "worker-10"
	}
	n.Acquire(at, ledger.Acquire{
		Ticket: ticket, PromptTokens: prompt, MaxNewTokens: 8_192, MaxWait: -1, Holder: holder, Session: session, Group: "math",
	})
	n.await(at, ticket, session, worker)
}

// await looks until the ticket is decided, then generates for a while.
func (n *night) await(at time.Duration, ticket, session string, worker int) {
	v, _ := n.Ledger.Ticket(ledger.DefaultPool, ticket)
	if v.Waiter != nil {
		n.later(at+200*time.Millisecond, func(at time.Duration) { n.await(at, ticket, session, worker) })
		return
	}
	if v.Lease != nil && v.Lease.Holder == DeadHolder && at < HolderGone && at > HolderDies-40*time.Second {
		return // its worker dies and never comes back to it
	}
	busy := time.Duration(4_000+n.rng.IntN(16_000)) * time.Millisecond
	n.later(at+busy, func(at time.Duration) {
		if v.Lease != nil {
			n.Do(at, func(l *ledger.Ledger) {
				l.Release(ledger.Release{Pool: ledger.DefaultPool, Ticket: ticket, Usage: &ledger.Usage{
					PromptTokens: v.Lease.Tokens - 4096, CompletionTokens: ledger.Tokens(n.rng.IntN(4096)), Engine: "http://engine-1:30000", Outcome: "ok",
				}})
			})
		}
		n.later(at+time.Duration(500+n.rng.IntN(4_000))*time.Millisecond, func(at time.Duration) { n.turn(at, session, worker) })
	})
}

// poll reads the engines every two seconds; their usage follows from what is reserved.
func (n *night) poll(at time.Duration) {
	const capacity = ledger.Tokens(240_000)
	b, _ := n.Ledger.Budget(ledger.DefaultPool)
	engines := make([]ledger.Engine, 4)
	up := 4
	if at >= EngineDies && at < EngineBack {
		up = 3
	}
	for i := range engines {
		e := Engine(fmt.Sprintf("engine-%d", i+1), capacity)
		load := float64(b.Reserved) * 0.72 / float64(up) / float64(capacity)
		e.Usage = min(0.99, load*(0.92+0.16*n.rng.Float64()))
		e.Pressure, e.Used = e.Usage, ledger.Tokens(e.Usage*float64(capacity))
		e.Evictable = ledger.Tokens((1 - e.Usage) * (0.5 + 0.3*n.rng.Float64()) * float64(capacity))
		e.EvictionRate = max(0, e.Usage-0.4) * 4_000 * n.rng.Float64()
		if e.URL == DeadEngine && up == 3 {
			e = ledger.Engine{URL: e.URL, Error: "connection refused"}
		}
		engines[i] = e
	}
	n.Engines(at, engines...)
	n.later(at+2*time.Second, n.poll)
}

// job is something to do at a time; jobs of the same time keep their order.
type job struct {
	at  time.Duration
	seq int
	run func(time.Duration)
}

type agenda []job

func (n *night) later(at time.Duration, run func(time.Duration)) {
	n.seq++
	heap.Push(&n.todo, job{at, n.seq, run})
}

func (a agenda) Len() int { return len(a) }
func (a agenda) Less(i, j int) bool {
	return a[i].at < a[j].at || a[i].at == a[j].at && a[i].seq < a[j].seq
}
func (a agenda) Swap(i, j int) { a[i], a[j] = a[j], a[i] }

// Push implements heap.Interface.
func (a *agenda) Push(x any) { *a = append(*a, x.(job)) }

// Pop implements heap.Interface.
func (a *agenda) Pop() any {
	old := *a
	last := old[len(old)-1]
	*a = old[:len(old)-1]
	return last
}
