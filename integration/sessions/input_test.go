package sessions

import (
	"bytes"
	"encoding/json"
	"io"
	"net/http"
	"strings"
	"testing"

	"kvgate/integration/enginesim"
	v1 "kvgate/rpc/kvgate/v1"
)

// TestBadInput sends what curl would send. The answers name the field, the value and what is allowed.
func TestBadInput(t *testing.T) {
	f := fleet(t, 1, enginesim.Config{})
	c := start(t, 1, f.RouterURL(), 1, &v1.Settings{})
	long := strings.Repeat("x", 257)
	for _, test := range []struct {
		name, method, body string
		status             int
		want               []string
	}{
		{"unknown kind", "OpenSession", `{"sessionId":"a","kind":"SESSION_KIND_OTHER"}`, 400, []string{"invalid_argument", "SESSION_KIND_OTHER"}},
		{"negative idle timeout", "OpenSession", `{"sessionId":"a","idleTimeout":"-3s"}`, 400, []string{"idleTimeout is -3s"}},
		{"streaming without an engine", "OpenSession", `{"sessionId":"a","kind":"SESSION_KIND_STREAMING"}`, 400, []string{"engineUrl", "streaming"}},
		{"streaming on a strange engine", "OpenSession", `{"sessionId":"a","kind":"SESSION_KIND_STREAMING","engineUrl":"http://127.0.0.1:9"}`, 400, []string{"not in the pool", "127.0.0.1:9"}},
		{"streaming where it is off", "OpenSession", `{"sessionId":"a","kind":"SESSION_KIND_STREAMING","engineUrl":"` + f.Engines[0].URL() + `"}`, 400, []string{"failed_precondition", "engine_refused"}},
		{"id too long", "OpenSession", `{"sessionId":"` + long + `"}`, 400, []string{"sessionId", "257 bytes"}},
		{"no body", "CloseSession", ``, 400, []string{"body is empty"}},
		{"not JSON", "CloseSession", `{"sessionId":`, 400, []string{"invalid_argument"}},
		{"a wrong type", "CloseSession", `{"sessionId":7}`, 400, []string{"invalid_argument", "sessionId"}},
		{"negative join timeout", "CloseSession", `{"sessionId":"a","timeout":"-1s"}`, 400, []string{"timeout is -1s"}},
		{"a close of nothing", "CloseSession", `{"sessionId":"never"}`, 200, []string{"SESSION_STATE_CLOSED"}},
		{"a look at nothing", "GetSession", `{"sessionId":"never"}`, 404, []string{"not_found", "never"}},
		{"pins are off", "PinPrefix", `{"pinId":"p","tokens":1}`, 400, []string{"pins_disabled"}},
		{"no failed open left anything", "GetSession", `{"sessionId":"a"}`, 404, []string{"not_found"}},
	} {
		t.Run(test.name, func(t *testing.T) { c.send(t, test.method, test.body, test.status, test.want...) })
	}
	ratio := 0.5
	must(c, c.Cluster().UpdateSettings, &v1.UpdateSettingsRequest{Settings: &v1.Settings{PinRatio: &ratio}})
	for _, test := range []struct {
		name, body string
		status     int
		want       []string
	}{
		{"over budget", `{"pinId":"p","tokens":"100000000"}`, 429, []string{"resource_exhausted", "pin_budget_exhausted"}},
		{"for a session that is not there", `{"pinId":"p","tokens":1,"sessionId":"never"}`, 404, []string{"not_found"}},
		{"ttl nonsense means 300 s", `{"pinId":"p","tokens":1,"ttl":"soon"}`, 200, []string{`"expiresIn":"300s"`, `"ledgerOnly":true`}},
		{"a short ttl is 300 s", `{"pinId":"q","tokens":1,"ttl":"1"}`, 200, []string{`"expiresIn":"300s"`}},
		{"a long ttl is an hour", `{"pinId":"r","tokens":1,"ttl":"99h"}`, 200, []string{`"expiresIn":"3600s"`}},
	} {
		t.Run("pin "+test.name, func(t *testing.T) { c.send(t, "PinPrefix", test.body, test.status, test.want...) })
	}
	if n := f.Engines[0].Calls(closePath); n != 0 {
		t.Errorf("the engine was told of %d closes, want none", n)
	}
}

// send posts JSON and wants words in the answer, white space aside.
func (c *cluster) send(t *testing.T, method, body string, status int, want ...string) {
	t.Helper()
	once := http.Client{Transport: &http.Transport{DisableKeepAlives: true}}
	res, err := once.Post(c.nodes[0].URL()+"/kvgate.v1.SessionService/"+method, "application/json", strings.NewReader(body))
	if err != nil {
		t.Fatal(err)
	}
	defer res.Body.Close()
	raw, err := io.ReadAll(res.Body)
	if err != nil {
		t.Fatal(err)
	}
	var flat bytes.Buffer
	if err := json.Compact(&flat, raw); err != nil {
		t.Fatalf("%s is not JSON: %v", raw, err)
	}
	if res.StatusCode != status {
		t.Errorf("status %d, want %d: %s", res.StatusCode, status, &flat)
	}
	for _, word := range want {
		if !strings.Contains(flat.String(), word) {
			t.Errorf("%q is not in %s", word, &flat)
		}
	}
}
