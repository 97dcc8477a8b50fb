package fsm

import (
	"crypto/sha256"
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"testing"

	"kvgate/ledger"
	"kvgate/sessions"
	"kvgate/store"
)

// machineRows is everything that a machine holds, in words.
func machineRows(m *Machine) (out []string) {
	add := func(row store.Change, err error) {
		if err != nil {
			panic(err)
		}
		out = append(out, fmt.Sprintf("%v %x %x", row.Bucket, row.Key, row.Value))
	}
	m.look(func(c *core) {
		c.ledger.Export(func(c ledger.Change) { add(encodeRow(c)) })
		c.table.Export(func(c sessions.Change) { add(encodeSessionRow(c)) })
	})
	slices.Sort(out)
	return out
}

// saved saves a snapshot of a replica and returns its path.
func saved(t *testing.T, r *Replica) (string, store.Header) {
	t.Helper()
	path := filepath.Join(t.TempDir(), "snap.kvgate")
	f, err := os.Create(path)
	must(t, err)
	header, err := r.Save(t.Context(), f)
	must(t, err)
	must(t, f.Close())
	return path, header
}

func offline(t *testing.T, path string) *Offline {
	t.Helper()
	o, err := OpenOffline(path, quiet)
	must(t, err)
	t.Cleanup(func() { must(t, o.Close()) })
	return o
}

func offlineEvents(t *testing.T, o *Offline) (out []string) {
	t.Helper()
	page, err := o.Journal(t.Context(), false, store.JournalQuery{Limit: 100_000})
	must(t, err)
	for _, r := range page.Events {
		out = append(out, fmt.Sprintf("%d.%d %x", r.Index, r.N, r.Data))
	}
	return out
}

func liveEvents(t *testing.T, r *Replica) (out []string) {
	t.Helper()
	page, err := r.Journal(t.Context(), true, store.JournalQuery{Limit: 100_000})
	must(t, err)
	for _, r := range page.Events {
		out = append(out, fmt.Sprintf("%d.%d %x", r.Index, r.N, r.Data))
	}
	return out
}

// fingerprint is what a directory holds: content, size and time of every file.
func fingerprint(t *testing.T, dir string) map[string]string {
	t.Helper()
	out := map[string]string{}
	must(t, filepath.WalkDir(dir, func(path string, d fs.DirEntry, err error) error {
		if err != nil || d.IsDir() {
			return err
		}
		info, err := d.Info()
		if err != nil {
			return err
		}
		data, err := os.ReadFile(path)
		out[path] = fmt.Sprintf("%v %x", info.ModTime(), sha256.Sum256(data))
		return err
	}))
	return out
}

// TestOfflineArchive: a saved snapshot, read back, is the state and the journal of the node at that index.
func TestOfflineArchive(t *testing.T) {
	s := startSingle(t, func(o *Options) { o.Version = "v9" })
	populate(t, s)
	path, header := saved(t, s.Replica)
	want, events := machineRows(s.machine), liveEvents(t, s.Replica)
	o := offline(t, path)
	if got := machineRows(o.machine); !slices.Equal(got, want) {
		t.Errorf("rows are\n%q\nwant\n%q", got, want)
	}
	if got := offlineEvents(t, o); !slices.Equal(got, events) {
		t.Errorf("%d events, want the %d of the node", len(got), len(events))
	}
	st, live := o.Status(), s.Status()
	if st.ClusterID != live.ClusterID || st.AppliedIndex != header.Index || st.Writable || st.LeaderID != "n1" || st.Version != "v9" {
		t.Errorf("status %+v", st)
	}
	if _, err := o.Acquire(t.Context(), ask("x", 1)); !errors.Is(err, ErrReadOnlySnapshot) {
		t.Errorf("acquire: %v", err)
	}
}

// TestOfflineDirectory: the directory of a node that was killed reads as the node was, is not changed by that,
// and a running node is refused.
func TestOfflineDirectory(t *testing.T) {
	for name, damage := range map[string]func(*testing.T, *single){
		"as it was":          func(*testing.T, *single) {},
		"state is gone":      func(t *testing.T, s *single) { must(t, os.Remove(filepath.Join(s.opts.DataDir, "state.db"))) },
		"state is damaged":   func(t *testing.T, s *single) { scribble(t, filepath.Join(s.opts.DataDir, "state.db")) },
		"journal is damaged": func(t *testing.T, s *single) { scribble(t, activeSegments(t, s)[0]) },
	} {
		t.Run(name, func(t *testing.T) {
			s := startSingle(t)
			populate(t, s)
			must(t, s.raft.Snapshot().Error())
			release(t, s.Replica, "b")
			if _, err := OpenOffline(s.opts.DataDir, quiet); !errors.Is(err, store.ErrLocked) {
				t.Fatalf("a running node's directory: %v", err)
			}
			want, events := machineRows(s.machine), liveEvents(t, s.Replica)
			dir := s.opts.DataDir
			s.close()
			damage(t, s)
			before := fingerprint(t, dir)
			o, err := OpenOffline(dir, quiet)
			must(t, err)
			if got := machineRows(o.machine); !slices.Equal(got, want) {
				t.Errorf("rows are\n%q\nwant\n%q", got, want)
			}
			if got := offlineEvents(t, o); !slices.Equal(got, events) {
				t.Errorf("events are\n%q\nwant\n%q", got, events)
			}
			must(t, o.Close())
			if after := fingerprint(t, dir); !maps.Equal(before, after) {
				t.Errorf("the directory was changed:\n%v\n%v", before, after)
			}
			if _, err := os.Stat(o.scratch.Path()); !errors.Is(err, fs.ErrNotExist) {
				t.Errorf("the copy is still there: %v", err)
			}
		})
	}
}

func TestOfflineRefuses(t *testing.T) {
	dir := t.TempDir()
	text := filepath.Join(dir, "notes.txt")
	must(t, os.WriteFile(text, []byte("no archive"), 0o600))
	for path, want := range map[string]error{
		filepath.Join(dir, "missing"): fs.ErrNotExist,
		dir:                           fs.ErrNotExist,
		text:                          store.ErrForeign,
	} {
		if o, err := OpenOffline(path, quiet); !errors.Is(err, want) {
			t.Errorf("%s: %v, %v, want %v", path, o, err, want)
		}
	}
}
