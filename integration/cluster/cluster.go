package cluster

import (
	"context"
	"fmt"
	"net"
	"net/http"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"connectrpc.com/connect"
	"google.golang.org/protobuf/types/known/durationpb"

	"kvgate/integration/enginesim"
	"kvgate/integration/procs"
	kvgatev1 "kvgate/rpc/kvgate/v1"
	"kvgate/rpc/kvgate/v1/kvgatev1connect"
)

// Settings of every cluster, short so that an episode sees deadlines pass.
const (
	failOpenAfter = time.Second
	leaseTTL      = 4 * time.Second
	holderTTL     = 4 * time.Second
	detachGrace   = 1500 * time.Millisecond
	poolMaxWait   = 1500 * time.Millisecond
)

// headroom of the pool; the ceiling is this share of the engines' tokens.
const headroom = 0.9

// Options describe a cluster.
type Options struct {
	// Network gives each node a namespace; else all listen on the loopback interface.
	Network bool
	// SnapshotThreshold is the flag of that name; default 200 entries.
	SnapshotThreshold int
	// EngineTokens is the KV pool of each of two engines; default 5000.
	EngineTokens int
	// CommandVersion is what the nodes pretend to know at first; 0 means the build's.
	CommandVersion int
	// DataDir holds the nodes' directories; default a temporary directory.
	DataDir string
	// Names makes the nodes know each other by names that their namespaces resolve; needs Network.
	Names bool
	// Certificates, when not nil, secure both ports; needs the loopback interface.
	Certificates *certificates
	// Seed of the wire's losses.
	Seed uint64
}

// Cluster is three nodes, their engines and the clients' way to them.
type Cluster struct {
	t     testing.TB
	opts  Options
	nodes []*Node
	// clients is the namespace that clients and engines live in, nil without Network.
	clients *namespace
	wire    *Wire
	http    *http.Client
	engines []string
}

// Start starts a cluster and waits until every node has a leader and the pool has capacity. Everything
// ends with the test.
func Start(t testing.TB, o Options) *Cluster {
	t.Helper()
	if o.SnapshotThreshold == 0 {
		o.SnapshotThreshold = 200
	}
	if o.EngineTokens == 0 {
		o.EngineTokens = 5000
	}
	if o.DataDir == "" {
		o.DataDir = t.TempDir()
	}
	c := &Cluster{t: t, opts: o}
	transport := &http.Transport{DialContext: c.dial, MaxIdleConnsPerHost: 64}
	if o.Certificates != nil {
		transport.TLSClientConfig = o.Certificates.client()
	}
	c.http = &http.Client{Transport: transport}
	c.makeNodes()
	t.Cleanup(transport.CloseIdleConnections)
	c.startEngines()
	for _, n := range c.nodes {
		n.Start()
	}
	c.configure()
	return c
}

// makeNodes chooses names and addresses, and makes the network.
func (c *Cluster) makeNodes() {
	c.t.Helper()
	if c.opts.Network {
		needNetwork(c.t)
		c.clients = newNamespace(c.t, "10.77.0.10")
	}
	var peers []string
	for i := range 3 {
		n := &Node{cluster: c, id: fmt.Sprintf("n%d", i+1)}
		n.spec = procs.Node{
			ID: n.id, DataDir: filepath.Join(c.opts.DataDir, n.id), Binary: faultBinary(c.t),
			Listen: "127.0.0.1:0", RaftListen: "127.0.0.1:0",
		}
		if c.opts.Network {
			n.ns = newNamespace(c.t, fmt.Sprintf("10.77.0.%d", i+1))
			n.spec.Netns, n.spec.Listen, n.spec.RaftListen = n.ns.name, n.ns.addr+":7070", n.ns.addr+":7071"
		} else {
			n.spec.Listen, n.spec.RaftListen = procs.FreeAddr(c.t), procs.FreeAddr(c.t)
		}
		peers = append(peers, n.id+"="+n.raftName())
		c.nodes = append(c.nodes, n)
	}
	c.nameNodes()
	for _, n := range c.nodes {
		n.init(peers)
	}
	if c.opts.Network {
		c.wire = newWire(c.opts.Seed, c.clients, c.nodes[0].ns, c.nodes[1].ns, c.nodes[2].ns)
		c.t.Cleanup(c.wire.close)
	}
}

// nameNodes tells every namespace the nodes' names.
func (c *Cluster) nameNodes() {
	c.t.Helper()
	if !c.opts.Names {
		return
	}
	hosts := "127.0.0.1 localhost\n"
	for _, n := range c.nodes {
		hosts += n.ns.addr + " " + n.name() + "\n"
	}
	for _, n := range c.nodes {
		n.ns.setHosts(c.t, hosts)
	}
}

// url is where a node's API is.
func (c *Cluster) url(addr string) string {
	if c.opts.Certificates != nil {
		return "https://" + addr
	}
	return "http://" + addr
}

