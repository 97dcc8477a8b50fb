package main

import (
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"connectrpc.com/connect"
	"google.golang.org/protobuf/types/known/timestamppb"

	kvgatev1 "kvgate/rpc/kvgate/v1"
)

func happened(index uint64, kind, ticket string) *kvgatev1.JournalEvent {
	return &kvgatev1.JournalEvent{Index: index, Kind: kind, TicketId: ticket, WallTime: timestamppb.New(testNow.Add(time.Duration(index) * time.Second))}
}

// TestFollowGoesOnElsewhere: the first server dies in the middle of the stream, the second goes on behind what
// was shown; the one who follows sees neither a gap nor a repetition.
func TestFollowGoesOnElsewhere(t *testing.T) {
	first := &fake{watch: func(r *kvgatev1.WatchEventsRequest, send func(*kvgatev1.WatchEventsResponse) error) error {
		if r.FromIndex != 0 || r.FromStart || r.TicketId != "t" {
			t.Errorf("asked for %v", r)
		}
		if err := send(&kvgatev1.WatchEventsResponse{NextIndex: 8, NextN: 1, Events: []*kvgatev1.JournalEvent{happened(7, "waiting", "t"), happened(8, "detached", "t")}}); err != nil {
			return err
		}
		return connect.NewError(connect.CodeUnavailable, errors.New("going down"))
	}}
	second := &fake{watch: func(r *kvgatev1.WatchEventsRequest, send func(*kvgatev1.WatchEventsResponse) error) error {
		if r.FromIndex != 8 || r.FromN != 1 {
			t.Errorf("resumed from %v", r)
		}
		return send(&kvgatev1.WatchEventsResponse{NextIndex: 12, TrimmedBefore: 11, Events: []*kvgatev1.JournalEvent{happened(11, "admitted", "t")}})
	}}
	token := filepath.Join(t.TempDir(), "token")
	if err := os.WriteFile(token, []byte("secret\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	kvgate(t, "journal", "--follow", "--ticket", "t", "--token-file", token, "--server", first.start(t)+","+second.start(t)).expect(t, result{
		stderr: "kvgate: events before index 11 were trimmed before they could be shown",
		stdout: strings.Join([]string{
			"TIME                     KIND                      TICKET                    TOKENS  REASON                        WAIT  RESERVED/CEILING",
			"2026-03-14 15:09:33.000  waiting                   t                                                                     ",
			"2026-03-14 15:09:34.000  detached                  t                                                                     ",
			"2026-03-14 15:09:37.000  admitted                  t                                                                     ",
		}, "\n"),
	})
	for _, f := range []*fake{first, second} {
		if len(f.tokens) != 1 || f.tokens[0] != "Bearer secret" {
			t.Errorf("tokens shown: %q", f.tokens)
		}
	}
}

func TestFollowStopsAtItsLimitAndFiltersByTime(t *testing.T) {
	f := &fake{watch: func(r *kvgatev1.WatchEventsRequest, send func(*kvgatev1.WatchEventsResponse) error) error {
		if !r.FromStart {
			t.Errorf("asked for %v", r)
		}
		return send(&kvgatev1.WatchEventsResponse{NextIndex: 9, Events: []*kvgatev1.JournalEvent{happened(1, "waiting", "old"), happened(7, "waiting", "a"), happened(8, "waiting", "b"), happened(9, "waiting", "c")}})
	}}
	r := at(t, f, "journal", "-f", "--since", testNow.Add(5*time.Second).Format(time.RFC3339), "--limit", "2", "--output", "jsonl")
	lines := strings.Split(strings.TrimSpace(r.stdout), "\n")
	if r.code != exitOK || len(lines) != 2 || !strings.Contains(lines[0], `"ticketId":"a"`) || !strings.Contains(lines[1], `"ticketId":"b"`) {
		t.Errorf("exit %d: %s%s", r.code, r.stdout, r.stderr)
	}
}

func TestFollowUsage(t *testing.T) {
	kvgate(t, "journal", "--follow", "--until", "15:00").expect(t, result{code: exitUsage, stderr: "kvgate: until: has no meaning with --follow"})
	kvgate(t, "journal", "--follow", "--output", "json").expect(t, result{code: exitUsage, stderr: `kvgate: output: "json" is not allowed: use table, jsonl or csv with --follow`})
}

// TestExplainARealNode: a ticket waits on a real node and the story tells what for, live and from the directory.
func TestExplainARealNode(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "n1")
	n, _ := startTestNode(t, t.Output(), "--node-id", "n1", "--data-dir", dir, "--bootstrap")
	ready(t, n)
	for _, args := range [][]string{{"settings", "set", "detach_grace=1h"}, {"acquire", "x:0", "--tokens", "500"}} {
		if r := kvgate(t, append(args, "--server", n.URL())...); r.code != exitOK {
			t.Fatalf("%v: exit %d %s", args, r.code, r.stderr)
		}
	}
	live := kvgate(t, "journal", "explain", "x:0", "--server", n.URL())
	if err := n.Close(); err != nil {
		t.Fatal(err)
	}
	const want = "It arrived and asked for 500 tokens and was let go at once without a lease (degraded): no usable capacity was known.\nIt did not wait, got no lease.\n"
	if live.code != exitOK || !strings.HasPrefix(live.stdout, "Ticket x:0, pool default\n") || !strings.HasSuffix(live.stdout, want) {
		t.Errorf("exit %d: %s%s", live.code, live.stdout, live.stderr)
	}
	if dead := kvgate(t, "journal", "explain", "x:0", "--from", dir); dead != live {
		t.Errorf("from the directory: %+v, want %+v", dead, live)
	}
	if r := kvgate(t, "journal", "explain", "nobody", "--from", dir); r.code != exitFailed || !strings.Contains(r.stderr, `tells of no ticket "nobody"`) {
		t.Errorf("unknown ticket: %+v", r)
	}
}
