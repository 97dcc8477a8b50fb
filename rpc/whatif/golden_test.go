package whatif

import (
	"bytes"
	"encoding/json"
	"flag"
	"fmt"
	"os"
	"path/filepath"
	"testing"
	"time"

	"kvgate/integration/recording"
	"kvgate/ledger"
	"kvgate/rpc/story"
)

var update = flag.Bool("update", false, "write golden files")

// TestColumns: what a replay of a night says under several settings, of the whole of it and without its beginning.
func TestColumns(t *testing.T) {
	changes := map[string]func(*ledger.Settings) error{
		"as recorded":   nil,
		"less patience": func(s *ledger.Settings) error { s.MaxWait = 5 * time.Second; return nil },
		"less headroom": func(s *ledger.Settings) error { s.Headroom = 0.5; return nil },
		"short queue":   func(s *ledger.Settings) error { s.MaxWaiters, s.LeaseTTL = 3, 3*time.Second; return nil },
	}
	var got bytes.Buffer
	events := recording.Night(2).Events
	for _, name := range []string{"as recorded", "less patience", "less headroom", "short queue"} {
		for _, without := range []int{0, len(events) / 3} {
			x, err := Run(Input{Journal: story.Slice(events[without:]), Pool: ledger.DefaultPool, Change: changes[name]})
			if err != nil {
				t.Fatal(err)
			}
			raw, err := json.MarshalIndent(x, "", "  ")
			if err != nil {
				t.Fatal(err)
			}
			fmt.Fprintf(&got, "%s, without %d events: %s\n", name, without, raw)
		}
	}
	path := filepath.Join("testdata", "columns.txt")
	if *update {
		if err := os.WriteFile(path, got.Bytes(), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	want, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	if !bytes.Equal(got.Bytes(), want) {
		t.Errorf("got\n%s\nwant\n%s", got.Bytes(), want)
	}
}
