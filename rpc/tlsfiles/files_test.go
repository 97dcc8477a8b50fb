package tlsfiles

import (
	"bytes"
	"context"
	"crypto/tls"
	"errors"
	"io"
	"log/slog"
	"net"
	"os"
	"strings"
	"sync"
	"testing"
	"time"

	"go.uber.org/goleak"

	"kvgate/rpc/devcerts"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// pki is an authority whose certificates are in a directory.
type pki struct {
	t   *testing.T
	dir string
	ca  *devcerts.Pair
}

func subject(name string, hosts ...string) devcerts.Subject {
	now := time.Now()
	return devcerts.Subject{Name: name, Hosts: hosts, NotBefore: now.Add(-time.Hour), NotAfter: now.Add(30 * 24 * time.Hour)}
}

func newPKI(t *testing.T) *pki {
	t.Helper()
	ca, err := devcerts.NewAuthority(subject("test authority"))
	p := &pki{t, t.TempDir(), ca}
	if err = errors.Join(err, ca.Write(p.dir, "ca")); err != nil {
		t.Fatal(err)
	}
	return p
}

func (p *pki) issue(s devcerts.Subject) *devcerts.Pair {
	p.t.Helper()
	pair, err := p.ca.Issue(s)
	if err == nil {
		err = pair.Write(p.dir, s.Name)
	}
	if err != nil {
		p.t.Fatal(err)
	}
	return pair
}

func (p *pki) identity(name string, log *slog.Logger) *Identity {
	p.t.Helper()
	cert, key := devcerts.Paths(p.dir, name)
	id, err := LoadIdentity(cert, key, log)
	if err != nil {
		p.t.Fatal(err)
	}
	return id
}

func (p *pki) authorities() *Authorities {
	p.t.Helper()
	path, _ := devcerts.Paths(p.dir, "ca")
	ca, err := LoadAuthorities(path, quiet)
	if err != nil {
		p.t.Fatal(err)
	}
	return ca
}

var quiet = slog.New(slog.DiscardHandler)

// shake makes one connection and returns the certificate that the client saw, and what either side says.
func shake(server, client *tls.Config) (serial string, serverErr, clientErr error) {
	ln, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return "", err, nil
	}
	defer ln.Close()
	done := make(chan error, 1)
	go func() {
		conn, err := ln.Accept()
		if err != nil {
			done <- err
			return
		}
		defer conn.Close()
		_, err = tls.Server(conn, server).Write([]byte("hello"))
		done <- err
	}()
	conn, err := net.Dial("tcp", ln.Addr().String())
	if err != nil {
		ln.Close()
		return "", <-done, err
	}
	defer conn.Close()
	secure := tls.Client(conn, client)
	if clientErr = secure.HandshakeContext(context.Background()); clientErr == nil {
		// With TLS 1.3 the client hears what the server thinks of its certificate on the first read.
		_, clientErr = io.ReadFull(secure, make([]byte, 5))
	}
	conn.Close()
	if peers := secure.ConnectionState().PeerCertificates; len(peers) > 0 {
		serial = peers[0].SerialNumber.String()
	}
	return serial, <-done, clientErr
}

func TestWhoIsAccepted(t *testing.T) {
	ours, foreign := newPKI(t), newPKI(t)
	expired := subject("expired", "127.0.0.1")
	expired.NotBefore, expired.NotAfter = time.Now().Add(-2*time.Hour), time.Now().Add(-time.Hour)
	future := subject("future", "127.0.0.1")
	future.NotBefore = time.Now().Add(time.Hour)
	for _, s := range []devcerts.Subject{subject("good", "127.0.0.1", "localhost"), expired, future, subject("elsewhere", "10.9.9.9", "other"), subject("caller")} {
		ours.issue(s)
	}
	foreign.issue(subject("good", "127.0.0.1"))
	for _, test := range []struct {
		name           string
		server, client *Identity
		host           string
		want           string // part of the error of the side that refuses; "" for none
	}{
		{"both good", ours.identity("good", quiet), ours.identity("good", quiet), "127.0.0.1", ""},
		{"by name", ours.identity("good", quiet), ours.identity("caller", quiet), "localhost", ""},
		{"server of another address", ours.identity("elsewhere", quiet), ours.identity("good", quiet), "127.0.0.1", "not 127.0.0.1"},
		{"server of another name", ours.identity("elsewhere", quiet), ours.identity("good", quiet), "localhost", "not localhost"},
		{"server expired", ours.identity("expired", quiet), ours.identity("good", quiet), "127.0.0.1", "expired"},
		{"server foreign", foreign.identity("good", quiet), ours.identity("good", quiet), "127.0.0.1", "unknown authority"},
		{"server may only call", ours.identity("caller", quiet), ours.identity("good", quiet), "127.0.0.1", "127.0.0.1"},
		{"client expired", ours.identity("good", quiet), ours.identity("expired", quiet), "127.0.0.1", "expired"},
		{"client not valid yet", ours.identity("good", quiet), ours.identity("future", quiet), "127.0.0.1", "not yet valid"},
		{"client foreign", ours.identity("good", quiet), foreign.identity("good", quiet), "127.0.0.1", "unknown authority"},
		{"client without", ours.identity("good", quiet), nil, "127.0.0.1", "didn't provide a certificate"},
	} {
		t.Run(test.name, func(t *testing.T) {
			_, serverErr, clientErr := shake(Server(test.server, ours.authorities()), Client(test.client, ours.authorities(), test.host))
			both := errors.Join(serverErr, clientErr)
			if test.want == "" {
				if both != nil {
					t.Error(both)
				}
				return
			}
			if clientErr == nil || !strings.Contains(both.Error(), test.want) {
				t.Errorf("server %v, client %v, want %q", serverErr, clientErr, test.want)
			}
		})
	}
}

