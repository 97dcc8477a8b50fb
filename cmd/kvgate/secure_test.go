package main

import (
	"bytes"
	"context"
	"errors"
	"io"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"kvgate/rpc/devcerts"
	"kvgate/rpc/tlsfiles"
)

// patience is how long a condition may take on a machine that is busy with other things.
const patience = 90 * time.Second

// eventually polls until ok answers true.
func eventually(t *testing.T, what string, ok func() bool) {
	t.Helper()
	deadline := time.After(patience)
	ticker := time.NewTicker(10 * time.Millisecond)
	defer ticker.Stop()
	for !ok() {
		select {
		case <-ticker.C:
		case <-deadline:
			t.Fatalf("after %v still not so: %s", patience, what)
		}
	}
}

// startTestNode runs a node of the product until the test ends.
func startTestNode(t *testing.T, log io.Writer, args ...string) (*node, ServeConfig) {
	t.Helper()
	cfg, err := load(t, append([]string{"--listen", "127.0.0.1:0", "--raft-listen", "127.0.0.1:0"}, args...)...)
	if err != nil {
		t.Fatal(err)
	}
	n, err := startNode(t.Context(), *cfg, slog.New(slog.NewTextHandler(log, nil)))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := n.Close(); err != nil {
			t.Error(err)
		}
	})
	return n, *cfg
}

func ready(t *testing.T, n *node) {
	t.Helper()
	eventually(t, "the node is ready", func() bool { return n.replica.Status().Ready })
}

// devCerts runs `certs dev` and returns the path of a file in it.
func devCerts(t *testing.T, dir string, args ...string) func(string) string {
	t.Helper()
	if r := kvgate(t, append([]string{"certs", "dev", dir}, args...)...); r.code != exitOK {
		t.Fatalf("certs dev: %s", r.stderr)
	}
	return func(name string) string { return filepath.Join(dir, name) }
}

func TestCertsDev(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "certs")
	file := devCerts(t, dir, "--node", "n1=a.example,10.0.0.1", "--node", "n2", "--host", "gate.example")
	entries, err := os.ReadDir(dir)
	if err != nil {
		t.Fatal(err)
	}
	var names []string
	for _, e := range entries {
		names = append(names, e.Name())
		info, err := e.Info()
		if key := strings.HasSuffix(e.Name(), "-key.pem"); err != nil || key && info.Mode().Perm() != 0o600 {
			t.Errorf("%s has mode %s (%v)", e.Name(), info.Mode(), err)
		}
	}
	if got := strings.Join(names, " "); got != "ca-key.pem ca.pem client-key.pem client.pem n1-key.pem n1.pem n2-key.pem n2.pem" {
		t.Errorf("files %s", got)
	}
	before, err := os.ReadFile(file("n1.pem"))
	if err != nil {
		t.Fatal(err)
	}
	if r := kvgate(t, "certs", "dev", dir); r.code != exitFailed || !strings.Contains(r.stderr, "ca.pem is there already: give --force") {
		t.Errorf("a second time: exit %d %s", r.code, r.stderr)
	}
	if now, _ := os.ReadFile(file("n1.pem")); !bytes.Equal(now, before) {
		t.Error("a refused run wrote a file")
	}
	devCerts(t, dir, "--force", "--node", "n1")
	if now, _ := os.ReadFile(file("n1.pem")); bytes.Equal(now, before) {
		t.Error("--force kept the file")
	}
}

func TestBadCertsDev(t *testing.T) {
	dir := t.TempDir()
	for _, test := range []struct{ args, want string }{
		{"certs", "certs: a subcommand is missing: use dev"},
		{"certs dev", "kvgate certs dev: DIR is missing"},
		{"certs dev DIR x", `unexpected argument "x"`},
		{"certs dev DIR --node ../x", `node: "../x" is not allowed`},
		{"certs dev DIR --node ca", `node: "ca" is not allowed`},
		{"certs dev DIR --node n1 --node n1=b", `node: "n1=b" is not allowed`},
		{"certs dev DIR --node =b", `node: "=b" is not allowed`},
		{"certs dev DIR --valid 0s", `valid: "0s" is not allowed`},
	} {
		r := kvgate(t, strings.Fields(strings.ReplaceAll(test.args, "DIR", dir))...)
		if r.code != exitUsage || !strings.Contains(r.stderr, test.want) {
			t.Errorf("%s: exit %d %q", test.args, r.code, r.stderr)
		}
	}
	if entries, _ := os.ReadDir(dir); len(entries) != 0 {
		t.Errorf("files %v", entries)
	}
}

const testTokens = "t-admin admin\nt-eyes observer\nt-other client other\n"

