package scrape

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"net/url"
	"reflect"
	"strings"
	"testing"
	"time"

	"kvgate/ledger"
)

func TestEngineURL(t *testing.T) {
	for raw, want := range map[string]string{
		"http://10.0.0.1:30000":        "http://10.0.0.1:30000",
		"http://10.0.0.1:30000/":       "http://10.0.0.1:30000",
		" HTTP://Node-A:30000// ":      "http://node-a:30000",
		"http://10.0.0.1:30000@3":      "http://10.0.0.1:30000",
		"http://10.0.0.1:30000@12/":    "http://10.0.0.1:30000",
		"http://10.0.0.1:30000/@0":     "http://10.0.0.1:30000",
		"http://[2001:db8::1]:30000@1": "http://[2001:db8::1]:30000",
		"https://e.example/p/?x=1#f":   "https://e.example/p",
		"http://host":                  "http://host",
		"grpc://10.0.0.1:8001":         "",
		"10.0.0.1:30000":               "",
		"http://":                      "",
		"http://:30000":                "",
		"http://u:secret@host:1":       "",
		"http://h:1@x":                 "",
		"http://h:1@":                  "",
		"":                             "",
		"@0":                           "",
		"http://h:port":                "",
		"http://h\x00:1":               "",
	} {
		got, err := EngineURL(raw)
		if got != want || (err == nil) != (want != "") || err != nil && !errors.Is(err, ErrBadURL) {
			t.Errorf("EngineURL(%q) = %q, %v; want %q", raw, got, err, want)
		}
		if err != nil && strings.Contains(err.Error(), "secret") {
			t.Errorf("error tells a password: %v", err)
		}
	}
}

