package store

import (
	"os"
	"path/filepath"
	"slices"
	"sync"
	"testing"
)

// leftBehind makes what a killed process leaves: the directory and the lock file, which nobody holds.
func leftBehind(t *testing.T, prefix string) string {
	t.Helper()
	s, err := NewScratch(prefix)
	must(t, err)
	must(t, os.WriteFile(filepath.Join(s.Path(), "file"), []byte("x"), 0o600))
	must(t, s.lock.Close())
	return s.Path()
}

func TestSweepTakesWhatNobodyHolds(t *testing.T) {
	temp := t.TempDir()
	t.Setenv("TMPDIR", temp)
	used, err := NewScratch("a-")
	must(t, err)
	dead, other := leftBehind(t, "a-"), leftBehind(t, "b-")
	must(t, os.WriteFile(filepath.Join(temp, "a-0.lock"), nil, 0o600)) // killed before it made its directory
	bare := filepath.Join(temp, "a-without-lock")
	must(t, os.Mkdir(bare, 0o700))
	must(t, os.Symlink(bare, filepath.Join(temp, "a-link.lock")))
	removed, err := SweepScratch("a-")
	must(t, err)
	if !slices.Equal(removed, []string{dead}) {
		t.Errorf("removed %v, want %s", removed, dead)
	}
	want := []string{used.Path(), used.Path() + scratchLock, other, other + scratchLock, bare, filepath.Join(temp, "a-link.lock")}
	got, err := filepath.Glob(filepath.Join(temp, "*"))
	must(t, err)
	slices.Sort(want)
	if !slices.Equal(got, want) {
		t.Errorf("left are %v, want %v", got, want)
	}
	must(t, used.Close())
	if left, _ := filepath.Glob(used.Path() + "*"); len(left) > 0 {
		t.Errorf("after Close: %v", left)
	}
}

// TestSweepAndNewAtOnce: no sweep takes a directory that is just being made.
func TestSweepAndNewAtOnce(t *testing.T) {
	t.Setenv("TMPDIR", t.TempDir())
	var all sync.WaitGroup
	for range 4 {
		all.Go(func() {
			for range 200 {
				s, err := NewScratch("a-")
				if err != nil {
					t.Error(err)
					return
				}
				if _, err := os.Stat(s.Path()); err != nil {
					t.Error(err)
				}
				if err := s.Close(); err != nil {
					t.Error(err)
				}
			}
		})
		all.Go(func() {
			for range 200 {
				if removed, err := SweepScratch("a-"); err != nil || len(removed) > 0 {
					t.Errorf("removed %v, %v", removed, err)
				}
			}
		})
	}
	all.Wait()
}
