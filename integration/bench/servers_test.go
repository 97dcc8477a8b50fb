package bench

import (
	"context"
	"net"
	"os/exec"
	"path/filepath"
	"runtime"
	"syscall"
	"testing"
	"time"

	"connectrpc.com/connect"

	"kvgate/integration/enginesim"
	"kvgate/integration/procs"
	v1 "kvgate/rpc/kvgate/v1"
	"kvgate/rpc/kvgate/v1/kvgatev1connect"
)

// startEngine starts an engine that is large enough for every caller.
func startEngine(b *testing.B) (url string) {
	engine, err := enginesim.New(enginesim.Config{PoolTokens: 1_000_000_000, EnableMetrics: true})
	if err != nil {
		b.Fatal(err)
	}
	b.Cleanup(func() { _ = engine.Close() })
	if url, err = engine.Start(""); err != nil {
		b.Fatal(err)
	}
	return url
}

// startKvgate starts one durable node.
func startKvgate(b *testing.B) *api {
	p := procs.StartNode(b, procs.Node{ID: "n1", DataDir: b.TempDir(), Args: []string{"--bootstrap", "--engines", startEngine(b)}})
	procs.WaitReady(b, p.URL())
	awaitCapacity(b, p.URL())
	return newAPI(b, "kvgate", p.URL(), p.Pid())
}

// awaitCapacity waits until the node has heard of the engine: before, every ticket bypasses.
func awaitCapacity(b *testing.B, url string) {
	status := "no answer"
	procs.Eventually(b, 30*time.Second, func() bool {
		var ready bool
		ready, status = hasCapacity(b.Context(), url)
		return ready
	}, func() string { return "the node has no capacity: " + status })
}

func hasCapacity(ctx context.Context, url string) (bool, string) {
	client := kvgatev1connect.NewObserveServiceClient(freshClient(), url)
	res, err := client.GetBudget(ctx, connect.NewRequest(&v1.GetBudgetRequest{}))
	if err != nil {
		return false, err.Error()
	}
	return !res.Msg.Degraded, res.Msg.DegradedReason
}

// startEcho builds and starts the echo server.
func startEcho(b *testing.B) *api {
	path := build(b, ".", "kvgate/integration/bench/echo")
	addr := procs.FreeAddr(b)
	pid := spawn(b, path, addr)
	awaitListener(b, addr)
	return newAPI(b, "echo", "http://"+addr, pid)
}

// build builds a command of the module in dir and returns its path.
func build(b *testing.B, dir, command string) string {
	path := filepath.Join(b.TempDir(), "command")
	cmd := exec.Command("go", "build", "-o", path, command)
	cmd.Dir = dir
	if out, err := cmd.CombinedOutput(); err != nil {
		b.Fatalf("build %s: %v\n%s", command, err, out)
	}
	return path
}

// spawn starts a process that ends with the benchmark, and returns its id. The kernel kills it when the thread that started
// it ends, so that thread lives as long [golang/go#27505].
func spawn(b *testing.B, path string, args ...string) (pid int) {
	cmd := exec.Command(path, args...)
	cmd.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}
	started, ended := make(chan error, 1), make(chan struct{})
	go func() {
		defer close(ended)
		runtime.LockOSThread()
		defer runtime.UnlockOSThread()
		err := cmd.Start()
		started <- err
		if err == nil {
			_ = cmd.Wait() // it is killed
		}
	}()
	if err := <-started; err != nil {
		b.Fatal(err)
	}
	b.Cleanup(func() {
		_ = cmd.Process.Kill()
		<-ended
	})
	return cmd.Process.Pid
}

func awaitListener(b *testing.B, addr string) {
	procs.Eventually(b, 30*time.Second, func() bool {
		conn, err := net.Dial("tcp", addr)
		if err == nil {
			_ = conn.Close()
		}
		return err == nil
	}, func() string { return "nothing listens on " + addr })
}
