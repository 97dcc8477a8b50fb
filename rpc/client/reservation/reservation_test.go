package reservation

import (
	"errors"
	"fmt"
	"testing"

	"pgregory.net/rapid"

	"kvgate/rpc/client"
)

func fieldOf(err error) string {
	var e *client.Error
	if !errors.As(err, &e) || !errors.Is(err, client.ErrInvalid) {
		return fmt.Sprint(err)
	}
	return e.Field
}

func TestFromPromptLength(t *testing.T) {
	for _, test := range []struct {
		prompt int64
		s      Sampling
		want   Reservation
		field  string
	}{
		{10, Sampling{}, Reservation{10, DefaultMaxNewTokens}, ""},
		{10, Sampling{MaxNewTokens: 5}, Reservation{10, 5}, ""},
		{10, Sampling{MaxNewTokens: 5, N: 4}, Reservation{10, 20}, ""},
		{10, Sampling{MaxNewTokens: NoNewTokens}, Reservation{10, 0}, ""},
		{10, Sampling{ContextLength: 100}, Reservation{10, 90}, ""},
		{10, Sampling{MaxNewTokens: 95, ContextLength: 100}, Reservation{10, 90}, ""},
		{110, Sampling{MaxNewTokens: 95, ContextLength: 100}, Reservation{110, 0}, ""},
		{-1, Sampling{}, Reservation{}, "promptTokens"},
		{MaxTokens + 1, Sampling{}, Reservation{}, "promptTokens"},
		{1, Sampling{MaxNewTokens: -2}, Reservation{}, "maxNewTokens"},
		{1, Sampling{MaxNewTokens: MaxTokens, N: 2}, Reservation{}, "maxNewTokens"},
		{1, Sampling{N: -1}, Reservation{}, "n"},
		{1, Sampling{ContextLength: -1}, Reservation{}, "contextLength"},
	} {
		got, err := FromPromptLength(test.prompt, test.s)
		if test.field != "" {
			if fieldOf(err) != test.field {
				t.Errorf("%d, %+v: %v, want an error of %s", test.prompt, test.s, err, test.field)
			}
			continue
		}
		if err != nil || got != test.want {
			t.Errorf("%d, %+v: %+v, %v, want %+v", test.prompt, test.s, got, err, test.want)
		}
	}
}

func TestFromMultimodal(t *testing.T) {
	got, err := FromMultimodal(12, []int64{1000, 500}, 1, Sampling{MaxNewTokens: 7})
	if want := (Reservation{1510, 7}); err != nil || got != want {
		t.Errorf("%+v, %v, want %+v", got, err, want)
	}
	for field, call := range map[string]func() (Reservation, error){
		"textTokens":        func() (Reservation, error) { return FromMultimodal(1, []int64{5, 5}, 1, Sampling{}) },
		"itemTokens":        func() (Reservation, error) { return FromMultimodal(5, []int64{-5}, 1, Sampling{}) },
		"placeholderTokens": func() (Reservation, error) { return FromMultimodal(5, nil, -1, Sampling{}) },
		"promptTokens": func() (Reservation, error) {
			return FromMultimodal(5, []int64{MaxTokens, MaxTokens, MaxTokens}, 0, Sampling{})
		},
	} {
		if _, err := call(); fieldOf(err) != field {
			t.Errorf("%s: %v", field, err)
		}
	}
}

// TestReservationsAddUp whatever the numbers: no reservation is negative or beyond the context, and what
// is left of an attempt is never less than its prompt so far.
func TestReservationsAddUp(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		ids := make([]int32, rapid.IntRange(0, 5000).Draw(t, "prompt"))
		s := Sampling{
			MaxNewTokens: rapid.Int64Range(NoNewTokens, 1<<20).Draw(t, "limit"), N: rapid.Int64Range(0, 8).Draw(t, "n"),
			ContextLength: rapid.Int64Range(0, 1<<16).Draw(t, "context"),
		}
		r, err := FromTokenIDs(ids, s)
		if err != nil {
			t.Fatal(err)
		}
		if r.PromptTokens != int64(len(ids)) || r.MaxNewTokens < 0 || r.Tokens() != r.PromptTokens+r.MaxNewTokens {
			t.Fatalf("%+v", r)
		}
		if room := s.ContextLength - r.PromptTokens; s.ContextLength > 0 && r.MaxNewTokens > max(room, 0)*max(s.N, 1) {
			t.Fatalf("%+v goes beyond the context of %d", r, s.ContextLength)
		}
		limit := rapid.Int64Range(-1, 1<<20).Draw(t, "cap")
		if capped := r.Capped(limit); capped < r.PromptTokens || capped > r.Tokens() {
			t.Fatalf("capped at %d: %d of %+v", limit, capped, r)
		}
		done := rapid.Int64Range(0, 1<<20).Draw(t, "completed")
		if left := r.Remaining(done); left.Tokens() != max(r.Tokens(), r.PromptTokens+done) || left.MaxNewTokens < 0 {
			t.Fatalf("%+v after %d is %+v", r, done, left)
		}
	})
}

func TestRequest(t *testing.T) {
	req := Reservation{3, 4}.Request(client.Request{Ticket: "a", ReservationTokens: 9})
	if req.PromptTokens != 3 || req.MaxNewTokens != 4 || req.ReservationTokens != 0 || req.Ticket != "a" {
		t.Errorf("%+v", req)
	}
}