// startEngines starts two simulated engines where the clients are.
func (c *Cluster) startEngines() {
	c.t.Helper()
	cfg := enginesim.FleetConfig{
		Count: 2, Engine: enginesim.Config{PoolTokens: c.opts.EngineTokens, EnableMetrics: true, Seed: 1},
	}
	var fleet *enginesim.Fleet
	start := func() (err error) {
		fleet, err = enginesim.StartFleet(cfg)
		return err
	}
	var err error
	if c.clients != nil {
		cfg.Listen = c.clients.addr + ":30000"
		err = c.clients.do(start)
	} else {
		err = start()
	}
	if err != nil {
		c.t.Fatalf("start engines: %v", err)
	}
	c.t.Cleanup(func() { _ = fleet.Close() })
	c.engines = fleet.URLs()
}

// dial connects a client.
func (c *Cluster) dial(ctx context.Context, network, addr string) (conn net.Conn, err error) {
	var d net.Dialer
	if c.clients == nil {
		return d.DialContext(ctx, network, addr)
	}
	err = c.clients.do(func() (err error) {
		conn, err = d.DialContext(ctx, network, addr)
		return err
	})
	return conn, err
}

// configure waits for a leader, gives the pool its engines and settings, and waits for capacity.
func (c *Cluster) configure() {
	c.t.Helper()
	c.WaitReady()
	on := headroom
	set := &kvgatev1.Settings{
		EngineUrls: c.engines, Headroom: &on, LeaseTtl: durationpb.New(leaseTTL), HolderTtl: durationpb.New(holderTTL),
		DetachGrace: durationpb.New(detachGrace), MaxWait: durationpb.New(poolMaxWait),
		PollInterval: durationpb.New(500 * time.Millisecond), Staleness: durationpb.New(10 * time.Second),
	}
	c.Eventually("settings are taken", func(ctx context.Context) error {
		_, err := c.nodes[0].admin.UpdateSettings(ctx, connect.NewRequest(&kvgatev1.UpdateSettingsRequest{Settings: set}))
		return err
	})
	want := int64(float64(2*c.opts.EngineTokens) * headroom)
	c.Eventually("the pool has capacity", func(ctx context.Context) error {
		b, err := c.nodes[0].observe.GetBudget(ctx, connect.NewRequest(&kvgatev1.GetBudgetRequest{}))
		if err == nil && b.Msg.Ceiling != want {
			err = fmt.Errorf("ceiling is %d, want %d", b.Msg.Ceiling, want)
		}
		return err
	})
}

// WaitReady waits until every node has a leader and has caught up.
func (c *Cluster) WaitReady() {
	c.t.Helper()
	for _, n := range c.nodes {
		c.Eventually("node "+n.id+" is ready", n.ready)
	}
}

// settleLimit bounds what a healthy cluster is waited for. It is far above what a loaded machine needs.
const settleLimit = 40 * time.Second

// Eventually repeats fn until it answers nil.
func (c *Cluster) Eventually(what string, fn func(context.Context) error) {
	c.t.Helper()
	var last error
	procs.Eventually(c.t, settleLimit, func() bool {
		ctx, cancel := context.WithTimeout(context.Background(), 3*time.Second)
		defer cancel()
		last = fn(ctx)
		return last == nil
	}, func() string { return fmt.Sprintf("%s: %v", what, last) })
}

// Leader waits until every node that runs and answers names the same leader, and returns it.
func (c *Cluster) Leader() *Node {
	c.t.Helper()
	var leader *Node
	c.Eventually("the nodes agree on a leader", func(ctx context.Context) error {
		leader = nil
		ids := map[string]bool{}
		for _, n := range c.nodes {
			if !n.answers() {
				continue
			}
			s, err := n.status(ctx)
			if err != nil {
				return err
			}
			ids[s.LeaderId] = true
			if s.State == "leader" {
				leader = n
			}
		}
		if leader == nil || len(ids) != 1 || !ids[leader.id] {
			return fmt.Errorf("they name %v", ids)
		}
		return nil
	})
	return leader
}

// others returns the nodes but n.
func (c *Cluster) others(n *Node) (out []*Node) {
	for _, o := range c.nodes {
		if o != n {
			out = append(out, o)
		}
	}
	return out
}

// Heal undoes every fault: it continues, starts and connects all nodes.
func (c *Cluster) Heal() {
	c.t.Helper()
	if c.wire != nil {
		c.wire.Heal()
	}
	for _, n := range c.nodes {
		n.SetFaults(Faults{})
		n.Resume()
	}
	for _, n := range c.nodes {
		c.Eventually("node "+n.id+" is ready again", func(ctx context.Context) error {
			n.Revive() // it may end only now, of what struck it before
			return n.ready(ctx)
		})
	}
}

func newClients(h *http.Client, url string) (kvgatev1connect.AdmissionServiceClient, kvgatev1connect.ObserveServiceClient, kvgatev1connect.ClusterServiceClient) {
	return kvgatev1connect.NewAdmissionServiceClient(h, url), kvgatev1connect.NewObserveServiceClient(h, url),
		kvgatev1connect.NewClusterServiceClient(h, url)
}

func joinPeers(peers []string) []string {
	return []string{"--bootstrap-expect", fmt.Sprint(len(peers)), "--peers", strings.Join(peers, ",")}
}
