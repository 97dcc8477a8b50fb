package fsm

import (
	"fmt"
	"math/rand/v2"
	"os"
	"strings"
	"testing"

	"github.com/hashicorp/raft"

	"kvgate/fsm/fsmpb"
	"kvgate/ledger"
	"kvgate/store"
)

// benchOps is how many operations one log entry of the benchmark carries.
const benchOps = 256

// BenchmarkApply measures how fast committed entries of 256 operations each, half acquires and half
// releases of leases picked at random, go through the ledger, the journal and the image on disk. It reports
// operations per second of one goroutine, and the share of the time that the machine's processors were
// stolen by its host.
func BenchmarkApply(b *testing.B) {
	for _, held := range []int{0, 100_000} {
		b.Run(fmt.Sprintf("held=%d", held), func(b *testing.B) {
			m := newApplyBench(b, held)
			stolen := stealShare(b)
			b.ReportAllocs()
			for b.Loop() {
				m.step()
			}
			b.ReportMetric(float64(b.N*benchOps)/b.Elapsed().Seconds(), "ops/s")
			b.ReportMetric(100*stolen(), "steal-%")
		})
	}
}

// applyBench is a machine with its files and the next entry to apply.
type applyBench struct {
	b     *testing.B
	m     *Machine
	index uint64
	turn  int
	// held are the tickets that have a lease.
	held []string
	rand *rand.Rand
}

func newApplyBench(b *testing.B, held int) *applyBench {
	d, err := openDisk(b.TempDir(), "n1", quiet, store.RaftOptions{NoSync: true, Log: quiet})
	must(b, err)
	a := &applyBench{b: b, rand: rand.New(rand.NewPCG(1, 2))}
	a.m, err = newMachine(d, Version, quiet, func(err error) { b.Error(err) })
	must(b, err)
	b.Cleanup(func() {
		a.m.rest()
		must(b, d.close())
	})
	a.apply([]*fsmpb.Op{
		updateOp(ledger.DefaultPool, ledger.Patch{}),
		reconcileOp(ledger.DefaultPool, ledger.Round{Fresh: true, Engines: []ledger.Engine{
			{URL: "http://127.0.0.1:30000", Healthy: true, Capacity: ledger.MaxTokens},
		}}),
	})
	for len(a.held) < held+benchOps/2 {
		a.apply(a.acquires(benchOps / 2))
	}
	return a
}

// acquires returns acquires of new tickets, which are held afterwards.
func (a *applyBench) acquires(n int) (ops []*fsmpb.Op) {
	for range n {
		a.turn++
		ticket := fmt.Sprintf("rollout-%08d:0", a.turn)
		a.held = append(a.held, ticket)
		ops = append(ops, acquireOp(ledger.Acquire{
			Pool: ledger.DefaultPool, Ticket: ticket, PromptTokens: 4000, MaxNewTokens: 96, MaxWait: -1,
			Holder: "worker-7", Session: ticket[:len(ticket)-2], Group: "group-12", RID: ticket,
		}))
	}
	return ops
}

// releases returns releases of n leases.
func (a *applyBench) releases(n int) (ops []*fsmpb.Op) {
	for range n {
		i, last := a.rand.IntN(len(a.held)), len(a.held)-1
		ops = append(ops, releaseOp(ledger.Release{Pool: ledger.DefaultPool, Ticket: a.held[i], Holder: "worker-7"}))
		a.held[i] = a.held[last]
		a.held = a.held[:last]
	}
	return ops
}

// step applies one entry and has it on disk; making it is not measured.
func (a *applyBench) step() {
	a.b.StopTimer()
	ops := a.releases(benchOps / 2)
	e := a.entry(append(ops, a.acquires(benchOps/2)...))
	a.b.StartTimer()
	a.check(a.m.Apply(e))
	must(a.b, a.m.flush(a.b.Context()))
}

func (a *applyBench) apply(ops []*fsmpb.Op) { a.check(a.m.Apply(a.entry(ops))) }

func (a *applyBench) entry(ops []*fsmpb.Op) *raft.Log {
	a.index++
	return entry(a.b, a.index, &fsmpb.Batch{
		Version: Version, LedgerTime: int64(a.index) * 1_000_000, WallTime: int64(a.index) * 1_000_000, Ops: ops,
	})
}

// check refuses an entry of which an acquire was not admitted or a release found nothing.
func (a *applyBench) check(answer any) {
	r, ok := answer.(*batchResult)
	if !ok {
		a.b.Fatalf("Apply answers %T", answer)
	}
	for _, res := range r.results {
		d, decided := res.Value.(ledger.Decision)
		released, isRelease := res.Value.(bool)
		if res.Err != nil || decided && d.Action != ledger.ActionAdmit || isRelease && !released {
			a.b.Fatalf("result %+v", res)
		}
	}
}

// stealShare starts to watch how much of the processors' time the host took, and returns the function
// that tells it as a share of all time since.
func stealShare(b *testing.B) func() float64 {
	steal, all := processorTime(b)
	return func() float64 {
		s, a := processorTime(b)
		return float64(s-steal) / float64(max(1, a-all))
	}
}

// processorTime reads the stolen and the total time of /proc/stat, in ticks.
func processorTime(b *testing.B) (steal, all int64) {
	raw, err := os.ReadFile("/proc/stat")
	must(b, err)
	line, _, _ := strings.Cut(string(raw), "\n")
	var t [8]int64
	_, err = fmt.Sscanf(line, "cpu %d %d %d %d %d %d %d %d", &t[0], &t[1], &t[2], &t[3], &t[4], &t[5], &t[6], &t[7])
	must(b, err)
	for _, n := range t {
		all += n
	}
	return t[7], all
}