func TestServerTLSAsksForNoCertificate(t *testing.T) {
	p := newPKI(t)
	p.issue(subject("n1", "127.0.0.1"))
	if _, serverErr, clientErr := shake(Server(p.identity("n1", quiet), nil, "h2"), Client(nil, p.authorities(), "127.0.0.1")); serverErr != nil || clientErr != nil {
		t.Errorf("server %v, client %v", serverErr, clientErr)
	}
}

func TestBothSidesRotate(t *testing.T) {
	p := newPKI(t)
	first := p.issue(subject("n1", "127.0.0.1"))
	var log bytes.Buffer
	m := &Mutual{p.identity("n1", slog.New(slog.NewTextHandler(&log, nil))), p.authorities()}
	server := m.Server()
	check := func(want *devcerts.Pair) {
		t.Helper()
		serial, serverErr, clientErr := shake(server, m.Client("127.0.0.1"))
		if serverErr != nil || clientErr != nil || serial != want.Cert.SerialNumber.String() {
			t.Errorf("server %v, client %v, serial %s, want %s", serverErr, clientErr, serial, want.Cert.SerialNumber)
		}
	}
	check(first)
	second := p.issue(subject("n1", "127.0.0.1"))
	check(second)

	// Half a rotation: a certificate that does not go with the key.
	certFile, _ := devcerts.Paths(p.dir, "n1")
	whole, err := os.ReadFile(certFile)
	if err != nil {
		t.Fatal(err)
	}
	p.issue(subject("other", "127.0.0.1"))
	otherFile, _ := devcerts.Paths(p.dir, "other")
	half, err := os.ReadFile(otherFile)
	if err == nil {
		err = os.WriteFile(certFile, append(half, '\n'), 0o600)
	}
	if err != nil {
		t.Fatal(err)
	}
	log.Reset()
	check(second)
	if got := log.String(); !strings.Contains(got, "stays in force") || !strings.Contains(got, certFile) {
		t.Errorf("logged %q", got)
	}
	if err := os.WriteFile(certFile, whole, 0o600); err != nil {
		t.Fatal(err)
	}
	check(second)

	// Another authority altogether, on both sides.
	next := newPKI(t)
	next.dir = p.dir
	if err := next.ca.Write(p.dir, "ca"); err != nil {
		t.Fatal(err)
	}
	check(next.issue(subject("n1", "127.0.0.1")))
}

// Connections are made all the time while certificates are exchanged; none fails.
func TestRotationUnderLoad(t *testing.T) {
	p := newPKI(t)
	p.issue(subject("n1", "127.0.0.1"))
	m := &Mutual{p.identity("n1", quiet), p.authorities()}
	server := m.Server()
	stop := make(chan struct{})
	var loops sync.WaitGroup
	for range 2 {
		loops.Go(func() {
			for {
				select {
				case <-stop:
					return
				default:
				}
				if _, serverErr, clientErr := shake(server, m.Client("127.0.0.1")); serverErr != nil || clientErr != nil {
					t.Errorf("server %v, client %v", serverErr, clientErr)
					return
				}
			}
		})
	}
	var last *devcerts.Pair
	for range 20 {
		last = p.issue(subject("n1", "127.0.0.1"))
	}
	close(stop)
	loops.Wait()
	if serial, _, _ := shake(server, m.Client("127.0.0.1")); serial != last.Cert.SerialNumber.String() {
		t.Errorf("serial %s at the end, want %s", serial, last.Cert.SerialNumber)
	}
}

func TestEndOfCertificatesIsLogged(t *testing.T) {
	p := newPKI(t)
	for left, want := range map[time.Duration]string{-time.Minute: "has expired", time.Hour: "expires soon", 8 * 24 * time.Hour: ""} {
		s := subject("n1")
		s.NotAfter = time.Now().Add(left)
		p.issue(s)
		var log bytes.Buffer
		p.identity("n1", slog.New(slog.NewTextHandler(&log, nil)))
		if got := log.String(); want == "" && got != "" || !strings.Contains(got, want) {
			t.Errorf("%s left: logged %q", left, got)
		}
	}
}

func TestBadFiles(t *testing.T) {
	p := newPKI(t)
	p.issue(subject("a"))
	p.issue(subject("b"))
	certA, keyA := devcerts.Paths(p.dir, "a")
	_, keyB := devcerts.Paths(p.dir, "b")
	for _, pair := range [][2]string{{certA, keyB}, {keyA, keyA}, {certA, "/nonexistent"}, {"/nonexistent", keyA}} {
		if _, err := LoadIdentity(pair[0], pair[1], quiet); err == nil {
			t.Errorf("%v was accepted", pair)
		}
		if _, err := LoadMutual(pair[0], pair[1], certA, quiet); err == nil || !strings.Contains(err.Error(), "certificate and key") {
			t.Errorf("%v: %v", pair, err)
		}
	}
	if _, err := LoadAuthorities(keyA, quiet); !errors.Is(err, ErrNoCertificate) {
		t.Errorf("a key as authority: %v", err)
	}
	if _, err := LoadMutual(certA, keyA, keyA, quiet); !errors.Is(err, ErrNoCertificate) {
		t.Errorf("a key as authority: %v", err)
	}
}
