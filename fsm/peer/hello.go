package peer

import (
	"encoding/binary"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"time"
)

// Errors of the handshake.
var (
	// ErrRefused: the other node does not talk to this one; the message says why.
	ErrRefused = errors.New("refused by the other node")
	// ErrNotKvgate: the other side does not speak this protocol.
	ErrNotKvgate = errors.New("the other side is no kvgate node of this version")
	// ErrClosed: the network was closed.
	ErrClosed = errors.New("peer network is closed")
)

// Kind says what a connection is for.
type Kind string

// The kinds of connections.
const (
	KindRaft Kind = "raft"
	KindCall Kind = "call"
)

// Identity is what a node says of itself. ClusterID is empty while the node is not part of a cluster.
type Identity struct {
	NodeID    string `json:"nodeId"`
	ClusterID string `json:"clusterId"`
}

type hello struct {
	Kind Kind `json:"kind"`
	Identity
}

type answer struct {
	// Refusal is empty when the connection may go on.
	Refusal string `json:"refusal,omitempty"`
	Identity
}

const (
	magic            = "kvgate/1"
	maxFrame         = 4096
	handshakeTimeout = 5 * time.Second
)

// writeFrame sends the magic, a length and JSON.
func writeFrame(w io.Writer, v any) error {
	body, err := json.Marshal(v)
	if err != nil {
		return err
	}
	frame := binary.BigEndian.AppendUint16([]byte(magic), uint16(len(body)))
	_, err = w.Write(append(frame, body...))
	return err
}

func readFrame(r io.Reader, v any) error {
	head := make([]byte, len(magic)+2)
	if _, err := io.ReadFull(r, head); err != nil {
		return err
	}
	n := int(binary.BigEndian.Uint16(head[len(magic):]))
	if string(head[:len(magic)]) != magic || n > maxFrame {
		return ErrNotKvgate
	}
	body := make([]byte, n)
	if _, err := io.ReadFull(r, body); err != nil {
		return err
	}
	if err := json.Unmarshal(body, v); err != nil {
		return fmt.Errorf("%w: %w", ErrNotKvgate, err)
	}
	return nil
}

// greet is the dialler's side of the handshake.
func greet(conn net.Conn, kind Kind, self Identity, timeout time.Duration) (Identity, error) {
	if err := conn.SetDeadline(time.Now().Add(timeout)); err != nil {
		return Identity{}, err
	}
	if err := writeFrame(conn, hello{kind, self}); err != nil {
		return Identity{}, err
	}
	var a answer
	if err := readFrame(conn, &a); err != nil {
		return Identity{}, err
	}
	if a.Refusal != "" {
		return a.Identity, fmt.Errorf("%w: %s", ErrRefused, a.Refusal)
	}
	return a.Identity, conn.SetDeadline(time.Time{})
}

// welcome is the listener's side of the handshake.
func welcome(conn net.Conn, self Identity) (Kind, error) {
	if err := conn.SetDeadline(time.Now().Add(handshakeTimeout)); err != nil {
		return "", err
	}
	var h hello
	if err := readFrame(conn, &h); err != nil {
		return "", err
	}
	a := answer{Identity: self, Refusal: refuse(h, self)}
	if err := writeFrame(conn, a); err != nil {
		return "", err
	}
	if a.Refusal != "" {
		return "", fmt.Errorf("%w: %s", ErrRefused, a.Refusal)
	}
	return h.Kind, conn.SetDeadline(time.Time{})
}

func refuse(h hello, self Identity) string {
	switch {
	case h.Kind != KindRaft && h.Kind != KindCall:
		return fmt.Sprintf("connections of kind %q are not known here: run the same kvgate on all nodes", h.Kind)
	case h.ClusterID != "" && self.ClusterID != "" && h.ClusterID != self.ClusterID:
		return fmt.Sprintf("node %s belongs to cluster %s, node %s to cluster %s: check the peer addresses, or start the node with an empty data directory to join",
			h.NodeID, h.ClusterID, self.NodeID, self.ClusterID)
	}
	return ""
}
