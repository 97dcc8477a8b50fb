package procs

import (
	"bytes"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"
)

// Deadlines for what a process is asked to do. They are far above what a loaded machine needs.
const (
	startTimeout = 30 * time.Second
	stopTimeout  = 30 * time.Second
)

// Node says how to start one node.
type Node struct {
	// ID is the node's id; DataDir outlives the process.
	ID, DataDir string
	// Listen and RaftListen are HOST:PORT; empty means a free port of 127.0.0.1, the same at every
	// restart.
	Listen, RaftListen string
	// Args are further flags of `kvgate serve`: at least how the node becomes part of a cluster.
	Args []string
	// Argv, when set, is the whole command line after the program, in place of one made from the fields above; Listen
	// and ID must agree with it.
	Argv []string
	// Env are further variables, NAME=VALUE.
	Env []string
	// Netns is the name of a network namespace to run in, as `ip netns` knows it; empty means the test's.
	Netns string
	// Binary is the program; empty means Build.
	Binary string
}

// Process is one node's process, and those that follow it after Restart. Its methods may be called
// from several goroutines.
type Process struct {
	t    testing.TB
	node Node
	logs logs

	// mu guards run.
	mu  sync.Mutex
	run *run
}

// run is one process from start to end.
type run struct {
	cmd  *exec.Cmd
	done chan struct{}
	// err belongs to whoever saw done closed.
	err error
}

// StartNode starts a node and waits until its API listens; it may not be ready yet, see WaitReady.
func StartNode(t testing.TB, n Node) *Process {
	t.Helper()
	p := Launch(t, n)
	p.waitServing()
	return p
}

// Launch starts a node and does not wait; for nodes that may refuse to start.
func Launch(t testing.TB, n Node) *Process {
	t.Helper()
	if n.Binary == "" {
		n.Binary = Build(t)
	}
	if n.Listen == "" {
		n.Listen = FreeAddr(t)
	}
	if n.RaftListen == "" {
		n.RaftListen = FreeAddr(t)
	}
	p := &Process{t: t, node: n}
	t.Cleanup(func() {
		p.Kill9()
		if t.Failed() {
			t.Logf("log of node %s:\n%s", n.ID, p.logs.tail(maxShown))
		}
	})
	p.start()
	return p
}

// URL returns the base URL of the node's API; it stays the same at a restart.
func (p *Process) URL() string { return "http://" + p.node.Listen }

// Node returns how the node was started, with the addresses that were chosen for it.
func (p *Process) Node() Node { return p.node }

// Logs returns what the node has written so far, over all restarts.
func (p *Process) Logs() string { return p.logs.tail(0) }

// Pid returns the id of the newest process.
func (p *Process) Pid() int { return p.current().cmd.Process.Pid }

// Done is closed when the newest process has ended.
func (p *Process) Done() <-chan struct{} { return p.current().done }

// Kill9 kills the process with SIGKILL and waits until it is gone. It does nothing when it is already.
func (p *Process) Kill9() {
	r := p.current()
	if r == nil {
		return
	}
	_ = r.cmd.Process.Signal(syscall.SIGKILL) // gone already, at worst
	<-r.done
}

// Stop asks the process to end with SIGTERM, waits for it, and returns its exit error.
func (p *Process) Stop() error {
	r := p.current()
	if err := r.cmd.Process.Signal(syscall.SIGTERM); err != nil && !errors.Is(err, os.ErrProcessDone) {
		return err
	}
	select {
	case <-r.done:
		return r.err
	case <-time.After(stopTimeout):
		p.Kill9()
		return fmt.Errorf("node %s did not stop within %v and was killed", p.node.ID, stopTimeout)
	}
}

// Pause stops the process with SIGSTOP and returns once all its threads stand still; Resume lets it go
// on. Kill9 works on a paused process.
func (p *Process) Pause() error {
	r := p.current()
	if err := r.cmd.Process.Signal(syscall.SIGSTOP); err != nil {
		return err
	}
	deadline := time.After(stopTimeout)
	ticker := time.NewTicker(time.Millisecond)
	defer ticker.Stop()
	for !standsStill(r.cmd.Process.Pid) {
		select {
		case <-ticker.C:
		case <-r.done:
			return os.ErrProcessDone
		case <-deadline:
			return fmt.Errorf("node %s goes on %v after it was paused", p.node.ID, stopTimeout)
		}
	}
	return nil
}

// standsStill reports whether no thread of a process can run.
func standsStill(pid int) bool {
	stats, err := filepath.Glob(fmt.Sprintf("/proc/%d/task/*/stat", pid))
	if err != nil || len(stats) == 0 {
		return false
	}
	for _, path := range stats {
		stat, err := os.ReadFile(path)
		if err != nil {
			return false
		}
		// The state follows the name, which is in parentheses and may hold some.
		_, rest, ok := strings.Cut(string(stat[max(0, bytes.LastIndexByte(stat, ')')):]), ") ")
		if !ok || !strings.HasPrefix(rest, "T") {
			return false
		}
	}
	return true
}

// Resume undoes Pause.
func (p *Process) Resume() error { return p.current().cmd.Process.Signal(syscall.SIGCONT) }

// Restart starts the node again on the same directory and addresses and waits until its API listens.
// The process before must have ended.
func (p *Process) Restart() {
	p.t.Helper()
	select {
	case <-p.Done():
	default:
		p.t.Fatalf("node %s is still running: kill or stop it before it is restarted", p.node.ID)
	}
	p.start()
	p.waitServing()
}

func (p *Process) current() *run {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.run
}

// start runs the process from a thread of its own that lives as long as the process does: the kernel
// sends the parent-death signal when the thread that forked ends [golang/go#27505].
func (p *Process) start() {
	p.t.Helper()
	r := &run{cmd: p.command(), done: make(chan struct{})}
	started := make(chan error, 1)
	go func() {
		defer close(r.done)
		runtime.LockOSThread()
		defer runtime.UnlockOSThread()
		err := r.cmd.Start()
		started <- err
		if err == nil {
			r.err = r.cmd.Wait()
		}
	}()
	if err := <-started; err != nil {
		p.t.Fatalf("start node %s: %v", p.node.ID, err)
	}
	p.mu.Lock()
	p.run = r
	p.mu.Unlock()
}

func (p *Process) command() *exec.Cmd {
	n := p.node
	argv := []string{
		n.Binary, "serve", "--node-id", n.ID, "--data-dir", n.DataDir, "--listen", n.Listen, "--raft-listen", n.RaftListen,
	}
	argv = append(argv, n.Args...)
	if n.Argv != nil {
		argv = append([]string{n.Binary}, n.Argv...)
	}
	if n.Netns != "" {
		// It replaces itself by the program, so that the process id stays.
		argv = append([]string{"ip", "netns", "exec", n.Netns}, argv...)
	}
	cmd := exec.Command(argv[0], argv[1:]...)
	cmd.Stdout, cmd.Stderr = &p.logs, &p.logs
	cmd.Env = append(environment(), n.Env...)
	cmd.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}
	return cmd
}

// environment is the test's, without what would configure the node.
func environment() (env []string) {
	for _, v := range os.Environ() {
		if !strings.HasPrefix(v, "KVGATE_") {
			env = append(env, v)
		}
	}
	return env
}
