package reload

import (
	"bytes"
	"errors"
	"log/slog"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"
)

var errBad = errors.New("bad content")

func joined(contents [][]byte) (string, error) {
	all := string(bytes.Join(contents, []byte("+")))
	if strings.Contains(all, "bad") {
		return "", errBad
	}
	return all, nil
}

// version is the modification time of the next file written: every version has another.
var version = time.Date(2026, 1, 1, 0, 0, 0, 0, time.UTC)

func write(t *testing.T, path, content string) {
	t.Helper()
	version = version.Add(time.Second)
	if err := os.WriteFile(path, []byte(content), 0o600); err != nil {
		t.Fatal(err)
	}
	if err := os.Chtimes(path, version, version); err != nil {
		t.Fatal(err)
	}
}

func TestChangesAreSeen(t *testing.T) {
	dir := t.TempDir()
	a, b := filepath.Join(dir, "a"), filepath.Join(dir, "b")
	write(t, a, "1")
	write(t, b, "2")
	var log bytes.Buffer
	f, err := Open(joined, Options{Log: slog.New(slog.NewTextHandler(&log, nil))}, a, b)
	if err != nil {
		t.Fatal(err)
	}
	steps := []struct {
		name   string
		change func()
		want   string
		logged string
	}{
		{"nothing", func() {}, "1+2", ""},
		{"second file, same size", func() { write(t, b, "3") }, "1+3", "file read again"},
		{"cannot be used", func() { write(t, a, "bad") }, "1+3", "bad content"},
		{"still cannot", func() {}, "1+3", ""},
		{"gone", func() { os.Remove(a) }, "1+3", "no such file"},
		{"still gone", func() {}, "1+3", ""},
		{"bad for a while", func() { write(t, a, "bad2") }, "1+3", "bad content"},
		{"and good again", func() { write(t, a, "1") }, "1+3", "file read again"},
		{"back", func() { write(t, a, "4") }, "4+3", "file read again"},
		{"replaced by a link", func() {
			write(t, filepath.Join(dir, "c"), "5")
			os.Remove(a)
			if err := os.Symlink(filepath.Join(dir, "c"), a); err != nil {
				t.Fatal(err)
			}
		}, "5+3", "file read again"},
	}
	for _, step := range steps {
		log.Reset()
		step.change()
		if got := f.Get(); got != step.want {
			t.Errorf("%s: %q, want %q", step.name, got, step.want)
		}
		if step.logged == "" && log.Len() > 0 || !strings.Contains(log.String(), step.logged) {
			t.Errorf("%s: logged %q, want %q", step.name, log.String(), step.logged)
		}
	}
}

func TestFilesAreLookedAtOnceInAWhile(t *testing.T) {
	path := filepath.Join(t.TempDir(), "a")
	write(t, path, "1")
	now := version
	f, err := Open(joined, Options{Every: time.Second, Now: func() time.Time { return now }, Log: slog.New(slog.DiscardHandler)}, path)
	if err != nil {
		t.Fatal(err)
	}
	write(t, path, "2")
	if now = now.Add(time.Second - 1); f.Get() != "1" {
		t.Error("looked at before its time")
	}
	if now = now.Add(1); f.Get() != "2" {
		t.Error("not looked at in its time")
	}
}

func TestOpenWantsGoodFiles(t *testing.T) {
	path := filepath.Join(t.TempDir(), "a")
	if _, err := Open(joined, Options{}, path); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("a missing file: %v", err)
	}
	write(t, path, "bad")
	if _, err := Open(joined, Options{}, path); !errors.Is(err, errBad) || !strings.Contains(err.Error(), path) {
		t.Errorf("a bad file: %v", err)
	}
}

// A file may be written twice within the step in which the file system counts time.
func TestTwoWritesWithTheSameStamp(t *testing.T) {
	path := filepath.Join(t.TempDir(), "a")
	write(t, path, "1")
	stamp := version
	now := stamp.Add(settles - 1)
	f, err := Open(joined, Options{Log: slog.New(slog.DiscardHandler), Now: func() time.Time { return now }}, path)
	if err != nil {
		t.Fatal(err)
	}
	again := func(content string) {
		t.Helper()
		if err := errors.Join(os.WriteFile(path, []byte(content), 0o600), os.Chtimes(path, stamp, stamp)); err != nil {
			t.Fatal(err)
		}
	}
	again("2")
	if got := f.Get(); got != "2" {
		t.Errorf("a young file: %q", got)
	}
	now = stamp.Add(settles)
	if f.Get(); f.young {
		t.Error("the file is young for ever")
	}
	again("3")
	if got := f.Get(); got != "2" {
		t.Errorf("an old file with the same stamp: %q", got)
	}
}
