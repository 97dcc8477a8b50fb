package main

import (
	"context"
	"encoding/json"
	"os"
	"strings"
	"testing"

	"go.uber.org/goleak"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

func TestRunPrintsURLsAndEndsWithItsContext(t *testing.T) {
	read, write, err := os.Pipe()
	if err != nil {
		t.Fatal(err)
	}
	stdout := os.Stdout
	os.Stdout = write
	defer func() { os.Stdout = stdout }()
	ctx, cancel := context.WithCancel(t.Context())
	ended := make(chan error, 1)
	go func() {
		ended <- run(ctx, []string{"--count", "2", "--dp", "2", "--router-listen", "127.0.0.1:0", "--print-json"})
	}()
	var urls struct {
		Engines []string `json:"engines"`
		Router  string   `json:"router"`
	}
	if err := json.NewDecoder(read).Decode(&urls); err != nil {
		t.Fatal(err)
	}
	if len(urls.Engines) != 2 || urls.Router == "" {
		t.Fatalf("urls %+v", urls)
	}
	cancel()
	if err := <-ended; err != nil {
		t.Fatal(err)
	}
}

func TestRunRefusesBadFlags(t *testing.T) {
	for _, args := range [][]string{{"--count", "0"}, {"--pool-tokens", "-5"}, {"--listen", "nope"}} {
		if err := run(t.Context(), args); err == nil {
			t.Errorf("run %v: no error", args)
		}
	}
}

func TestHelpIsNoFailure(t *testing.T) {
	var said strings.Builder
	if code := exitCode(run(t.Context(), []string{"--help"}), &said); code != 0 || said.String() != "" {
		t.Errorf("exit %d, said %q", code, said.String())
	}
	if code := exitCode(run(t.Context(), []string{"--count", "0"}), &said); code != 1 || !strings.HasPrefix(said.String(), "enginesim: ") {
		t.Errorf("exit %d, said %q", code, said.String())
	}
}
