package main

import (
	"strings"
	"testing"
	"time"

	"github.com/spf13/cobra"
	"google.golang.org/protobuf/types/known/durationpb"

	kvgatev1 "kvgate/rpc/kvgate/v1"
)

func TestHelpAndVersion(t *testing.T) {
	if r := kvgate(t); r.code != exitOK || !strings.Contains(r.stdout, "acquire") || r.stderr != "" {
		t.Errorf("kvgate: exit %d: %s%s", r.code, r.stdout, r.stderr)
	}
	if r := kvgate(t, "--version"); r.code != exitOK || !strings.HasPrefix(r.stdout, "kvgate ") || !strings.Contains(r.stdout, "go1.") {
		t.Errorf("--version: exit %d: %q", r.code, r.stdout)
	}
	version = "v9.8.7"
	defer func() { version = "" }()
	if r := kvgate(t, "--version"); !strings.HasPrefix(r.stdout, "kvgate v9.8.7 (") {
		t.Errorf("--version of a release: %q", r.stdout)
	}
}

func TestCompletionIgnoresTheEnvironment(t *testing.T) {
	t.Setenv("KVGATE_TYPO", "x")
	if r := kvgate(t, "completion", "bash"); r.code != exitOK || !strings.Contains(r.stdout, "kvgate") {
		t.Errorf("exit %d: %s", r.code, r.stderr)
	}
	if r := kvgate(t, "__complete", "leases", "--output", ""); r.code != exitOK || !strings.HasPrefix(r.stdout, "table\njson\n") {
		t.Errorf("exit %d: %q %q", r.code, r.stdout, r.stderr)
	}
}

func TestCompletionOfAnUnknownShell(t *testing.T) {
	kvgate(t, "completion", "nope").expect(t, result{code: exitUsage,
		stderr: `kvgate: kvgate completion: "nope" is not allowed: use bash, fish, powershell or zsh`})
}

func TestUnknownCommand(t *testing.T) {
	kvgate(t, "acquier").expect(t, result{code: exitUsage, stderr: `kvgate: unknown command "acquier" for "kvgate" Did you mean this? acquire`})
}

func TestEveryCommandHasAnExample(t *testing.T) {
	var walk func(*cobra.Command)
	walk = func(cmd *cobra.Command) {
		if !cmd.HasSubCommands() && (cmd.Example == "" || cmd.Short == "" || cmd.Long == "") {
			t.Errorf("%s lacks a description or an example", cmd.CommandPath())
		}
		for _, child := range cmd.Commands() {
			walk(child)
		}
	}
	walk(newRootCommand(newMain()))
}

func TestLedgerTimes(t *testing.T) {
	for text, want := range map[string]int64{"ledger:1h": int64(time.Hour), "ledger:250": 250} {
		if got, err := timeFlag("since", text, testNow); err != nil || !got.inLedger || got.ledger != want {
			t.Errorf("%s: %+v %v", text, got, err)
		}
	}
	if _, err := timeFlag("since", "ledger:soon", testNow); err == nil {
		t.Error("a ledger time that is none was accepted")
	}
}

