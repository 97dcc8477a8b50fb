package peer

import (
	"bytes"
	"context"
	"errors"
	"io"
	"log/slog"
	"net"
	"net/http"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/hashicorp/raft"

	"kvgate/rpc/devcerts"
	"kvgate/rpc/tlsfiles"
)

// certificates issues certificates for 127.0.0.1 into a directory.
type certificates struct {
	t   *testing.T
	dir string
	ca  *devcerts.Pair
}

func newCertificates(t *testing.T) *certificates {
	t.Helper()
	now := time.Now()
	ca, err := devcerts.NewAuthority(devcerts.Subject{Name: "test authority", NotBefore: now.Add(-48 * time.Hour), NotAfter: now.Add(48 * time.Hour)})
	c := &certificates{t, t.TempDir(), ca}
	if err = errors.Join(err, ca.Write(c.dir, "ca")); err != nil {
		t.Fatal(err)
	}
	return c
}

// issue makes a certificate that ends after valid, which may be below 0.
func (c *certificates) issue(name string, valid time.Duration, hosts ...string) *tlsfiles.Mutual {
	c.t.Helper()
	now := time.Now()
	pair, err := c.ca.Issue(devcerts.Subject{Name: name, Hosts: hosts, NotBefore: now.Add(-24 * time.Hour), NotAfter: now.Add(valid)})
	if err == nil {
		err = pair.Write(c.dir, name)
	}
	if err != nil {
		c.t.Fatal(err)
	}
	cert, key := devcerts.Paths(c.dir, name)
	ca, _ := devcerts.Paths(c.dir, "ca")
	m, err := tlsfiles.LoadMutual(cert, key, ca, slog.New(slog.DiscardHandler))
	if err != nil {
		c.t.Fatal(err)
	}
	return m
}

// lines is a log that several goroutines write and a test waits for.
type lines struct {
	mu  sync.Mutex
	b   bytes.Buffer
	hit chan struct{}
}

func newLines() *lines { return &lines{hit: make(chan struct{}, 1000)} }

func (l *lines) Write(p []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.hit <- struct{}{}
	return l.b.Write(p)
}

// wait blocks until the log holds text.
func (l *lines) wait(t *testing.T, text string) {
	t.Helper()
	for {
		l.mu.Lock()
		got := l.b.String()
		l.mu.Unlock()
		if strings.Contains(got, text) {
			return
		}
		select {
		case <-l.hit:
		case <-t.Context().Done():
			return
		case <-time.After(30 * time.Second):
			t.Fatalf("%q is not in the log:\n%s", text, got)
		}
	}
}

// listen opens a network; m nil means plain TCP.
func listen(t *testing.T, name string, m *tlsfiles.Mutual, log io.Writer) *Network {
	t.Helper()
	o := Options{
		Listen: "127.0.0.1:0", Log: slog.New(slog.NewTextHandler(log, nil)),
		Self: func() Identity { return Identity{NodeID: name, ClusterID: "c1"} },
	}
	if m != nil {
		o.ServerTLS, o.ClientTLS = m.Server(), m.Client
	}
	n, err := Listen(o)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { n.Close() })
	return n
}

// talk dials b from a and sends a word each way.
func talk(ctx context.Context, a, b *Network) error {
	echoed := make(chan error, 1)
	go func() {
		conn, err := b.Calls().Accept()
		if err == nil {
			_, err = io.CopyN(conn, conn, 4)
			conn.Close()
		}
		echoed <- err
	}()
	conn, err := a.Dial(ctx, b.Address())
	if err != nil {
		return err
	}
	defer conn.Close()
	if _, err := conn.Write([]byte("ping")); err != nil {
		return err
	}
	word := make([]byte, 4)
	if _, err := io.ReadFull(conn, word); err != nil || string(word) != "ping" {
		return errors.Join(err, errors.New("got "+string(word)))
	}
	return <-echoed
}

func TestNodesTalkOverTLS(t *testing.T) {
	certs := newCertificates(t)
	a := listen(t, "a", certs.issue("a", time.Hour, "127.0.0.1"), io.Discard)
	b := listen(t, "b", certs.issue("b", time.Hour, "127.0.0.1"), io.Discard)
	if err := talk(t.Context(), a, b); err != nil {
		t.Error(err)
	}
	accepted := make(chan error, 1)
	go func() {
		conn, err := b.Raft().Accept()
		if err == nil {
			err = conn.Close()
		}
		accepted <- err
	}()
	conn, err := a.Raft().Dial(raft.ServerAddress(b.Address()), 5*time.Second)
	if err != nil {
		t.Fatal(err)
	}
	conn.Close()
	if err := <-accepted; err != nil {
		t.Error(err)
	}
}

