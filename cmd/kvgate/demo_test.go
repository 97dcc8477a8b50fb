package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"os"
	"regexp"
	"strings"
	"sync"
	"syscall"
	"testing"

	"github.com/spf13/cobra"
)

// tiny is a demo that is over in a moment.
var tiny = []string{"--agents", "5", "--engines", "2", "--turns", "2", "--speed", "100", "--listen", "127.0.0.1:0"}

// runDemoCommand runs `kvgate demo` in this process with an own temporary directory, which must be empty
// afterwards. Every write to stdout is shown to watch.
func runDemoCommand(t *testing.T, watch func(string), args ...string) result {
	t.Helper()
	temp := t.TempDir()
	t.Setenv("TMPDIR", temp)
	stdout, stderr := lockedBuffer{watch: watch}, lockedBuffer{}
	m := newMain()
	m.stdin, m.stdout, m.stderr = strings.NewReader(""), &stdout, &stderr
	cmd := newDemoCommand(m)
	cmd.SilenceErrors, cmd.SilenceUsage = true, true
	cmd.SetFlagErrorFunc(func(_ *cobra.Command, err error) error { return flagError(err) })
	cmd.SetArgs(args)
	r := result{}
	if err := cmd.ExecuteContext(t.Context()); err != nil {
		r.code = exitCode(err)
		fmt.Fprintln(&stderr, errorLine(err))
	}
	if left, err := os.ReadDir(temp); err != nil || len(left) != 0 {
		t.Errorf("left in the temporary directory: %v %v", left, err)
	}
	r.stdout, r.stderr = stdout.String(), stderr.String()
	return r
}

func TestDemoComparesTheSameWork(t *testing.T) {
	r := runDemoCommand(t, nil, tiny...)
	if r.code != exitOK || r.stderr != "" {
		t.Fatalf("exit %d: %s", r.code, r.stderr)
	}
	for _, want := range []string{
		`web page   http://127\.0\.0\.1:\d+/`, `kvgate queue --server http://127`, `Regime "roomy"`, `Regime "tight"`,
		`(?m)^roomy-off +\d+s +10 .* -  - `, `(?m)^roomy-on +\d+s +10 .* 10  0 `, `(?m)^tight-on +\d+s +10 `,
		`(?m)^MEASURE +ROOMY: OFF +ROOMY: ON +ON/OFF +TIGHT: OFF +TIGHT: ON +ON/OFF$`,
		`(?m)^turns completed +10 +10 +1\.00× +10 +10 +1\.00×$`,
		`(?m)^prompt tokens +([\d,]+) +([\d,]+) +1\.00× +([\d,]+) +([\d,]+) +1\.00×$`,
		`(?m)^completion tokens +([\d,]+) +([\d,]+) +1\.00× +([\d,]+) +([\d,]+) +1\.00×$`,
		`(?m)^  lifecycle off +\|[ ▁▂▃▄▅▆▇█]{48}\| ends at [\d.k]+$`, `(?m)^  lifecycle on +\|[ ▁▂▃▄▅▆▇█]{48}\| ends at 0$`,
		`(?m)^sessions closed +5 +5 +1\.00×$`, `(?m)^closes acknowledged by engines +0 +10$`, `(?m)^closes still owed +0 +0$`,
		`(?m)^With lifecycle on, 10 closes of 5 sessions were acknowledged and freed [\d.k]+ tokens; 0 stay resident`,
		`(?m)^roomy \(histories add up to 0\.\d+× the pools\): .*turns per second with admission are \d+\.\d\d×`,
	} {
		if !regexp.MustCompile(want).MatchString(r.stdout) {
			t.Errorf("output has no %s", want)
		}
	}
	if strings.Contains(r.stdout, "PARTIAL") || strings.Contains(r.stdout, "(partial)") {
		t.Error("a complete comparison says that it is partial")
	}
	if t.Failed() {
		t.Log(r.stdout)
	}
}

func TestDemoAsJSON(t *testing.T) {
	r := runDemoCommand(t, nil, append([]string{"--output", "json", "--keep"}, tiny...)...)
	var got jsonResults
	if err := json.Unmarshal([]byte(r.stdout), &got); err != nil || r.code != exitOK {
		t.Fatalf("exit %d, %v: %s%s", r.code, err, r.stdout, r.stderr)
	}
	if got.Partial != "" || got.Agents != 5 || got.Engines != 2 || got.Turns != 2 || len(got.Regimes) != 2 || len(got.Words) < 3 {
		t.Errorf("%+v", got)
	}
	for _, regime := range got.Regimes {
		if regime.Off.Measures["promptTokens"] == 0 || regime.Off.Measures["promptTokens"] != regime.On.Measures["promptTokens"] ||
			regime.Ratios["completionTokens"] != 1 || regime.On.Measures["turns"] != 10 {
			t.Errorf("%s: off %+v, on %+v", regime.Name, regime.Off, regime.On)
		}
		asked := regime.On.Admitted
		for _, n := range regime.On.Bypassed {
			asked += n
		}
		if asked != 10 || regime.Off.Admitted != 0 {
			t.Errorf("%s: %d calls decided with admission on and %d with admission off, want 10 and 0", regime.Name, asked, regime.Off.Admitted)
		}
	}
	if act := got.Act; act == nil || act.On.Measures["closesAcknowledged"] != 10 || act.Off.Measures["releasedTokens"] != 0 ||
		act.On.Measures["releasedTokens"] == 0 || act.On.Measures["finalResidentTokens"] != 0 || len(act.Off.Resident) != curvePoints {
		t.Errorf("second act: %+v", act)
	}
	if !strings.Contains(r.stderr, "tight-on") {
		t.Error("the progress is not on stderr")
	}
}