// A node with everything on, and what each caller gets.
func TestSecuredNode(t *testing.T) {
	file := devCerts(t, t.TempDir(), "--node", "n1")
	stranger := devCerts(t, t.TempDir(), "--node", "n1")
	tokens := writeFile(t, testTokens)
	log := &lockedBuffer{}
	n, _ := startTestNode(t, log, "--strict", "--node-id", "n1", "--data-dir", t.TempDir(), "--bootstrap", "--tokens", tokens,
		"--tls-cert", file("n1.pem"), "--tls-key", file("n1-key.pem"), "--tls-client-ca", file("ca.pem"),
		"--raft-tls-cert", file("n1.pem"), "--raft-tls-key", file("n1-key.pem"), "--raft-tls-ca", file("ca.pem"))
	ready(t, n)
	if !strings.HasPrefix(n.URL(), "https://") {
		t.Errorf("URL %s", n.URL())
	}
	address := strings.TrimPrefix(n.URL(), "https://")
	t.Setenv("KVGATE_SERVER", address)
	t.Setenv("KVGATE_TIMEOUT", "20s")
	mine := "--tls-ca CA --tls-cert CERT --tls-key KEY"
	for _, test := range []struct {
		args string
		code int
		says string
	}{
		{"node status " + mine + " --token-file ADMIN", exitOK, "The only voter may not fail"},
		{"status " + mine + " --token-file EYES", exitOK, "n1"},
		{"status " + mine, exitFailed, "unauthenticated: a valid bearer token is needed"},
		{"status " + mine + " --token-file WRONG", exitFailed, "unauthenticated"},
		{"settings set headroom=0.5 " + mine + " --token-file EYES", exitFailed, "permission_denied: not allowed: the token has role observer"},
		{"cancel t1 " + mine + " --token-file OTHER", exitFailed, `permission_denied: not allowed: the token has role client for pool other, the call is about pool "default"`},
		{"cancel t1 --pool other " + mine + " --token-file OTHER", exitOK, ""},
		{"status --tls-ca CA --token-file ADMIN", exitUnavailable, "kvgate: unavailable: https://"},
		{"status --tls-ca CA --tls-cert FOREIGNCERT --tls-key FOREIGNKEY --token-file ADMIN", exitUnavailable, "kvgate: unavailable: https://"},
		{"status --tls-ca FOREIGNCA --token-file ADMIN", exitUnavailable, "unknown authority"},
		{"status --server https://" + address + " --token-file ADMIN", exitUnavailable, "unknown authority"},
		{"status --server http://" + address + " --token-file ADMIN", exitFailed, ""},
		{"status --tls-cert CERT", exitUsage, "tls-cert, tls-key: give both or none"},
		{"status --tls-ca KEY", exitUsage, "no certificate in PEM form"},
		{"status --tls-cert CERT --tls-key FOREIGNKEY", exitUsage, "private key does not match"},
	} {
		args := strings.NewReplacer("FOREIGNCERT", stranger("client.pem"), "FOREIGNKEY", stranger("client-key.pem"), "FOREIGNCA", stranger("ca.pem"),
			"CERT", file("client.pem"), "KEY", file("client-key.pem"), "CA", file("ca.pem"),
			"ADMIN", writeFile(t, "t-admin"), "EYES", writeFile(t, "t-eyes"), "OTHER", writeFile(t, "t-other"), "WRONG", writeFile(t, "t-wrong")).Replace(test.args)
		r := kvgate(t, strings.Fields(args)...)
		if r.code != test.code && test.says != "" || !strings.Contains(r.stdout+r.stderr, test.says) {
			t.Errorf("%s: exit %d, want %d with %q: %s%s", test.args, r.code, test.code, test.says, r.stdout, r.stderr)
		}
		if test.says == "" && test.code != exitOK && r.code == exitOK {
			t.Errorf("%s: exit 0", test.args)
		}
	}
	if got := log.String(); strings.Contains(got, "t-admin") || strings.Contains(got, "t-wrong") || strings.Contains(got, "t-eyes") {
		t.Errorf("a token is in the log: %s", got)
	}
}

