package main

import (
	"context"
	"encoding/csv"
	"fmt"
	"io"
	"slices"
	"strconv"
	"time"

	"github.com/spf13/cobra"
	"google.golang.org/protobuf/types/known/durationpb"
	"google.golang.org/protobuf/types/known/timestamppb"

	kvgatev1 "kvgate/rpc/kvgate/v1"
)

const journalLimit = 1000

const journalHelp = `Shows what happened, in order, from the journal of a running cluster. --since and --until take
2006-01-02T15:04:05Z, "2006-01-02 15:04", 15:04, -10m or "10m ago". Without --pool it shows all pools.
Wall times are for people; the order is that of the log.`

const journalExample = `  kvgate journal --since -10m
  kvgate journal --ticket req-17:0
  kvgate journal --kind bypassed,lease_expired --since 09:00 --until 10:30 --output csv
  kvgate journal --limit 0 --output jsonl`

// journalFlags are the filters of `journal` as written.
type journalFlags struct {
	req          kvgatev1.ReadJournalRequest
	since, until string
	limit        int64
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
	fs.StringVar(&f.since, "since", "", "only events from this time on")
	fs.StringVar(&f.until, "until", "", "only events before this time")
	fs.Uint64Var(&f.req.FromIndex, "from-index", 0, "only events from this log index on")
	staleFlag(cmd, &f.req.Stale)
	limitFlag(cmd, &f.limit, journalLimit)
	outputs := []string{outputTable, outputJSON, outputJSONL, outputCSV}
	return clientCommandWith(m, cmd, outputs, func(ctx context.Context, c *client, _ []string) error {
		if err := f.resolve(m, c.pool); err != nil {
			return err
		}
		return journal(ctx, c, f)
	})
}

// resolve turns the times people wrote into the request's.
func (f *journalFlags) resolve(m *Main, pool string) error {
	now := m.Now().In(m.Location)
	since, err := timeFlag("since", f.since, now)
	if err != nil {
		return err
	}
	until, err := timeFlag("until", f.until, now)
	if err != nil {
		return err
	}
	if !since.IsZero() && !until.IsZero() && until.Before(since) {
		return badValue("until", f.until, "a time after --since")
	}
	f.req.Pool, f.req.Since, f.req.Until = pool, timestamp(since), timestamp(until)
	return nil
}

func timestamp(t time.Time) *timestamppb.Timestamp {
	if t.IsZero() {
		return nil
	}
	return timestamppb.New(t)
}

func journal(ctx context.Context, c *client, f *journalFlags) error {
	answer := &kvgatev1.ReadJournalResponse{}
	events, next, err := pages(f.limit, func(size int32, token string) ([]*kvgatev1.JournalEvent, string, error) {
		f.req.PageSize, f.req.PageToken = size, token
		page, err := call(ctx, c, (*endpoint).ReadJournal, &f.req)
		if err != nil {
			return nil, "", err
		}
		answer.FirstKeptIndex, answer.LastIndex = page.FirstKeptIndex, page.LastIndex
		return page.Events, page.NextPageToken, nil
	})
	if err != nil {
		return err
	}
	answer.Events, answer.NextPageToken = events, next
	if err := writeJournal(c, answer); err != nil {
		return err
	}
	if next != "" {
		c.note("more events match than --limit %d shows; raise it or narrow the filters", f.limit)
	}
	return nil
}

func writeJournal(c *client, answer *kvgatev1.ReadJournalResponse) error {
	switch c.output {
	case outputJSON:
		return writeJSON(c.m.stdout, answer)
	case outputJSONL:
		return writeEventLines(c.m.stdout, answer.Events)
	case outputCSV:
		return writeEventCSV(c.m.stdout, answer.Events)
	default:
		return writeEvents(c.m.stdout, answer.Events, c.m.Location)
	}
}

func writeEvents(w io.Writer, events []*kvgatev1.JournalEvent, zone *time.Location) error {
	several := severalPools(events)
	rows := make([][]string, len(events))
	for i, e := range events {
		kind := e.Kind
		if several && e.Pool != "" {
			kind = e.Pool + "/" + e.Kind
		}
		rows[i] = []string{wallTime(e, zone), kind, e.TicketId, tokensOrNothing(e.Tokens), journalReason(e), positiveSpan(e.Wait), fill(e)}
	}
	return writeTable(w, "no events", []column{
		left("time"), left("kind"), left("ticket"), right("tokens"), left("reason"), right("wait"), right("reserved/ceiling"),
	}, rows)
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
	return e.WallTime.AsTime().In(zone).Format("2006-01-02 15:04:05.000")
}

// journalReason returns the reason, or what else there is to tell of an event without one.
func journalReason(e *kvgatev1.JournalEvent) string {
	if e.Reason != "" && e.Detail != "" {
		return e.Reason + ": " + e.Detail
	}
	return e.Reason + e.Detail
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
}

// writeEventCSV writes a header and one row an event, durations in seconds and wall times in UTC.
func writeEventCSV(w io.Writer, events []*kvgatev1.JournalEvent) error {
	out := csv.NewWriter(w)
	if err := out.Write(journalColumns); err != nil {
		return err
	}
	for _, e := range events {
		if err := out.Write(eventRow(e)); err != nil {
			return err
		}
	}
	out.Flush()
	return out.Error()
}

func eventRow(e *kvgatev1.JournalEvent) []string {
	wall := ""
	if e.WallTime != nil {
		wall = e.WallTime.AsTime().Format(time.RFC3339Nano)
	}
	whole := func(n int64) string { return strconv.FormatInt(n, 10) }
	return []string{
		strconv.FormatUint(e.Index, 10), whole(int64(e.N)), wall, whole(e.LedgerTime), e.Pool, e.Kind, e.TicketId,
		e.SessionId, e.HolderId, e.GroupId, whole(e.Tokens), e.LeaseId, strconv.FormatUint(e.Grant, 10),
		whole(e.Epoch), e.Reason, decimal(e.Wait.AsDuration().Seconds()), whole(e.ReservedAfter), whole(e.CeilingAfter),
		whole(e.WaitingAfter), whole(int64(e.Priority)), e.Detail,
	}
}
