package main

import (
	"io"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"kvgate/fsm"
	"kvgate/ledger"
)

// budgetOf gives the default pool of a leader a budget that does not grow stale.
func budgetOf(t *testing.T, n *node, tokens ledger.Tokens) {
	t.Helper()
	patch := ledger.Patch{Set: ledger.Settings{Staleness: 1000 * patience, Headroom: 1}, Fields: []string{"staleness", "headroom"}}
	if _, err := n.replica.UpdateSettings(t.Context(), ledger.DefaultPool, patch); err != nil {
		t.Fatal(err)
	}
	err := n.replica.Reconcile(t.Context(), ledger.DefaultPool, ledger.Round{
		Fresh: true, Discovery: "static", Engines: []ledger.Engine{{URL: "http://e:1", Healthy: true, Capacity: tokens}},
	})
	if err != nil {
		t.Fatal(err)
	}
}

// recoverWith runs the command with what is typed at its question.
func recoverWith(t *testing.T, typed string, args ...string) result {
	t.Helper()
	var stdout, stderr lockedBuffer
	code := newMain().Run(t.Context(), append([]string{"recover"}, args...), strings.NewReader(typed), &stdout, &stderr)
	return result{code, stdout.String(), stderr.String()}
}

func TestRecoverOneNodeOfThree(t *testing.T) {
	nodes, dirs, peers := three(t)
	leader := nodes[nodes["n1"].replica.Status().LeaderID]
	budgetOf(t, leader, 100)
	t.Setenv("KVGATE_SERVER", nodes["n2"].URL())
	if r := kvgate(t, "acquire", "kept", "--reservation-tokens", "70"); r.code != exitOK || !strings.Contains(r.stdout, "admit") {
		t.Fatalf("exit %d %s%s", r.code, r.stdout, r.stderr)
	}
	eventually(t, "n2 has it", func() bool { return hasLease(t, nodes["n2"].replica, "kept") })
	dir := dirs["n2"]
	if r := recoverWith(t, "", "--data-dir", dir, "--yes"); r.code != exitFailed || !strings.Contains(r.stderr, "the node runs: stop it first") {
		t.Fatalf("a running node: exit %d %s", r.code, r.stderr)
	}
	closeNode(t, nodes["n2"])
	if r := recoverWith(t, "", "--data-dir", dir, "--yes"); r.code != exitFailed || !strings.Contains(r.stderr, "still answers at") {
		t.Fatalf("other nodes run: exit %d %s", r.code, r.stderr)
	}
	closeNode(t, nodes["n1"])
	closeNode(t, nodes["n3"])
	address := peerAddress(peers, "n2")
	for _, typed := range []string{"", "\n", "yes\n", "n1\n"} {
		r := recoverWith(t, typed, "--data-dir", dir)
		if r.code != exitFailed || !strings.Contains(r.stderr, "not confirmed, nothing was changed") {
			t.Errorf("typed %q: exit %d %s", typed, r.code, r.stderr)
		}
	}
	if r := recoverWith(t, "", "--data-dir", dir, "--peers", "n1=a:1", "--yes"); r.code != exitUsage || !strings.Contains(r.stderr, "a list that also names this node, n2") {
		t.Errorf("a list without the node: exit %d %s", r.code, r.stderr)
	}
	r := recoverWith(t, "n2\n", "--data-dir", dir)
	for _, part := range []string{"members now  n1=", "members then n2=" + address + "\n", "kept         everything up to entry ", "lost         whatever the other nodes acknowledged after entry "} {
		if !strings.Contains(r.stderr, part) {
			t.Errorf("%q is not in\n%s", part, r.stderr)
		}
	}
	if r.code != exitOK || !strings.Contains(r.stdout, "done: start node n2 as usual") {
		t.Fatalf("exit %d %s%s", r.code, r.stdout, r.stderr)
	}
	back, _ := startTestNode(t, io.Discard, "--node-id", "n2", "--data-dir", dir, "--raft-listen", address)
	ready(t, back)
	t.Setenv("KVGATE_SERVER", back.URL())
	if r := kvgate(t, "leases"); r.code != exitOK || !strings.Contains(r.stdout, "kept") {
		t.Errorf("leases: exit %d %s%s", r.code, r.stdout, r.stderr)
	}
	if r := kvgate(t, "node", "status"); !strings.Contains(r.stdout, "The only voter may not fail") || strings.Contains(r.stdout, "n1") {
		t.Errorf("status: %s%s", r.stdout, r.stderr)
	}
	if r := kvgate(t, "acquire", "new", "--reservation-tokens", "30"); r.code != exitOK || !strings.Contains(r.stdout, "admit") {
		t.Errorf("acquire: exit %d %s%s", r.code, r.stdout, r.stderr)
	}
}

func closeNode(t *testing.T, n *node) {
	t.Helper()
	if err := n.Close(); err != nil {
		t.Fatal(err)
	}
}

func hasLease(t *testing.T, r *fsm.Replica, ticket string) (held bool) {
	t.Helper()
	err := r.View(t.Context(), true, func(l *ledger.Ledger) {
		v, _ := l.Ticket(ledger.DefaultPool, ticket)
		held = v.Lease != nil
	})
	if err != nil {
		t.Fatal(err)
	}
	return held
}

func peerAddress(peers, id string) string {
	for pair := range strings.SplitSeq(peers, ",") {
		if address, ok := strings.CutPrefix(pair, id+"="); ok {
			return address
		}
	}
	return ""
}

func TestBadRecover(t *testing.T) {
	other := t.TempDir()
	if err := os.WriteFile(filepath.Join(other, "x"), nil, 0o600); err != nil {
		t.Fatal(err)
	}
	for _, test := range []struct {
		args []string
		code int
		want string
	}{
		{nil, exitUsage, `data-dir: "" is not allowed`},
		{[]string{"--data-dir", t.TempDir()}, exitUsage, "the data directory of a stopped node"},
		{[]string{"--data-dir", other, "--peers", "n1"}, exitUsage, `peers: "n1" is not allowed`},
		{[]string{"--data-dir", other, "--yes"}, exitFailed, "node.json"},
		{[]string{"--data-dir", other, "x"}, exitUsage, `unexpected argument "x"`},
	} {
		if r := recoverWith(t, "", test.args...); r.code != test.code || !strings.Contains(r.stderr, test.want) {
			t.Errorf("%v: exit %d %q", test.args, r.code, r.stderr)
		}
	}
}