// Calls go on while the certificate of the API is exchanged, and use the new one.
func TestServeRotatesCertificatesUnderCalls(t *testing.T) {
	dir := t.TempDir()
	file := devCerts(t, dir, "--node", "n1")
	n, _ := startTestNode(t, io.Discard, "--node-id", "n1", "--data-dir", t.TempDir(), "--bootstrap",
		"--tls-cert", file("n1.pem"), "--tls-key", file("n1-key.pem"))
	roots, err := tlsfiles.LoadAuthorities(file("ca.pem"), slog.New(slog.DiscardHandler))
	if err != nil {
		t.Fatal(err)
	}
	now := time.Now()
	// Every call of get is a new connection.
	get := func() (serial string, err error) {
		client := &http.Client{Transport: &http.Transport{TLSClientConfig: tlsfiles.Client(nil, roots, ""), DisableKeepAlives: true}}
		defer client.CloseIdleConnections()
		res, err := client.Get(n.URL() + "/healthz")
		if err != nil {
			return "", err
		}
		defer res.Body.Close()
		_, err = io.Copy(io.Discard, res.Body)
		return res.TLS.PeerCertificates[0].SerialNumber.String(), err
	}
	ctx, cancel := context.WithCancel(t.Context())
	looped, round := make(chan error, 1), make(chan struct{})
	go func() {
		for ctx.Err() == nil {
			if _, err := get(); err != nil {
				looped <- err
				return
			}
			select {
			case round <- struct{}{}:
			default:
			}
		}
		looped <- nil
	}()
	ca, err := devcerts.NewAuthority(devcerts.Subject{Name: "next", NotBefore: now.Add(-time.Hour), NotAfter: now.Add(time.Hour)})
	if err != nil {
		t.Fatal(err)
	}
	// Clients trust both authorities before any server changes over.
	old, err := os.ReadFile(file("ca.pem"))
	if err = errors.Join(err, ca.Write(dir, "next")); err != nil {
		t.Fatal(err)
	}
	next, err := os.ReadFile(file("next.pem"))
	if err = errors.Join(err, os.WriteFile(file("both.pem"), append(old, next...), 0o600), os.Rename(file("both.pem"), file("ca.pem"))); err != nil {
		t.Fatal(err)
	}
	<-round // the call that began before the change has ended
	<-round
	var last *devcerts.Pair
	for range 5 {
		if last, err = ca.Issue(devcerts.Subject{Name: "n1", Hosts: []string{"127.0.0.1"}, NotBefore: now.Add(-time.Hour), NotAfter: now.Add(time.Hour)}); err != nil {
			t.Fatal(err)
		}
		if err := last.Write(dir, "n1"); err != nil {
			t.Fatal(err)
		}
		if serial, err := get(); err != nil || serial != last.Cert.SerialNumber.String() {
			t.Errorf("serial %s (%v), want %s", serial, err, last.Cert.SerialNumber)
		}
	}
	cancel()
	if err := <-looped; err != nil {
		t.Error(err)
	}
}

func TestBadSecurityFilesRefuseTheStart(t *testing.T) {
	file := devCerts(t, t.TempDir(), "--node", "n1")
	const node = "serve --node-id n1 --data-dir DIR --bootstrap --listen 127.0.0.1:0 --raft-listen 127.0.0.1:0 "
	for _, test := range []struct{ args, want string }{
		{node + "--tokens TOKENS", "line 2: the second word is no role: use client, observer or admin"},
		{node + "--tokens EMPTY", "no token in it"},
		{node + "--tls-cert CERT --tls-key CAKEY", "tls-cert: "},
		{node + "--tls-cert CERT --tls-key KEY --tls-client-ca KEY", "tls-client-ca: "},
		{node + "--raft-tls-cert CERT --raft-tls-key CAKEY --raft-tls-ca CA", "raft-tls: certificate and key: "},
		{node + "--raft-tls-cert CERT --raft-tls-key KEY --raft-tls-ca KEY", "raft-tls: authorities: "},
	} {
		args := strings.NewReplacer("DIR", t.TempDir(), "TOKENS", writeFile(t, "s3cret admin\ns3cret2 adminn"), "EMPTY", writeFile(t, ""),
			"CAKEY", file("ca-key.pem"), "KEY", file("n1-key.pem"), "CERT", file("n1.pem"), "CA", file("ca.pem")).Replace(test.args)
		r := kvgate(t, strings.Fields(args)...)
		last := r.stderr[strings.LastIndex(strings.TrimSuffix(r.stderr, "\n"), "\n")+1:]
		if r.code != exitUsage || !strings.HasPrefix(last, "kvgate: ") || !strings.Contains(last, test.want) || strings.Contains(r.stderr, "s3cret") {
			t.Errorf("%s: exit %d %q", test.args, r.code, last)
		}
	}
}

// TestPlainCallOfTLSServer says what is wrong with the URL.
func TestPlainCallOfTLSServer(t *testing.T) {
	server := httptest.NewUnstartedServer(http.NotFoundHandler())
	server.Config.ErrorLog = slog.NewLogLogger(slog.DiscardHandler, slog.LevelInfo)
	server.StartTLS()
	defer server.Close()
	plain := strings.Replace(server.URL, "https://", "http://", 1)
	r := kvgate(t, "status", "--server", plain)
	if r.code != exitUnavailable || !strings.Contains(r.stderr, plain+": the server speaks TLS: use https://") {
		t.Errorf("exit %d, %q", r.code, r.stderr)
	}
}