// Nodes speak HTTP/2 to each other from the first byte, over TLS as without.
func TestHTTP2FromTheFirstByte(t *testing.T) {
	certs := newCertificates(t)
	for name, m := range map[string]*tlsfiles.Mutual{"TLS": certs.issue("n", time.Hour, "127.0.0.1"), "plain": nil} {
		a, b := listen(t, "a", m, io.Discard), listen(t, "b", m, io.Discard)
		cleartext := new(http.Protocols)
		cleartext.SetUnencryptedHTTP2(true)
		server := &http.Server{Protocols: cleartext, Handler: http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			_, _ = io.WriteString(w, r.Proto)
		})}
		served := make(chan error, 1)
		go func() { served <- server.Serve(b.Calls()) }()
		transport := &http.Transport{Protocols: cleartext, DialContext: func(ctx context.Context, _, addr string) (net.Conn, error) {
			return a.Dial(ctx, addr)
		}}
		res, err := (&http.Client{Transport: transport}).Get("http://" + b.Address())
		if err != nil {
			t.Errorf("%s: %v", name, err)
		} else {
			if body, err := io.ReadAll(res.Body); string(body) != "HTTP/2.0" {
				t.Errorf("%s: %s (%v)", name, body, err)
			}
			res.Body.Close()
		}
		transport.CloseIdleConnections()
		server.Close()
		<-served
	}
}

func TestRefusedCertificatesAreExplained(t *testing.T) {
	ours, foreign := newCertificates(t), newCertificates(t)
	good := func(c *certificates, name string) *tlsfiles.Mutual { return c.issue(name, time.Hour, "127.0.0.1") }
	for _, test := range []struct {
		name           string
		dialler, other *tlsfiles.Mutual
		says           string // by the error and the log of the dialler
		logged         string // by the other side; "" when it cannot know
	}{
		{"dialler expired", ours.issue("old", -time.Hour, "127.0.0.1"), good(ours, "b"),
			"the other side refused this node's certificate", `the certificate of \"old\" is valid from`},
		{"dialler foreign", foreign.issue("spy", time.Hour, "127.0.0.1"), good(ours, "b"),
			"signed by an authority that this node does not trust", "the other side refused this node's certificate"},
		{"other expired", good(ours, "a"), ours.issue("late", -time.Hour, "127.0.0.1"), `the certificate of "late" is valid from`, "refused"},
		{"other for another name", good(ours, "a"), ours.issue("lost", time.Hour, "10.9.9.9"), `the certificate of "lost" is for another name`, "refused"},
		{"dialler plain", nil, good(ours, "b"), "greet", "the other side does not speak TLS"},
		{"other plain", good(ours, "a"), nil, "greet", "no kvgate node of this version"},
	} {
		t.Run(test.name, func(t *testing.T) {
			here, there := newLines(), newLines()
			a, b := listen(t, "a", test.dialler, here), listen(t, "b", test.other, there)
			_, err := a.Dial(t.Context(), b.Address())
			if err == nil || !strings.Contains(err.Error(), test.says) {
				t.Fatalf("dial: %v, want %q", err, test.says)
			}
			there.wait(t, test.logged)
			if errors.Is(err, ErrInsecure) {
				here.wait(t, "no secure connection to another node")
			}
		})
	}
}

func TestStrangersWithoutCertificateAreRefused(t *testing.T) {
	certs := newCertificates(t)
	log := newLines()
	b := listen(t, "b", certs.issue("b", time.Hour, "127.0.0.1"), log)
	conn, err := net.Dial("tcp", b.Address())
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	if err := writeFrame(conn, hello{KindRaft, Identity{NodeID: "x"}}); err != nil {
		t.Fatal(err)
	}
	log.wait(t, "does not speak TLS")
}

func TestConnectionsGoOnWhileCertificatesRotate(t *testing.T) {
	certs := newCertificates(t)
	a := listen(t, "a", certs.issue("a", time.Hour, "127.0.0.1"), io.Discard)
	b := listen(t, "b", certs.issue("b", time.Hour, "127.0.0.1"), io.Discard)
	stop, done := make(chan struct{}), make(chan error, 1)
	go func() {
		for {
			select {
			case <-stop:
				done <- nil
				return
			default:
			}
			if err := talk(context.Background(), a, b); err != nil {
				done <- err
				return
			}
		}
	}()
	for range 10 {
		certs.issue("a", time.Hour, "127.0.0.1")
		certs.issue("b", time.Hour, "127.0.0.1")
	}
	close(stop)
	if err := <-done; err != nil {
		t.Error(err)
	}
	// What is on disk counts for the next connection.
	certs.issue("b", -time.Hour, "127.0.0.1")
	if _, err := a.Dial(t.Context(), b.Address()); !errors.Is(err, ErrInsecure) {
		t.Errorf("a connection to a node whose new certificate has expired: %v", err)
	}
}
