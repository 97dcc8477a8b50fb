package main

import (
	"context"
	"encoding/csv"
	"errors"
	"fmt"
	"io"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"
	"google.golang.org/protobuf/types/known/durationpb"
	"google.golang.org/protobuf/types/known/timestamppb"

	kvgatev1 "kvgate/rpc/kvgate/v1"
	"kvgate/rpc/words"
)

const journalLimit = 1000

const journalHelp = `Shows what happened, in order, from the journal of a running cluster, or of a snapshot file or a stopped node's
directory with --from. --since and --until take times such as 2006-01-02T15:04:05Z, "2006-01-02 15:04", 03:12, "yesterday 03:12",
-10m, "10m ago", a Unix time, or ledger:1h30m for ledger time. Without --pool it shows all pools. The table leaves out samples of
the engines' usage unless --kind asks for them. Wall times are for people; the order is that of the log. With --from, and
from a server of ` + "`snapshot serve`" + `, times without a date count back from the end of what was saved. In CSV a text that begins with =, +, - or @ has a ' before it, so that no
spreadsheet takes it for a formula; JSONL has it as it is.`

const journalExample = `  kvgate journal --since -10m
  kvgate journal --ticket req-17:0
  kvgate journal --kind bypassed,lease_expired --since 09:00 --until 10:30 --output csv
  kvgate journal --limit 0 --output jsonl
  kvgate journal --follow --kind settings,epoch,degraded
  kvgate journal explain req-17:0 --from last-night.kvgate`

// journalFlags are the filters of `journal` as written.
type journalFlags struct {
	req          kvgatev1.ReadJournalRequest
	since, until string
	limit        int64
	// limited: --limit was given.
	limited bool
	follow  bool
}

func newJournalCommand(m *Main) *cobra.Command {
	f := &journalFlags{}
	cmd := &cobra.Command{
		Use: "journal", GroupID: groupObserve, Short: "Show what happened, from the journal",
		Long: journalHelp, Example: journalExample, Args: maxArgs(0, "flags only"),
	}
	fs := cmd.Flags()
	fs.StringVar(&f.req.TicketId, "ticket", "", "only events of this ticket")
	fs.StringVar(&f.req.SessionId, "session", "", "only events of this session")
	fs.StringVar(&f.req.HolderId, "holder", "", "only events of this holder")
	fs.StringVar(&f.req.GroupId, "group", "", "only events of this group")
	fs.StringSliceVar(&f.req.Kinds, "kind", nil, "only events of these kinds, e.g. admitted,bypassed")
	windowFlags(fs, &f.since, &f.until)
	fs.BoolVarP(&f.follow, "follow", "f", false, "go on with events as they happen; without --since and --from-index only those")
	fs.Uint64Var(&f.req.FromIndex, "from-index", 0, "only events from this log index on")
	staleFlag(cmd, &f.req.Stale)
	limitFlag(cmd, &f.limit, journalLimit)
	outputs := []string{outputTable, outputJSON, outputJSONL, outputCSV}
	cmd.AddCommand(newExplainCommand(m))
	return clientCommandWith(m, cmd, outputs, func(ctx context.Context, c *client, _ []string) error {
		f.limited = cmd.Flags().Changed("limit")
		if f.follow && f.until != "" {
			return usagef("until: has no meaning with --follow")
		}
		window, err := f.resolve(ctx, c)
		if err != nil {
			return err
		}
		if f.follow {
			return follow(ctx, c, f, window)
		}
		return journal(ctx, c, f)
	})
}

// windowFlags define --since and --until.
func windowFlags(fs *pflag.FlagSet, since, until *string) {
	fs.StringVar(since, "since", "", "only events from this time on")
	fs.StringVar(until, "until", "", "only events before this time")
}

// timeWindow is from since until before until; a zero end is open.
type timeWindow struct{ since, until moment }

