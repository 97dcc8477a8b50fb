package main

import (
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
)

// TestReadFromADirectory: read commands answer from the directory of a stopped node as its server did, changes
// are refused.
func TestReadFromADirectory(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "n1")
	n, _ := startTestNode(t, t.Output(), "--node-id", "n1", "--data-dir", dir, "--bootstrap")
	ready(t, n)
	for _, args := range [][]string{
		{"settings", "set", "headroom=0.75", "--server", n.URL()},
		{"acquire", "--ticket", "t1", "--prompt-tokens", "10", "--server", n.URL()},
	} {
		if r := kvgate(t, args...); r.code != exitOK {
			t.Fatalf("%v: exit %d %s", args, r.code, r.stderr)
		}
	}
	reads := [][]string{
		{"pools"}, {"leases"}, {"queue"}, {"engines"}, {"settings", "get"}, {"journal"}, {"journal", "--output", "csv"},
		{"pools", "--output", "json"},
	}
	var live []result
	for _, args := range reads {
		live = append(live, kvgate(t, append(args, "--server", n.URL())...))
	}
	if r := kvgate(t, "status", "--from", dir); r.code != exitUsage || !strings.Contains(r.stderr, "snapshot save") {
		t.Errorf("a running node's directory: exit %d %s", r.code, r.stderr)
	}
	if err := n.Close(); err != nil {
		t.Fatal(err)
	}
	for i, args := range reads {
		dead := kvgate(t, append(args, "--from", dir)...)
		if dead != live[i] {
			t.Errorf("%v: exit %d\n%s%s\nwant what the server said:\n%s", args, dead.code, dead.stdout, dead.stderr, live[i].stdout)
		}
	}
	r := kvgate(t, "status", "--from", dir)
	if r.code != exitOK || !strings.Contains(r.stdout, "read-only: data directory of node n1") {
		t.Errorf("status: exit %d %s%s", r.code, r.stdout, r.stderr)
	}
	for _, args := range [][]string{
		{"settings", "set", "headroom=0.5"}, {"acquire", "--ticket", "x", "--prompt-tokens", "1"}, {"release", "t1"},
	} {
		r := kvgate(t, append(args, "--from", dir)...)
		if r.code != exitFailed || !strings.Contains(r.stderr, "read_only_snapshot: read-only snapshot") {
			t.Errorf("%v: exit %d %s%s", args, r.code, r.stdout, r.stderr)
		}
	}
	if r := kvgate(t, "status", "--from", filepath.Join(dir, "nothing")); r.code != exitUsage {
		t.Errorf("a missing file: exit %d %s", r.code, r.stderr)
	}
}

// TestCopiesOfKilledReadersAreRemoved by the next one, which says so; the copy of one that lives is left alone.
func TestCopiesOfKilledReadersAreRemoved(t *testing.T) {
	path, temp := filepath.Join("..", "..", "fsm", "testdata", "snapshot_v1.kvgate"), t.TempDir()
	t.Setenv("TMPDIR", temp)
	copies := func() (paths []string) {
		paths, err := filepath.Glob(filepath.Join(temp, "kvgate-offline-*"))
		if err != nil {
			t.Fatal(err)
		}
		return paths
	}
	killed, _ := serveInProcess(t, path)
	left := copies()
	if err := killed.Process.Kill(); err != nil {
		t.Fatal(err)
	}
	_ = killed.Wait() // it was killed
	if len(left) != 2 || len(copies()) != 2 {
		t.Fatalf("a reader and its lock leave %v", left)
	}
	living, said := serveInProcess(t, path)
	if !strings.Contains(said.String(), "removed a copy that a killed process left behind") || !strings.Contains(said.String(), "path="+left[0]) {
		t.Errorf("the next one says nothing of %s:\n%s", left[0], said.String())
	}
	used := copies()
	if len(used) != 2 || used[0] == left[0] {
		t.Fatalf("after %v there are %v", left, used)
	}
	succeed(t, "status", "--from", path)
	if got := copies(); len(got) != 2 || got[0] != used[0] {
		t.Errorf("beside a reader that lives there are %v, want its %v", got, used)
	}
	if err := living.Process.Signal(os.Interrupt); err != nil {
		t.Fatal(err)
	}
	if err := living.Wait(); err != nil || len(copies()) > 0 {
		t.Errorf("ended with %v, left are %v", err, copies())
	}
}

// serveInProcess serves a file in a process of its own, and returns once it does.
func serveInProcess(t *testing.T, path string) (*exec.Cmd, *lockedBuffer) {
	t.Helper()
	self, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	serving := make(chan struct{}, 100)
	stderr := &lockedBuffer{watch: func(text string) {
		if strings.Contains(text, "serving a snapshot") {
			serving <- struct{}{}
		}
	}}
	cmd := exec.CommandContext(t.Context(), self, "snapshot", "serve", path, "--listen", "127.0.0.1:0")
	cmd.Env, cmd.Stderr = append(os.Environ(), roleVariable+"=kvgate"), stderr
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	<-serving
	return cmd, stderr
}
