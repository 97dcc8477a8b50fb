package main

import (
	"encoding/json"
	"os"
	"path/filepath"
	"strings"
	"testing"

	kvgatev1 "kvgate/rpc/kvgate/v1"

	"kvgate/integration/recording"
	"kvgate/rpc/whatif"
)

// nightFake serves a recorded night.
func nightFake() *fake {
	night := recording.Night(1)
	return &fake{
		journal: func(r *kvgatev1.ReadJournalRequest) (*kvgatev1.ReadJournalResponse, error) {
			return &kvgatev1.ReadJournalResponse{Events: night.Events, FirstKeptIndex: 1, FirstKeptTime: night.Events[0].WallTime}, nil
		},
		pools: func(*kvgatev1.ListPoolsRequest) (*kvgatev1.ListPoolsResponse, error) {
			return &kvgatev1.ListPoolsResponse{Pools: []string{"default"}}, nil
		},
		settings: func(*kvgatev1.GetSettingsRequest) (*kvgatev1.GetSettingsResponse, error) {
			return &kvgatev1.GetSettingsResponse{Settings: defaultSettings()}, nil
		},
	}
}

func TestReportOfAWindow(t *testing.T) {
	out := filepath.Join(t.TempDir(), "night.html")
	r := at(t, nightFake(), "report", "--since", "2026-11-30T03:11:00Z", "--until", "2026-11-30T03:13:00Z", "--out", out)
	r.expect(t, result{stderr: "kvgate: wrote " + out})
	page, err := os.ReadFile(out)
	if err != nil {
		t.Fatal(err)
	}
	for text, want := range map[string]bool{"Engine http://engine-3:30000 lost": true, "worker-7 went silent": false, "headroom 0.9": false, "03:11:00 UTC": true} {
		if strings.Contains(string(page), text) != want {
			t.Errorf("the report says %q: %t", text, !want)
		}
	}
	if r := at(t, nightFake(), "report", "--pool", "other", "--out", "-"); r.code != exitOK || !strings.Contains(r.stderr, "nothing happened in this pool and window") {
		t.Errorf("another pool: exit %d %s", r.code, r.stderr)
	}
}

func TestReplayShowsBothColumns(t *testing.T) {
	r := at(t, nightFake(), "replay", "--set", "headroom=0.9", "--set", "max_wait=60s", "--output", "json")
	var x whatif.Result
	if err := json.Unmarshal([]byte(r.stdout), &x); err != nil || r.code != exitOK {
		t.Fatalf("exit %d: %v %s", r.code, err, r.stderr)
	}
	if x.Recorded.ByReason["aged"] == 0 || x.Replayed.ByReason["aged"] >= x.Recorded.ByReason["aged"] {
		t.Errorf("without the mistake and with more patience: %+v", x)
	}
	table := at(t, nightFake(), "replay")
	for _, want := range []string{"RECORDED", "REPLAYED", "wait, p99", "utilisation", "What a replay cannot know", "the journal is kept from index 1, 2026-11-30 03:00:00.000 on"} {
		if !strings.Contains(table.stdout+table.stderr, want) {
			t.Errorf("the table does not say %q:\n%s%s", want, table.stdout, table.stderr)
		}
	}
}

func TestReplayUsage(t *testing.T) {
	kvgate(t, "replay", "--set", "headroom").expect(t, result{code: exitUsage, stderr: `kvgate: set: "headroom" is not allowed: use NAME=VALUE such as headroom=0.8`})
	kvgate(t, "replay", "--set", "staleness=1s").expect(t, result{code: exitUsage, stderr: `kvgate: set: "staleness" is not allowed: use a setting that a replay can change: ` + oneOf(replayable)})
	kvgate(t, "replay", "--set", "headroom=much").expect(t, result{code: exitUsage, stderr: `kvgate: headroom: "much" is not allowed: use a number`})
	if r := at(t, nightFake(), "replay", "--set", "headroom=2"); r.code != exitFailed || !strings.Contains(r.stderr, "headroom") {
		t.Errorf("headroom 2: exit %d %s", r.code, r.stderr)
	}
}
