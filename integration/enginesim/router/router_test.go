package router_test

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"go.uber.org/goleak"

	"kvgate/integration/enginesim/router"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

func start(t *testing.T, cfg router.Config, workers ...router.Worker) *router.Router {
	t.Helper()
	r, err := router.New(cfg, workers...)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := r.Close(); err != nil {
			t.Error(err)
		}
	})
	return r
}

func call(r *router.Router, method, path, body string, key ...string) *httptest.ResponseRecorder {
	req := httptest.NewRequest(method, path, strings.NewReader(body))
	if len(key) > 0 {
		req.Header.Set("Authorization", "Bearer "+key[0])
	}
	w := httptest.NewRecorder()
	r.Handler().ServeHTTP(w, req)
	return w
}

type listing struct {
	Workers []map[string]any `json:"workers"`
	Total   int              `json:"total"`
	Stats   map[string]int   `json:"stats"`
	URLs    []string         `json:"urls"`
}

func list(t *testing.T, r *router.Router, path string) listing {
	t.Helper()
	var l listing
	w := call(r, "GET", path, "")
	if err := json.Unmarshal(w.Body.Bytes(), &l); err != nil || w.Code != http.StatusOK {
		t.Fatalf("%s: status %d: %s", path, w.Code, w.Body)
	}
	return l
}

var pair = []router.Worker{
	{URL: "http://10.0.0.1:8000", ModelID: "m", Type: "prefill", BootstrapPort: 8998},
	{URL: "http://10.0.0.2:8000", ModelID: "m", Type: "decode"},
}

func TestEachStyleListsAsItsReleaseDid(t *testing.T) {
	for _, c := range []struct {
		style                    router.Style
		listWorkers, workers     int // status
		idIsURL, hasID, hasExtra bool
		body404                  string
	}{
		{style: router.StyleGateway, listWorkers: 404, workers: 200, hasID: true, hasExtra: true},
		{style: router.StyleURLIDs, listWorkers: 200, workers: 200, hasID: true, idIsURL: true},
		{style: router.StyleBare, listWorkers: 200, workers: 200},
		{style: router.StyleLegacy, listWorkers: 200, workers: 404},
		{style: router.StyleProxy, listWorkers: 200, workers: 404, body404: `{"detail":"Not Found"}`},
	} {
		t.Run(string(c.style), func(t *testing.T) {
			r := start(t, router.Config{Style: c.style, HealthEvery: -1}, pair...)
			if w := call(r, "GET", "/list_workers", ""); w.Code != c.listWorkers {
				t.Fatalf("/list_workers: %d, want %d", w.Code, c.listWorkers)
			}
			w := call(r, "GET", "/workers", "")
			if w.Code != c.workers {
				t.Fatalf("/workers: %d, want %d", w.Code, c.workers)
			}
			if c.workers == 404 {
				if got := strings.TrimSpace(w.Body.String()); got != c.body404 {
					t.Fatalf("/workers: %q, want %q", got, c.body404)
				}
				return
			}
			for _, entry := range list(t, r, "/workers").Workers {
				id, hasID := entry["id"]
				_, hasExtra := entry["metadata"]
				if hasID != c.hasID || hasExtra != c.hasExtra || (id == entry["url"]) != c.idIsURL {
					t.Fatalf("entry %v does not fit the style", entry)
				}
			}
		})
	}
}

func TestGatewayEntriesCarryTypesAndCounts(t *testing.T) {
	r := start(t, router.Config{HealthEvery: -1}, pair...)
	l := list(t, r, "/workers")
	if l.Total != 2 || l.Stats["prefill_count"] != 1 || l.Stats["decode_count"] != 1 || l.Stats["regular_count"] != 0 {
		t.Fatalf("total %d stats %v", l.Total, l.Stats)
	}
	for _, e := range l.Workers {
		if prefill := e["worker_type"] == "prefill"; prefill != (e["bootstrap_port"] == 8998.0) || e["is_healthy"] != true {
			t.Fatalf("entry %v", e)
		}
	}
}

func TestOrderIsRandom(t *testing.T) {
	var workers []router.Worker
	for i := range 8 {
		workers = append(workers, router.Worker{URL: fmt.Sprintf("http://10.0.0.%d:1", i)})
	}
	r := start(t, router.Config{Style: router.StyleURLIDs, HealthEvery: -1, Seed: 3}, workers...)
	first, second := list(t, r, "/list_workers").URLs, list(t, r, "/list_workers").URLs
	if slices.Equal(first, second) {
		t.Fatal("two listings in the same order")
	}
	slices.Sort(first)
	slices.Sort(second)
	if !slices.Equal(first, second) || len(first) != 8 {
		t.Fatalf("listings differ in more than order: %v and %v", first, second)
	}
}

func TestDPAwareListsEveryRank(t *testing.T) {
	r := start(t, router.Config{DPAware: true, HealthEvery: -1}, router.Worker{URL: "http://h:1", DPSize: 2})
	var urls []string
	for _, e := range list(t, r, "/workers").Workers {
		urls = append(urls, e["url"].(string))
		if e["dp_base_url"] != "http://h:1" || e["dp_size"] != 2.0 {
			t.Fatalf("entry %v", e)
		}
	}
	slices.Sort(urls)
	if !slices.Equal(urls, []string{"http://h:1@0", "http://h:1@1"}) {
		t.Fatalf("urls %v", urls)
	}
}