// window reads --since and --until. For a recording, of --from or served by a server, "03:12" and "-15m" count back
// from its end, not from today: that is where its events are. Servers are asked only when that matters.
func (c *client) window(ctx context.Context, since, until string) (timeWindow, error) {
	now := c.m.Now().In(c.m.Location)
	w, err := parseWindow(now, since, until)
	a, b := relative(since, now), relative(until, now)
	if !a && !b || err != nil && a == b {
		return w, err
	}
	end, asked := c.recordedUntil(ctx)
	if asked != nil || end.IsZero() {
		return w, errors.Join(err, asked)
	}
	end = end.In(c.m.Location)
	w, err = parseWindow(end, since, until)
	if err == nil {
		c.note("times count back from the snapshot's end, %s:%s", end.Format(wallLayout), w.in(c.m.Location))
	}
	return w, err
}

// relative reports that a time is another one when it is asked for at another time.
func relative(value string, now time.Time) bool {
	// More than a year, so that dates without a year are, too.
	then := now.Add(-400*24*time.Hour - 5*time.Hour - 17*time.Minute)
	a, err := timeFlag("", value, now)
	b, errThen := timeFlag("", value, then)
	return err == nil && errThen == nil && !a.equal(b)
}

// in words the ends of a window that are wall times.
func (w *timeWindow) in(zone *time.Location) (out string) {
	if !w.since.wall.IsZero() {
		out += " since " + w.since.wall.In(zone).Format(wallLayout)
	}
	if !w.until.wall.IsZero() {
		out += " until " + w.until.wall.In(zone).Format(wallLayout)
	}
	return out
}

func parseWindow(now time.Time, since, until string) (w timeWindow, err error) {
	if w.since, err = timeFlag("since", since, now); err != nil {
		return w, err
	}
	if w.until, err = timeFlag("until", until, now); err != nil {
		return w, err
	}
	a, b := w.since, w.until
	if !a.isZero() && !b.isZero() && a.inLedger == b.inLedger && (b.wall.Before(a.wall) || b.ledger < a.ledger) {
		return w, badValue("until", until, "a time after --since")
	}
	return w, nil
}

// contains reports that an event is within the window.
func (w *timeWindow) contains(e *kvgatev1.JournalEvent) bool {
	return !w.before(e) && (w.until.isZero() || less(e, w.until))
}

// before reports that an event comes before the window.
func (w *timeWindow) before(e *kvgatev1.JournalEvent) bool {
	return !w.since.isZero() && less(e, w.since)
}

func less(e *kvgatev1.JournalEvent, p moment) bool {
	if p.inLedger {
		return e.LedgerTime < p.ledger
	}
	return e.WallTime.AsTime().Before(p.wall)
}

// resolve turns the times people wrote into the request's.
func (f *journalFlags) resolve(ctx context.Context, c *client) (timeWindow, error) {
	w, err := c.window(ctx, f.since, f.until)
	f.req.Pool, f.req.Since, f.req.Until = c.pool, timestamp(w.since.wall), timestamp(w.until.wall)
	if w.since.inLedger {
		f.req.SinceLedgerTime = &w.since.ledger
	}
	if w.until.inLedger {
		f.req.UntilLedgerTime = &w.until.ledger
	}
	return w, err
}

func timestamp(t time.Time) *timestamppb.Timestamp {
	if t.IsZero() {
		return nil
	}
	return timestamppb.New(t)
}

func journal(ctx context.Context, c *client, f *journalFlags) error {
	answer := &kvgatev1.ReadJournalResponse{}
	samples := 0
	write := f.writer(c, answer)
	next, err := eachPage(f.limit, func(size int32, token string) ([]*kvgatev1.JournalEvent, string, error) {
		f.req.PageSize, f.req.PageToken = size, token
		page, err := call(ctx, c, (*endpoint).ReadJournal, &f.req)
		if err != nil {
			return nil, "", err
		}
		answer.FirstKeptIndex, answer.LastIndex = page.FirstKeptIndex, page.LastIndex
		if page.FirstKeptTime != nil {
			answer.FirstKeptTime = page.FirstKeptTime
		}
		shown, hidden := f.shown(c, page.Events)
		samples += hidden
		return shown, page.NextPageToken, nil
	}, write)
	answer.NextPageToken = next
	if err == nil {
		err = writeJournal(c, answer)
	}
	if err != nil {
		return err
	}
	c.noteKept(answer)
	if samples > 0 {
		c.note("%s of the engines' usage left out; --kind usage shows them", words.Count(samples, "sample", "samples"))
	}
	if next != "" {
		c.note("more events match than --limit %d shows; raise it or narrow the filters", f.limit)
	}
	return nil
}

