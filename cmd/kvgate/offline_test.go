package main

import (
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
