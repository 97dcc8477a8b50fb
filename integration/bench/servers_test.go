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

// startKvgate starts one durable node with an engine that is large enough for every caller.
func startKvgate(b *testing.B) *side {
	engine, err := enginesim.New(enginesim.Config{PoolTokens: 1_000_000_000, EnableMetrics: true})
	if err != nil {
		b.Fatal(err)
	}
	b.Cleanup(func() { _ = engine.Close() })
	url, err := engine.Start("")
	if err != nil {
		b.Fatal(err)
	}
	p := procs.StartNode(b, procs.Node{ID: "n1", DataDir: b.TempDir(), Args: []string{"--bootstrap", "--engines", url}})
	procs.WaitReady(b, p.URL())
	s := newSide(b, "kvgate", p.URL())
	awaitCapacity(b, p.URL())
	return s
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

// startEcho builds and starts the echo server. The kernel kills it when the thread that started it
// ends, so that thread lives as long [golang/go#27505].
func startEcho(b *testing.B) *side {
	path := filepath.Join(b.TempDir(), "echo")
	if out, err := exec.Command("go", "build", "-o", path, "kvgate/integration/bench/echo").CombinedOutput(); err != nil {
		b.Fatalf("build echo: %v\n%s", err, out)
	}
	addr := procs.FreeAddr(b)
	cmd := exec.Command(path, addr)
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
	procs.Eventually(b, 30*time.Second, func() bool {
		conn, err := net.Dial("tcp", addr)
		if err == nil {
			_ = conn.Close()
		}
		return err == nil
	}, func() string { return "echo does not listen on " + addr })
	return newSide(b, "echo", "http://"+addr)
}
