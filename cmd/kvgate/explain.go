package main

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"slices"
	"strings"
	"time"

	"github.com/spf13/cobra"

	kvgatev1 "kvgate/rpc/kvgate/v1"
	"kvgate/rpc/story"
	"kvgate/rpc/words"
)

const explainHelp = `Tells the story of one ticket in plain sentences, from the journal: when it arrived and what it asked for, why it
waited, who was ahead and who held how much, what let it go, and how long each part took. A ticket that came several times has a
story each time; --session, --holder, --group, --since, --until and --nth choose among them. Durations are ledger time, which
stands still while the cluster has no leader.`

// explainFlags choose among the incarnations of a ticket.
type explainFlags struct {
	ticket, session, holder, group string
	since, until                   string
	nth                            int64
}

func newExplainCommand(m *Main) *cobra.Command {
	f := &explainFlags{}
	cmd := &cobra.Command{
		Use: "explain TICKET", Short: "Tell the story of one ticket",
		Long: explainHelp, Example: "  kvgate journal explain req-17:0\n  kvgate journal explain req-17:0 --from last-night.kvgate --since 03:00 --until 03:30",
		Args: maxArgs(1, "one ticket"),
	}
	fs := cmd.Flags()
	fs.StringVar(&f.ticket, "ticket", "", "the ticket, instead of as argument")
	fs.StringVar(&f.session, "session", "", "only the times when it belonged to this session")
	fs.StringVar(&f.holder, "holder", "", "only the times when it came from this holder")
	fs.StringVar(&f.group, "group", "", "only the times when it belonged to this group")
	windowFlags(fs, &f.since, &f.until)
	countVar(fs, &f.nth, "nth", 0, "only the n-th time it came; 0 shows all")
	return clientCommand(m, cmd, func(ctx context.Context, c *client, args []string) error {
		var err error
		if f.ticket, err = idArgument(args, "ticket", f.ticket); err != nil {
			return err
		}
		w, err := c.window(ctx, f.since, f.until)
		if err != nil {
			return err
		}
		return explain(ctx, c, f, w)
	})
}

// explained is the JSON of `journal explain`.
type explained struct {
	story.Story
	Nth int `json:"nth"`
	Of  int `json:"of"`
}

func explain(ctx context.Context, c *client, f *explainFlags, w timeWindow) error {
	told, err := c.settingsTold(ctx)
	if err != nil {
		return err
	}
	var lives []*story.Life
	keep := func(l *story.Life) {
		if l.Ticket == f.ticket {
			lives = append(lives, l)
		}
	}
	r := &story.Reader{Watch: func(_, ticket string) bool { return ticket == f.ticket }, Settings: told, Done: keep}
	kept, err := c.eachEvent(ctx, &kvgatev1.ReadJournalRequest{}, r.Read)
	if err != nil {
		return err
	}
	r.Open(keep)
	stories := f.choose(lives, r.Now, w)
	if len(stories) == 0 {
		c.noteKept(kept)
		return fmt.Errorf("not_found: the journal tells of no ticket %q that fits the filters", f.ticket)
	}
	if err := c.print(func(out io.Writer) error { return writeStoriesJSON(out, stories) },
		func(out io.Writer) error { return writeStories(out, stories, c.m.Location) }); err != nil {
		return err
	}
	c.noteKept(kept)
	return nil
}

// choose returns the stories that fit the filters, of all lives of the ticket.
func (f *explainFlags) choose(all []*story.Life, now int64, w timeWindow) []explained {
	slices.SortStableFunc(all, func(a, b *story.Life) int {
		return cmp.Or(strings.Compare(a.Pool, b.Pool), cmp.Compare(a.First.Index, b.First.Index), cmp.Compare(a.First.N, b.First.N))
	})
	var out []explained
	for i, l := range all {
		switch {
		case f.session != "" && l.Session != f.session, f.holder != "" && l.Holder != f.holder, f.group != "" && l.Group != f.group:
		case f.nth > 0 && int(f.nth) != i+1:
		case !w.until.isZero() && !less(l.First, w.until), l.Ended != nil && w.before(l.Ended):
		default:
			out = append(out, explained{story.Tell(l, now), i + 1, len(all)})
		}
	}
	return out
}

func writeStoriesJSON(out io.Writer, stories []explained) error {
	raw, err := json.Marshal(map[string]any{"stories": stories})
	if err != nil {
		return err
	}
	return writeIndented(out, raw)
}

