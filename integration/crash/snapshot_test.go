package crash

import (
	"encoding/json"
	"fmt"
	"math/rand/v2"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"connectrpc.com/connect"

	"kvgate/integration/procs"
	kvgatev1 "kvgate/rpc/kvgate/v1"
)

// kvgate runs a command line to its end and returns what it wrote.
func kvgate(t *testing.T, args ...string) (out string, err error) {
	t.Helper()
	raw, err := exec.CommandContext(t.Context(), procs.Build(t), args...).CombinedOutput()
	return string(raw), err
}

// killed runs a command line and kills it after a while, unless it ends before.
func killed(t *testing.T, after time.Duration, args ...string) {
	t.Helper()
	cmd := exec.CommandContext(t.Context(), procs.Build(t), args...)
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	kill := time.AfterFunc(after, func() { _ = cmd.Process.Kill() })
	_ = cmd.Wait() // killed, or done
	kill.Stop()
}

// took is how long a command line takes that is not killed.
func took(t *testing.T, args ...string) time.Duration {
	t.Helper()
	began := time.Now()
	if out, err := kvgate(t, args...); err != nil {
		t.Fatalf("%v: %v\n%s", args, err, out)
	}
	return time.Since(began)
}

// loaded gives a site a history, and five leases that stay.
func loaded(t *testing.T, s *site) {
	t.Helper()
	b := newBook(t)
	said := b.alarm(400)
	stop := startLoad(s, b, "load")
	<-said
	stop()
	b.settle(s)
	for i := range 5 {
		hold(t, s, fmt.Sprint("held-", i))
	}
}

// hold acquires a ticket that nobody releases.
func hold(t *testing.T, s *site, ticket string) {
	t.Helper()
	res, err := s.admission.Acquire(t.Context(), connect.NewRequest(&kvgatev1.AcquireRequest{TicketId: ticket, PromptTokens: 1}))
	if err != nil || res.Msg.LeaseId == "" {
		t.Fatalf("%v, %v", res, err)
	}
}

// TestKilledWhileSaving: a save that is killed leaves no file, or a whole one, under the name; so does a node
// that saves on a schedule, which also clears away the half ones when it starts again.
func TestKilledWhileSaving(t *testing.T) {
	procs.Build(t)                  // outlives the test, so it is made first
	t.Setenv("TMPDIR", t.TempDir()) // what is killed leaves its copies there
	dir := t.TempDir()
	s := startSite(t, t.TempDir(), "--snapshot-dir", filepath.Join(dir, "scheduled"), "--snapshot-every", "1s", "--snapshot-keep", "3")
	loaded(t, s)
	file := filepath.Join(dir, "saved.kvgate")
	save := []string{"snapshot", "save", file, "--server", s.URL()}
	whole := took(t, save...)
	for range 8 {
		if err := os.Remove(file); err != nil && !os.IsNotExist(err) {
			t.Fatal(err)
		}
		killed(t, time.Duration(rand.Int64N(int64(whole))), save...)
		wantWhole(t, file)
	}
	for round := range 3 {
		b := newBook(t)
		said := b.alarm(200 + rand.IntN(200))
		stop := startLoad(s, b, fmt.Sprint("round", round))
		<-said
		procs.Eventually(t, patience, func() bool { return len(inDir(t, dir, "scheduled")) > 0 }, func() string { return "nothing is saved on schedule" })
		s.Kill9()
		stop()
		for _, name := range inDir(t, dir, "scheduled") {
			if strings.HasSuffix(name, ".kvgate") {
				wantWhole(t, filepath.Join(dir, "scheduled", name))
			}
		}
		s.restart()
	}
}

func inDir(t *testing.T, path ...string) (names []string) {
	t.Helper()
	entries, err := os.ReadDir(filepath.Join(path...))
	if err != nil && !os.IsNotExist(err) {
		t.Fatal(err)
	}
	for _, e := range entries {
		names = append(names, e.Name())
	}
	return names
}