func TestDemoWithoutComparison(t *testing.T) {
	r := runDemoCommand(t, nil, append([]string{"--compare=false"}, tiny...)...)
	if r.code != exitOK || strings.Contains(r.stdout, "-off") || !strings.Contains(r.stdout, "nothing to compare") ||
		!regexp.MustCompile(`(?m)^MEASURE +TIGHT: ON$`).MatchString(r.stdout) {
		t.Errorf("exit %d: %s%s", r.code, r.stdout, r.stderr)
	}
}

func TestDemoEndsCleanlyOnAnInterrupt(t *testing.T) {
	// One second of engine time per second: no run ends by itself within the test.
	slow := []string{"--agents", "3", "--engines", "1", "--turns", "50", "--speed", "1", "--listen", "127.0.0.1:0"}
	once := sync.OnceFunc(func() {
		if err := syscall.Kill(os.Getpid(), syscall.SIGINT); err != nil {
			t.Error(err)
		}
	})
	interrupt := func(written string) {
		if strings.HasPrefix(written, "roomy-off") {
			once()
		}
	}
	r := runDemoCommand(t, interrupt, slow...)
	if r.code != exitOK || !strings.Contains(r.stdout, "PARTIAL comparison: interrupted") || !strings.Contains(r.stdout, "nothing to compare") {
		t.Errorf("exit %d: %s%s", r.code, r.stdout, r.stderr)
	}
	if !regexp.MustCompile(`(?m)^MEASURE +ROOMY: OFF \(PARTIAL\)$`).MatchString(r.stdout) {
		t.Errorf("the run that was cut short is not marked: %s", r.stdout)
	}
}

func TestDemoKeepsToItsDuration(t *testing.T) {
	r := runDemoCommand(t, nil, append([]string{"--duration", "1ns"}, tiny...)...)
	if r.code != exitFailed || !strings.Contains(r.stdout, "PARTIAL comparison: not finished within --duration 1ns") ||
		!strings.Contains(r.stderr, "raise it") {
		t.Errorf("exit %d: %s%s", r.code, r.stdout, r.stderr)
	}
}

func TestDemoRefusesWhatItCannotRun(t *testing.T) {
	for _, test := range []struct{ flag, value, want string }{
		{"agents", "0", "1 to 10000"}, {"engines", "65", "1 to 64"}, {"turns", "-1", "1 to 1000"}, {"speed", "0", "0.1 to 1000"},
		{"speed", "NaN", "0.1 to 1000"}, {"duration", "0s", "above 0s"}, {"listen", "0.0.0.0:7070", "loopback"},
		{"pool-tokens", "10", "at least"}, {"pool-tokens", "x", "whole number"}, {"output", "xml", "table or json"},
	} {
		r := runDemoCommand(t, nil, "--"+test.flag, test.value)
		if r.code != exitUsage || r.stdout != "" || !strings.Contains(r.stderr, test.flag) || !strings.Contains(r.stderr, test.want) {
			t.Errorf("--%s %s: exit %d: %s", test.flag, test.value, r.code, r.stderr)
		}
	}
}

func TestDemoTakesAnotherPortOnlyForTheDefaultOne(t *testing.T) {
	taken, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer taken.Close()
	o := demoOptions{listen: taken.Addr().String(), listenGiven: true}
	log := slog.New(slog.DiscardHandler)
	if _, err := startWithFreePort(context.Background(), t.TempDir(), o, log); !errors.Is(err, syscall.EADDRINUSE) {
		t.Errorf("with --listen: %v, want that the address is in use", err)
	}
	o.listenGiven = false
	n, err := startWithFreePort(context.Background(), t.TempDir(), o, log)
	if err != nil {
		t.Fatal(err)
	}
	if n.URL() == "http://"+o.listen {
		t.Errorf("the node says it listens on the address that is taken, %s", n.URL())
	}
	if err := n.Close(); err != nil {
		t.Error(err)
	}
}
