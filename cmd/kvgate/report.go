package main

import (
	"context"
	"errors"

	"github.com/spf13/cobra"

	"kvgate/ledger"
	"kvgate/rpc/report"
	"kvgate/store"
)

const reportHelp = `Writes one HTML file about one pool and a time window: what went wrong and what was changed, budget, queue, decisions,
pressure and eviction over time, how long tickets waited, the ten worst waits explained, and what each session did. The file needs
no network and may be mailed. Without --since and --until it is about all that the journal has kept.`

const reportExample = `  kvgate report --since "yesterday 03:00" --until "yesterday 03:30"
  kvgate report --from last-night.kvgate --out night.html`

func newReportCommand(m *Main) *cobra.Command {
	var since, until, out string
	cmd := &cobra.Command{
		Use: "report", GroupID: groupObserve, Short: "Write an HTML report about a time window",
		Long: reportHelp, Example: reportExample, Args: maxArgs(0, "flags only"),
	}
	fs := cmd.Flags()
	windowFlags(fs, &since, &until)
	fs.StringVarP(&out, "out", "o", "kvgate-report.html", "file to write; - writes to standard output")
	return clientCommandWith(m, cmd, []string{outputTable}, func(ctx context.Context, c *client, _ []string) error {
		w, err := c.window(ctx, since, until)
		if err != nil {
			return err
		}
		return writeReport(ctx, c, w, out)
	})
}

func writeReport(ctx context.Context, c *client, w timeWindow, out string) (err error) {
	book, err := c.readBook(ctx)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, book.close()) }()
	from, err := book.wall(w.since)
	if err != nil {
		return err
	}
	until, err := book.wall(w.until)
	if err != nil {
		return err
	}
	page, err := report.Build(report.Input{
		Journal: book.events.Each, Settings: book.settings, Pool: orElse(c.pool, ledger.DefaultPool),
		From: from, Until: until, Zone: c.m.Location,
		Source: c.source(), Kept: book.keptSince(c.m.Location),
		Made: "Made " + c.m.Now().In(c.m.Location).Format("2006-01-02 15:04 MST") + " by kvgate " + buildVersion() + ".",
	})
	if err != nil {
		return err
	}
	if page.Empty {
		c.note("nothing happened in this pool and window")
	}
	if out == "-" {
		return page.Write(c.m.stdout)
	}
	if err := store.WriteFile(out, page.Write); err != nil {
		return err
	}
	c.note("wrote %s", out)
	return nil
}

// source says where the journal is read from.
func (c *client) source() string {
	if c.from != "" {
		return c.from
	}
	return c.endpoints[c.current].url
}
