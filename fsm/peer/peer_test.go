package peer

import (
	"bytes"
	"context"
	"encoding/binary"
	"errors"
	"io"
	"log/slog"
	"net"
	"os"
	"strings"
	"testing"
	"time"

	"go.uber.org/goleak"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// patience bounds what should not block at all.
const patience = 30 * time.Second

var quiet = slog.New(slog.NewTextHandler(io.Discard, nil))

func must(t testing.TB, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

// open opens a network of a node of a cluster on a free port of loopback.
func open(t *testing.T, id, cluster string) *Network {
	t.Helper()
	n, err := Listen(Options{Listen: "127.0.0.1:0", Log: quiet, Self: func() Identity { return Identity{id, cluster} }})
	must(t, err)
	t.Cleanup(func() {
		if err := n.Close(); err != nil && !errors.Is(err, net.ErrClosed) {
			t.Error(err)
		}
	})
	return n
}

// echo answers one connection with what it reads.
func echo(l net.Listener, prefix string) {
	conn, err := l.Accept()
	if err != nil {
		return
	}
	defer conn.Close()
	_ = conn.SetDeadline(time.Now().Add(patience))
	line := make([]byte, 4)
	if _, err := io.ReadFull(conn, line); err == nil {
		_, _ = conn.Write(append([]byte(prefix), line...))
	}
}

// TestOnePortTwoUses: raft and calls share the port, and each gets its own connections.
func TestOnePortTwoUses(t *testing.T) {
	a, b := open(t, "a", "c1"), open(t, "b", "c1")
	go echo(b.Calls(), "call ")
	go echo(b.Raft(), "raft ")
	call, err := a.Dial(t.Context(), b.Address())
	must(t, err)
	defer call.Close()
	raft, err := a.Raft().Dial("", time.Second)
	if err == nil {
		t.Error("an empty address was dialled")
		_ = raft.Close()
	}
	stream, ok := a.Raft().(stream)
	if !ok || stream.Addr().String() != a.Address() {
		t.Fatalf("raft's part has address %v, want %s", stream.Addr(), a.Address())
	}
	conn, err := a.dial(t.Context(), b.Address(), KindRaft, time.Second)
	must(t, err)
	defer conn.Close()
	for _, c := range []struct {
		conn net.Conn
		want string
	}{{call, "call ping"}, {conn, "raft ping"}} {
		must(t, c.conn.SetDeadline(time.Now().Add(patience)))
		_, err := c.conn.Write([]byte("ping"))
		must(t, err)
		got := make([]byte, len(c.want))
		_, err = io.ReadFull(c.conn, got)
		must(t, err)
		if string(got) != c.want {
			t.Errorf("%q, want %q", got, c.want)
		}
	}
}

func TestWhoIsRefused(t *testing.T) {
	cases := []struct {
		dialler, listener string
		refused           bool
	}{
		{"c1", "c1", false},
		{"", "c1", false}, // has no data yet: it asks to join
		{"c1", "", false},
		{"", "", false},
		{"c1", "c2", true},
	}
	for _, c := range cases {
		a, b := open(t, "a", c.dialler), open(t, "b", c.listener)
		go func() {
			if conn, err := b.Calls().Accept(); err == nil {
				_ = conn.Close()
			}
		}()
		conn, err := a.Dial(t.Context(), b.Address())
		if conn != nil {
			_ = conn.Close()
		}
		if errors.Is(err, ErrRefused) != c.refused || (err != nil) != c.refused {
			t.Errorf("node of cluster %q to one of %q: %v, want refused %v", c.dialler, c.listener, err, c.refused)
		}
		if c.refused && (!strings.Contains(err.Error(), "node a belongs to cluster c1, node b to cluster c2") || !strings.Contains(err.Error(), "check the peer addresses")) {
			t.Errorf("the refusal says %v", err)
		}
	}
}

func TestUnknownKindIsRefused(t *testing.T) {
	a, b := open(t, "a", "c1"), open(t, "b", "c1")
	if _, err := a.dial(t.Context(), b.Address(), "gossip", time.Second); !errors.Is(err, ErrRefused) || !strings.Contains(err.Error(), `"gossip"`) {
		t.Errorf("error %v", err)
	}
}

// TestStrangers: what does not speak the protocol is cut off, and the port goes on.
func TestStrangers(t *testing.T) {
	a, b := open(t, "a", "c1"), open(t, "b", "c1")
	for _, said := range []string{"GET / HTTP/1.1\r\n\r\n", magic + "\xff\xff", magic + "\x00\x04null!", magic + "\x00\x02{]"} {
		conn, err := net.Dial("tcp", b.Address())
		must(t, err)
		_, err = conn.Write([]byte(said))
		must(t, err)
		must(t, conn.SetReadDeadline(time.Now().Add(patience)))
		if _, err := io.Copy(io.Discard, conn); errors.Is(err, os.ErrDeadlineExceeded) {
			t.Errorf("%q was not cut off", said)
		}
		_ = conn.Close()
	}
	go echo(b.Calls(), "")
	conn, err := a.Dial(t.Context(), b.Address())
	must(t, err)
	_ = conn.Close()
}

// TestDialEnds with its context when the other side accepts and says nothing.
func TestDialEnds(t *testing.T) {
	a := open(t, "a", "c1")
	silent, err := net.Listen("tcp", "127.0.0.1:0")
	must(t, err)
	defer silent.Close()
	ctx, cancel := context.WithCancel(t.Context())
	accepted := make(chan net.Conn, 1)
	go func() {
		conn, err := silent.Accept()
		if err == nil {
			accepted <- conn
			cancel()
		}
	}()
	if _, err := a.Dial(ctx, silent.Addr().String()); err == nil {
		t.Error("greeted by nobody")
	}
	_ = (<-accepted).Close()
}

// TestCloseEndsAcceptAndHandshakes.
func TestCloseEndsAcceptAndHandshakes(t *testing.T) {
	b := open(t, "b", "c1")
	ends := make(chan error, 2)
	for _, l := range []net.Listener{b.Calls(), b.Raft()} {
		go func() { _, err := l.Accept(); ends <- err }()
	}
	half, err := net.Dial("tcp", b.Address())
	must(t, err)
	defer half.Close()
	_, err = half.Write([]byte(magic[:3]))
	must(t, err)
	must(t, b.Close())
	for range 2 {
		if err := <-ends; !errors.Is(err, ErrClosed) {
			t.Errorf("accept ends with %v", err)
		}
	}
}

func TestAdvertise(t *testing.T) {
	for advertise, want := range map[string]bool{"node.example:7071": true, "": false, "node.example:0": false} {
		n, err := Listen(Options{Listen: "127.0.0.1:0", Advertise: advertise, Log: quiet, Self: func() Identity { return Identity{} }})
		must(t, err)
		if got := n.Address() == advertise; got != want {
			t.Errorf("advertised %q as %q", advertise, n.Address())
		}
		must(t, n.Close())
	}
	if _, err := Listen(Options{Listen: "127.0.0.1:0"}); err == nil {
		t.Error("a network without identity was opened")
	}
}

// FuzzFrame: no frame of a stranger makes a node panic.
func FuzzFrame(f *testing.F) {
	var sound bytes.Buffer
	must(f, writeFrame(&sound, hello{KindCall, Identity{"a", "c"}}))
	f.Add(sound.Bytes())
	f.Add([]byte(magic))
	f.Add(binary.BigEndian.AppendUint16([]byte(magic), maxFrame+1))
	f.Fuzz(func(t *testing.T, data []byte) {
		var h hello
		if err := readFrame(bytes.NewReader(data), &h); err == nil {
			refuse(h, Identity{"b", "c"})
		}
	})
}

// TestHoldRaft: a connection of raft that nobody would answer is closed; calls go on.
func TestHoldRaft(t *testing.T) {
	a, b := open(t, "a", "c1"), open(t, "b", "c1")
	b.HoldRaft(true)
	held, err := a.dial(t.Context(), b.Address(), KindRaft, time.Second)
	must(t, err)
	defer held.Close()
	if _, err := held.Read(make([]byte, 1)); err == nil {
		t.Error("a held connection is answered")
	}
	go echo(b.Calls(), "call ")
	call, err := a.Dial(t.Context(), b.Address())
	must(t, err)
	defer call.Close()
	b.HoldRaft(false)
	go echo(b.Raft(), "raft ")
	conn, err := a.dial(t.Context(), b.Address(), KindRaft, time.Second)
	must(t, err)
	defer conn.Close()
	_, err = conn.Write([]byte("ping"))
	must(t, err)
	if _, err := io.ReadFull(conn, make([]byte, 9)); err != nil {
		t.Errorf("raft is not answered after the hold: %v", err)
	}
}
