package cluster

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"os/exec"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"google.golang.org/protobuf/encoding/protojson"

	"kvgate/integration/procs"
	kvgatev1 "kvgate/rpc/kvgate/v1"
)

// followed is what `kvgate journal --follow` has printed.
type followed struct {
	mu   sync.Mutex
	keys []eventKey
	bad  error
}

func (f *followed) take(line []byte) {
	var e kvgatev1.JournalEvent
	err := protojson.Unmarshal(line, &e)
	f.mu.Lock()
	defer f.mu.Unlock()
	f.bad = errors.Join(f.bad, err)
	f.keys = append(f.keys, keyOf(&e))
}

func (f *followed) seen() ([]eventKey, error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	return append([]eventKey(nil), f.keys...), f.bad
}

// follow runs the command against all nodes until the test ends.
func follow(t *testing.T, c *Cluster) *followed {
	t.Helper()
	servers := make([]string, len(c.nodes))
	for i, n := range c.nodes {
		servers[i] = c.url(n.spec.Listen)
	}
	cmd := exec.Command(procs.Build(t), "journal", "--follow", "--from-index", "1", "--output", "jsonl", "--server", strings.Join(servers, ","))
	out, err := cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	var notes strings.Builder
	cmd.Stderr = &notes
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	f, done := &followed{}, make(chan struct{})
	go func() {
		defer close(done)
		lines := bufio.NewScanner(out)
		lines.Buffer(nil, 1<<20)
		for lines.Scan() {
			f.take(lines.Bytes())
		}
	}()
	t.Cleanup(func() {
		_ = cmd.Process.Signal(syscall.SIGINT)
		<-done
		_ = cmd.Wait() // it was interrupted
		t.Logf("the follower's notes: %s", notes.String())
	})
	return f
}

// TestFollowerSeesNoGap: the node that is followed dies, the leader dies, all die; who follows sees every event
// once and in order.
func TestFollowerSeesNoGap(t *testing.T) {
	c := Start(t, Options{Seed: 3, SnapshotThreshold: 100_000})
	f := follow(t, c)
	l := c.StartLoad(3, 6)
	e := &Episode{Cluster: c, Load: l}
	work(l, 500*time.Millisecond)
	e.killFor(c.nodes[0], 700*time.Millisecond)
	e.killFor(c.Leader(), 700*time.Millisecond)
	for _, n := range c.nodes {
		n.Kill9()
	}
	for _, n := range c.nodes {
		n.Revive()
	}
	c.WaitReady()
	work(l, 500*time.Millisecond)
	l.Stop()
	c.Eventually("the follower has seen the whole journal", func(context.Context) error {
		want, err := c.Journal()
		if err != nil {
			return err
		}
		got, err := f.seen()
		if err != nil || len(got) < len(want) {
			return errors.Join(err, fmt.Errorf("%d of %d events", len(got), len(want)))
		}
		for i := range want {
			if got[i] != keyOf(want[i].JournalEvent) {
				t.Fatalf("event %d is %v, want %v", i, got[i], keyOf(want[i].JournalEvent))
			}
		}
		return nil
	})
}
