package main

import (
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"io"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/HdrHistogram/hdrhistogram-go"
	"github.com/spf13/cobra"

	rpcclient "kvgate/rpc/client"
)

const benchHelp = `Has concurrent callers acquire and release as fast as they can, over the Go client, and prints pairs per
second and how long an acquire and a release take. A pair counts when its release is known to be carried out,
tickets that bypassed are counted apart.
The tickets are real: point it at a pool that does no other work, or their tokens will make others wait.
Ctrl-C ends it early, and everything that was taken is given back.`

// benchFlush bounds how long the end waits for releases that are not known yet.
const benchFlush = 10 * time.Second

// benchOptions are the flags of bench.
type benchOptions struct {
	callers   int
	duration  time.Duration
	hold      time.Duration
	tokens    int64
	multiplex bool
}

func newBenchCommand(m *Main) *cobra.Command {
	var o benchOptions
	cmd := &cobra.Command{
		Use: "bench", GroupID: groupOperate, Short: "Put load on a cluster and measure it", Long: benchHelp,
		Example: "  kvgate bench --callers 256 --duration 30s\n  kvgate bench --pool qwen --tokens 12000 --hold 50ms --output json",
		Args:    maxArgs(0, "flags only"),
	}
	fs := cmd.Flags()
	fs.IntVar(&o.callers, "callers", 64, "concurrent tickets")
	fs.DurationVar(&o.duration, "duration", 10*time.Second, "how long to go on")
	fs.DurationVar(&o.hold, "hold", 0, "how long each lease is held")
	fs.Int64Var(&o.tokens, "tokens", 1, "reservation of each ticket, in tokens")
	fs.BoolVar(&o.multiplex, "multiplex", true, "put the calls of all callers on one stream; false makes a call for each")
	return clientCommand(m, cmd, func(ctx context.Context, c *client, _ []string) error {
		if err := o.check(); err != nil {
			return err
		}
		return runBench(ctx, c, o)
	})
}

func (o *benchOptions) check() error {
	switch {
	case o.callers < 1 || o.callers > 100_000:
		return badValue("callers", fmt.Sprint(o.callers), "1 to 100000")
	case o.duration <= 0:
		return badValue("duration", o.duration.String(), "a duration above 0 such as 10s")
	case o.hold < 0:
		return badValue("hold", o.hold.String(), "a duration of 0 or more")
	case o.tokens < 1:
		return badValue("tokens", fmt.Sprint(o.tokens), "1 or more")
	}
	return nil
}

// benchRun is one run of bench.
type benchRun struct {
	benchOptions
	pool   string
	client *rpcclient.Client
	run    string
	ticket atomic.Int64
	pairs  atomic.Int64

	// mu guards the histograms, in microseconds.
	mu               sync.Mutex
	acquire, release *hdrhistogram.Histogram
}

func runBench(ctx context.Context, c *client, o benchOptions) (err error) {
	if c.offline != nil {
		return usagef("from: bench needs a running cluster")
	}
	l := &benchRun{benchOptions: o, pool: c.pool, run: "bench-" + rand.Text()[:8], acquire: newHistogram(), release: newHistogram()}
	if l.client, err = c.library(rpcclient.WithMultiplex(o.multiplex)); err != nil {
		return err
	}
	defer func() {
		flush, cancel := context.WithTimeout(context.WithoutCancel(ctx), benchFlush)
		defer cancel()
		err = errors.Join(err, l.client.Close(flush))
	}()
	began := time.Now()
	err = l.drive(ctx, func(elapsed time.Duration, pairs int64) {
		c.note("%s: %s pairs/s", elapsed.Round(time.Second), number(pairs))
	})
	if err != nil {
		return err
	}
	return c.print(
		func(w io.Writer) error { return l.writeJSON(w, time.Since(began)) },
		func(w io.Writer) error { return l.write(w, time.Since(began)) },
	)
}

// newHistogram counts 1 µs to 1 h with three digits.
func newHistogram() *hdrhistogram.Histogram {
	return hdrhistogram.New(1, time.Hour.Microseconds(), 3)
}

