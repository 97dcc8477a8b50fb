package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"testing"
	"time"

	"kvgate/store"
)

// TestScheduledSnapshots: one at each tick at which there is something new, the newest few are kept, those of
// others and what is no snapshot stay, and half ones of an earlier run go.
func TestScheduledSnapshots(t *testing.T) {
	n := busyNode(t)
	dir := t.TempDir()
	foreign := []string{"n2-20260101T000000Z-1.kvgate", "n1-notes.kvgate", "n10-20260101T000000Z-1.kvgate"}
	for _, name := range append(foreign, ".n1-20260101T000000Z-1.kvgate.77.part") {
		if err := os.WriteFile(filepath.Join(dir, name), nil, 0o600); err != nil {
			t.Fatal(err)
		}
	}
	at := testNow
	s := &saver{replica: n.replica, node: "n1", dir: dir, keep: 2, log: n.log, free: store.FreeBytes, now: func() time.Time {
		at = at.Add(time.Second)
		return at
	}}
	ctx, stop := context.WithCancel(t.Context())
	ticks, done := make(chan time.Time), make(chan struct{})
	go func() { s.run(ctx, ticks); close(done) }()
	for i := range 4 {
		succeed(t, "settings", "set", fmt.Sprintf("max_wait=%ds", 10+i))
		ticks <- time.Time{}
	}
	ticks <- time.Time{} // is taken when the save before it is done
	stop()
	<-done
	var mine []string
	entries, err := os.ReadDir(dir)
	if err != nil {
		t.Fatal(err)
	}
	for _, e := range entries {
		if !slices.Contains(foreign, e.Name()) {
			mine = append(mine, e.Name())
		}
	}
	if len(entries) != len(foreign)+2 || len(mine) != 2 {
		t.Fatalf("files are %v", entries)
	}
	says(t, succeed(t, "settings", "get", "max_wait", "--from", filepath.Join(dir, mine[1])), exitOK, "13s")
}

// TestScheduledSnapshotsSkip: nothing new, or too little room.
func TestScheduledSnapshotsSkip(t *testing.T) {
	n := busyNode(t)
	dir := t.TempDir()
	room := uint64(snapshotFloor - 1)
	s := &saver{
		replica: n.replica, node: "n1", dir: dir, keep: 2, log: n.log, now: time.Now,
		free: func(string) (uint64, error) { return room, nil },
	}
	if err := s.save(t.Context()); !errors.Is(err, store.ErrNoSpace) {
		t.Errorf("with too little room: %v", err)
	}
	if entries, err := os.ReadDir(dir); err != nil || len(entries) > 0 {
		t.Errorf("files are %v, %v", entries, err)
	}
	room = snapshotFloor
	if err := s.save(t.Context()); err != nil {
		t.Fatal(err)
	}
	first := s.saved
	if err := s.save(t.Context()); err != nil {
		t.Fatal(err)
	}
	want := 1
	if s.saved != first { // the cluster went on by itself
		want = 2
	}
	if entries, err := os.ReadDir(dir); err != nil || len(entries) != want {
		t.Errorf("saved at entries %d and %d: files are %v, %v", first, s.saved, entries, err)
	}
}
