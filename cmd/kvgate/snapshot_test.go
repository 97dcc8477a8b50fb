package main

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"connectrpc.com/connect"

	"kvgate/fsm"
	"kvgate/ledger"
	kvgatev1 "kvgate/rpc/kvgate/v1"
	"kvgate/rpc/kvgate/v1/kvgatev1connect"
	"kvgate/store"
)

// busyNode is a node with a lease of 60 tokens, a waiter of 50 behind it, and room for 100.
func busyNode(t *testing.T) *node {
	t.Helper()
	n, _ := startTestNode(t, t.Output(), "--node-id", "n1", "--data-dir", filepath.Join(t.TempDir(), "n1"), "--bootstrap")
	ready(t, n)
	set := ledger.Settings{Staleness: time.Hour, Headroom: 1, HolderTTL: time.Hour}
	if _, err := n.replica.UpdateSettings(t.Context(), "default", ledger.Patch{Set: set, Fields: []string{"staleness", "headroom", "holderTtl"}}); err != nil {
		t.Fatal(err)
	}
	if err := n.replica.Reconcile(t.Context(), "default", ledger.Round{
		Fresh: true, Discovery: "static", Engines: []ledger.Engine{{URL: "http://e:1", Healthy: true, Capacity: 100}},
	}); err != nil {
		t.Fatal(err)
	}
	t.Setenv("KVGATE_SERVER", n.URL())
	succeed(t, "acquire", "--ticket", "t1", "--prompt-tokens", "60", "--holder", "worker-1")
	ctx, leave := context.WithCancel(t.Context())
	left := make(chan struct{})
	go func() {
		defer close(left)
		_, _ = n.replica.Acquire(ctx, ledger.Acquire{Pool: "default", Ticket: "t2", ReservationTokens: 50, MaxWait: time.Hour, Holder: "worker-2"})
	}()
	t.Cleanup(func() { leave(); <-left })
	eventually(t, "t2 waits", func() bool {
		r := kvgate(t, "queue", "--output", "json")
		return strings.Contains(r.stdout, `"t2"`)
	})
	return n
}

func succeed(t *testing.T, args ...string) result {
	t.Helper()
	r := kvgate(t, args...)
	if r.code != exitOK {
		t.Fatalf("%v: exit %d\n%s%s", args, r.code, r.stdout, r.stderr)
	}
	return r
}

func says(t *testing.T, r result, code int, words ...string) {
	t.Helper()
	for _, w := range words {
		if !strings.Contains(r.stdout+r.stderr, w) {
			t.Errorf("does not say %q:\n%s%s", w, r.stdout, r.stderr)
		}
	}
	if r.code != code {
		t.Errorf("exit %d, want %d: %s", r.code, code, r.stderr)
	}
}

// TestSnapshotCommands: what was saved can be looked into, compared, and read by every command.
func TestSnapshotCommands(t *testing.T) {
	n := busyNode(t)
	dir := t.TempDir()
	a, b := filepath.Join(dir, "a.kvgate"), filepath.Join(dir, "b.kvgate")
	says(t, succeed(t, "snapshot", "save", a), exitOK, "saved "+a)
	succeed(t, "release", "t1")
	eventually(t, "t2 is admitted", func() bool { return strings.Contains(kvgate(t, "leases").stdout, "t2") })
	succeed(t, "settings", "set", "max_wait=45s")
	succeed(t, "snapshot", "save", b)
	if entries, err := os.ReadDir(dir); err != nil || len(entries) != 2 {
		t.Errorf("beside the snapshots there is %v, %v", entries, err)
	}
	says(t, succeed(t, "snapshot", "inspect", a), exitOK,
		"n1", "== queue of pool default", "capacity_exhausted", "worker-1", "== journal", "http://e:1", "holderTtl")
	says(t, succeed(t, "snapshot", "inspect", a, "--section", "leases", "--holder", "worker-2"), exitOK, "no leases")
	says(t, kvgate(t, "snapshot", "inspect", a, "--section", "queues"), exitUsage, "queue, leases")
	says(t, kvgate(t, "snapshot", "inspect", a, "--pool", "nope"), exitFailed, "not_found")
	checkInspectJSON(t, a, n)
	diff := succeed(t, "snapshot", "diff", a, b)
	says(t, diff, exitOK, "1 admitted", "1 released", "1 settings")
	for _, line := range []string{"maxWait", "removed", "added"} {
		says(t, diff, exitOK, line)
	}
	says(t, succeed(t, "snapshot", "diff", a, a), exitOK, "no differences")
	says(t, succeed(t, "queue", "--from", a), exitOK, "t2")
	copied := filepath.Join(dir, "copy.kvgate")
	succeed(t, "snapshot", "save", copied, "--from", a)
	says(t, succeed(t, "snapshot", "diff", a, copied), exitOK, "no differences")
	piped := filepath.Join(dir, "piped.kvgate")
	if err := os.WriteFile(piped, []byte(succeed(t, "snapshot", "save", "-", "--from", a).stdout), 0o600); err != nil {
		t.Fatal(err)
	}
	says(t, succeed(t, "snapshot", "diff", a, piped), exitOK, "no differences")
}

