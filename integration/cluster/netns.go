package cluster

import (
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strconv"
	"strings"
	"sync/atomic"
	"syscall"
	"testing"

	"golang.org/x/sys/unix"
)

// netnsPrefix begins the name of every namespace made here; the process id follows.
const netnsPrefix = "kvgate-t"

const netnsDir = "/run/netns"

var netnsCount atomic.Int64

// namespace is a network namespace with one TUN device, whose other side is file.
type namespace struct {
	name string
	addr string
	// alternate is the address that move changes to.
	alternate string
	file      *os.File
}

// needNetwork fails the test when this machine cannot do network faults.
func needNetwork(t testing.TB) {
	t.Helper()
	if os.Geteuid() != 0 {
		t.Fatal("network faults need root, to make network namespaces")
	}
	if _, err := exec.LookPath("ip"); err != nil {
		t.Fatalf("network faults need ip from iproute2: %v", err)
	}
	if _, err := os.Stat("/dev/net/tun"); err != nil {
		t.Fatalf("network faults need the TUN driver: %v", err)
	}
}

// newNamespace makes a namespace with the address addr, in 10.77.0.0/24. It is removed at the end of the test.
func newNamespace(t testing.TB, addr string) *namespace {
	t.Helper()
	ns := &namespace{name: fmt.Sprintf("%s%d-%d", netnsPrefix, os.Getpid(), netnsCount.Add(1)), addr: addr}
	ns.alternate = strings.Replace(addr, "10.77.0.", "10.77.1.", 1)
	mustIP(t, "netns", "add", ns.name)
	t.Cleanup(func() { _ = exec.Command("ip", "netns", "del", ns.name).Run() })
	var fd int
	err := ns.do(func() (err error) { fd, err = openTun("kv0"); return err })
	if err != nil {
		t.Fatalf("TUN device in namespace %s: %v", ns.name, err)
	}
	ns.file = os.NewFile(uintptr(fd), "tun-"+ns.name)
	t.Cleanup(func() { _ = ns.file.Close() })
	mustIP(t, "-n", ns.name, "link", "set", "lo", "up")
	mustIP(t, "-n", ns.name, "addr", "add", addr+"/16", "dev", "kv0")
	mustIP(t, "-n", ns.name, "link", "set", "kv0", "up")
	return ns
}

// move gives the namespace its other address in place of the present one.
func (ns *namespace) move(t testing.TB) {
	t.Helper()
	// In this order: with the first address of a device its others go.
	mustIP(t, "-n", ns.name, "addr", "del", ns.addr+"/16", "dev", "kv0")
	mustIP(t, "-n", ns.name, "addr", "add", ns.alternate+"/16", "dev", "kv0")
	ns.addr, ns.alternate = ns.alternate, ns.addr
}

// hostsDir is where `ip netns exec` looks for files that a namespace has in place of those in /etc.
const hostsDir = "/etc/netns"

// setHosts says which names processes in the namespace resolve, also those that run already.
func (ns *namespace) setHosts(t testing.TB, text string) {
	t.Helper()
	dir := filepath.Join(hostsDir, ns.name)
	t.Cleanup(func() { _ = os.RemoveAll(dir) })
	if err := os.MkdirAll(dir, 0o755); err != nil {
		t.Fatal(err)
	}
	// In place: what processes see is this very file.
	if err := os.WriteFile(filepath.Join(dir, "hosts"), []byte(text), 0o644); err != nil {
		t.Fatal(err)
	}
}

func mustIP(t testing.TB, args ...string) {
	t.Helper()
	if out, err := exec.Command("ip", args...).CombinedOutput(); err != nil {
		t.Fatalf("ip %s: %v\n%s", strings.Join(args, " "), err, out)
	}
}

// openTun makes a TUN device in the namespace of the calling thread.
func openTun(name string) (int, error) {
	fd, err := unix.Open("/dev/net/tun", unix.O_RDWR|unix.O_NONBLOCK|unix.O_CLOEXEC, 0)
	if err != nil {
		return 0, err
	}
	req, err := unix.NewIfreq(name)
	if err == nil {
		req.SetUint16(unix.IFF_TUN | unix.IFF_NO_PI)
		err = unix.IoctlIfreq(fd, unix.TUNSETIFF, req)
	}
	if err != nil {
		return 0, errors.Join(err, unix.Close(fd))
	}
	return fd, nil
}

// do runs fn on a thread inside the namespace. Sockets that fn opens stay there. The thread ends with fn.
func (ns *namespace) do(fn func() error) error {
	done := make(chan error, 1)
	go func() {
		runtime.LockOSThread() // never unlocked: the thread must not serve anybody else
		handle, err := os.Open(filepath.Join(netnsDir, ns.name))
		if err == nil {
			err = unix.Setns(int(handle.Fd()), unix.CLONE_NEWNET)
			_ = handle.Close() // only read
		}
		if err == nil {
			err = fn()
		}
		done <- err
	}()
	return <-done
}

// sweepNamespaces removes what test processes left behind that were killed.
func sweepNamespaces() {
	entries, err := os.ReadDir(netnsDir)
	if err != nil {
		return
	}
	for _, e := range entries {
		rest, ours := strings.CutPrefix(e.Name(), netnsPrefix)
		number, _, _ := strings.Cut(rest, "-")
		pid, err := strconv.Atoi(number)
		if ours && err == nil && errors.Is(syscall.Kill(pid, 0), syscall.ESRCH) {
			_ = exec.Command("ip", "netns", "del", e.Name()).Run()
			_ = os.RemoveAll(filepath.Join(hostsDir, e.Name()))
		}
	}
}