func TestWorkersComeAndGo(t *testing.T) {
	r := start(t, router.Config{HealthEvery: -1})
	if w := call(r, "POST", "/workers", `{"url":"http://h:1/","worker_type":"regular"}`); w.Code != http.StatusAccepted {
		t.Fatalf("add: %d %s", w.Code, w.Body)
	}
	for name, body := range map[string]string{
		"duplicate": `{"url":"http://h:1"}`, "no host": `{"url":"h"}`, "type": `{"url":"http://x:1","worker_type":"odd"}`, "json": `{`,
	} {
		if w := call(r, "POST", "/workers", body); w.Code != http.StatusBadRequest {
			t.Fatalf("%s: %d, want 400", name, w.Code)
		}
	}
	id := list(t, r, "/workers").Workers[0]["id"].(string)
	if w := call(r, "DELETE", "/workers/"+id, ""); w.Code != http.StatusAccepted {
		t.Fatalf("remove: %d %s", w.Code, w.Body)
	}
	if w := call(r, "DELETE", "/workers/"+id, ""); w.Code != http.StatusNotFound {
		t.Fatalf("remove again: %d, want 404", w.Code)
	}
	if l := list(t, r, "/workers"); l.Total != 0 {
		t.Fatalf("total %d, want 0", l.Total)
	}
}

func TestKeyIsWanted(t *testing.T) {
	r := start(t, router.Config{APIKey: "k", HealthEvery: -1})
	for key, want := range map[string]int{"": 401, "x": 401, "k": 200} {
		if w := call(r, "GET", "/workers", "", key); w.Code != want {
			t.Fatalf("key %q: %d, want %d", key, w.Code, want)
		}
	}
	if w := call(r, "GET", "/health", ""); w.Code != http.StatusOK {
		t.Fatalf("health: %d", w.Code)
	}
}

// backend is an engine stand-in that tells its name and the key it was sent.
func backend(t *testing.T, name string) string {
	t.Helper()
	s := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		body, err := io.ReadAll(r.Body)
		if err != nil {
			http.Error(w, err.Error(), http.StatusInternalServerError)
			return
		}
		_, _ = fmt.Fprintf(w, "%s %s %s %s", name, r.URL.Path, r.Header.Get("Authorization"), body)
	}))
	t.Cleanup(s.Close)
	return s.URL
}

func TestSessionsStickAndTheRestIsBalanced(t *testing.T) {
	r := start(t, router.Config{HealthEvery: -1, WorkerKey: "wk"},
		router.Worker{URL: backend(t, "a")}, router.Worker{URL: backend(t, "b")})
	first := call(r, "POST", "/generate", `{"session_id":"s"}`).Body.String()
	if want := ` /generate Bearer wk {"session_id":"s"}`; !strings.HasSuffix(first, want) {
		t.Fatalf("answer %q, want it to end in %q", first, want)
	}
	for range 5 {
		if again := call(r, "POST", "/generate", `{"session_id":"s"}`).Body.String(); again[0] != first[0] {
			t.Fatalf("session moved from %q to %q", first, again)
		}
	}
	for range 6 {
		call(r, "POST", "/v1/chat/completions", `{"session_params":{"id":""}}`)
	}
	for url, n := range r.Routed() {
		if n != 6 {
			t.Fatalf("%s got %d calls, want 6", url, n)
		}
	}
}

func TestSessionMovesWhenItsWorkerIsUnhealthyOrGone(t *testing.T) {
	urls := map[byte]string{'a': backend(t, "a"), 'b': backend(t, "b")}
	r := start(t, router.Config{HealthEvery: -1}, router.Worker{URL: urls['a']}, router.Worker{URL: urls['b']})
	turn := func() byte { return call(r, "POST", "/generate", `{"session_id":"s"}`).Body.Bytes()[0] }
	home := turn()
	if err := r.SetHealthy(urls[home], false); err != nil {
		t.Fatal(err)
	}
	next := turn()
	if next == home {
		t.Fatal("the session stayed with an unhealthy worker")
	}
	if err := r.Remove(urls[next]); err != nil {
		t.Fatal(err)
	}
	if w := call(r, "POST", "/generate", `{"session_id":"s"}`); w.Code != http.StatusServiceUnavailable {
		t.Fatalf("status %d with no worker left, want 503", w.Code)
	}
	if err := r.SetHealthy("http://nobody", true); !errors.Is(err, router.ErrWorker) {
		t.Fatalf("error %v, want ErrWorker", err)
	}
}

func TestUnreachableWorkerIs502AndTurnsUnhealthy(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		// No such scheme handler: every dial fails at once, without a socket.
		r, err := router.New(router.Config{HealthEvery: time.Second, HealthFails: 2}, router.Worker{URL: "grpc://h:1"})
		if err != nil {
			t.Fatal(err)
		}
		defer func() { _ = r.Close() }()
		if w := call(r, "POST", "/generate", `{}`); w.Code != http.StatusBadGateway {
			t.Fatalf("status %d, want 502", w.Code)
		}
		healthy := func() bool { return list(t, r, "/workers").Workers[0]["is_healthy"].(bool) }
		time.Sleep(1500 * time.Millisecond)
		if !healthy() {
			t.Fatal("unhealthy after one failed check, want two")
		}
		time.Sleep(time.Second)
		if healthy() {
			t.Fatal("healthy after two failed checks")
		}
	})
}

func TestConfigErrors(t *testing.T) {
	for _, cfg := range []router.Config{{Style: "odd"}, {HealthFails: -1}} {
		if _, err := router.New(cfg); !errors.Is(err, router.ErrConfig) {
			t.Errorf("config %+v: %v, want ErrConfig", cfg, err)
		}
	}
	if _, err := router.New(router.Config{}, router.Worker{URL: "ftp://h"}); !errors.Is(err, router.ErrWorker) {
		t.Errorf("worker: %v, want ErrWorker", err)
	}
}
