package rpc

import (
	"context"
	"crypto/tls"
	"errors"
	"io"
	"log/slog"
	"net/http"
	"strings"
	"testing"
	"time"

	"kvgate/fsm"
	"kvgate/ledger"
	"kvgate/rpc/devcerts"
	"kvgate/rpc/tlsfiles"
)

// trio is the status of node n1 of three, led by leader.
func trio(leader string) fsm.Status {
	return fsm.Status{NodeID: "n1", LeaderID: leader, Ready: true, Nodes: []fsm.NodeStatus{
		{ID: "n1", APIAddress: "a:7070", Voter: true}, {ID: "n2", APIAddress: "b:7070", Voter: true}, {ID: "n3", Voter: true},
	}}
}

func (r *running) header(method, body string) http.Header {
	r.t.Helper()
	res, err := r.client.Post(r.url+"/kvgate.v1."+method, "application/json", strings.NewReader(body))
	if err != nil {
		r.t.Fatal(err)
	}
	defer res.Body.Close()
	if _, err := io.Copy(io.Discard, res.Body); err != nil {
		r.t.Fatal(err)
	}
	return res.Header
}

func TestAnswersNameTheLeadersAPI(t *testing.T) {
	for leader, want := range map[string]string{"n1": "a:7070", "n2": "b:7070", "n3": "", "": "", "n9": ""} {
		r := start(t, &fakeBackend{status: trio(leader)})
		for _, body := range []string{`{}`, `{"pool":"nope"}`} {
			if got := r.header("ObserveService/GetBudget", body).Get(leaderHeader); got != want {
				t.Errorf("leader %q, %s: header %q, want %q", leader, body, got, want)
			}
		}
	}
}

func TestTheHeaderFollowsTheLeader(t *testing.T) {
	now, leader, asked := time.Unix(0, 0), "n1", 0
	hints := &leaderHints{now: func() time.Time { return now }, status: func() fsm.Status { asked++; return trio(leader) }}
	if hints.address(); hints.address() != "a:7070" || asked != 1 {
		t.Errorf("%q after %d looks", hints.address(), asked)
	}
	leader = "n2"
	if now = now.Add(hintEvery); hints.address() != "b:7070" {
		t.Errorf("still %q", hints.address())
	}
}

func TestStoppingNodeSendsCallersElsewhere(t *testing.T) {
	for _, test := range []struct {
		name, hint string
		status     fsm.Status
		bypass     bool
	}{
		{"the leader is elsewhere", "b:7070", trio("n2"), false},
		{"this node leads still", "", trio("n1"), false},
		{"no leader", "", trio(""), false},
		{"alone", "", fsm.Status{NodeID: "n1", LeaderID: "n1", Nodes: []fsm.NodeStatus{{ID: "n1", Voter: true, APIAddress: "a:7070"}}}, true},
		{"others do not vote", "", fsm.Status{NodeID: "n1", LeaderID: "n1", Nodes: []fsm.NodeStatus{{ID: "n1", Voter: true}, {ID: "n2"}}}, true},
	} {
		t.Run(test.name, func(t *testing.T) {
			b, entered, left := blocking()
			b.status = test.status
			r := start(t, b)
			decided := make(chan answer, 1)
			go func() { decided <- r.post("AdmissionService/Acquire", oneTicket) }()
			<-entered
			if err := r.stop(); err != nil {
				t.Errorf("Serve returned %v", err)
			}
			if err := <-left; !errors.Is(err, context.Canceled) {
				t.Errorf("the backend saw %v: the ticket would not be detached", err)
			}
			got := <-decided
			if test.bypass {
				if got.ok(t)["reason"] != "REASON_DEGRADED" {
					t.Errorf("got %s", got.raw)
				}
				return
			}
			info := got.info(t)
			if got.code() != "unavailable" || info.GetCode() != CodeShutdown || info.GetLeaderHint() != test.hint ||
				info.RetryAfter == nil || info.RetryAfter.AsDuration() != 0 {
				t.Errorf("got %s with %v", got.raw, info)
			}
		})
	}
}

func TestTLSServesBothProtocols(t *testing.T) {
	dir, now := t.TempDir(), time.Now()
	ca, err := devcerts.NewAuthority(devcerts.Subject{Name: "ca", NotBefore: now.Add(-time.Hour), NotAfter: now.Add(time.Hour)})
	if err != nil {
		t.Fatal(err)
	}
	pair, err := ca.Issue(devcerts.Subject{Name: "n1", Hosts: []string{"127.0.0.1"}, NotBefore: now.Add(-time.Hour), NotAfter: now.Add(time.Hour)})
	if err = errors.Join(err, ca.Write(dir, "ca"), pair.Write(dir, "n1")); err != nil {
		t.Fatal(err)
	}
	quiet := slog.New(slog.DiscardHandler)
	cert, key := devcerts.Paths(dir, "n1")
	id, err := tlsfiles.LoadIdentity(cert, key, quiet)
	if err != nil {
		t.Fatal(err)
	}
	caFile, _ := devcerts.Paths(dir, "ca")
	roots, err := tlsfiles.LoadAuthorities(caFile, quiet)
	if err != nil {
		t.Fatal(err)
	}
	b := &fakeBackend{ledger: ledger.New()}
	r := startWith(t, b, Options{TLS: tlsfiles.Server(id, nil, "h2", "http/1.1")})
	for _, force := range []bool{true, false} {
		transport := &http.Transport{TLSClientConfig: tlsfiles.Client(nil, roots, ""), ForceAttemptHTTP2: force}
		if !force {
			transport.TLSNextProto = map[string]func(string, *tls.Conn) http.RoundTripper{}
		}
		client := &http.Client{Transport: transport}
		res, err := client.Get(strings.Replace(r.url, "http:", "https:", 1) + "/healthz")
		if err != nil {
			t.Fatal(err)
		}
		res.Body.Close()
		if want := map[bool]int{true: 2, false: 1}[force]; res.ProtoMajor != want {
			t.Errorf("HTTP/%d, want %d", res.ProtoMajor, want)
		}
		client.CloseIdleConnections()
	}
	// Plain HTTP on a TLS port is refused, not served.
	res, err := r.client.Get(r.url + "/healthz")
	if err == nil {
		res.Body.Close()
		if res.StatusCode != http.StatusBadRequest {
			t.Errorf("plain HTTP answered %d", res.StatusCode)
		}
	}
}
