package story_test

import (
	"testing"

	"google.golang.org/protobuf/proto"

	"kvgate/integration/recording"
	"kvgate/rpc/story"
)

// TestSpoolTellsTheSame as the events that were put in, each time, and leaves no file behind.
func TestSpoolTellsTheSame(t *testing.T) {
	t.Setenv("TMPDIR", t.TempDir())
	events := recording.Night(1).Events
	s, err := story.NewSpool()
	if err != nil {
		t.Fatal(err)
	}
	var at []int64
	for _, e := range events {
		place, err := s.Append(e)
		if err != nil {
			t.Fatal(err)
		}
		at = append(at, place)
	}
	if err := s.Flush(); err != nil {
		t.Fatal(err)
	}
	for range 2 {
		n := 0
		if err := s.Each(func(e *story.Event) {
			if !proto.Equal(e, events[n]) {
				t.Fatalf("event %d is %v, want %v", n, e, events[n])
			}
			n++
		}); err != nil || n != len(events) {
			t.Fatalf("%d events, want %d: %v", n, len(events), err)
		}
	}
	some, err := s.At(at[7], 3)
	if err != nil || len(some) != 3 || !proto.Equal(some[2], events[9]) {
		t.Errorf("read %v, %v", some, err)
	}
	if _, err := s.At(at[len(at)-1], 2); err == nil {
		t.Error("more was read than was put in")
	}
	if err := s.Close(); err != nil {
		t.Fatal(err)
	}
	if err := s.Each(func(*story.Event) {}); err == nil {
		t.Error("a closed spool was read")
	}
}

// TestSpoolWithoutRoom says where there is none.
func TestSpoolWithoutRoom(t *testing.T) {
	t.Setenv("TMPDIR", t.TempDir()+"/missing")
	if _, err := story.NewSpool(); err == nil {
		t.Error("a spool was made in a directory that is not there")
	}
}
