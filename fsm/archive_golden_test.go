package fsm

import (
	"bytes"
	"context"
	"errors"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/hashicorp/raft"
	"google.golang.org/protobuf/proto"

	"kvgate/fsm/fsmpb"
	"kvgate/store"
)

// goldenArchive is a snapshot saved by the release that brought the format. It is written when it is missing and
// never again: every later release must read it.
const goldenArchive = "testdata/snapshot_v1.kvgate"

// goldenMachine applies the golden batches of both command versions.
func goldenMachine(t *testing.T) *rig {
	t.Helper()
	r := newRig(t, t.TempDir())
	index := uint64(0)
	for _, dir := range []string{goldenDir, goldenDir2, goldenDirSessions} {
		files, err := filepath.Glob(dir + "/*.pb")
		must(t, err)
		for _, path := range files {
			data, err := os.ReadFile(path)
			must(t, err)
			var b fsmpb.Batch
			must(t, proto.Unmarshal(data, &b))
			index++
			r.Apply(&raft.Log{Index: index, Term: 1, Type: raft.LogCommand, Data: data})
		}
	}
	return r
}

// TestGoldenSnapshot: the golden archive opens, and holds what it held.
func TestGoldenSnapshot(t *testing.T) {
	if _, err := os.Stat(goldenArchive); err != nil && *update {
		r := goldenMachine(t)
		var out bytes.Buffer
		_, err := r.save(context.Background(), &out, store.Header{
			NodeVersions: map[string]string{"n1": "v0.2.0"}, WallTime: time.Date(2026, 11, 30, 3, 12, 0, 0, time.UTC),
		})
		must(t, err)
		must(t, os.WriteFile(goldenArchive, out.Bytes(), 0o644))
		r.close()
	}
	o := offline(t, goldenArchive)
	compareGolden(t, "testdata/snapshot_v1.txt", []byte(strings.Join(slices.Concat(machineRows(o.machine), offlineEvents(t, o)), "\n")+"\n"))
	if o.Header.NodeVersions["n1"] != "v0.2.0" || o.Header.FormatVersion != 1 || !o.Header.WallTime.Equal(time.Date(2026, 11, 30, 3, 12, 0, 0, time.UTC)) {
		t.Errorf("header %+v", o.Header)
	}
}

// TestDamagedSnapshot: an archive that is cut anywhere, or has any bit changed, is refused with the place, and
// every section of it is met. Nothing is left behind.
func TestDamagedSnapshot(t *testing.T) {
	whole, err := os.ReadFile(goldenArchive)
	must(t, err)
	temp := t.TempDir()
	t.Setenv("TMPDIR", temp)
	path := filepath.Join(t.TempDir(), "damaged")
	met := map[string]bool{}
	refused := func(what string, at int, data []byte) {
		t.Helper()
		must(t, os.WriteFile(path, data, 0o600))
		o, err := OpenOffline(path, quiet)
		if err == nil {
			_ = o.Close()
			t.Fatalf("%s at %d is not noticed", what, at)
		}
		known := errors.Is(err, store.ErrTruncated) || errors.Is(err, store.ErrCorrupt) || errors.Is(err, store.ErrForeign) || errors.Is(err, store.ErrNewerFormat)
		if !known || !strings.Contains(err.Error(), path) {
			t.Fatalf("%s at %d: %v", what, at, err)
		}
		if _, place, ok := strings.Cut(err.Error(), " section "); ok {
			met[strings.TrimRight(strings.Fields(place)[0], ":")] = true
		} else if !errors.Is(err, store.ErrForeign) && !errors.Is(err, store.ErrNewerFormat) && !strings.Contains(err.Error(), "offset") {
			t.Fatalf("%s at %d: no place in %v", what, at, err)
		}
	}
	step := max(1, len(whole)/150)
	for at := 0; at < len(whole); at += step {
		refused("cut", at, whole[:at])
		flipped := slices.Clone(whole)
		flipped[at] ^= 1 << (at % 8)
		refused("flipped bit", at, flipped)
	}
	for _, section := range []string{"meta", "pools", "capacity", "counters", "leases", "waiters", "sessions", store.JournalSection} {
		if !met[section] {
			t.Errorf("no damage was met in section %s, only in %v", section, met)
		}
	}
	left, err := os.ReadDir(temp)
	must(t, err)
	if len(left) > 0 {
		t.Errorf("left behind: %v", left)
	}
}

// FuzzSnapshot opens archives whose checksums are right and whose rows are anything: nothing panics, and what
// opens can be read and saved again.
func FuzzSnapshot(f *testing.F) {
	whole, err := os.ReadFile(goldenArchive)
	if err != nil {
		f.Fatal(err)
	}
	r, err := store.NewArchiveReader(bytes.NewReader(whole))
	if err != nil {
		f.Fatal(err)
	}
	for {
		section, key, value, err := r.Next()
		if err != nil {
			break
		}
		f.Add(section, slices.Clone(key), slices.Clone(value))
	}
	dir := f.TempDir()
	f.Fuzz(func(t *testing.T, section string, key, value []byte) {
		path := filepath.Join(dir, "archive")
		must(t, os.WriteFile(path, withRow(t, whole, section, key, value), 0o600))
		o, err := OpenOffline(path, quiet)
		if err != nil {
			return
		}
		var again bytes.Buffer
		if _, err := o.Save(t.Context(), &again); err != nil {
			t.Errorf("what was opened cannot be saved: %v", err)
		}
		offlineEvents(t, o)
		must(t, o.Close())
	})
}

// withRow returns the archive with one row put in its place, or instead of the one of that key.
func withRow(t *testing.T, whole []byte, section string, key, value []byte) []byte {
	t.Helper()
	r, err := store.NewArchiveReader(bytes.NewReader(whole))
	must(t, err)
	var out bytes.Buffer
	w, err := store.NewArchiveWriter(&out, r.Header())
	must(t, err)
	at, done := "", false
	put := func() {
		if !done && len(key) <= store.MaxKey && len(value) <= store.MaxValue {
			must(t, w.Row(key, value))
		}
		done = true
	}
	for {
		name, k, v, err := r.Next()
		if at != "" && at == section && (err != nil || name != at || bytes.Compare(k, key) >= 0) {
			put()
		}
		if err != nil {
			break
		}
		if name != at {
			must(t, w.Section(name))
			at = name
		}
		if name != section || !bytes.Equal(k, key) {
			must(t, w.Row(k, v))
		}
	}
	must(t, w.Close())
	return out.Bytes()
}
