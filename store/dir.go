package store

import (
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"os"
	"path/filepath"
	"strings"
	"sync"

	"github.com/google/uuid"
	"golang.org/x/sys/unix"
)

// DirFormat is the version of the directory layout that this release reads and writes.
const DirFormat = 1

const (
	lockName    = "LOCK"
	nodeName    = "node.json"
	raftName    = "raft.db"
	stateName   = "state.db"
	journalName = "journal"
	// snapshotsName is raft's own.
	snapshotsName = "snapshots"
)

// NodeInfo is the identity kept in node.json.
type NodeInfo struct {
	FormatVersion int    `json:"formatVersion"`
	NodeID        string `json:"nodeId"`
	ClusterID     string `json:"clusterId"` // empty until the first leader has chosen it
	// Birth is chosen when the directory is made, so that a node that lost its data is told from what it was.
	Birth string `json:"birth,omitempty"`
	// Roster holds the births of the nodes with which this one formed its cluster, by node id.
	Roster map[string]string `json:"roster,omitempty"`
}

// Dir is a data directory held by this process. Methods are safe for concurrent use.
type Dir struct {
	path string
	lock *os.File

	mu   sync.Mutex
	node NodeInfo
}

// OpenDir creates the directory if need be, locks it against other processes and checks that it belongs to
// nodeID and to a layout this release knows. Errors: [ErrLocked], [ErrForeignDir], [ErrNewerFormat].
func OpenDir(path, nodeID string) (*Dir, error) {
	if nodeID == "" {
		return nil, fmt.Errorf("node id is empty: give the stable name of this node")
	}
	if exists(filepath.Join(path, restoringName)) {
		return nil, fmt.Errorf("%w: %s: run the restore again", ErrUnfinished, path)
	}
	if err := os.MkdirAll(filepath.Join(path, journalName), 0o700); err != nil {
		return nil, fmt.Errorf("create data directory: %w", err)
	}
	lock, err := lockFile(filepath.Join(path, lockName))
	if err != nil {
		return nil, err
	}
	d := &Dir{path: path, lock: lock}
	if err := d.identify(nodeID); err != nil {
		return nil, errors.Join(err, lock.Close())
	}
	return d, nil
}

// Path returns the directory's path.
func (d *Dir) Path() string { return d.path }

// Node returns the identity of the directory.
func (d *Dir) Node() NodeInfo {
	d.mu.Lock()
	defer d.mu.Unlock()
	return d.node
}

// SetClusterID records the cluster the node belongs to. It can be set once; a different one is [ErrForeignDir].
func (d *Dir) SetClusterID(id string) error {
	d.mu.Lock()
	defer d.mu.Unlock()
	switch d.node.ClusterID {
	case id:
		return nil
	case "":
	default:
		return fmt.Errorf("%w: %s is part of cluster %q, not %q: start with an empty directory to join another cluster",
			ErrForeignDir, d.path, d.node.ClusterID, id)
	}
	next := d.node
	next.ClusterID = id
	if err := writeJSON(d.file(nodeName), next); err != nil {
		return err
	}
	d.node = next
	return nil
}

// SetRoster records with whom the node is about to form a cluster.
func (d *Dir) SetRoster(births map[string]string) error {
	d.mu.Lock()
	defer d.mu.Unlock()
	next := d.node
	next.Roster = maps.Clone(births)
	if err := writeJSON(d.file(nodeName), next); err != nil {
		return err
	}
	d.node = next
	return nil
}

// Close releases the lock. Everything opened from the directory must be closed before.
func (d *Dir) Close() error { return d.lock.Close() }

func (d *Dir) file(name ...string) string {
	return filepath.Join(append([]string{d.path}, name...)...)
}

func (d *Dir) identify(nodeID string) error {
	node, err := ReadNodeInfo(d.path)
	if errors.Is(err, fs.ErrNotExist) {
		return d.found(nodeID)
	}
	if err != nil {
		return err
	}
	if node.NodeID != nodeID {
		return fmt.Errorf("%w: %s belongs to node %q, this node is %q: give the right node id or another data directory",
			ErrForeignDir, d.path, node.NodeID, nodeID)
	}
	d.node = node
	return nil
}

// found gives a directory without node.json its identity, unless it already holds somebody's log.
func (d *Dir) found(nodeID string) error {
	for _, name := range []string{raftName, stateName} {
		if exists(d.file(name)) {
			return fmt.Errorf("%w: %s holds %s but no %s: restore %s from a copy, or start with an empty directory",
				ErrForeignDir, d.path, name, nodeName, nodeName)
		}
	}
	d.node = NodeInfo{FormatVersion: DirFormat, NodeID: nodeID, Birth: uuid.NewString()}
	return writeJSON(d.file(nodeName), d.node)
}

// ReadNodeInfo reads the identity of a directory without locking it, for offline tools.
func ReadNodeInfo(path string) (NodeInfo, error) {
	var node NodeInfo
	name := filepath.Join(path, nodeName)
	data, err := os.ReadFile(name)
	if err != nil {
		return node, fmt.Errorf("read identity: %w", err)
	}
	if err := json.Unmarshal(data, &node); err != nil {
		return node, fmt.Errorf("%w: %s: %w: restore it from a copy", ErrDamaged, name, err)
	}
	if node.FormatVersion > DirFormat {
		return node, fmt.Errorf("%w: %s has layout %d, this release knows %d: run the release that wrote it or a later one",
			ErrNewerFormat, path, node.FormatVersion, DirFormat)
	}
	if node.FormatVersion < 1 || node.NodeID == "" {
		return node, fmt.Errorf("%w: %s lacks formatVersion or nodeId: restore it from a copy", ErrDamaged, name)
	}
	return node, nil
}

func lockFile(path string) (*os.File, error) {
	f, err := os.OpenFile(path, os.O_RDWR|os.O_CREATE, 0o600)
	if err != nil {
		return nil, fmt.Errorf("open lock file: %w", err)
	}
	err = unix.Flock(int(f.Fd()), unix.LOCK_EX|unix.LOCK_NB)
	if err == nil {
		err = f.Truncate(0)
	}
	if err == nil {
		_, err = fmt.Fprintf(f, "%d\n", os.Getpid())
	}
	if err == nil {
		return f, nil
	}
	defer f.Close()
	if errors.Is(err, unix.EWOULDBLOCK) {
		holder, _ := os.ReadFile(path)
		return nil, fmt.Errorf("%w: %s is locked by process %s: stop it or use another directory",
			ErrLocked, filepath.Dir(path), strings.TrimSpace(string(holder)))
	}
	return nil, fmt.Errorf("lock %s: %w", path, err)
}
