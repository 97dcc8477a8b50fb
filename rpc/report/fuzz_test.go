package report_test

import (
	"io"
	"testing"
	"time"

	"google.golang.org/protobuf/types/known/durationpb"
	"google.golang.org/protobuf/types/known/timestamppb"

	kvgatev1 "kvgate/rpc/kvgate/v1"
	"kvgate/rpc/report"
	"kvgate/rpc/story"
	"kvgate/rpc/whatif"
)

var kinds = []string{
	"admitted", "waiting", "bypassed", "released", "renewed", "lease_expired", "cancelled", "abandoned", "unclaimed", "holder_expired", "detached",
	"attached", "capacity", "usage", "epoch", "degraded", "recovered", "settings", "pool_deleted", "leader", "restored", "pinned", "unpinned",
	"session_opened", "session_closing", "session_closed", "close_failed", "abort_sent", "ticket_forgotten", "kind_of_tomorrow",
}

// nonsense makes events that no ledger wrote from bytes, five each.
func nonsense(raw []byte) (out []*kvgatev1.JournalEvent) {
	for i := 0; i+5 <= len(raw); i += 5 {
		b := raw[i : i+5]
		e := &kvgatev1.JournalEvent{
			Index: uint64(b[0] % 50), N: uint32(b[0] / 50), LedgerTime: int64(b[1]) * int64(time.Second), Pool: []string{"default", "", "other"}[b[2]%3],
			Kind: kinds[int(b[3])%len(kinds)], TicketId: []string{"", "a", "b", "c"}[b[4]%4], SessionId: []string{"", "s"}[b[4]>>2&1], HolderId: []string{"", "h"}[b[4]>>3&1],
			Tokens: int64(b[1]) - 20, Grant: uint64(b[4] >> 4 & 1), Reason: []string{"", "session_closing", "aged", "cancelled"}[b[4]>>5&3],
			ReservedAfter: int64(b[2]), CeilingAfter: int64(b[0]), Deadline: int64(b[3]) * int64(time.Second), Detail: "-http://x +http://y", PinId: "p",
		}
		if b[4] < 200 {
			e.WallTime = timestamppb.New(time.Unix(int64(b[1])*3, 0))
		}
		if b[3]&1 == 0 {
			e.Wait = durationpb.New(time.Duration(int64(b[2])-5) * time.Second)
		}
		if b[3]&2 == 0 {
			e.Arrival = &kvgatev1.Arrival{PromptTokens: int64(b[2]), MaxNewTokens: int64(b[1]), PoolWait: b[0]&1 == 0, MaxWait: durationpb.New(time.Duration(b[0]) * time.Second)}
		}
		if b[3]&4 == 0 {
			e.Measured = &kvgatev1.Measured{CapacityTokens: int64(b[0]), Pressure: float64(b[1]) / 100}
		}
		if b[3]&8 == 0 {
			headroom := float64(b[1]) / 200
			e.SettingsBefore, e.SettingsAfter = &kvgatev1.Settings{}, &kvgatev1.Settings{Headroom: &headroom, Scope: kvgatev1.Scope(b[2]).Enum()}
		}
		out = append(out, e)
	}
	return out
}

// FuzzNonsense: a journal from a damaged or a newer cluster makes a strange report, or an error, never a panic.
func FuzzNonsense(f *testing.F) {
	f.Add([]byte("a journal that nobody wrote, of some length, with many events in it 0123456789"))
	f.Add([]byte{0, 1, 0, 1, 1, 1, 2, 0, 0, 1, 2, 250, 0, 3, 1, 9, 3, 0, 9, 255})
	f.Fuzz(func(t *testing.T, raw []byte) {
		events := nonsense(raw[:min(len(raw), 2000)])
		page, err := report.Build(report.Input{Journal: story.Slice(events), Pool: "default", Zone: time.UTC})
		if err != nil {
			t.Fatal(err)
		}
		if err := page.Write(io.Discard); err != nil {
			t.Fatal(err)
		}
		_, _ = whatif.Run(whatif.Input{Journal: story.Slice(events), Pool: "default"}) // an error is an answer
	})
}
