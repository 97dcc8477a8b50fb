package cluster

import (
	"context"
	"encoding/json"
	"fmt"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"connectrpc.com/connect"

	"kvgate/integration/procs"
	kvgatev1 "kvgate/rpc/kvgate/v1"
	"kvgate/rpc/kvgate/v1/kvgatev1connect"
)

// Node is one node of a Cluster over all its processes. Only the test's goroutine may act on it.
type Node struct {
	cluster *Cluster
	id      string
	spec    procs.Node
	ns      *namespace
	control string

	admission kvgatev1connect.AdmissionServiceClient
	observe   kvgatev1connect.ObserveServiceClient
	admin     kvgatev1connect.ClusterServiceClient

	proc *procs.Process
	// earlier are the processes before proc.
	earlier []*procs.Process
	// mu guards impaired and paused, which clients' checks read.
	mu       sync.Mutex
	paused   bool
	impaired []span
}

// span is a stretch of time; a zero to means that it lasts.
type span struct{ from, to time.Time }

// Faults is the control file of the fault build; see cmd/kvgate/faults.go.
type Faults struct {
	ClockOffset time.Duration `json:"clockOffset"`
	StallDisk   bool          `json:"stallDisk"`
	WriteDelay  time.Duration `json:"writeDelay"`
	WriteError  string        `json:"writeError"`
}

var builtFaults = sync.OnceValues(func() (string, error) {
	// Beside the plain binary, so that procs.Main removes it.
	plain := builtPlain
	path := filepath.Join(filepath.Dir(plain), "kvgate-faults")
	out, err := exec.Command("go", "build", "-tags", "faults", "-o", path, "kvgate/cmd/kvgate").CombinedOutput()
	if err != nil {
		return "", fmt.Errorf("go build -tags faults kvgate/cmd/kvgate: %w\n%s", err, out)
	}
	return path, nil
})

// builtPlain is set before builtFaults is called, under builtMu.
var (
	builtMu    sync.Mutex
	builtPlain string
)

// faultBinary builds the fault build once per test process.
func faultBinary(t testing.TB) string {
	t.Helper()
	builtMu.Lock()
	defer builtMu.Unlock()
	builtPlain = procs.Build(t)
	path, err := builtFaults()
	if err != nil {
		t.Fatal(err)
	}
	return path
}

func (n *Node) init(peers []string) {
	n.control = n.spec.DataDir + ".faults"
	n.connect()
	n.spec.Args = append(joinPeers(peers),
		"--fail-open-after", failOpenAfter.String(), "--snapshot-threshold", fmt.Sprint(n.cluster.opts.SnapshotThreshold))
	if n.cluster.opts.Names {
		n.spec.Args = append(n.spec.Args, "--raft-advertise", n.raftName())
	}
	if c := n.cluster.opts.Certificates; c != nil {
		n.spec.Args = append(n.spec.Args, c.flags(n.id)...)
	}
	n.setVersion(n.cluster.opts.CommandVersion)
}

// connect makes the clients of the node's API.
func (n *Node) connect() {
	n.admission, n.observe, n.admin = newClients(n.cluster.http, n.cluster.url(n.spec.Listen))
}

// name is what the node's address resolves from, with Options.Names.
func (n *Node) name() string { return n.id + ".kvgate.test" }

// raftName is where the other nodes find this one.
func (n *Node) raftName() string {
	if n.cluster.opts.Names {
		return n.name() + ":7071"
	}
	return n.spec.RaftListen
}

// move gives a node that does not run another address.
func (n *Node) move() {
	n.cluster.t.Helper()
	n.ns.move(n.cluster.t)
	n.spec.Listen, n.spec.RaftListen = n.ns.addr+":7070", n.ns.addr+":7071"
	n.connect()
}

// setVersion sets which command version the node pretends to know from its next start; 0 means the build's.
func (n *Node) setVersion(v int) {
	n.spec.Env = []string{"FAULTS_FILE=" + n.control}
	if v > 0 {
		n.spec.Env = append(n.spec.Env, fmt.Sprintf("FAULTS_COMMAND_VERSION=%d", v))
	}
}

// Start starts the node, which must not run, and does not wait.
func (n *Node) Start() {
	n.cluster.t.Helper()
	if n.proc != nil {
		n.earlier = append(n.earlier, n.proc)
	}
	n.proc = procs.Launch(n.cluster.t, n.spec)
}

