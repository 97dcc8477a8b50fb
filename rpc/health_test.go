package rpc

import (
	"bytes"
	"context"
	"io"
	"net/http"
	"slices"
	"strings"
	"testing"

	"connectrpc.com/grpcreflect"
	"google.golang.org/protobuf/reflect/protoreflect"

	"kvgate/fsm"
	"kvgate/rpc/kvgate/v1/kvgatev1connect"
)

func (r *running) get(path string) (*http.Response, string) {
	r.t.Helper()
	res, err := r.client.Get(r.url + path)
	if err != nil {
		r.t.Fatal(err)
	}
	defer res.Body.Close()
	body, err := io.ReadAll(res.Body)
	if err != nil {
		r.t.Fatal(err)
	}
	return res, string(body)
}

func TestProbes(t *testing.T) {
	for name, c := range map[string]struct {
		status fsm.Status
		code   int
		text   string
	}{
		"ready":     {fsm.Status{Ready: true, LeaderID: "n1", Writable: true, Health: "ok"}, 200, "ready\n"},
		"full disk": {fsm.Status{Ready: true, LeaderID: "n1", Health: "writes are refused: full"}, 200, "ready, but writes are refused: full\n"},
		"no leader": {fsm.Status{}, 503, "no leader"},
		"behind":    {fsm.Status{LeaderID: "n1", AppliedIndex: 3, CommitIndex: 9, Health: "ok"}, 503, "applied index 3 of 9"},
	} {
		t.Run(name, func(t *testing.T) {
			r := start(t, &fakeBackend{status: c.status})
			if res, body := r.get("/readyz"); res.StatusCode != c.code || !strings.Contains(body, c.text) {
				t.Errorf("readyz answered %d %q", res.StatusCode, body)
			}
			if res, body := r.get("/healthz"); res.StatusCode != 200 || body != "ok\n" {
				t.Errorf("healthz answered %d %q", res.StatusCode, body)
			}
		})
	}
}

func TestGRPCHealthFollowsReadiness(t *testing.T) {
	check := func(r *running, service string) (int, string) {
		res, err := r.client.Post(r.url+"/grpc.health.v1.Health/Check", "application/json", bytes.NewBufferString(`{"service":"`+service+`"}`))
		if err != nil {
			t.Fatal(err)
		}
		defer res.Body.Close()
		body, _ := io.ReadAll(res.Body)
		return res.StatusCode, string(body)
	}
	ready := start(t, &fakeBackend{status: fsm.Status{Ready: true}})
	for _, service := range append([]string{""}, serviceNames...) {
		if code, body := check(ready, service); code != 200 || !strings.Contains(body, `"SERVING_STATUS_SERVING"`) {
			t.Errorf("%q: %d %s", service, code, body)
		}
	}
	if code, body := check(ready, "kvgate.v1.Nope"); code != http.StatusNotFound {
		t.Errorf("an unknown service: %d %s", code, body)
	}
	if _, body := check(start(t, &fakeBackend{}), ""); !strings.Contains(body, `"SERVING_STATUS_NOT_SERVING"`) {
		t.Errorf("a node that is not ready: %s", body)
	}
}

func TestReflectionDescribesTheServices(t *testing.T) {
	r := start(t, &fakeBackend{})
	httpClient, _ := h2c(t)
	stream := grpcreflect.NewClient(httpClient, r.url).NewStream(context.Background())
	names, err := stream.ListServices()
	if err != nil {
		t.Fatal(err)
	}
	for _, want := range serviceNames {
		if !slices.Contains(names, protoreflect.FullName(want)) {
			t.Errorf("%s is not among %v", want, names)
		}
	}
	files, err := stream.FileContainingSymbol(kvgatev1connect.AdmissionServiceName)
	if err != nil || len(files) == 0 {
		t.Errorf("no descriptor: %v", err)
	}
	if _, err := stream.Close(); err != nil {
		t.Error(err)
	}
}

func TestStatusPageRunsOnlyItsOwnCode(t *testing.T) {
	r := start(t, &fakeBackend{})
	res, body := r.get("/")
	policy := res.Header.Get("Content-Security-Policy")
	if res.StatusCode != 200 || !strings.HasPrefix(res.Header.Get("Content-Type"), "text/html") {
		t.Fatalf("answered %d %s", res.StatusCode, res.Header.Get("Content-Type"))
	}
	for tag, directive := range map[string]string{"script": "script-src", "style": "style-src"} {
		_, rest, _ := strings.Cut(body, "<"+tag+">")
		source, _, found := strings.Cut(rest, "</"+tag+">")
		if !found || !strings.Contains(policy, directive+" "+sourceHash(source)) {
			t.Errorf("the policy %q does not allow the page's own %s", policy, tag)
		}
	}
	for _, bad := range []string{"unsafe-inline", "unsafe-eval", "*"} {
		if strings.Contains(policy, bad) {
			t.Errorf("the policy has %s", bad)
		}
	}
	for _, outside := range []string{"http://", "https://", "//cdn", "innerHTML", " style=", " onclick="} {
		if strings.Contains(body, outside) {
			t.Errorf("the page has %q", outside)
		}
	}
	if res, _ := r.get("/nope"); res.StatusCode != http.StatusNotFound {
		t.Errorf("an unknown path answered %d", res.StatusCode)
	}
}
