package main

import (
	"fmt"
	"strings"
	"testing"

	"kvgate/integration/agents"
	"kvgate/integration/procs"
)

func TestMain(m *testing.M) { procs.Main(m) }

// startFleet returns the URL of a router with an engine behind it.
func startFleet(t *testing.T) string {
	t.Helper()
	fleet, err := agents.StartFleet(agents.FleetConfig{Engines: 1, PoolTokens: 100_000, Speed: 100})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := fleet.Close(); err != nil {
			t.Error(err)
		}
	})
	return fleet.RouterURL()
}

func TestRunAgainstANodeSaysWhatHappened(t *testing.T) {
	router := startFleet(t)
	node := procs.StartNode(t, procs.Node{ID: "n1", DataDir: t.TempDir(), Args: []string{"--bootstrap", "--router", router}})
	procs.WaitReady(t, node.URL())
	var out strings.Builder
	err := run(t.Context(), []string{"--servers", node.URL(), "--router", router, "--agents", "3", "--turns", "2", "--speed", "100"}, &out)
	if err != nil {
		t.Fatal(err)
	}
	for _, want := range []string{"turns           6 of 6\n", "0 sessions gave up, 0 calls made again\n", "client errors   0\n"} {
		if !strings.Contains(out.String(), want) {
			t.Errorf("no %q in\n%s", want, out.String())
		}
	}
}

func TestTurnsThatFailAreAnErrorAndAreReported(t *testing.T) {
	var out strings.Builder
	nobody := fmt.Sprintf("http://%s", procs.FreeAddr(t))
	err := run(t.Context(), []string{"--servers", nobody, "--router", nobody, "--agents", "1", "--turns", "1", "--speed", "1000"}, &out)
	if code := exitCode(err, &strings.Builder{}); code != 1 || !strings.Contains(out.String(), "turns           0 of 1\n") ||
		!strings.Contains(out.String(), "degraded ") {
		t.Errorf("exit %d, error %v, said\n%s", code, err, out.String())
	}
}

func TestWrongFlagsAreErrors(t *testing.T) {
	for _, args := range [][]string{
		{}, {"--router", "x"}, {"--router", "http://r:1", "--agents", "0"}, {"--router", "http://r:1", "--turns", "-1"},
		{"--router", "http://r:1", "--speed", "0"}, {"--router", "http://r:1", "--servers", ""}, {"--router", "http://r:1", "more"},
	} {
		if err := run(t.Context(), args, &strings.Builder{}); err == nil {
			t.Errorf("run %v: no error", args)
		}
	}
	if code := exitCode(run(t.Context(), []string{"--help"}, &strings.Builder{}), &strings.Builder{}); code != 0 {
		t.Errorf("help exits with %d", code)
	}
}