// shown leaves samples of usage out of a table that was not asked for them.
func (f *journalFlags) shown(c *client, events []*kvgatev1.JournalEvent) (shown []*kvgatev1.JournalEvent, hidden int) {
	if c.output != outputTable || len(f.req.Kinds) > 0 {
		return events, 0
	}
	all := len(events)
	shown = slices.DeleteFunc(events, func(e *kvgatev1.JournalEvent) bool { return e.Kind == "usage" })
	return shown, all - len(shown)
}

// noteKept says from where on the journal is kept.
func (c *client) noteKept(answer *kvgatev1.ReadJournalResponse) {
	if answer.FirstKeptIndex == 0 {
		return
	}
	since := ""
	if answer.FirstKeptTime != nil {
		since = ", " + answer.FirstKeptTime.AsTime().In(c.m.Location).Format(wallLayout)
	}
	c.note("the journal is kept from index %d%s on", answer.FirstKeptIndex, since)
}

const wallLayout = "2006-01-02 15:04:05.000"

// writer returns what takes the pages: lines are written as they come, a table or an object once it is whole.
func (f *journalFlags) writer(c *client, answer *kvgatev1.ReadJournalResponse) func([]*kvgatev1.JournalEvent) error {
	switch c.output {
	case outputJSONL:
		return func(page []*kvgatev1.JournalEvent) error { return writeEventLines(c.m.stdout, page) }
	case outputCSV:
		rows := &eventTable{out: csv.NewWriter(c.m.stdout)}
		return rows.write
	default:
		return func(page []*kvgatev1.JournalEvent) error {
			answer.Events = append(answer.Events, page...)
			return nil
		}
	}
}

// writeJournal writes what was kept until it is whole.
func writeJournal(c *client, answer *kvgatev1.ReadJournalResponse) error {
	switch c.output {
	case outputJSON:
		return writeJSON(c.m.stdout, answer)
	case outputTable:
		return writeEvents(c.m.stdout, answer.Events, c.m.Location)
	}
	return nil
}

func writeEvents(w io.Writer, events []*kvgatev1.JournalEvent, zone *time.Location) error {
	several := severalPools(events)
	rows := make([][]string, len(events))
	for i, e := range events {
		rows[i] = eventCells(e, several, zone)
	}
	return writeTable(w, "no events", []column{
		left("time"), left("kind"), left("ticket"), right("tokens"), left("reason"), right("wait"), right("reserved/ceiling"),
	}, rows)
}

// eventCells are the columns of an event in a table.
func eventCells(e *kvgatev1.JournalEvent, several bool, zone *time.Location) []string {
	kind := e.Kind
	if several && e.Pool != "" {
		kind = e.Pool + "/" + e.Kind
	}
	return []string{wallTime(e, zone), kind, e.TicketId, tokensOrNothing(e.Tokens), journalReason(e), positiveSpan(e.Wait), fill(e)}
}

// severalPools reports that events tell of more than one pool; some events tell of none.
func severalPools(events []*kvgatev1.JournalEvent) bool {
	pool := ""
	return slices.ContainsFunc(events, func(e *kvgatev1.JournalEvent) bool {
		other := pool != "" && e.Pool != "" && e.Pool != pool
		pool = orElse(pool, e.Pool)
		return other
	})
}

func wallTime(e *kvgatev1.JournalEvent, zone *time.Location) string {
	if e.WallTime == nil {
		return "-"
	}
	return e.WallTime.AsTime().In(zone).Format(wallLayout)
}