// wantWhole: a file that is there can be read to its end.
func wantWhole(t *testing.T, file string) {
	t.Helper()
	if _, err := os.Stat(file); os.IsNotExist(err) {
		return
	}
	if out, err := kvgate(t, "snapshot", "inspect", file); err != nil {
		t.Errorf("%s: %v\n%s", file, err, out)
	}
}

// TestKilledWhileRestoring: a restore into a directory that is killed leaves one that no node starts from, or a
// whole one; running it again finishes it.
func TestKilledWhileRestoring(t *testing.T) {
	procs.Build(t)                  // outlives the test, so it is made first
	t.Setenv("TMPDIR", t.TempDir()) // what is killed leaves its copies there
	s := startSite(t, t.TempDir())
	loaded(t, s)
	want := s.leases()
	root := t.TempDir()
	file := filepath.Join(root, "a.kvgate")
	took(t, "snapshot", "save", file, "--server", s.URL())
	restore := func(dir string) []string {
		return []string{"snapshot", "restore", file, "--data-dir", dir, "--node-id", "r1", "--raft-listen", "127.0.0.1:9"}
	}
	whole := took(t, restore(filepath.Join(root, "whole"))...)
	for round := range 10 {
		dir := filepath.Join(root, fmt.Sprint("r", round))
		killed(t, time.Duration(rand.Int64N(int64(whole))), restore(dir)...)
		out, err := kvgate(t, restore(dir)...)
		if err != nil && !strings.Contains(out, "not empty") {
			t.Fatalf("a restore that was killed cannot be run again: %v\n%s", err, out)
		}
		if got := leasesIn(t, dir); len(got) != len(want) {
			t.Errorf("%d leases are restored, want %d", len(got), len(want))
		}
	}
	node := procs.StartNode(t, procs.Node{ID: "r1", DataDir: filepath.Join(root, "r0")})
	procs.WaitReady(t, node.URL())
	if out, err := kvgate(t, "status", "--server", node.URL()); err != nil || !strings.Contains(out, "in quarantine") {
		t.Errorf("status: %v\n%s", err, out)
	}
}

func leasesIn(t *testing.T, dir string) []any {
	t.Helper()
	out, err := kvgate(t, "leases", "--from", dir, "--output", "json")
	if err != nil {
		t.Fatalf("%v\n%s", err, out)
	}
	var answer struct{ Leases []any }
	if err := json.Unmarshal([]byte(out), &answer); err != nil {
		t.Fatalf("%v\n%s", err, out)
	}
	return answer.Leases
}

// TestNodeKilledWhileRestoringInto: a node that is killed while its state is replaced comes back with the old
// state or with the new one, whole, and goes on.
func TestNodeKilledWhileRestoringInto(t *testing.T) {
	procs.Build(t)                  // outlives the test, so it is made first
	t.Setenv("TMPDIR", t.TempDir()) // what is killed leaves its copies there
	s := startSite(t, t.TempDir())
	loaded(t, s)
	file := filepath.Join(t.TempDir(), "a.kvgate")
	took(t, "snapshot", "save", file, "--server", s.URL())
	restored := len(s.leases())
	id := s.status().ClusterId
	for round := range 6 {
		newer := fmt.Sprint("newer-", round)
		hold(t, s, newer)
		had := len(s.leases())
		done := make(chan struct{})
		go func() {
			defer close(done)
			_, _ = kvgate(t, "snapshot", "restore", file, "--into-cluster", "--confirm", id, "--force", "--server", s.URL())
		}()
		kill := time.NewTimer(time.Duration(rand.Int64N(int64(400 * time.Millisecond))))
		select {
		case <-done:
			kill.Stop()
		case <-kill.C:
		}
		s.Kill9()
		<-done
		s.restart()
		now := s.leases()
		if _, kept := now[newer]; kept && len(now) != had || !kept && len(now) != restored {
			t.Fatalf("%d leases; the old state had %d, the new one %d; the newer lease is there: %t", len(now), had, restored, kept)
		}
	}
}
