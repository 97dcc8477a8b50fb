package main

import (
	"bytes"
	"context"
	"fmt"
	"io"
	"time"

	"github.com/spf13/cobra"

	kvgatev1 "kvgate/rpc/kvgate/v1"
)

const topHelp = `Shows pools, the head of each queue and the engines, again and again, until Ctrl-C. On a terminal each
view takes the place of the one before; elsewhere they follow each other. A server that does not answer is
said, and asked again.`

// The escape sequences of a view that takes the place of the one before.
const (
	topHome    = "\x1b[H"
	topEndLine = "\x1b[K\n"
	topEndView = "\x1b[J"
	topClear   = "\x1b[2J"
)

const (
	topQueue       = 10
	topMinInterval = 100 * time.Millisecond
)

// top is the live view.
type top struct {
	client   *client
	interval time.Duration
	views    int
}

func newTopCommand(m *Main) *cobra.Command {
	t := &top{}
	cmd := &cobra.Command{
		Use: "top", GroupID: groupObserve, Short: "Watch pools, queues and engines live", Long: topHelp,
		Example: "  kvgate top\n  kvgate top --pool qwen --interval 5s\n  kvgate top --views 1", Args: maxArgs(0, "flags only"),
	}
	cmd.Flags().DurationVar(&t.interval, "interval", time.Second, "time between two views")
	cmd.Flags().IntVar(&t.views, "views", 0, "end after so many views; 0 never ends")
	return clientCommandWith(m, cmd, []string{outputTable}, func(ctx context.Context, c *client, _ []string) error {
		if t.interval < topMinInterval {
			return badValue("interval", t.interval.String(), "a duration of 100ms or more")
		}
		if t.views < 0 {
			return badValue("views", fmt.Sprint(t.views), "0 or more")
		}
		t.client = c
		return t.run(ctx)
	})
}

// run shows views until ctx ends, which is how people end it, or enough were shown.
func (t *top) run(ctx context.Context) error {
	terminal := isTerminal(t.client.m.stdout)
	if terminal {
		fmt.Fprint(t.client.m.stdout, topClear)
	}
	ticker := time.NewTicker(t.interval)
	defer ticker.Stop()
	for shown := 1; ; shown++ {
		err := t.show(ctx, terminal)
		if ctx.Err() != nil {
			return nil
		}
		if shown == t.views {
			return err
		}
		select {
		case <-ticker.C:
		case <-ctx.Done():
			return nil
		}
	}
}

// show writes one view. What went wrong is part of it.
func (t *top) show(ctx context.Context, terminal bool) error {
	var view bytes.Buffer
	failed := t.view(ctx, &view)
	if failed != nil {
		fmt.Fprintln(&view, clean(errorLine(mark(failed))))
	}
	fmt.Fprintln(&view)
	out := view.Bytes()
	if terminal {
		out = bytes.ReplaceAll(out, []byte("\n"), []byte(topEndLine))
		out = append(append([]byte(topHome), out...), topEndView...)
	}
	if _, err := t.client.m.stdout.Write(out); err != nil {
		return err
	}
	return failed
}

func (t *top) view(ctx context.Context, w io.Writer) error {
	c := t.client
	status, err := call(ctx, c, (*endpoint).GetStatus, &kvgatev1.GetStatusRequest{})
	shown := c.m.Now()
	if end := recordingEnd(status); !end.IsZero() {
		shown = end
	}
	fmt.Fprintf(w, "%s  ", shown.In(c.m.Location).Format(time.DateTime))
	if err != nil {
		return err
	}
	fmt.Fprintf(w, "leader %s, term %d, %d of %d nodes may still fail, health %s\n\n",
		orElse(clean(status.LeaderId), "none"), status.Term, status.FailureTolerance, len(status.Nodes), clean(status.Health))
	// A node that knows no leader shows what it last knew.
	stale := status.LeaderId == ""
	_, budgets, err := readBudgets(ctx, c, stale)
	if err != nil {
		return err
	}
	if err := writeBudgets(w, budgets); err != nil {
		return err
	}
	for _, b := range budgets {
		if err := t.pool(ctx, w, b, stale); err != nil {
			return err
		}
	}
	return nil
}

// pool writes a pool's engines, and the head of its queue when there is one.
func (t *top) pool(ctx context.Context, w io.Writer, b *kvgatev1.GetBudgetResponse, stale bool) error {
	engines, err := call(ctx, t.client, (*endpoint).ListEngines, &kvgatev1.ListEnginesRequest{Pool: b.Pool, Stale: stale})
	if err != nil {
		return err
	}
	fmt.Fprintf(w, "\n%s: engines\n", clean(b.Pool))
	if err := writeEngines(w, engines); err != nil || b.Waiting == 0 {
		return err
	}
	queue, err := call(ctx, t.client, (*endpoint).ListWaiters, &kvgatev1.ListWaitersRequest{Pool: b.Pool, Stale: stale, PageSize: topQueue})
	if err != nil {
		return err
	}
	fmt.Fprintf(w, "\n%s: first %d of %s that wait\n", clean(b.Pool), len(queue.Waiters), number(b.Waiting))
	return writeWaiters(w, queue.Waiters)
}
