package store

import (
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"
)

func TestDirIsLocked(t *testing.T) {
	d := openDir(t)
	_, err := OpenDir(d.Path(), "n1")
	if !errors.Is(err, ErrLocked) {
		t.Fatalf("second open: %v", err)
	}
	must(t, d.Close())
	again := openDirAt(t, d.Path())
	if again.Node().NodeID != "n1" {
		t.Fatalf("node %+v", again.Node())
	}
}

func TestDirRefusals(t *testing.T) {
	for _, c := range []struct {
		name, nodeID string
		files        map[string]string
		want         error
		says         string
	}{
		{"other node", "n2", map[string]string{nodeName: `{"formatVersion":1,"nodeId":"n1"}`}, ErrForeignDir, `"n1"`},
		{"newer", "n1", map[string]string{nodeName: `{"formatVersion":2,"nodeId":"n1"}`}, ErrNewerFormat, "layout 2"},
		{"no json", "n1", map[string]string{nodeName: `{`}, ErrDamaged, nodeName},
		{"no id", "n1", map[string]string{nodeName: `{"formatVersion":1}`}, ErrDamaged, "nodeId"},
		{"log without identity", "n1", map[string]string{raftName: "x"}, ErrForeignDir, raftName},
		{"no node id", "", nil, nil, "node id is empty"},
	} {
		t.Run(c.name, func(t *testing.T) {
			dir := t.TempDir()
			for name, text := range c.files {
				must(t, os.WriteFile(filepath.Join(dir, name), []byte(text), 0o600))
			}
			_, err := OpenDir(dir, c.nodeID)
			if err == nil || c.want != nil && !errors.Is(err, c.want) || !strings.Contains(err.Error(), c.says) {
				t.Fatalf("got %v, want %v naming %q", err, c.want, c.says)
			}
		})
	}
}

func TestClusterIDIsSetOnce(t *testing.T) {
	d := openDir(t)
	must(t, d.SetClusterID("c1"))
	must(t, d.SetClusterID("c1"))
	if err := d.SetClusterID("c2"); !errors.Is(err, ErrForeignDir) {
		t.Fatalf("another cluster: %v", err)
	}
	node, err := ReadNodeInfo(d.Path())
	must(t, err)
	if node.ClusterID != "c1" {
		t.Fatalf("kept %+v", node)
	}
}

func TestGuard(t *testing.T) {
	dir := t.TempDir()
	free := func(n uint64) func(string) (uint64, error) { return func(string) (uint64, error) { return n, nil } }
	must(t, Guard{Path: dir, Floor: 10, Free: free(10)}.Check())
	err := Guard{Path: dir, Floor: 10, Free: free(9)}.Check()
	if !errors.Is(err, ErrNoSpace) || !strings.Contains(err.Error(), "9 bytes free, the floor is 10") {
		t.Fatalf("below the floor: %v", err)
	}
	if err := (Guard{Path: filepath.Join(dir, "none"), Free: free(10)}).Check(); !errors.Is(err, ErrReadOnly) {
		t.Fatalf("not writable: %v", err)
	}
	n, err := FreeBytes(dir)
	if err != nil || n == 0 {
		t.Fatalf("free bytes %d, %v", n, err)
	}
	if left := globOne(t, filepath.Join(dir, ".probe-*")); len(left) != 0 {
		t.Fatalf("left behind %v", left)
	}
}