// journalReason returns the reason, or what else there is to tell of an event without one, and the
// engines that it is about.
func journalReason(e *kvgatev1.JournalEvent) string {
	out := e.Reason + e.Detail
	if e.Reason != "" && e.Detail != "" {
		out = e.Reason + ": " + e.Detail
	}
	if e.By != "" {
		out = strings.TrimPrefix(out+" (by "+e.By+")", " ")
	}
	if len(e.Engines) == 0 {
		return out
	}
	return strings.TrimPrefix(out+" "+strings.Join(e.Engines, " "), " ")
}

func tokensOrNothing(n int64) string {
	if n == 0 {
		return ""
	}
	return number(n)
}

func positiveSpan(d *durationpb.Duration) string {
	if d.AsDuration() <= 0 {
		return ""
	}
	return span(d)
}

func fill(e *kvgatev1.JournalEvent) string {
	if e.ReservedAfter == 0 && e.CeilingAfter == 0 {
		return ""
	}
	return number(e.ReservedAfter) + "/" + number(e.CeilingAfter)
}

// writeEventLines writes one JSON object a line.
func writeEventLines(w io.Writer, events []*kvgatev1.JournalEvent) error {
	for _, e := range events {
		raw, err := answerJSON(e)
		if err != nil {
			return err
		}
		if _, err := fmt.Fprintf(w, "%s\n", raw); err != nil {
			return err
		}
	}
	return nil
}

var journalColumns = []string{
	"index", "n", "wall_time", "ledger_time", "pool", "kind", "ticket_id", "session_id", "holder_id", "group_id", "tokens",
	"lease_id", "grant", "epoch", "reason", "wait_seconds", "reserved_after", "ceiling_after", "waiting_after", "priority", "detail",
	"prompt_tokens", "max_new_tokens", "reservation_tokens", "capacity_tokens", "used_tokens", "evictable_tokens", "pressure", "eviction_rate",
	"engines", "pin_id", "in_flight", "by",
}

// eventTable writes CSV: a header and one row an event, durations in seconds and wall times in UTC.
type eventTable struct {
	out   *csv.Writer
	heads bool
}

func (t *eventTable) write(events []*kvgatev1.JournalEvent) error {
	if !t.heads {
		t.heads = true
		_ = t.out.Write(journalColumns) // the error stays with the writer
	}
	for _, e := range events {
		_ = t.out.Write(eventRow(e))
	}
	t.out.Flush()
	return t.out.Error()
}

// inCell keeps a spreadsheet from taking a text that somebody else wrote for a formula.
func inCell(s string) string {
	if s != "" && strings.ContainsRune("=+-@", rune(s[0])) {
		return "'" + s
	}
	return s
}

func eventRow(e *kvgatev1.JournalEvent) []string {
	wall := ""
	if e.WallTime != nil {
		wall = e.WallTime.AsTime().Format(time.RFC3339Nano)
	}
	whole := func(n int64) string { return strconv.FormatInt(n, 10) }
	return []string{
		strconv.FormatUint(e.Index, 10), whole(int64(e.N)), wall, whole(e.LedgerTime), inCell(e.Pool), e.Kind, inCell(e.TicketId),
		inCell(e.SessionId), inCell(e.HolderId), inCell(e.GroupId), whole(e.Tokens), e.LeaseId, strconv.FormatUint(e.Grant, 10),
		whole(e.Epoch), inCell(e.Reason), decimal(e.Wait.AsDuration().Seconds()), whole(e.ReservedAfter), whole(e.CeilingAfter),
		whole(e.WaitingAfter), whole(int64(e.Priority)), inCell(e.Detail),
		whole(e.GetArrival().GetPromptTokens()), whole(e.GetArrival().GetMaxNewTokens()), whole(e.GetArrival().GetReservationTokens()),
		whole(e.GetMeasured().GetCapacityTokens()), whole(e.GetMeasured().GetUsedTokens()), whole(e.GetMeasured().GetEvictableTokens()),
		decimal(e.GetMeasured().GetPressure()), decimal(e.GetMeasured().GetEvictionRate()),
		strings.Join(e.Engines, " "), inCell(e.PinId), whole(e.InFlight), inCell(e.By),
	}
}
