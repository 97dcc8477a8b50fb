package main

import (
	"fmt"
	"io"
	"net"
	"os"
	"slices"
	"strings"
	"sync/atomic"
	"testing"

	"connectrpc.com/connect"

	"kvgate/fsm"
	kvgatev1 "kvgate/rpc/kvgate/v1"
)

// three starts a cluster of three nodes with TLS between them, each in a directory of its own.
func three(t *testing.T) (nodes map[string]*node, dirs map[string]string, peers string) {
	t.Helper()
	file := devCerts(t, t.TempDir())
	nodes, dirs = map[string]*node{}, map[string]string{}
	ids := []string{"n1", "n2", "n3"}
	var pairs []string
	addresses := map[string]string{}
	for _, id := range ids {
		dirs[id] = t.TempDir()
		addresses[id] = freeAddress(t)
		pairs = append(pairs, id+"="+addresses[id])
	}
	peers = strings.Join(pairs, ",")
	for _, id := range ids {
		nodes[id], _ = startTestNode(t, io.Discard, "--node-id", id, "--data-dir", dirs[id], "--raft-listen", addresses[id],
			"--bootstrap-expect", "3", "--peers", peers,
			"--raft-tls-cert", file(id+".pem"), "--raft-tls-key", file(id+"-key.pem"), "--raft-tls-ca", file("ca.pem"))
	}
	eventually(t, "all nodes are ready and know each other", func() bool {
		for _, n := range nodes {
			s := n.replica.Status()
			if !s.Ready || s.FailureTolerance != 1 {
				return false
			}
			if s.NodeID == s.LeaderID && !knowsAll(s) {
				return false
			}
		}
		return true
	})
	return nodes, dirs, peers
}

// knowsAll: the node knows under which address each node's API is reached.
func knowsAll(s fsm.Status) bool {
	return !slices.ContainsFunc(s.Nodes, func(n fsm.NodeStatus) bool { return n.APIAddress == "" })
}

var givenPorts atomic.Int32

// freeAddress returns an address of loopback on which nothing listens, another at each call. Its port is below
// those that the system gives to outgoing connections, which would take it before the caller listens.
func freeAddress(t *testing.T) string {
	t.Helper()
	const lowest, ports, tries = 10_000, 20_000, 1000
	for range tries {
		port := lowest + (os.Getpid()*100+int(givenPorts.Add(1)))%ports
		l, err := net.Listen("tcp", fmt.Sprintf("127.0.0.1:%d", port))
		if err != nil {
			continue
		}
		defer l.Close()
		return l.Addr().String()
	}
	t.Fatalf("none of %d ports is free", tries)
	return ""
}

func TestNodeCommandsOnAThreeNodeCluster(t *testing.T) {
	nodes, _, _ := three(t)
	leader := nodes["n1"].replica.Status().LeaderID
	var followers []string
	for id := range nodes {
		if id != leader {
			followers = append(followers, id)
		}
	}
	t.Setenv("KVGATE_SERVER", nodes[followers[0]].URL())
	r := kvgate(t, "node", "status")
	if r.code != exitOK || !strings.Contains(r.stdout, "3 of 3 voters can be reached; 1 more may fail.") {
		t.Errorf("status: exit %d %s%s", r.code, r.stdout, r.stderr)
	}
	for line := range strings.Lines(r.stdout) {
		words := strings.Fields(line)
		if len(words) > 1 && words[0] == "*" && words[1] != leader {
			t.Errorf("the wrong node is marked: %s", line)
		}
	}
	for id, n := range nodes {
		if api := strings.TrimPrefix(n.URL(), "http://"); !strings.Contains(r.stdout, api) {
			t.Errorf("the API address of %s, %s, is not in\n%s", id, api, r.stdout)
		}
	}
	steps := []struct {
		args []string
		code int
		says string
	}{
		{[]string{"transfer-leadership", followers[1]}, exitOK, "node " + followers[1] + " leads"},
		{[]string{"transfer-leadership", "n9"}, exitFailed, `unknown_node: no such node: "n9" is not a voter`},
		{[]string{"add", "n4", "127.0.0.1:1"}, exitOK, "node n4 is a member at 127.0.0.1:1"},
		{[]string{"add", "n5", "127.0.0.1:1"}, exitFailed, "address_taken: another node has that address: 127.0.0.1:1 belongs to node n4"},
		{[]string{"status"}, exitOK, "3 of 3 voters can be reached; 1 more may fail."},
		{[]string{"remove", "n4"}, exitOK, "node n4 is no longer a member"},
		{[]string{"remove", "n4"}, exitFailed, `unknown_node: no such node: "n4"`},
		{[]string{"remove", followers[1]}, exitOK, "no longer a member"},
	}
	for _, step := range steps {
		r := kvgate(t, append([]string{"node"}, step.args...)...)
		if r.code != step.code || !strings.Contains(r.stdout+r.stderr, step.says) {
			t.Errorf("node %v: exit %d, want %d with %q: %s%s", step.args, r.code, step.code, step.says, r.stdout, r.stderr)
		}
	}
}

