package fsm

import (
	"flag"
	"io"
	"log/slog"
	"testing"
	"time"

	"go.uber.org/goleak"
)

// update writes the golden files that are missing, and the outcomes that changed.
var update = flag.Bool("update", false, "write golden files")

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

var quiet = slog.New(slog.NewTextHandler(io.Discard, nil))

// patience is how long a condition may take on a machine that is busy with other things.
const patience = 30 * time.Second

func must(t testing.TB, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

// eventually polls until ok answers true.
func eventually(t testing.TB, what string, ok func() bool) {
	t.Helper()
	deadline := time.After(patience)
	ticker := time.NewTicker(5 * time.Millisecond)
	defer ticker.Stop()
	for !ok() {
		select {
		case <-ticker.C:
		case <-deadline:
			t.Fatalf("after %v still not so: %s", patience, what)
		}
	}
}
