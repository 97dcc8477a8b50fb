package rpc

import (
	"bytes"
	"errors"
	"io"
	"net"
	"testing"
)

// countedConn counts how often it is read.
type countedConn struct {
	net.Conn
	from  io.Reader
	reads int
}

func (c *countedConn) Read(p []byte) (int, error) {
	c.reads++
	return c.from.Read(p)
}

type listenerOf struct {
	net.Listener
	conn net.Conn
}

func (l listenerOf) Accept() (net.Conn, error) { return l.conn, nil }

// TestFramesShareAReadOfTheConnection: many small reads of what has arrived cost one system call.
func TestFramesShareAReadOfTheConnection(t *testing.T) {
	sent := bytes.Repeat([]byte("0123456789"), 100)
	inner := &countedConn{from: bytes.NewReader(sent)}
	conn, err := bufferedListener{listenerOf{conn: inner}}.Accept()
	if err != nil {
		t.Fatal(err)
	}
	got := make([]byte, 0, len(sent))
	for piece := make([]byte, 9); len(got) < len(sent); {
		n, err := conn.Read(piece)
		if err != nil {
			t.Fatalf("after %d of %d bytes: %v", len(got), len(sent), err)
		}
		got = append(got, piece[:n]...)
	}
	if !bytes.Equal(got, sent) || inner.reads != 1 {
		t.Errorf("read %d bytes in %d reads of the connection, want %d in 1", len(got), inner.reads, len(sent))
	}
	if _, err := conn.Read(make([]byte, 1)); !errors.Is(err, io.EOF) {
		t.Errorf("at the end: %v, want EOF", err)
	}
}