func checkInspectJSON(t *testing.T, path string, n *node) {
	t.Helper()
	var got struct {
		Snapshot store.Header
		Pools    []struct {
			Pool   string
			Leases struct {
				Leases []struct{ TicketID, HolderID string }
			}
			Queue  struct{ Waiters []struct{ TicketID string } }
			Budget struct{ Reserved string }
		}
		Journal struct{ LastIndex string }
		Cluster struct{ ClusterID string }
	}
	if err := json.Unmarshal([]byte(succeed(t, "snapshot", "inspect", path, "--output", "json").stdout), &got); err != nil {
		t.Fatal(err)
	}
	id := n.replica.Status().ClusterID
	if got.Snapshot.ClusterID != id || got.Cluster.ClusterID != id || len(got.Pools) != 1 || got.Pools[0].Budget.Reserved != "60" ||
		len(got.Pools[0].Leases.Leases) != 1 || got.Pools[0].Leases.Leases[0].HolderID != "worker-1" ||
		len(got.Pools[0].Queue.Waiters) != 1 || got.Pools[0].Queue.Waiters[0].TicketID != "t2" {
		t.Errorf("inspect: %+v", got)
	}
}

// TestSnapshotSaveRefuses: no half file is left, and - needs somewhere to go.
func TestSnapshotSaveRefuses(t *testing.T) {
	dir := t.TempDir()
	t.Setenv("KVGATE_SERVER", "http://127.0.0.1:1")
	says(t, kvgate(t, "snapshot", "save", filepath.Join(dir, "x.kvgate")), exitUnavailable, "127.0.0.1:1")
	if entries, err := os.ReadDir(dir); err != nil || len(entries) > 0 {
		t.Errorf("left behind: %v, %v", entries, err)
	}
	says(t, kvgate(t, "snapshot", "save"), exitUsage, "use one FILE")
}

// TestSnapshotServe: the API, the page and the metrics of a file.
func TestSnapshotServe(t *testing.T) {
	busyNode(t)
	path := filepath.Join(t.TempDir(), "a.kvgate")
	succeed(t, "snapshot", "save", path)
	ctx, stop := context.WithCancel(t.Context())
	ended := make(chan result, 1)
	said := make(chan string, 1)
	go func() {
		stderr := lockedBuffer{watch: func(text string) {
			if _, rest, ok := strings.Cut(text, "url="); ok {
				url, _, _ := strings.Cut(rest, " ")
				said <- url
			}
		}}
		code := newMain().Run(ctx, []string{"snapshot", "serve", path, "--listen", "127.0.0.1:0"}, strings.NewReader(""), io.Discard, &stderr)
		ended <- result{code: code, stderr: stderr.String()}
	}()
	url := <-said
	t.Setenv("KVGATE_SERVER", url)
	says(t, succeed(t, "status"), exitOK, "offline", "read-only: snapshot saved")
	says(t, succeed(t, "queue"), exitOK, "t2")
	says(t, kvgate(t, "release", "t1"), exitFailed, "read_only_snapshot")
	says(t, kvgate(t, "snapshot", "restore", path, "--into-cluster", "--confirm", "any"), exitFailed, "read_only_snapshot")
	for path, want := range map[string]string{"/": "<html", "/metrics": `agentic_kv_reserved_tokens{pool="default"} 60`} {
		res, err := http.Get(url + path)
		if err != nil {
			t.Fatal(err)
		}
		body, err := io.ReadAll(res.Body)
		if err != nil || res.Body.Close() != nil || !strings.Contains(string(body), want) {
			t.Errorf("%s: %v, %.300s", path, err, body)
		}
	}
	http.DefaultClient.CloseIdleConnections()
	timesCountFromTheEnd(t, path, url)
	stop()
	if r := <-ended; r.code == exitUsage {
		t.Errorf("serve ended with %d: %s", r.code, r.stderr)
	}
}

