package rpc

import (
	"bufio"
	"net"
)

// readBuffer is the size of a connection's buffer, in bytes: some twenty small calls.
const readBuffer = 4 << 10

// bufferedListener accepts connections that are read in larger pieces. Go's HTTP/2 server reads a frame's
// header and its payload with a system call each, which is four to a small call; most of them are spared
// when many calls share the connection. TLS buffers by itself.
type bufferedListener struct{ net.Listener }

// Accept implements net.Listener.
func (l bufferedListener) Accept() (net.Conn, error) {
	conn, err := l.Listener.Accept()
	if err != nil {
		return nil, err
	}
	return &bufferedConn{Conn: conn, r: bufio.NewReaderSize(conn, readBuffer)}, nil
}

type bufferedConn struct {
	net.Conn
	r *bufio.Reader
}

// Read implements net.Conn. It waits only while nothing is buffered.
func (c *bufferedConn) Read(p []byte) (int, error) { return c.r.Read(p) }
