package scrape

import (
	"context"
	"errors"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"kvgate/ledger"
)

// wants serves body to who presents key.
func wants(key, body string) http.HandlerFunc {
	return func(w http.ResponseWriter, r *http.Request) {
		if r.Header.Get("Authorization") != "Bearer "+key {
			w.WriteHeader(http.StatusUnauthorized)
			return
		}
		_, _ = io.WriteString(w, body)
	}
}

func TestKeys(t *testing.T) {
	const page, list = "sglang:max_total_num_tokens 1000\n", `{"workers":[]}`
	engine := httptest.NewServer(wants("engine-secret", page))
	defer engine.Close()
	router := httptest.NewServer(wants("router-secret", list))
	defer router.Close()
	for _, c := range []struct {
		name               string
		keys               Keys
		engineSay, routers string // what the errors name; "" for none
	}{
		{"right", Keys{Router: "router-secret", Engine: "engine-secret"}, "", ""},
		{"admin key in place of none", Keys{Router: "router-secret", EngineAdmin: "engine-secret"}, "", ""},
		{"exchanged", Keys{Router: "engine-secret", Engine: "router-secret"}, "to this node's engine key", "to this node's router key"},
		{"wrong admin key", Keys{EngineAdmin: "x"}, "to this node's engine admin key", "has no router key"},
		{"none", Keys{}, "has no engine key", "has no router key"},
	} {
		t.Run(c.name, func(t *testing.T) {
			tr := transport(t)
			_, engineErr := NewEngines(tr, c.keys).Scrape(t.Context(), engine.URL, Info{}, true)
			_, routerErr := NewDiscoverer(tr, c.keys).Router(t.Context(), router.URL, "")
			for err, want := range map[error]string{engineErr: c.engineSay, routerErr: c.routers} {
				if want == "" && err == nil {
					continue
				}
				if !errors.Is(err, ErrUnauthorized) || !strings.Contains(err.Error(), want) || strings.Contains(err.Error(), "secret") {
					t.Errorf("error %v, want one that says %q", err, want)
				}
			}
		})
	}
}

func TestScrapeErrors(t *testing.T) {
	other := httptest.NewServer(http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) {
		t.Errorf("followed a redirect to another host, with Authorization %q", r.Header.Get("Authorization"))
	}))
	defer other.Close()
	for _, c := range []struct {
		name    string
		handler http.HandlerFunc
		err     error
		say     string
	}{
		{"metrics off", http.NotFound, ErrStatus, "--enable-metrics"},
		{"broken", func(w http.ResponseWriter, _ *http.Request) { w.WriteHeader(500) }, ErrStatus, "GET /metrics answers 500\n"},
		{"no metrics", func(w http.ResponseWriter, _ *http.Request) { _, _ = io.WriteString(w, "ok") }, ErrNoMetrics, "--enable-metrics"},
		{"declared too large", func(w http.ResponseWriter, _ *http.Request) {
			w.Header().Set("Content-Length", "99999999999")
			_, _ = io.WriteString(w, "x")
		}, ErrTooLarge, ""},
		{"too large", func(w http.ResponseWriter, r *http.Request) {
			chunk := []byte(strings.Repeat("#", 1<<20) + "\n")
			for range MaxBody/len(chunk) + 2 {
				if _, err := w.Write(chunk); err != nil {
					return
				}
			}
		}, ErrTooLarge, ""},
		{"slow body", func(w http.ResponseWriter, r *http.Request) {
			_, _ = io.WriteString(w, "sglang:max_total_num_tokens 1000\n")
			w.(http.Flusher).Flush()
			<-r.Context().Done()
		}, ErrUnreachable, "no answer in time"},
		{"hanging", func(_ http.ResponseWriter, r *http.Request) { <-r.Context().Done() }, ErrUnreachable, "no answer in time"},
		{"cut body", func(w http.ResponseWriter, _ *http.Request) {
			w.Header().Set("Content-Length", "1000")
			_, _ = io.WriteString(w, "sglang:max_total_num_tokens 1000\n")
		}, ErrUnreachable, "before the answer ended"},
		{"redirect elsewhere", func(w http.ResponseWriter, r *http.Request) { http.Redirect(w, r, other.URL+"/metrics", 307) }, ErrStatus, "307"},
		{"redirect loop", func(w http.ResponseWriter, r *http.Request) { http.Redirect(w, r, r.URL.Path, 307) }, ErrStatus, "307"},
		{"slash redirect", func(w http.ResponseWriter, r *http.Request) {
			if r.URL.Path == "/metrics" {
				http.Redirect(w, r, "/metrics/", 307)
			} else {
				_, _ = io.WriteString(w, "sglang:max_total_num_tokens 1000\n")
			}
		}, nil, ""},
	} {
		t.Run(c.name, func(t *testing.T) {
			s := httptest.NewServer(c.handler)
			defer s.Close()
			// Only the cases that hang end by the deadline.
			d := time.Minute
			if c.say == "no answer in time" {
				d = 100 * time.Millisecond
			}
			ctx, cancel := context.WithTimeout(t.Context(), d)
			defer cancel()
			_, err := NewEngines(transport(t), Keys{Engine: "k"}).Scrape(ctx, s.URL, Info{}, false)
			if !errors.Is(err, c.err) || err != nil && !strings.Contains(err.Error()+"\n", c.say) {
				t.Fatalf("error %v, want %v that says %q", err, c.err, c.say)
			}
		})
	}
}