// drive runs the callers and calls progress each second with the pairs of that second. The first error of a
// caller ends all of them; the end of ctx is not an error.
func (l *benchRun) drive(ctx context.Context, progress func(elapsed time.Duration, pairs int64)) error {
	ctx, cancel := context.WithTimeout(ctx, l.duration)
	defer cancel()
	var (
		wg     sync.WaitGroup
		failed = make(chan error, l.callers)
	)
	for range l.callers {
		wg.Go(func() {
			if err := l.call(ctx); err != nil {
				failed <- err
				cancel()
			}
		})
	}
	ended := make(chan struct{})
	go func() { wg.Wait(); close(ended) }()
	ticker := time.NewTicker(time.Second)
	defer ticker.Stop()
	began, before := time.Now(), int64(0)
	for {
		select {
		case <-ticker.C:
			pairs := l.pairs.Load()
			progress(time.Since(began), pairs-before)
			before = pairs
		case <-ended:
			close(failed)
			return <-failed
		}
	}
}

// call makes pairs until ctx ends.
func (l *benchRun) call(ctx context.Context) error {
	for ctx.Err() == nil {
		begin := time.Now()
		grant, err := l.client.Acquire(ctx, rpcclient.Request{
			Pool: l.pool, Ticket: fmt.Sprintf("%s:%d", l.run, l.ticket.Add(1)), ReservationTokens: l.tokens,
		})
		if err != nil {
			return unlessEnded(ctx, err)
		}
		acquired := time.Since(begin)
		l.wait(ctx)
		begin = time.Now()
		// What is not known when ctx ends goes on in the background; see Close.
		if err := grant.ReleaseWait(ctx); err != nil {
			return unlessEnded(ctx, err)
		}
		if grant.Action == rpcclient.Admit {
			l.record(acquired, time.Since(begin))
			l.pairs.Add(1)
		}
	}
	return nil
}

// wait holds the lease.
func (l *benchRun) wait(ctx context.Context) {
	if l.hold == 0 {
		return
	}
	timer := time.NewTimer(l.hold)
	defer timer.Stop()
	select {
	case <-timer.C:
	case <-ctx.Done():
	}
}

func unlessEnded(ctx context.Context, err error) error {
	if ctx.Err() != nil {
		return nil
	}
	return err
}

func (l *benchRun) record(acquire, release time.Duration) {
	l.mu.Lock()
	defer l.mu.Unlock()
	// Longer ones than an hour count as one hour.
	most := time.Hour.Microseconds()
	_ = l.acquire.RecordValue(min(most, acquire.Microseconds()))
	_ = l.release.RecordValue(min(most, release.Microseconds()))
}

// benchQuantiles are what is printed of a histogram.
var benchQuantiles = []float64{50, 90, 99, 99.9}

func (l *benchRun) write(w io.Writer, elapsed time.Duration) error {
	pairs, stats := l.pairs.Load(), l.client.Stats()
	details := [][2]string{
		{"pairs", number(pairs)},
		{"pairs per second", number(int64(float64(pairs) / elapsed.Seconds()))},
		{"callers", number(int64(l.callers))},
		{"admitted", number(stats.Admitted)},
		{"waited", number(stats.Waited)},
	}
	for _, reason := range sortedReasons(stats) {
		details = append(details, [2]string{"bypassed " + word(reason), number(stats.Bypassed[reason])})
	}
	if err := writeDetails(w, details); err != nil {
		return err
	}
	fmt.Fprintln(w)
	columns := []column{left("call")}
	for _, q := range benchQuantiles {
		columns = append(columns, right(fmt.Sprintf("p%v", q)))
	}
	columns = append(columns, right("max"))
	return writeTable(w, "no calls", columns, [][]string{quantiles("acquire", l.acquire), quantiles("release", l.release)})
}

func sortedReasons(stats rpcclient.Stats) []rpcclient.Reason {
	reasons := make([]rpcclient.Reason, 0, len(stats.Bypassed))
	for r := range stats.Bypassed {
		reasons = append(reasons, r)
	}
	slices.Sort(reasons)
	return reasons
}

func quantiles(name string, h *hdrhistogram.Histogram) []string {
	row := []string{name}
	for _, q := range benchQuantiles {
		row = append(row, micros(h.ValueAtPercentile(q)))
	}
	return append(row, micros(h.Max()))
}

func micros(us int64) string { return (time.Duration(us) * time.Microsecond).String() }
