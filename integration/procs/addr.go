package procs

import (
	"fmt"
	"math/rand/v2"
	"net"
	"sync"
	"testing"
)

// Ports come from below the range that the kernel takes outgoing connections' ports from, so that a
// node finds its own port free when it comes back.
const firstPort, lastPort = 18_000, 32_000

var (
	addrMu sync.Mutex
	given  = map[int]bool{}
)

// FreeAddr returns a HOST:PORT of 127.0.0.1 on which nothing listens, and which it returns only once.
func FreeAddr(t testing.TB) string {
	t.Helper()
	addrMu.Lock()
	defer addrMu.Unlock()
	for range 1000 {
		port := firstPort + rand.IntN(lastPort-firstPort)
		if given[port] {
			continue
		}
		addr := fmt.Sprintf("127.0.0.1:%d", port)
		l, err := net.Listen("tcp", addr)
		if err != nil {
			continue
		}
		_ = l.Close()
		given[port] = true
		return addr
	}
	t.Fatal("no free port found on 127.0.0.1")
	return ""
}
