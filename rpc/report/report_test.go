package report_test

import (
	"bytes"
	"os"
	"strings"
	"testing"
	"time"

	"kvgate/integration/recording"
	"kvgate/ledger"
	"kvgate/rpc/report"
	"kvgate/rpc/story"
)

func build(t *testing.T, r *recording.Recorder) *report.Page {
	t.Helper()
	p, err := report.Build(report.Input{Journal: story.Slice(r.Events), Pool: ledger.DefaultPool, Zone: time.UTC, Source: "a test", Kept: "index 1", Made: "Made by a test."})
	if err != nil {
		t.Fatal(err)
	}
	return p
}

func write(t *testing.T, p *report.Page) string {
	t.Helper()
	var b bytes.Buffer
	if err := p.Write(&b); err != nil {
		t.Fatal(err)
	}
	if path := os.Getenv("KVGATE_REPORT_OUT"); path != "" {
		if err := os.WriteFile(path, b.Bytes(), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	return b.String()
}

func TestTheNightIsTold(t *testing.T) {
	page := write(t, build(t, recording.Night(1)))
	for _, want := range []string{
		"Engine http://engine-3:30000 lost", "http://engine-3:30000: connection refused.", "2026-11-30 03:12:00.000",
		"Holder worker-7 went silent and was given up", "2026-11-30 03:08:15.000", "of the ceiling, came back", "<code>bulk-00:0</code>",
		"Settings changed: headroom 0.9 -&gt; 0.09", "2026-11-30 03:20:00.000", "n2 leads (term 2)",
	} {
		if !strings.Contains(page, want) {
			t.Errorf("the report does not say %q", want)
		}
	}
}