// An error must read the same from poll to poll, or it would be replicated each time.
func TestErrorTextIsStable(t *testing.T) {
	s := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		c, _, err := w.(http.Hijacker).Hijack()
		if err == nil {
			_ = c.Close()
		}
	}))
	defer s.Close()
	e := NewEngines(transport(t), Keys{})
	_, first := e.Scrape(t.Context(), s.URL, Info{}, false)
	_, second := e.Scrape(t.Context(), s.URL, Info{}, false)
	if first == nil || second == nil || first.Error() != second.Error() || strings.Contains(first.Error(), "127.0.0.1") {
		t.Fatalf("%v, then %v", first, second)
	}
}

func TestProxyIsIgnored(t *testing.T) {
	t.Setenv("HTTP_PROXY", "http://127.0.0.1:1")
	t.Setenv("http_proxy", "http://127.0.0.1:1")
	if NewTransport().Proxy != nil {
		t.Fatal("a proxy function is set")
	}
}

// The page lacks the capacity: the info endpoints are asked in turn, once asked the answer is reused.
func TestCapacityByInfo(t *testing.T) {
	const page = "sglang:token_usage 0.5\n"
	for _, c := range []struct {
		name   string
		bodies map[string]string
		want   ledger.Tokens
		err    error
	}{
		{"server_info", map[string]string{"/metrics": page, "/server_info": `{"max_total_num_tokens":1000,"dp_size":2}`}, 2000, nil},
		{"loads", map[string]string{"/metrics": page, "/server_info": `{}`, "/v1/loads": `{"loads":[{"dp_rank":0,"max_total_num_tokens":700}]}`}, 700, nil},
		{"older", map[string]string{"/metrics": page, "/get_server_info": `{"max_total_num_tokens":500}`}, 500, nil},
		{"none", map[string]string{"/metrics": page}, 0, ErrNoCapacity},
		{"wants a key", map[string]string{"/metrics": page, "/server_info": `!401{}`}, 0, ErrUnauthorized},
	} {
		t.Run(c.name, func(t *testing.T) {
			s := answers(t, c.bodies)
			e := NewEngines(transport(t), Keys{})
			if _, err := e.Scrape(t.Context(), s.URL, Info{}, false); !errors.Is(err, ErrNoCapacity) {
				t.Errorf("asked although told not to: %v", err)
			}
			got, err := e.Scrape(t.Context(), s.URL, Info{}, true)
			if !errors.Is(err, c.err) || got.Capacity != c.want {
				t.Fatalf("capacity %d, %v; want %d, %v", got.Capacity, err, c.want, c.err)
			}
			if err != nil {
				if !errors.Is(err, ErrNoCapacity) {
					t.Errorf("error %v does not say that the capacity is unknown", err)
				}
				return
			}
			again, err := e.Scrape(t.Context(), s.URL, got.Info, false)
			if err != nil || again.Capacity != c.want {
				t.Errorf("without asking: capacity %d, %v; want %d", again.Capacity, err, c.want)
			}
		})
	}
}

func TestConnectionsAreReused(t *testing.T) {
	var made atomic.Int32
	s := httptest.NewUnstartedServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		_, _ = io.WriteString(w, "sglang:max_total_num_tokens 1000\n")
	}))
	s.Config.ConnContext = func(ctx context.Context, _ net.Conn) context.Context { made.Add(1); return ctx }
	s.Start()
	defer s.Close()
	e := NewEngines(transport(t), Keys{})
	for range 5 {
		if _, err := e.Scrape(t.Context(), s.URL, Info{}, false); err != nil {
			t.Fatal(err)
		}
	}
	if n := made.Load(); n != 1 {
		t.Fatalf("%d connections for 5 scrapes, want 1", n)
	}
}