func writeStories(out io.Writer, stories []explained, zone *time.Location) error {
	for i, s := range stories {
		if i > 0 {
			fmt.Fprintln(out)
		}
		head := "Ticket " + s.Ticket + ", pool " + s.Pool
		if s.Of > 1 {
			head += fmt.Sprintf(", time %d of %d", s.Nth, s.Of)
		}
		fmt.Fprintln(out, clean(head))
		for _, x := range s.Sentences {
			fmt.Fprintf(out, "%s  %s\n", x.At.In(zone).Format(wallLayout), clean(x.Text))
		}
		if _, err := fmt.Fprintln(out, s.Sum); err != nil {
			return err
		}
	}
	return nil
}

// book is a whole journal, on disk, with what is needed to read it.
type book struct {
	events   *story.Spool
	settings map[string]*kvgatev1.Settings
	kept     *kvgatev1.ReadJournalResponse
}

// bookPage is how many events one call asks for.
const bookPage = 10_000

// readBook reads everything that the journal has kept. Whoever asks for it closes it.
func (c *client) readBook(ctx context.Context) (b *book, err error) {
	b = &book{}
	if b.events, err = story.NewSpool(); err != nil {
		return nil, err
	}
	var kept error
	b.kept, err = c.eachEvent(ctx, &kvgatev1.ReadJournalRequest{}, func(e *kvgatev1.JournalEvent) {
		if kept == nil {
			_, kept = b.events.Append(e)
		}
	})
	if err = errors.Join(err, kept); err == nil {
		err = b.events.Flush()
	}
	if err == nil {
		b.settings, err = c.settingsNow(ctx)
	}
	if err != nil {
		return nil, errors.Join(err, b.close())
	}
	return b, nil
}

func (b *book) close() error { return b.events.Close() }

// eachEvent calls fn with every event that matches, in order, and returns the first page without its events.
func (c *client) eachEvent(ctx context.Context, req *kvgatev1.ReadJournalRequest, fn func(*kvgatev1.JournalEvent)) (kept *kvgatev1.ReadJournalResponse, err error) {
	req.PageSize = bookPage
	for {
		page, err := call(ctx, c, (*endpoint).ReadJournal, req)
		if err != nil {
			return nil, err
		}
		for _, e := range page.Events {
			fn(e)
		}
		if kept == nil {
			kept = &kvgatev1.ReadJournalResponse{FirstKeptIndex: page.FirstKeptIndex, FirstKeptTime: page.FirstKeptTime, LastIndex: page.LastIndex}
		}
		if req.PageToken = page.NextPageToken; req.PageToken == "" {
			return kept, nil
		}
	}
}

// settingsNow returns the settings of every pool.
func (c *client) settingsNow(ctx context.Context) (map[string]*kvgatev1.Settings, error) {
	pools, err := call(ctx, c, (*endpoint).ListPools, &kvgatev1.ListPoolsRequest{})
	if err != nil {
		return nil, err
	}
	now := map[string]*kvgatev1.Settings{}
	for _, pool := range pools.Pools {
		got, err := call(ctx, c, (*endpoint).GetSettings, &kvgatev1.GetSettingsRequest{Pool: pool})
		if err != nil {
			return nil, err
		}
		now[pool] = got.Settings
	}
	return now, nil
}

// settingsTold returns the settings that the pools had before the first event.
func (c *client) settingsTold(ctx context.Context) (map[string]*kvgatev1.Settings, error) {
	now, err := c.settingsNow(ctx)
	if err != nil {
		return nil, err
	}
	var changes []*kvgatev1.JournalEvent
	_, err = c.eachEvent(ctx, &kvgatev1.ReadJournalRequest{Kinds: []string{"settings"}}, func(e *kvgatev1.JournalEvent) { changes = append(changes, e) })
	return story.SettingsBefore(changes, now), err
}

// keptSince words from where on the journal is kept.
func (b *book) keptSince(zone *time.Location) string {
	text := "index " + words.Number(b.kept.FirstKeptIndex)
	if b.kept.FirstKeptTime != nil {
		text += ", " + b.kept.FirstKeptTime.AsTime().In(zone).Format(wallLayout)
	}
	return text
}

// wall returns a moment as wall time: for ledger time that of the first event that is not before it.
func (b *book) wall(p moment) (at time.Time, err error) {
	if !p.inLedger {
		return p.wall, nil
	}
	err = b.events.Each(func(e *kvgatev1.JournalEvent) {
		if at.IsZero() && e.WallTime != nil && !less(e, p) {
			at = e.WallTime.AsTime()
		}
	})
	return at, err
}
