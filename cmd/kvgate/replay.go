package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"slices"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"kvgate/ledger"
	"kvgate/rpc"
	kvgatev1 "kvgate/rpc/kvgate/v1"
	"kvgate/rpc/whatif"
)

const replayHelp = `Runs the recorded arrivals and holding times of one pool once more through the real ledger, in virtual time and under other
settings, and shows both side by side. FILE is a snapshot or the directory of a stopped node; without it a server is asked. With
no --set it decides as recorded. What a replay cannot know is said below the table.`

const replayExample = `  kvgate replay last-night.kvgate --set headroom=0.8 --set max_wait=60s
  kvgate replay --since 03:00 --until 03:30 --set pressure_threshold=0.95`

// replayable are the settings that change what a replay decides.
var replayable = []string{
	"admission", "headroom", "pressureThreshold", "expectedDecodeCap", "maxWait", "scope", "leaseTtl", "maxTtl", "detachGrace", "oversize", "maxWaiters",
}

func newReplayCommand(m *Main) *cobra.Command {
	var sets []string
	var since, until string
	cmd := &cobra.Command{
		Use: "replay [FILE]", GroupID: groupObserve, Short: "Replay what was recorded under other settings",
		Long: replayHelp, Example: replayExample, Args: maxArgs(1, "one file"),
	}
	fs := cmd.Flags()
	fs.StringArrayVar(&sets, "set", nil, "setting to replay with, as NAME=VALUE; may be repeated")
	windowFlags(fs, &since, &until)
	options := &clientOptions{}
	fs.AddFlagSet(options.flags(outputTable, outputJSON))
	cmd.RunE = m.run(func(ctx context.Context, args []string) (err error) {
		change, err := parseChange(sets)
		if err != nil {
			return err
		}
		if len(args) == 1 {
			if options.from, err = idArgument(args, "from", options.from); err != nil {
				return err
			}
		}
		c, err := newClient(m, *options)
		if err != nil {
			return err
		}
		defer func() {
			if closing := c.close(); err == nil {
				err = closing
			}
		}()
		w, err := c.window(ctx, since, until)
		if err != nil {
			return err
		}
		return runReplay(ctx, c, w, change)
	})
	return cmd
}

// parseChange reads NAME=VALUE words into what changes the recorded settings; nil for none.
func parseChange(sets []string) (func(*ledger.Settings) error, error) {
	if len(sets) == 0 {
		return nil, nil
	}
	wanted := &kvgatev1.Settings{}
	for _, word := range sets {
		name, value, ok := strings.Cut(word, "=")
		if !ok {
			return nil, badValue("set", word, "NAME=VALUE such as headroom=0.8")
		}
		s, err := settingNamed(name)
		if err != nil {
			return nil, err
		}
		if !slices.Contains(replayable, s.name()) {
			return nil, badValue("set", s.name(), "a setting that a replay can change: "+oneOf(replayable))
		}
		if err := s.set(wanted, value); err != nil {
			return nil, err
		}
	}
	return func(set *ledger.Settings) error {
		rpc.ApplySettings(wanted, set)
		return nil
	}, nil
}

func runReplay(ctx context.Context, c *client, w timeWindow, change func(*ledger.Settings) error) (err error) {
	book, err := c.readBook(ctx)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, book.close()) }()
	pool := orElse(c.pool, ledger.DefaultPool)
	within := func(fn func(*kvgatev1.JournalEvent)) error {
		return book.events.Each(func(e *kvgatev1.JournalEvent) {
			if w.contains(e) {
				fn(e)
			}
		})
	}
	x, err := whatif.Run(whatif.Input{Journal: within, Pool: pool, Settings: book.settings[pool], Change: change})
	if err != nil {
		return err
	}
	if err := c.print(func(out io.Writer) error { return writeReplayJSON(out, x) }, func(out io.Writer) error { return writeReplay(out, x) }); err != nil {
		return err
	}
	c.noteKept(book.kept)
	return nil
}

func writeReplayJSON(out io.Writer, x *whatif.Result) error {
	raw, err := json.Marshal(x)
	if err != nil {
		return err
	}
	return writeIndented(out, raw)
}

func writeReplay(out io.Writer, x *whatif.Result) error {
	count := func(n int64) string { return number(n) }
	seconds := func(s float64) string { return humanDuration(time.Duration(s * float64(time.Second))) }
	a, b := x.Recorded, x.Replayed
	rows := [][]string{
		{"admitted", count(a.Admitted), count(b.Admitted)}, {"  at once", count(a.AdmittedAtOnce), count(b.AdmittedAtOnce)},
		{"queued", count(a.Queued), count(b.Queued)}, {"bypassed", count(a.Bypassed), count(b.Bypassed)},
	}
	for _, reason := range x.Reasons() {
		rows = append(rows, []string{"  " + reason, count(a.ByReason[reason]), count(b.ByReason[reason])})
	}
	rows = append(rows, [][]string{
		{"leases taken back", count(a.Reclaimed), count(b.Reclaimed)},
		{"wait, mean", seconds(a.WaitMean), seconds(b.WaitMean)}, {"wait, median", seconds(a.WaitP50), seconds(b.WaitP50)},
		{"wait, p90", seconds(a.WaitP90), seconds(b.WaitP90)}, {"wait, p99", seconds(a.WaitP99), seconds(b.WaitP99)},
		{"wait, longest", seconds(a.WaitMax), seconds(b.WaitMax)},
		{"utilisation", percent(a.Utilisation), percent(b.Utilisation)}, {"peak reserved", count(a.PeakReserved), count(b.PeakReserved)},
	}...)
	if err := writeTable(out, "nothing", []column{left(""), right("recorded"), right("replayed")}, rows); err != nil {
		return err
	}
	fmt.Fprintln(out, "\nWhat a replay cannot know, and what this one took for granted:")
	for _, note := range x.Notes {
		if _, err := fmt.Fprintln(out, "- "+note); err != nil {
			return err
		}
	}
	return nil
}