// timesCountFromTheEnd: who asks a server of a snapshot weeks later means the days in it, and is told once; a time with
// a date is what it says.
func timesCountFromTheEnd(t *testing.T, path, url string) {
	t.Helper()
	o, err := fsm.OpenOffline(path, slog.New(slog.DiscardHandler))
	if err != nil {
		t.Fatal(err)
	}
	end := o.Header.WallTime.UTC()
	if err := o.Close(); err != nil {
		t.Fatal(err)
	}
	later := func(args ...string) result {
		var stdout, stderr lockedBuffer
		m := newMain()
		m.Now, m.Location = func() time.Time { return end.Add(1000 * time.Hour) }, time.UTC
		code := m.Run(t.Context(), append(args, "--server", url), strings.NewReader(""), &stdout, &stderr)
		return result{stdout: stdout.String(), stderr: stderr.String(), code: code}
	}
	told := "times count back from the snapshot's end, " + end.Format(wallLayout) + ": since " + end.Add(-10*time.Minute).Format(wallLayout)
	for _, args := range [][]string{
		{"journal", "--since", "10m"}, {"journal", "--follow", "--limit", "1", "--since", "-10m"}, {"journal", "explain", "t1", "--since", "10m ago"},
		{"report", "--since", "10m", "--out", "-"}, {"replay", "--since", "10m"},
	} {
		r := later(args...)
		if r.code != exitOK || strings.Count(r.stderr, told) != 1 || strings.Contains(r.stderr, "nothing happened") {
			t.Errorf("%v: exit %d\n%s, want %q once", args, r.code, r.stderr, told)
		}
	}
	says(t, later("journal", "--since", "10m"), exitOK, "t1")
	says(t, later("top", "--views", "1"), exitOK, end.Format(time.DateTime))
	dated := later("journal", "--since", end.Add(time.Hour).Format(time.RFC3339))
	if dated.code != exitOK || strings.Contains(dated.stderr, "times count") || !strings.Contains(dated.stdout, "no events") {
		t.Errorf("a time with a date: exit %d\n%s%s", dated.code, dated.stdout, dated.stderr)
	}
}

// TestSnapshotRestore: into a directory that serve then starts from, and into the cluster it came from.
func TestSnapshotRestore(t *testing.T) {
	n := busyNode(t)
	dir := t.TempDir()
	path, fresh := filepath.Join(dir, "a.kvgate"), filepath.Join(dir, "r1")
	succeed(t, "snapshot", "save", path)
	succeed(t, "release", "t1")
	id := n.replica.Status().ClusterID
	says(t, kvgate(t, "snapshot", "restore", path), exitUsage, "either --data-dir or --into-cluster")
	says(t, kvgate(t, "snapshot", "restore", path, "--into-cluster"), exitUsage, "confirm")
	says(t, kvgate(t, "snapshot", "restore", path, "--into-cluster", "--confirm", "x"), exitFailed, "wrong_cluster")
	says(t, kvgate(t, "snapshot", "restore", path, "--into-cluster", "--confirm", id), exitFailed, "newer_state", "newer than the archive")
	says(t, succeed(t, "snapshot", "restore", path, "--into-cluster", "--confirm", id, "--force"), exitOK, "newer events")
	eventually(t, "the lease is back", func() bool { return strings.Contains(kvgate(t, "leases").stdout, "t1") })

	says(t, succeed(t, "snapshot", "restore", path, "--data-dir", fresh, "--node-id", "r1", "--raft-listen", "127.0.0.1:9"),
		exitOK, "default", "quarantine=false")
	says(t, kvgate(t, "snapshot", "restore", path, "--data-dir", fresh, "--node-id", "r1"), exitFailed, "not empty")
	r1, _ := startTestNode(t, t.Output(), "--node-id", "r1", "--data-dir", fresh)
	ready(t, r1)
	t.Setenv("KVGATE_SERVER", r1.URL())
	says(t, succeed(t, "status"), exitOK, "in quarantine")
	says(t, succeed(t, "leases"), exitOK, "worker-1")
	says(t, succeed(t, "journal"), exitOK, "restored", id)
	succeed(t, "settings", "set", "quarantine=false")
	if r := succeed(t, "status"); strings.Contains(r.stdout, "quarantine") {
		t.Errorf("still in quarantine:\n%s", r.stdout)
	}
}