func TestParseWorkers(t *testing.T) {
	const a, b, c = "http://a:1", "http://b:1", "http://c:1"
	for _, tc := range []struct {
		name, body, model string
		want              Discovery
		err               error
	}{
		{
			name: "fixture: prefill and decode, UUID ids, sorted by URL",
			body: string(fixture(t, "workers_pd_real_v0.3.0-0.3.1.json")),
			want: Discovery{Engines: []Listed{{URL: "http://203.0.113.67:8000", Role: ledger.RolePrefill}, {URL: "http://203.0.113.81:8000", Role: ledger.RoleDecode}}},
		},
		{
			name: "fixture: ids are URLs", body: string(fixture(t, "workers_docs_v0.2.x_url_ids.json")),
			want: Discovery{Engines: []Listed{{URL: "http://0.0.0.0:31378", Role: ledger.RoleRegular}, {URL: "http://0.0.0.0:34881", Role: ledger.RoleRegular}}},
		},
		{
			name: "fixture: one model of two", body: string(fixture(t, "workers_docs_v0.2.x_url_ids.json")), model: "llama3",
			want: Discovery{Engines: []Listed{{URL: "http://0.0.0.0:34881", Role: ledger.RoleRegular}}, Others: 1},
		},
		{
			name: "fixture: no worker of the model", body: string(fixture(t, "workers_docs_v0.2.x_url_ids.json")), model: "x",
			want: Discovery{Others: 2},
		},
		{name: "no workers", body: `{"workers":[],"total":0}`},
		{name: "early builds: URLs only", body: `{"workers":[{"url":"http://b:1"},{"url":"http://a:1/"}]}`, want: Discovery{Engines: []Listed{{URL: a}, {URL: b}}}},
		{
			name: "early builds: no model told, nothing to filter by", body: `{"workers":[{"url":"http://a:1"}]}`, model: "m",
			want: Discovery{Engines: []Listed{{URL: a}}},
		},
		{
			name: "model in metadata or labels, one untold", model: "m",
			body: `{"workers":[{"url":"http://a:1","metadata":{"served_model_name":"m"}},{"url":"http://b:1","model_id":null,"labels":{"model_id":"m"}},{"url":"http://c:1","model_id":"unknown"}]}`,
			want: Discovery{Engines: []Listed{{URL: a}, {URL: b}}, Others: 1},
		},
		{
			name: "ranks are one engine; one rank out of service is the engine out of service",
			body: `{"workers":[{"url":"http://b:1@0","worker_type":"regular"},{"url":"http://a:1@1","is_healthy":true,"dp_rank":1,"dp_size":2,"dp_base_url":"http://a:1"},{"url":"http://b:1@1","is_healthy":false},{"url":"http://a:1@0"}]}`,
			want: Discovery{Engines: []Listed{{URL: a}, {URL: b, Role: ledger.RoleRegular, Unhealthy: true}}},
		},
		{
			name: "unhealthy stays listed", body: `{"workers":[{"url":"http://a:1","is_healthy":false,"worker_type":"Encode"}]}`,
			want: Discovery{Engines: []Listed{{URL: a, Role: ledger.RoleEncode, Unhealthy: true}}},
		},
		{
			name: "grpc", body: `{"workers":[{"url":"grpc://a:1","connection_mode":{"grpc":{"port":1}}},{"url":"http://c:1","connection_mode":"HTTP"}]}`,
			want: Discovery{Engines: []Listed{{URL: c}}, Unsupported: []string{"grpc://a:1"}},
		},
		{
			name: "one bad entry does not void the list; odd types do not lose a worker",
			body: `{"workers":[7,{"id":"x"},null,{"url":"http://a:1","metadata":{"n":1},"load":-3,"priority":"high"},{"url":"http://b:1","worker_type":5}]}`,
			want: Discovery{Engines: []Listed{{URL: a}, {URL: b}}, Unsupported: []string{"entry 0", "entry 1", "entry 2"}},
		},
		{name: "miles: proxied to an engine", body: `{"detail":"Not Found"}`, err: ErrMalformed},
		{name: "workers is null", body: `{"workers":null}`, err: ErrMalformed},
		{name: "workers is an object", body: `{"workers":{}}`, err: ErrMalformed},
		{name: "not JSON", body: `<html>`, err: ErrMalformed},
		{name: "cut", body: `{"workers":[{"url":"http://a:1"}`, err: ErrMalformed},
		{name: "too many", body: `{"workers":[` + strings.Repeat(`0,`, MaxWorkers) + `0]}`, err: ErrTooManyWorkers},
	} {
		t.Run(tc.name, func(t *testing.T) {
			got, err := ParseWorkers([]byte(tc.body), tc.model)
			if !errors.Is(err, tc.err) {
				t.Fatalf("error %v, want %v", err, tc.err)
			}
			if err == nil {
				tc.want.Source = SourceWorkers
			}
			if len(got.Engines) == 0 {
				got.Engines = nil
			}
			if !reflect.DeepEqual(got, tc.want) {
				t.Errorf("got  %+v\nwant %+v", got, tc.want)
			}
		})
	}
}

// answers serves fixed bodies; a missing path answers 404 with an empty body.
func answers(t *testing.T, bodies map[string]string) *httptest.Server {
	t.Helper()
	s := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		body, ok := bodies[r.URL.Path]
		if code := 0; ok && len(body) > 4 && body[0] == '!' {
			_, _ = fmt.Sscanf(body[1:4], "%d", &code)
			w.WriteHeader(code)
			body = body[4:]
		} else if !ok {
			w.WriteHeader(http.StatusNotFound)
		}
		_, _ = io.WriteString(w, body)
	}))
	t.Cleanup(s.Close)
	return s
}

// transport is closed with the test, so that no idle connection outlives it.
func transport(t testing.TB) *http.Transport {
	tr := NewTransport()
	t.Cleanup(tr.CloseIdleConnections)
	return tr
}

