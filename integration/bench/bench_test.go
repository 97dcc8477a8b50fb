package bench

import (
	"cmp"
	"fmt"
	"net/http"
	"slices"
	"testing"
	"time"

	"github.com/jedib0t/go-pretty/v6/table"

	"kvgate/integration/procs"
)

func TestMain(m *testing.M) { procs.Main(m) }

const (
	// rounds of each side are measured, and up to maxRounds tried, see maxSteal.
	rounds, maxRounds = 5, 10
	roundLength       = time.Second
	// maxSteal is the share of stolen time above which a round does not count.
	maxSteal = 0.05
)

// freshClient keeps no connection open.
func freshClient() *http.Client {
	return &http.Client{Timeout: time.Second, Transport: &http.Transport{DisableKeepAlives: true}}
}

// BenchmarkUnary compares calls per second of one durable node with those of an echo.
func BenchmarkUnary(b *testing.B) {
	sides := []side{startKvgate(b), startEcho(b)}
	for b.Loop() {
		compare(b, sides, []int{1, 16, 64, 256})
	}
}

// BenchmarkThreeNodes compares three durable nodes with three members of etcd, at their leaders: an
// acquire and a release with a put and a delete of a key of the caller's own, which decide nothing.
func BenchmarkThreeNodes(b *testing.B) {
	sides := []side{startCluster(b), startEtcd(b)}
	for b.Loop() {
		compare(b, sides, []int{1, 16, 64, 256})
	}
}

// compare prints one row per number of callers; the first side is compared with the second.
func compare(b *testing.B, sides []side, callers []int) {
	t := table.NewWriter()
	t.AppendHeader(table.Row{"callers", "side", "calls/s", "server µs/call", "p50", "p99", "ratio", "rounds", "busy %", "steal %"})
	for _, n := range callers {
		m := alternate(b, sides, n)
		ratio := m.median(0).calls / m.median(1).calls
		for i, s := range sides {
			r := m.median(i)
			row := table.Row{n, s.String(), fmt.Sprintf("%.0f", r.calls), fmt.Sprintf("%.0f", float64(r.cost)/1e3), r.p50.Round(time.Microsecond), r.p99.Round(time.Microsecond), "", "", "", ""}
			if i == 0 {
				copy(row[6:], table.Row{fmt.Sprintf("%.2f", ratio), m.describe(), fmt.Sprintf("%.0f", 100*m.busy), fmt.Sprintf("%.1f", 100*m.steal)})
			}
			t.AppendRow(row)
		}
		t.AppendSeparator()
		b.ReportMetric(ratio, fmt.Sprintf("ratio@%d", n))
	}
	// Not b.Log, which cuts off after ten lines.
	fmt.Printf("\n%s\n", t.Render())
}

// measured is what the rounds of all sides came to at one number of callers.
type measured struct {
	// good and noisy rounds, by side.
	good, noisy [][]round
	busy, steal float64
}

// alternate runs rounds of the sides in turn until enough of them were quiet.
func alternate(b *testing.B, sides []side, callers int) *measured {
	m := &measured{good: make([][]round, len(sides)), noisy: make([][]round, len(sides))}
	for _, s := range sides {
		if _, err := s.run(b.Context(), callers, roundLength/2); err != nil { // connects, and warms up
			b.Fatal(err)
		}
	}
	whole := readProcessors(b)
	for tried := 0; tried < maxRounds && len(m.good[0]) < rounds; tried++ {
		before, taken := readProcessors(b), make([]round, len(sides))
		for i, s := range sides {
			taken[i] = oneRound(b, s, callers)
		}
		_, steal := readProcessors(b).since(before)
		m.add(taken, steal > maxSteal)
	}
	m.busy, m.steal = readProcessors(b).since(whole)
	return m
}

func oneRound(b *testing.B, s side, callers int) round {
	began, before := time.Now(), spent(b, s.pids())
	r, err := s.run(b.Context(), callers, roundLength)
	if err != nil {
		b.Fatal(err)
	}
	calls := r.calls * time.Since(began).Seconds()
	r.cost = time.Duration(float64(spent(b, s.pids())-before) / calls)
	return r
}

func (m *measured) add(taken []round, noisy bool) {
	to := m.good
	if noisy {
		to = m.noisy
	}
	for i, r := range taken {
		to[i] = append(to[i], r)
	}
}

// used returns the rounds that count: the quiet ones, or all when too few were quiet.
func (m *measured) used(side int) []round {
	if len(m.good[side]) < rounds {
		return slices.Concat(m.good[side], m.noisy[side])
	}
	return m.good[side]
}

func (m *measured) describe() string {
	if len(m.good[0]) < rounds {
		return fmt.Sprintf("%d, %d of them noisy", len(m.used(0)), len(m.noisy[0]))
	}
	return fmt.Sprint(len(m.used(0)))
}

// median returns the median of each figure over the rounds.
func (m *measured) median(side int) round {
	used := m.used(side)
	return round{
		calls: middle(used, func(r round) float64 { return r.calls }),
		p50:   middle(used, func(r round) time.Duration { return r.p50 }),
		p99:   middle(used, func(r round) time.Duration { return r.p99 }),
		cost:  middle(used, func(r round) time.Duration { return r.cost }),
	}
}

func middle[T cmp.Ordered](rounds []round, figure func(round) T) T {
	var all []T
	for _, r := range rounds {
		all = append(all, figure(r))
	}
	slices.Sort(all)
	return all[len(all)/2]
}