// Revive starts the node when its process has ended.
func (n *Node) Revive() {
	n.cluster.t.Helper()
	if n.ended() {
		n.Start()
	}
}

// logs returns what all processes of the node have written.
func (n *Node) logs() string {
	var out strings.Builder
	for _, p := range append(n.earlier, n.proc) {
		out.WriteString(p.Logs())
	}
	return out.String()
}

func (n *Node) ended() bool {
	select {
	case <-n.proc.Done():
		return true
	default:
		return false
	}
}

// answers says that the node runs and is not paused.
func (n *Node) answers() bool {
	n.mu.Lock()
	defer n.mu.Unlock()
	return !n.paused && !n.ended()
}

// Kill9 kills the process, also a paused one.
func (n *Node) Kill9() {
	n.proc.Kill9()
	n.setPaused(false)
}

// Stop ends the node as an operator does.
func (n *Node) Stop() {
	n.cluster.t.Helper()
	if err := n.proc.Stop(); err != nil {
		n.cluster.t.Errorf("stop node %s: %v", n.id, err)
	}
}

// Pause stops the process where it is; Resume lets it go on.
func (n *Node) Pause() {
	n.setPaused(true)
	if err := n.proc.Pause(); err != nil {
		n.cluster.t.Errorf("pause node %s: %v", n.id, err)
	}
}

// Resume undoes Pause and does nothing without one.
func (n *Node) Resume() {
	n.mu.Lock()
	paused := n.paused
	n.mu.Unlock()
	if !paused {
		return
	}
	if err := n.proc.Resume(); err != nil && !n.ended() {
		n.cluster.t.Errorf("resume node %s: %v", n.id, err)
	}
	n.setPaused(false)
}

func (n *Node) setPaused(paused bool) {
	n.mu.Lock()
	defer n.mu.Unlock()
	if paused == n.paused {
		return
	}
	n.paused = paused
	if paused {
		n.impaired = append(n.impaired, span{from: time.Now()})
	} else {
		n.impaired[len(n.impaired)-1].to = time.Now()
	}
}

// wasImpaired says that the process was paused at some time between from and to.
func (n *Node) wasImpaired(from, to time.Time) bool {
	n.mu.Lock()
	defer n.mu.Unlock()
	for _, s := range n.impaired {
		if s.from.Before(to) && (s.to.IsZero() || s.to.After(from)) {
			return true
		}
	}
	return false
}

// Wipe kills the node and deletes what it has stored.
func (n *Node) Wipe() {
	n.Kill9()
	if err := os.RemoveAll(n.spec.DataDir); err != nil {
		n.cluster.t.Errorf("wipe node %s: %v", n.id, err)
	}
}

// SetFaults tells the node's fault build what to do from now on.
func (n *Node) SetFaults(f Faults) {
	data, err := json.Marshal(f)
	if err == nil {
		err = os.WriteFile(n.control+".new", data, 0o600)
	}
	if err == nil {
		err = os.Rename(n.control+".new", n.control)
	}
	if err != nil {
		n.cluster.t.Errorf("control file of node %s: %v", n.id, err)
	}
}

func (n *Node) status(ctx context.Context) (*kvgatev1.GetStatusResponse, error) {
	res, err := n.admin.GetStatus(ctx, connect.NewRequest(&kvgatev1.GetStatusRequest{}))
	if err != nil {
		return nil, err
	}
	return res.Msg, nil
}

// ready answers nil when the node has a leader and has caught up.
func (n *Node) ready(ctx context.Context) error {
	status, err := n.get(ctx, "/readyz")
	if err == nil && status != http.StatusOK {
		err = fmt.Errorf("status %d", status)
	}
	return err
}

// get returns the status of an HTTP path.
func (n *Node) get(ctx context.Context, path string) (int, error) {
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, n.cluster.url(n.spec.Listen)+path, nil)
	if err != nil {
		return 0, err
	}
	res, err := n.cluster.http.Do(req)
	if err != nil {
		return 0, err
	}
	return res.StatusCode, res.Body.Close()
}

// sees says whether the node knows of that many voters that it can reach.
func (n *Node) sees(ctx context.Context, voters int) error {
	s, err := n.status(ctx)
	if err != nil {
		return err
	}
	have := 0
	for _, m := range s.Nodes {
		if m.Voter && m.Reachable {
			have++
		}
	}
	if have != voters {
		return fmt.Errorf("node %s sees %d voters: %v", n.id, have, s.Nodes)
	}
	return nil
}
