package bench

import (
	"context"
	"encoding/json"
	"fmt"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"connectrpc.com/connect"

	"kvgate/integration/procs"
	v1 "kvgate/rpc/kvgate/v1"
	"kvgate/rpc/kvgate/v1/kvgatev1connect"
)

// members of the clusters that are compared.
const members = 3

// named returns names, so many free addresses, and NAME=PREFIX+ADDRESS of all, separated by commas.
func named(b *testing.B, prefix string) (names, addrs []string, list string) {
	var pairs []string
	for i := range members {
		names, addrs = append(names, fmt.Sprintf("n%d", i+1)), append(addrs, procs.FreeAddr(b))
		pairs = append(pairs, names[i]+"="+prefix+addrs[i])
	}
	return names, addrs, strings.Join(pairs, ",")
}

// startCluster starts three durable nodes and returns the one that leads.
func startCluster(b *testing.B) *api {
	engine := startEngine(b)
	names, addrs, peers := named(b, "")
	var nodes []*procs.Process
	var pids []int
	for i := range members {
		nodes = append(nodes, procs.Launch(b, procs.Node{ID: names[i], DataDir: b.TempDir(), RaftListen: addrs[i], Args: []string{
			"--bootstrap-expect", fmt.Sprint(members), "--peers", peers, "--engines", engine,
		}}))
	}
	for _, n := range nodes {
		procs.WaitReady(b, n.URL())
		pids = append(pids, n.Pid())
	}
	awaitCapacity(b, nodes[0].URL())
	for _, n := range nodes {
		client := kvgatev1connect.NewClusterServiceClient(freshClient(), n.URL())
		status, err := client.GetStatus(b.Context(), connect.NewRequest(&v1.GetStatusRequest{}))
		if err != nil {
			b.Fatal(err)
		}
		if status.Msg.State == "leader" {
			return newAPI(b, "kvgate", n.URL(), pids...)
		}
	}
	b.Fatal("no node leads")
	return nil
}

// etcd is a side whose load is a process of its own, see package etcd.
type etcd struct {
	path, addrs string
	servers     []int
}

// startEtcd builds etcd, which takes minutes the first time, and starts three members.
func startEtcd(b *testing.B) *etcd {
	path := build(b, "etcd", ".")
	names, clients, _ := named(b, "")
	_, peers, cluster := named(b, "http://")
	var pids []int
	for i := range members {
		pids = append(pids, spawn(b, path, "member", names[i], filepath.Join(b.TempDir(), "etcd"), clients[i], peers[i], cluster))
	}
	for _, addr := range clients {
		awaitListener(b, addr)
	}
	return &etcd{path, strings.Join(clients, ","), pids}
}

func (e *etcd) String() string { return "etcd" }

func (e *etcd) pids() []int { return e.servers }

func (e *etcd) run(ctx context.Context, callers int, length time.Duration) (round, error) {
	cmd := exec.CommandContext(ctx, e.path, "load", fmt.Sprint(callers), length.String(), e.addrs)
	var stderr strings.Builder
	cmd.Stderr = &stderr
	out, err := cmd.Output()
	if err != nil {
		return round{}, fmt.Errorf("etcd: %w: %s", err, stderr.String())
	}
	var said struct {
		Pairs          int
		Took, P50, P99 time.Duration
	}
	if err := json.Unmarshal(out, &said); err != nil {
		return round{}, fmt.Errorf("etcd's load says %q: %w", out, err)
	}
	return round{calls: float64(2*said.Pairs) / said.Took.Seconds(), p50: said.P50, p99: said.P99}, nil
}
