package store

import (
	"bytes"
	"io"
	"log/slog"
	"os"
	"path/filepath"
	"testing"

	"go.uber.org/goleak"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

var quiet = slog.New(slog.NewTextHandler(io.Discard, nil))

func openDir(t testing.TB) *Dir {
	t.Helper()
	return openDirAt(t, t.TempDir())
}

func openDirAt(t testing.TB, path string) *Dir {
	t.Helper()
	d, err := OpenDir(path, "n1")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { d.Close() })
	return d
}

// openState opens the state with a small map; it is closed at the end unless the test did.
func openState(t testing.TB, d *Dir, boot string) (*State, Verdict) {
	t.Helper()
	s, v, err := OpenState(d, StateOptions{BootID: boot, MapBytes: 64 << 20, Log: quiet})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { s.Close() })
	return s, v
}

func openJournal(t testing.TB, d *Dir, opts JournalOptions) *Journal {
	t.Helper()
	opts.Log = quiet
	if opts.BootID == "" {
		opts.BootID = "boot-1"
	}
	j, err := OpenJournal(d, opts)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { j.Close() })
	return j
}

func must(t testing.TB, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

// cloneDir copies a data directory as a kill would leave it: the lock and the mark of an unclean run included.
func cloneDir(t testing.TB, from string) string {
	t.Helper()
	to := t.TempDir()
	must(t, os.CopyFS(to, os.DirFS(from)))
	return to
}

func archiveOf(t testing.TB, s *State, h Header) []byte {
	t.Helper()
	ss, err := s.Snapshot()
	must(t, err)
	defer ss.Release()
	var buf bytes.Buffer
	must(t, ss.Save(&buf, h))
	return buf.Bytes()
}

func flip(t testing.TB, path string, off int64) {
	t.Helper()
	data, err := os.ReadFile(path)
	must(t, err)
	data[off] ^= 0x41
	must(t, os.WriteFile(path, data, 0o600))
}

func globOne(t testing.TB, pattern string) []string {
	t.Helper()
	names, err := filepath.Glob(pattern)
	must(t, err)
	return names
}