func TestRouters(t *testing.T) {
	one := func(source string) Discovery {
		return Discovery{Source: source, Engines: []Listed{{URL: "http://a:1"}}}
	}
	const workers, urls = `{"workers":[{"url":"http://a:1@0"},{"url":"http://a:1@1"}]}`, `{"urls":["http://a:1@0","http://a:1@1"]}`
	for _, c := range []struct {
		name   string
		bodies map[string]string
		static []string
		want   Discovery
		err    error
	}{
		{"0.1.9: /workers is 404", map[string]string{"/list_workers": urls}, nil, one(SourceListWorkers), nil},
		{"0.2.0: both", map[string]string{"/workers": workers, "/list_workers": `{"urls":["http://other:1"]}`}, nil, one(SourceWorkers), nil},
		{"0.3: /list_workers is 404", map[string]string{"/workers": workers}, nil, one(SourceWorkers), nil},
		{"miles: /workers goes to an engine", map[string]string{"/workers": `!404{"detail":"Not Found"}`, "/list_workers": urls}, nil, one(SourceListWorkers), nil},
		{"miles: the engine wants its own key", map[string]string{"/workers": `!401{}`, "/list_workers": urls}, nil, one(SourceListWorkers), nil},
		{"miles: no engine", map[string]string{"/workers": `!503none`, "/list_workers": `{"urls":[]}`}, nil, Discovery{Source: SourceListWorkers}, nil},
		{"an empty list is a list", map[string]string{"/workers": `{"workers":[]}`, "/list_workers": urls}, []string{"http://s:1"}, Discovery{Source: SourceWorkers}, nil},
		{"neither", map[string]string{}, nil, Discovery{}, ErrNoList},
		{"neither, static list", map[string]string{}, []string{"http://a:1/"}, one(SourceStatic), nil},
		{"401", map[string]string{"/workers": `!401{}`, "/list_workers": `!401{}`}, nil, Discovery{}, ErrUnauthorized},
		{"403", map[string]string{"/workers": `!403{}`}, nil, Discovery{}, ErrUnauthorized},
		{"500", map[string]string{"/workers": `!500oops`, "/list_workers": `!500oops`}, nil, Discovery{}, ErrStatus},
		{"urls is no list", map[string]string{"/list_workers": `{"urls":{}}`}, nil, Discovery{}, ErrMalformed},
	} {
		t.Run(c.name, func(t *testing.T) {
			d := NewDiscoverer(transport(t), Keys{})
			set := ledger.Settings{RouterURL: answers(t, c.bodies).URL + "/", EngineURLs: c.static}
			got, err := d.Discover(t.Context(), set)
			if !errors.Is(err, c.err) {
				t.Fatalf("error %v, want %v", err, c.err)
			}
			if len(got.Engines) == 0 {
				got.Engines = nil
			}
			if !reflect.DeepEqual(got, c.want) {
				t.Errorf("got  %+v\nwant %+v", got, c.want)
			}
		})
	}
}

// The half of the time that /workers gets leaves time for /list_workers.
func TestRouterHangsOnWorkers(t *testing.T) {
	s := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.URL.Path == "/workers" {
			<-r.Context().Done()
			return
		}
		_, _ = io.WriteString(w, `{"urls":["http://a:1"]}`)
	}))
	defer s.Close()
	ctx, cancel := context.WithTimeout(t.Context(), 2*time.Second)
	defer cancel()
	got, err := NewDiscoverer(transport(t), Keys{}).Router(ctx, s.URL, "")
	if err != nil || got.Source != SourceListWorkers {
		t.Fatalf("got %+v, %v", got, err)
	}
}

func TestUnreachableRouter(t *testing.T) {
	s := httptest.NewServer(http.NotFoundHandler())
	s.Close()
	_, err := NewDiscoverer(transport(t), Keys{}).Router(t.Context(), s.URL, "")
	if !errors.Is(err, ErrUnreachable) || !strings.Contains(err.Error(), "connection refused") {
		t.Fatalf("error %v", err)
	}
}

func TestUnreachableTellsNoURL(t *testing.T) {
	err := unreachable(&url.Error{Op: "Get", URL: "http://u:secret@h", Err: errors.New("odd")})
	if err.Error() != "unreachable: odd" {
		t.Fatalf("error %q", err)
	}
}
