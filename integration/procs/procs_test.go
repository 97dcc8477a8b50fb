package procs_test

import (
	"os"
	"strings"
	"syscall"
	"testing"

	"kvgate/integration/procs"
)

func TestMain(m *testing.M) { procs.Main(m) }

func start(t *testing.T) *procs.Process {
	p := procs.StartNode(t, procs.Node{ID: "n1", DataDir: t.TempDir(), Args: []string{"--bootstrap"}})
	procs.WaitReady(t, p.URL())
	return p
}

func alive(pid int) bool { return syscall.Kill(pid, 0) == nil }

func TestKillAndRestart(t *testing.T) {
	p := start(t)
	url, pid := p.URL(), p.Pid()
	p.Kill9()
	if _, _, err := procs.Get(url + "/healthz"); err == nil || alive(pid) {
		t.Fatalf("process %d answers after it was killed", pid)
	}
	p.Restart()
	procs.WaitReady(t, url)
	if p.URL() != url || p.Pid() == pid {
		t.Errorf("restarted as process %d on %s, want another process than %d on %s", p.Pid(), p.URL(), pid, url)
	}
	if n := strings.Count(p.Logs(), "msg=serving"); n != 2 {
		t.Errorf("the logs tell of %d starts, want 2:\n%s", n, p.Logs())
	}
}

func TestStop(t *testing.T) {
	p := start(t)
	if err := p.Stop(); err != nil {
		t.Errorf("stop: %v", err)
	}
}

func TestPauseAndResume(t *testing.T) {
	p := start(t)
	if err := p.Pause(); err != nil {
		t.Fatal(err)
	}
	if _, _, err := procs.Get(p.URL() + "/healthz"); err == nil {
		t.Error("a paused node answers")
	}
	if err := p.Resume(); err != nil {
		t.Fatal(err)
	}
	procs.WaitReady(t, p.URL())
}

func TestKillsAtTheEndOfATest(t *testing.T) {
	var pid int
	t.Run("inner", func(t *testing.T) { pid = start(t).Pid() })
	if alive(pid) {
		t.Errorf("process %d outlived its test", pid)
	}
}

func TestEnvironmentOfTheTestDoesNotConfigureTheNode(t *testing.T) {
	t.Setenv("KVGATE_NODE_ID", "other")
	t.Setenv("KVGATE_NO_SUCH_FLAG", "1")
	p := start(t)
	if !strings.Contains(p.Logs(), "node_id=n1") {
		t.Errorf("node is not n1:\n%s", p.Logs())
	}
}

func TestBinaryIsBuiltOnce(t *testing.T) {
	a, b := procs.Build(t), procs.Build(t)
	if _, err := os.Stat(a); a != b || err != nil {
		t.Errorf("built %q and %q (%v)", a, b, err)
	}
}

func TestAddressesAreGivenOnce(t *testing.T) {
	seen := map[string]bool{}
	for range 100 {
		addr := procs.FreeAddr(t)
		if seen[addr] {
			t.Fatalf("%s was given twice", addr)
		}
		seen[addr] = true
	}
}
