package scrape

import (
	"errors"
	"math"
	"os"
	"path/filepath"
	"slices"
	"testing"

	"kvgate/ledger"
)

// FuzzMetrics: whatever a page holds, the figures stay in their ranges and the errors are the package's.
func FuzzMetrics(f *testing.F) {
	pages, _ := filepath.Glob("testdata/*.txt")
	if len(pages) == 0 {
		f.Fatal("no fixtures")
	}
	for _, name := range pages {
		body, err := os.ReadFile(name)
		if err != nil {
			f.Fatal(err)
		}
		f.Add(body)
	}
	f.Add([]byte(merged))
	f.Add([]byte(dp8()))
	f.Add([]byte("sglang:max_total_num_tokens{a=\"}\\\"\\n\"} -Inf 12\r\nsglang:token_usage NaN\n"))
	f.Fuzz(func(t *testing.T, body []byte) {
		for _, info := range []Info{{}, {PerRank: 1000, DPSize: 2}} {
			s, err := Read(body, self, info)
			if err != nil {
				known := []error{ErrMalformed, ErrNoMetrics, ErrMergedPage, ErrNoCapacity}
				if !slices.ContainsFunc(known, func(e error) bool { return errors.Is(err, e) }) {
					t.Fatalf("unknown error %v", err)
				}
				continue
			}
			if s.Capacity <= 0 || s.Capacity > ledger.MaxTokens || s.Used < 0 || s.Used > s.Capacity || s.Evictable < 0 || s.Evictable > s.Capacity {
				t.Fatalf("tokens out of range: %+v", s)
			}
			if !(s.Usage >= 0 && s.Usage <= 1 && s.Pressure >= 0 && s.Pressure <= 1) || s.DPRanks < 1 || s.Running < 0 || s.Queued < 0 {
				t.Fatalf("figures out of range: %+v", s)
			}
			if math.IsNaN(s.Evicted) || math.IsInf(s.Evicted, 0) {
				t.Fatalf("evicted %v", s.Evicted)
			}
		}
	})
}

// FuzzWorkers: a list is sorted, without repeats, bounded, and holds only URLs that EngineURL accepts.
func FuzzWorkers(f *testing.F) {
	for _, name := range []string{"workers_docs_v0.2.x_url_ids.json", "workers_pd_real_v0.3.0-0.3.1.json"} {
		f.Add(fixture(f, name), "")
		f.Add(fixture(f, name), "llama3")
	}
	f.Add([]byte(`{"urls":["http://a:1@0","grpc://b:2","http://a:1@1/"]}`), "")
	f.Add([]byte(`{"detail":"Not Found"}`), "")
	f.Add([]byte(`{"workers":[{"url":"http://[::1]:1@0","metadata":{"a":1}},7,null]}`), "m")
	f.Fuzz(func(t *testing.T, body []byte, model string) {
		workers, _ := ParseWorkers(body, model)
		urls, _ := ParseListWorkers(body)
		for _, d := range []Discovery{workers, urls} {
			if len(d.Engines) > MaxWorkers {
				t.Fatalf("%d engines", len(d.Engines))
			}
			for i, e := range d.Engines {
				if i > 0 && d.Engines[i-1].URL >= e.URL {
					t.Fatalf("%q before %q", d.Engines[i-1].URL, e.URL)
				}
				if again, err := EngineURL(e.URL); err != nil || again != e.URL {
					t.Fatalf("%q is not its own identity: %q, %v", e.URL, again, err)
				}
			}
		}
	})
}