func TestParseTime(t *testing.T) {
	zone, err := time.LoadLocation("Europe/Berlin")
	if err != nil {
		t.Fatal(err)
	}
	now := testNow.In(zone) // 2026-03-14 16:09:26 +01:00
	tests := []struct{ text, want string }{
		{"2026-03-14T15:00:00Z", "2026-03-14T15:00:00Z"},
		{"2026-03-14T15:00:00.25+02:00", "2026-03-14T13:00:00.25Z"},
		{"2026-03-01 08:30", "2026-03-01T07:30:00Z"},
		{"1.3.2026 08:30", "2026-03-01T07:30:00Z"},
		{"01.03.2026 08:30:15", "2026-03-01T07:30:15Z"},
		{"2026-07-01 08:30:15", "2026-07-01T06:30:15Z"},
		{"2026-03-01T08:30", "2026-03-01T07:30:00Z"},
		{"2026-03-01", "2026-02-28T23:00:00Z"},
		{"16:09", "2026-03-14T15:09:00Z"},
		{"16:10", "2026-03-13T15:10:00Z"},
		{"16:09:26", "2026-03-14T15:09:26Z"},
		{"-10m", "2026-03-14T14:59:26Z"},
		{"10m ago", "2026-03-14T14:59:26Z"}, {"10m", "2026-03-14T14:59:26Z"},
		{" 1d12h ago ", "2026-03-13T03:09:26Z"},
		{"-2d", "2026-03-12T15:09:26Z"},
		{"now", "2026-03-14T15:09:26Z"},
		{"yesterday 03:12", "2026-03-13T02:12:00Z"}, {"Yesterday at 03:12:05", "2026-03-13T02:12:05Z"}, {"today 03:12", "2026-03-14T02:12:00Z"},
		{"yesterday", "2026-03-12T23:00:00Z"}, {"friday 22:00", "2026-03-13T21:00:00Z"}, {"3:12am", "2026-03-14T02:12:00Z"}, {"3:12pm", "2026-03-14T14:12:00Z"},
		{"1773500000", "2026-03-14T14:53:20Z"}, {"@1773500000.5", "2026-03-14T14:53:20.5Z"}, {"1773500000250", "2026-03-14T14:53:20.25Z"},
		{"1773500000250000000", "2026-03-14T14:53:20.25Z"}, {"12", ""}, {"yesterday noon", ""},
		{"14 Mar 2026 15:00", "2026-03-14T14:00:00Z"}, {"Mar 14 15:00", "2026-03-14T14:00:00Z"}, {"Mar 15 15:00", "2025-03-15T14:00:00Z"},
		{"2026/03/14 15:00", "2026-03-14T14:00:00Z"}, {"2026-03-14 15:00:00 +0000", "2026-03-14T15:00:00Z"}, {"Sat, 14 Mar 2026 15:00:00 UTC", "2026-03-14T15:00:00Z"},
		{"", ""}, {"ago", ""}, {"-", ""}, {"--10m", ""}, {"25:00", ""}, {"2026-13-01", ""}, {"-1w", ""}, {"tomorrow", ""},
	}
	for _, test := range tests {
		got, ok := parseTime(test.text, now)
		if ok != (test.want != "") || ok && got.UTC().Format(time.RFC3339Nano) != test.want {
			t.Errorf("parseTime(%q) = %s, %t; want %s", test.text, got, ok, test.want)
		}
	}
}

func TestHumanDuration(t *testing.T) {
	tests := map[time.Duration]string{
		0: "0s", 1500: "2µs", 12_345_678: "12ms", 4_249 * time.Millisecond: "4.2s", 59_990 * time.Millisecond: "1m0s",
		185 * time.Second: "3m05s", time.Hour: "1h00m", 28 * time.Hour: "1d04h", -90 * time.Second: "-1m30s",
	}
	for d, want := range tests {
		if got := humanDuration(d); got != want {
			t.Errorf("%d is %q, want %q", d, got, want)
		}
	}
	if got := span((*durationpb.Duration)(nil)); got != "-" {
		t.Errorf("no duration is %q", got)
	}
}

func TestQuantity(t *testing.T) {
	for f, want := range map[float64]string{0: "0", 1_200_000: "1,200,000", 0.25: "0.25", 1_234_567.5: "1234567.5", 0.0000125: "0.0000125", -3: "-3"} {
		if got := quantity(f); got != want {
			t.Errorf("%g is %q, want %q", f, got, want)
		}
	}
}

func TestParseDuration(t *testing.T) {
	for text, want := range map[string]time.Duration{"45s": 45 * time.Second, "7d": 168 * time.Hour, "1d12h": 36 * time.Hour, "0s": 0} {
		if got, err := parseDuration(text); err != nil || got != want {
			t.Errorf("%q is %s (%v), want %s", text, got, err, want)
		}
	}
	for _, text := range []string{"", "d", "-1s", "1d-1h", "-1d", "99999999d", "5", "1d5"} {
		if got, err := parseDuration(text); err == nil {
			t.Errorf("%q is %s, want an error", text, got)
		}
	}
}

func TestWord(t *testing.T) {
	if got := word(kvgatev1.Reason_REASON_CAPACITY_AVAILABLE); got != "capacity_available" {
		t.Errorf("got %q", got)
	}
	if got := word(kvgatev1.Reason(99)); got != "99" {
		t.Errorf("a reason of a later version is %q", got)
	}
}

func FuzzParseTime(f *testing.F) {
	for _, s := range []string{"03:12", "yesterday 03:12", "-15m", "1773500000.5", "2026-03-14T15:00:00Z", "Jan 2 15:04", "@9223372036854775807", "1e18", "friday"} {
		f.Add(s)
	}
	f.Fuzz(func(t *testing.T, s string) {
		at, ok := parseTime(s, testNow)
		p, err := timeFlag("since", s, testNow)
		if err == nil && !p.inLedger && s != "" && (!ok || !p.wall.Equal(at)) {
			t.Errorf("%q is %v as a flag, and %v (%t) as a time", s, p.wall, at, ok)
		}
	})
}
