package store

import (
	"bytes"
	"errors"
	"io"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/hashicorp/raft"
)

func openRaft(t testing.TB, d *Dir, opts RaftOptions) *RaftStore {
	t.Helper()
	s, err := OpenRaft(d, opts)
	must(t, err)
	t.Cleanup(func() { s.Close() })
	return s
}

func TestRaftStoreKeepsLogAndVotes(t *testing.T) {
	d := openDir(t)
	s := openRaft(t, d, RaftOptions{})
	logs, err := s.Logs()
	must(t, err)
	for i := uint64(1); i <= 20; i++ {
		must(t, logs.StoreLog(&raft.Log{Index: i, Term: 1, Data: []byte{byte(i)}}))
	}
	must(t, logs.DeleteRange(1, 5))
	must(t, s.SetUint64([]byte("term"), 9))
	must(t, s.Close())

	s = openRaft(t, d, RaftOptions{})
	first, _ := s.FirstIndex()
	last, _ := s.LastIndex()
	var l raft.Log
	must(t, s.GetLog(7, &l))
	term, err := s.GetUint64([]byte("term"))
	must(t, err)
	if first != 6 || last != 20 || l.Data[0] != 7 || term != 9 {
		t.Fatalf("first %d, last %d, entry %v, term %d", first, last, l.Data, term)
	}
	if err := s.GetLog(1, &l); !errors.Is(err, raft.ErrLogNotFound) {
		t.Fatalf("deleted entry: %v", err)
	}
	if _, err := s.Get([]byte("none")); err == nil || err.Error() != "not found" {
		t.Fatalf("raft looks for the text of this error: %v", err)
	}
	if m, ok := logs.(raft.MonotonicLogStore); !ok || !m.IsMonotonic() {
		t.Fatal("the cache hides that the log is monotonic")
	}
}

func TestStableFailureIsFatal(t *testing.T) {
	broken := errors.New("input/output error")
	var fatal []string
	var seen []string
	fail := false
	s := openRaft(t, openDir(t), RaftOptions{
		Fatal: func(op string, err error) { fatal = append(fatal, op+": "+err.Error()) },
		BeforeWrite: func(string) error {
			if fail {
				return broken
			}
			return nil
		},
		Observe: func(op string, d time.Duration, err error) {
			if err != nil {
				seen = append(seen, op)
			}
		},
	})
	must(t, s.Set([]byte("k"), []byte("v")))
	_, _ = s.Get([]byte("none"))
	if fail = true; len(fatal)+len(seen) != 0 {
		t.Fatalf("fatal %v, seen %v before any failure", fatal, seen)
	}
	for _, err := range []error{s.Set([]byte("k"), nil), s.SetUint64([]byte("k"), 1)} {
		if !errors.Is(err, broken) {
			t.Fatalf("set: %v", err)
		}
	}
	if len(fatal) != 2 || !strings.Contains(fatal[0], raftName) || !strings.Contains(fatal[0], broken.Error()) {
		t.Fatalf("fatal calls %v", fatal)
	}
	if err := s.StoreLog(&raft.Log{Index: 1}); !errors.Is(err, broken) || len(fatal) != 2 {
		t.Fatalf("a failed log write is raft's to handle: %v, fatal %v", err, fatal)
	}
	if len(seen) != 3 {
		t.Fatalf("seen %v", seen)
	}
	v, err := s.Get([]byte("k"))
	if err != nil || string(v) != "v" {
		t.Fatalf("kept %q, %v", v, err)
	}
}

// TestDamagedRaftLogIsRefused must not end the process, must not recreate the file, and says what to do.
func TestDamagedRaftLogIsRefused(t *testing.T) {
	d := openDir(t)
	s := openRaft(t, d, RaftOptions{NoSync: true})
	for i := uint64(1); i <= 500; i++ {
		must(t, s.StoreLog(&raft.Log{Index: i, Data: make([]byte, 100)}))
	}
	must(t, s.Close())
	path := filepath.Join(d.Path(), raftName)
	original, err := os.ReadFile(path)
	must(t, err)
	refused := 0
	for off := 2 * os.Getpagesize(); off < len(original); off += os.Getpagesize() {
		for _, at := range []int{off, off + 8, off + 10, off + 12, off + 22} {
			data := bytes.Clone(original)
			data[at] ^= 0x7
			must(t, os.WriteFile(path, data, 0o600))
			s, err := OpenRaft(d, RaftOptions{})
			if err == nil {
				must(t, s.Close())
				continue
			}
			refused++
			if !errors.Is(err, ErrDamaged) || !strings.Contains(err.Error(), "join it anew") {
				t.Fatalf("byte %d: %v", at, err)
			}
			if after, _ := os.ReadFile(path); !bytes.Equal(after, data) {
				t.Fatal("the damaged file was changed")
			}
		}
	}
	if refused < 50 {
		t.Fatalf("only %d damaged files were refused", refused)
	}
}

func TestSnapshotStoreKeepsTwo(t *testing.T) {
	d := openDir(t)
	snaps, err := SnapshotStore(d, nil)
	must(t, err)
	for i := uint64(1); i <= 3; i++ {
		sink, err := snaps.Create(raft.SnapshotVersionMax, i, 1, raft.Configuration{}, 1, nil)
		must(t, err)
		_, err = io.WriteString(sink, "content")
		must(t, errors.Join(err, sink.Close()))
	}
	kept, err := snaps.List()
	must(t, err)
	if len(kept) != 2 || kept[0].Index != 3 || !exists(filepath.Join(d.Path(), "snapshots")) {
		t.Fatalf("kept %+v", kept)
	}
}