// A caller that is blocked on a node that stops is sent to the leader, where its ticket has kept its place.
func TestCallersOfAStoppingNodeMoveOn(t *testing.T) {
	nodes, _, _ := three(t)
	leader := nodes["n1"].replica.Status().LeaderID
	t.Setenv("KVGATE_SERVER", nodes[leader].URL())
	budgetOf(t, nodes[leader], 100)
	if r := kvgate(t, "acquire", "first", "--reservation-tokens", "100"); r.code != exitOK || !strings.Contains(r.stdout, "admit") {
		t.Fatalf("exit %d %s%s", r.code, r.stdout, r.stderr)
	}
	stopping := nodes[leader]
	c, err := newClient(newMain(), clientOptions{servers: []string{stopping.URL()}, timeout: patience})
	if err != nil {
		t.Fatal(err)
	}
	failed := make(chan error, 1)
	go func() {
		_, err := c.endpoints[0].Acquire(t.Context(), connect.NewRequest(&kvgatev1.AcquireRequest{TicketId: "second", ReservationTokens: new(int64(60))}))
		failed <- err
	}()
	eventually(t, "the second ticket waits", func() bool {
		r := kvgate(t, "queue")
		return strings.Contains(r.stdout, "second")
	})
	// The hint is taken from what the node knows when it stops.
	eventually(t, "the leader knows where the others are", func() bool { return knowsAll(stopping.replica.Status()) })
	if err := stopping.Close(); err != nil {
		t.Error(err)
	}
	err = <-failed
	c.http.CloseIdleConnections()
	info := errorInfo(err)
	if connect.CodeOf(err) != connect.CodeUnavailable || info.GetCode() != "shutdown" || info.GetRetryAfter().AsDuration() != 0 {
		t.Fatalf("the blocked call got %v %v", err, info)
	}
	hint := info.GetLeaderHint()
	if hint == "" || "http://"+hint == stopping.URL() {
		t.Fatalf("hint %q", hint)
	}
	t.Setenv("KVGATE_SERVER", hint)
	if r := kvgate(t, "queue"); r.code != exitOK || !strings.Contains(r.stdout, "second") {
		t.Errorf("the ticket lost its place: %s%s", r.stdout, r.stderr)
	}
}

func TestNodeStatusOutput(t *testing.T) {
	lag := uint64(1234)
	f := &fake{status: func(*kvgatev1.GetStatusRequest) (*kvgatev1.GetStatusResponse, error) {
		return &kvgatev1.GetStatusResponse{NodeId: "n1", LeaderId: "n2", Nodes: []*kvgatev1.Node{
			{Id: "n1", Address: "a:7071", ApiAddress: "a:7070", Voter: true, Reachable: true, Lag: &lag, Version: "v1"},
			{Id: "n2", Address: "b:7071", ApiAddress: "b:7070", Voter: true, Reachable: true, Lag: new(uint64), Version: "v1"},
			{Id: "n3", Address: "c:7071", Voter: true},
		}}, nil
	}}
	at(t, f, "node", "status").expect(t, result{stdout: `
   NODE  RAFT ADDRESS  API ADDRESS  VOTER  REACHABLE    LAG  VERSION
   n1    a:7071        a:7070       yes    yes        1,234  v1
*  n2    b:7071        b:7070       yes    yes            0  v1
   n3    c:7071        -            yes    no             -  -

2 of 3 voters can be reached; if one more fails, nothing is decided until it is back.`})
	f.status = func(*kvgatev1.GetStatusRequest) (*kvgatev1.GetStatusResponse, error) {
		return &kvgatev1.GetStatusResponse{NodeId: "n1", Nodes: []*kvgatev1.Node{{Id: "n1", Voter: true, Reachable: true}, {Id: "n2", Voter: true}}}, nil
	}
	r := at(t, f, "node", "status")
	if r.code != exitUnavailable || !strings.Contains(r.stdout, "1 of 2 voters can be reached; there is no leader, so nothing is decided.") {
		t.Errorf("exit %d %s%s", r.code, r.stdout, r.stderr)
	}
}

func TestBadNodeCommands(t *testing.T) {
	t.Setenv("KVGATE_SERVER", nobody(t))
	for _, test := range []struct {
		args string
		code int
		want string
	}{
		{"node", exitUsage, "use status, add, remove or transfer-leadership"},
		{"node add n4", exitUsage, "kvgate node add: HOST:PORT is missing"},
		{"node add n4 d", exitUsage, `address: "d" is not allowed`},
		{"node add n4 d:7071 x", exitUsage, `unexpected argument "x"`},
		{"node remove", exitUsage, "ID is missing"},
		{"node transfer-leadership a b", exitUsage, `unexpected argument "b"`},
		{"node remove n4", exitUnavailable, "unavailable: "},
	} {
		if r := kvgate(t, strings.Fields(test.args)...); r.code != test.code || !strings.Contains(r.stderr, test.want) {
			t.Errorf("%s: exit %d %q", test.args, r.code, r.stderr)
		}
	}
}
