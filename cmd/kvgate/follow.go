package main

import (
	"context"
	"encoding/csv"
	"errors"
	"fmt"
	"io"
	"time"

	"connectrpc.com/connect"
	"github.com/cenkalti/backoff/v5"

	kvgatev1 "kvgate/rpc/kvgate/v1"
)

// watchSilence is how long a stream may say nothing before another server is asked. A server that lives
// says so every five seconds.
const watchSilence = 15 * time.Second

// errEnough ends a stream that has shown --limit events.
var errEnough = errors.New("enough")

// follower prints events as they happen. It knows its place in the journal, which is the same on every node, so
// that a broken stream goes on elsewhere without a gap.
type follower struct {
	c      *client
	f      *journalFlags
	window timeWindow
	req    *kvgatev1.WatchEventsRequest
	left   int64
	heads  bool
	rows   eventTable
	// told: the stream has said something since it was opened.
	told bool
}

// follow prints events until the command is interrupted, --limit events are shown or, for a file, there are
// no more.
func follow(ctx context.Context, c *client, f *journalFlags, w timeWindow) error {
	if c.output == outputJSON {
		return badValue("output", c.output, "table, jsonl or csv with --follow")
	}
	r := &f.req
	followed := &follower{c: c, f: f, window: w, req: &kvgatev1.WatchEventsRequest{
		FromIndex: r.FromIndex, FromStart: !w.since.isZero(), Pool: r.Pool, TicketId: r.TicketId, SessionId: r.SessionId,
		HolderId: r.HolderId, GroupId: r.GroupId, Kinds: r.Kinds,
	}}
	followed.rows.out = csv.NewWriter(c.m.stdout)
	if f.limited {
		followed.left = f.limit
	}
	return followed.run(ctx)
}

func (w *follower) run(ctx context.Context) error {
	pause := backoff.NewExponentialBackOff()
	pause.InitialInterval, pause.MaxInterval = 100*time.Millisecond, 2*time.Second
	failures := 0
	for {
		w.told = false
		err := w.stream(ctx)
		switch {
		case err == nil || errors.Is(err, errEnough):
			return nil
		case ctx.Err() != nil:
			return errInterrupted
		case !unreachable(err):
			return err
		}
		if failures++; w.told {
			failures = 0
			pause.Reset()
		} else if failures >= 2*len(w.c.endpoints) && w.req.FromIndex == 0 && !w.req.FromStart {
			return err // no server was ever reached
		}
		w.c.current = (w.c.current + 1) % len(w.c.endpoints)
		select {
		case <-ctx.Done():
			return errInterrupted
		case <-time.After(pause.NextBackOff()):
		}
	}
}

// stream follows one server until the stream ends.
func (w *follower) stream(ctx context.Context) error {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	silence := time.AfterFunc(watchSilence, cancel)
	defer silence.Stop()
	e := w.c.endpoints[w.c.current]
	s, err := e.WatchEvents(ctx, connect.NewRequest(w.req))
	if err != nil {
		return withServer(err, e.url)
	}
	defer func() { _ = s.Close() }() // only read
	for s.Receive() {
		silence.Reset(watchSilence)
		if err := w.take(s.Msg()); err != nil {
			return err
		}
	}
	return w.broken(s.Err(), e.url)
}

// broken words how a stream ended; a connection that was cut is a server that cannot be reached.
func (w *follower) broken(err error, url string) error {
	if err == nil {
		return nil
	}
	if connect.CodeOf(err) == connect.CodeCanceled || connect.CodeOf(err) == connect.CodeUnknown || connect.CodeOf(err) == connect.CodeInternal {
		err = connect.NewError(connect.CodeUnavailable, err)
	}
	return withServer(err, url)
}

// take prints a message and moves the place behind it.
func (w *follower) take(m *kvgatev1.WatchEventsResponse) error {
	w.told = true
	if m.TrimmedBefore > 0 {
		w.c.note("events before index %d were trimmed before they could be shown", m.TrimmedBefore)
	}
	events, _ := w.f.shown(w.c, m.Events)
	for _, e := range events {
		if w.window.before(e) {
			continue
		}
		if err := w.print(e); err != nil {
			return err
		}
		if w.left == 1 {
			return errEnough
		}
		w.left--
	}
	w.req.FromIndex, w.req.FromN, w.req.FromStart = m.NextIndex, m.NextN, false
	return nil
}

func (w *follower) print(e *kvgatev1.JournalEvent) error {
	out := w.c.m.stdout
	switch w.c.output {
	case outputJSONL:
		return writeEventLines(out, []*kvgatev1.JournalEvent{e})
	case outputCSV:
		return w.rows.write([]*kvgatev1.JournalEvent{e})
	}
	if !w.heads {
		w.heads = true
		if err := followRow(out, []string{"TIME", "KIND", "TICKET", "TOKENS", "REASON", "WAIT", "RESERVED/CEILING"}); err != nil {
			return err
		}
	}
	return followRow(out, eventCells(e, true, w.c.m.Location))
}

// followRow writes a row whose widths do not depend on rows to come.
func followRow(out io.Writer, cells []string) error {
	for i := range cells {
		cells[i] = clean(cells[i])
	}
	_, err := fmt.Fprintf(out, "%-23s  %-24s  %-20s  %10s  %-24s  %8s  %s\n", cells[0], cells[1], cells[2], cells[3], cells[4], cells[5], cells[6])
	return err
}
