package rpc

import (
	"context"
	"log/slog"
	"net"
	"net/http"
	"testing"
	"time"

	"connectrpc.com/connect"

	"kvgate/fsm"
	"kvgate/ledger"
	"kvgate/rpc/kvgate/v1/kvgatev1connect"
)

// patience is how long a condition may take on a machine that is busy with other things.
const patience = 30 * time.Second

func eventually(t *testing.T, what string, ok func() bool) {
	t.Helper()
	deadline := time.After(patience)
	ticker := time.NewTicker(5 * time.Millisecond)
	defer ticker.Stop()
	for !ok() {
		select {
		case <-ticker.C:
		case <-deadline:
			t.Fatalf("after %v still not so: %s", patience, what)
		}
	}
}

// node is a server over a replica of its own, whose default pool has a budget of 100 tokens.
type node struct {
	*running
	replica *fsm.Replica
	api     kvgatev1connect.AdmissionServiceClient
}

func startNode(t *testing.T, o Options) *node {
	t.Helper()
	r, err := fsm.Open(fsm.Options{
		NodeID: "n1", DataDir: t.TempDir(), RaftListen: "127.0.0.1:0", Bootstrap: true, Log: slog.New(slog.DiscardHandler),
	})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := r.Close(); err != nil {
			t.Error(err)
		}
	})
	patch := ledger.Patch{
		Set:    ledger.Settings{Headroom: 1, Staleness: time.Hour, DetachGrace: time.Second, HolderTTL: time.Hour},
		Fields: []string{"headroom", "staleness", "detachGrace", "holderTtl"},
	}
	eventually(t, "the node leads", func() bool { return r.Status().Ready })
	for _, pool := range []string{ledger.DefaultPool, "other"} {
		if _, err := r.UpdateSettings(t.Context(), pool, patch); err != nil {
			t.Fatal(err)
		}
		if err := r.Reconcile(t.Context(), pool, ledger.Round{
			Fresh: true, Discovery: "static", Engines: []ledger.Engine{{URL: "http://e:1", Healthy: true, Capacity: 100}},
		}); err != nil {
			t.Fatal(err)
		}
	}
	o.Backend = r
	n := &node{running: startWith(t, &fakeBackend{ledger: ledger.New()}, o), replica: r}
	n.api = apiClient(t, n.url)
	return n
}

// apiClient speaks HTTP/2 without TLS.
func apiClient(t *testing.T, url string, options ...connect.ClientOption) kvgatev1connect.AdmissionServiceClient {
	t.Helper()
	protocols := new(http.Protocols)
	protocols.SetUnencryptedHTTP2(true)
	transport := &http.Transport{Protocols: protocols, DialContext: (&net.Dialer{}).DialContext}
	t.Cleanup(transport.CloseIdleConnections)
	return kvgatev1connect.NewAdmissionServiceClient(&http.Client{Transport: transport}, url, options...)
}

func (n *node) ticket(name string) (v ledger.TicketView) {
	_ = n.replica.View(context.Background(), true, func(l *ledger.Ledger) { v, _ = l.Ticket(ledger.DefaultPool, name) })
	return v
}

// detached reports whether the ticket waits with nobody listening.
func (n *node) detached(name string) bool {
	w := n.ticket(name).Waiter
	return w != nil && !w.Attached
}

// waits reports whether the ticket waits with somebody listening.
func (n *node) waits(name string) bool {
	w := n.ticket(name).Waiter
	return w != nil && w.Attached
}