// TestSnapshotThroughAFollower: any node saves; a restore finds the leader by itself.
func TestSnapshotThroughAFollower(t *testing.T) {
	nodes, _, _ := three(t)
	var follower *node
	for id, n := range nodes {
		if id != n.replica.Status().LeaderID {
			follower = n
		}
	}
	t.Setenv("KVGATE_SERVER", follower.URL())
	succeed(t, "settings", "set", "max_wait=41s")
	path := filepath.Join(t.TempDir(), "a.kvgate")
	eventually(t, "the follower has it", func() bool {
		return strings.Contains(kvgate(t, "settings", "get", "max_wait").stdout, "41s") &&
			kvgate(t, "snapshot", "save", path).code == exitOK &&
			strings.Contains(kvgate(t, "settings", "get", "max_wait", "--from", path).stdout, "41s")
	})
	inspected := succeed(t, "snapshot", "inspect", path, "--section", "cluster").stdout
	if strings.Count(inspected, " voter") != 2 || strings.Count(inspected, " leader") != 1 || strings.Count(inspected, "127.0.0.1:") < 3 {
		t.Errorf("the members as they were saved:\n%s", inspected)
	}
	says(t, succeed(t, "node", "status", "--from", path), exitOK, "as they were saved", "n3")
	succeed(t, "settings", "set", "max_wait=42s")
	id := follower.replica.Status().ClusterID
	says(t, succeed(t, "snapshot", "restore", path, "--into-cluster", "--confirm", id, "--force"), exitOK, "newer events")
	for _, n := range nodes {
		eventually(t, "the node has the restored setting", func() bool {
			r := kvgate(t, "settings", "get", "max_wait", "--server", n.URL())
			return strings.Contains(r.stdout, "41s")
		})
	}
}

// TestDiffKnowsTheSameMoment: the time of day of what did not change differs a little from file to file.
func TestDiffKnowsTheSameMoment(t *testing.T) {
	session := func(opened string, turns int) map[string]any {
		return map[string]any{"openedAt": opened, "turns": turns}
	}
	before := session("2026-11-30T11:26:42.121389454Z", 3)
	if !sameFields(before, session("2026-11-30T11:26:43.02Z", 3)) {
		t.Error("a moment shown 0.9 s apart counts as changed")
	}
	if got := only(session("2026-11-30T11:27:42Z", 4), before); len(got) != 2 {
		t.Errorf("changed are %v, want both", got)
	}
}

// behindNode serves a snapshot and says that it has decided more.
type behindNode struct {
	kvgatev1connect.UnimplementedClusterServiceHandler
	archive []byte
	applied uint64
}

func (b *behindNode) GetStatus(context.Context, *connect.Request[kvgatev1.GetStatusRequest]) (*connect.Response[kvgatev1.GetStatusResponse], error) {
	return connect.NewResponse(&kvgatev1.GetStatusResponse{AppliedIndex: b.applied}), nil
}

func (b *behindNode) SaveSnapshot(_ context.Context, _ *connect.Request[kvgatev1.SaveSnapshotRequest], s *connect.ServerStream[kvgatev1.SaveSnapshotResponse]) error {
	return s.Send(&kvgatev1.SaveSnapshotResponse{Data: b.archive})
}

// TestSnapshotThatIsBehind: who saves from a node whose disk takes no writes is told what the file lacks.
func TestSnapshotThatIsBehind(t *testing.T) {
	busyNode(t)
	file := filepath.Join(t.TempDir(), "a.kvgate")
	r := succeed(t, "snapshot", "save", file)
	if strings.Contains(r.stderr, "takes no writes") {
		t.Errorf("a snapshot that is whole: %s", r.stderr)
	}
	archive, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	header, err := store.ReadHeader(file)
	if err != nil {
		t.Fatal(err)
	}
	mux := http.NewServeMux()
	mux.Handle(kvgatev1connect.NewClusterServiceHandler(&behindNode{archive: archive, applied: header.Index + 25}))
	server := httptest.NewServer(mux)
	defer server.Close()
	r = succeed(t, "snapshot", "save", file, "--server", server.URL)
	says(t, r, exitOK, fmt.Sprintf("ends at entry %d", header.Index), "had decided 25 entries more", server.URL)
}
