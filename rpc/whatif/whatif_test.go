package whatif

import (
	"errors"
	"fmt"
	"math"
	"math/rand/v2"
	"slices"
	"testing"
	"time"

	"kvgate/integration/recording"
	"kvgate/ledger"
	"kvgate/rpc/story"
)

func replayed(t *testing.T, r *recording.Recorder, change func(*ledger.Settings) error) *Result {
	t.Helper()
	got, err := Run(Input{Journal: story.Slice(r.Events), Pool: ledger.DefaultPool, Change: change})
	if err != nil {
		t.Fatal(err)
	}
	return got
}

func expectRepeated(t *testing.T, r *recording.Recorder) {
	t.Helper()
	held, err := Verify(Input{Journal: story.Slice(r.Events), Pool: ledger.DefaultPool})
	if err != nil {
		t.Fatal(err)
	}
	want, _ := r.Ledger.Leases(ledger.DefaultPool, 0, math.MaxInt, ledger.LeaseFilter{})
	if len(held) != len(want) {
		t.Errorf("%d leases at the end, want %d", len(held), len(want))
	}
	for _, l := range want {
		if held[l.Ticket] != int64(l.Tokens) {
			t.Errorf("%s holds %d tokens at the end, want %d", l.Ticket, held[l.Ticket], l.Tokens)
		}
	}
}

// TestVerifySeesAMissingEvent: a journal that lost one release is not complete.
func TestVerifySeesAMissingEvent(t *testing.T) {
	r := recording.Night(1)
	for i, e := range r.Events {
		if e.Kind == "released" && i > len(r.Events)/2 {
			r.Events = slices.Delete(r.Events, i, i+1)
			break
		}
	}
	if _, err := Verify(Input{Journal: story.Slice(r.Events), Pool: ledger.DefaultPool}); !errors.Is(err, ErrDiffers) {
		t.Errorf("got %v", err)
	}
}

func TestUnchangedSettingsRepeatTheNight(t *testing.T) {
	for seed := range uint64(3) {
		night := recording.Night(seed)
		expectRepeated(t, night)
		x := replayed(t, night, nil)
		if x.Recorded.Utilisation != x.Replayed.Utilisation || x.Recorded.WaitP99 != x.Replayed.WaitP99 || x.Recorded.Bypassed == 0 {
			t.Errorf("columns differ: %+v %+v", x.Recorded, x.Replayed)
		}
	}
}

// TestUnchangedSettingsRepeatAnything replays runs of random calls of every kind.
func TestUnchangedSettingsRepeatAnything(t *testing.T) {
	for seed := range uint64(40) {
		t.Run(fmt.Sprint(seed), func(t *testing.T) { expectRepeated(t, anything(seed)) })
	}
}

// anything records random calls.
func anything(seed uint64) *recording.Recorder {
	r := recording.New(recording.NightStart)
	rng := rand.New(rand.NewPCG(seed, 7))
	r.Set(0, ledger.Settings{Headroom: 1, LeaseTTL: 6 * time.Second, DetachGrace: 2 * time.Second, MaxWait: 5 * time.Second}, "headroom", "leaseTtl", "detachGrace", "maxWait")
	seen := map[string]ledger.Decision{}
	engine := recording.Engine("e", 100)
	at := time.Duration(0)
	for range 600 {
		if rng.IntN(4) > 0 {
			at += time.Duration(rng.IntN(400)) * time.Millisecond
		}
		ticket := fmt.Sprintf("t%d", rng.IntN(25))
		switch rng.IntN(16) {
		case 0:
			engine.Capacity, engine.Pressure = ledger.Tokens(20*rng.IntN(8)), float64(rng.IntN(4))*0.32
			r.Engines(at, engine)
		case 1:
			r.Do(at, func(l *ledger.Ledger) {
				l.Reconcile(ledger.DefaultPool, ledger.Round{Degrade: rng.IntN(3) == 0, Fresh: true, Reason: "no engines", Engines: []ledger.Engine{engine}})
			})
		case 2:
			r.Do(at, func(l *ledger.Ledger) { l.Cancel(ledger.Cancel{Pool: ledger.DefaultPool, Ticket: ticket}) })
		case 3:
			r.Do(at, func(l *ledger.Ledger) { l.Detach(ledger.DefaultPool, ticket, seen[ticket].Seq, seen[ticket].Attempt) })
		case 4:
			r.Expire(at, fmt.Sprint("h", rng.IntN(4)))
		case 5:
			r.Do(at, func(l *ledger.Ledger) {
				l.Renew(ledger.DefaultPool, []ledger.LeaseRef{{Ticket: ticket}}, time.Duration(1+rng.IntN(8))*time.Second)
			})
		case 6:
			if rng.IntN(4) == 0 {
				r.Do(at, func(l *ledger.Ledger) { l.NewTerm(uint64(at), "n2") })
			}
		case 7:
			r.Set(at, ledger.Settings{Headroom: 0.5 + 0.25*float64(rng.IntN(3)), MaxWait: time.Duration(rng.IntN(6)) * time.Second, Admission: rng.IntN(8) > 0}, "headroom", "maxWait", "admission")
		case 8:
			r.Do(at, func(l *ledger.Ledger) {
				l.EndSessions([]ledger.Leave{{Pool: ledger.DefaultPool, Session: "s1", Waiters: []string{"t1", "t3", "t5"}, Leases: []string{"t7", "t9", "t1"}}})
			})
		case 9, 10, 11:
			r.Release(at, ticket)
		default:
			seen[ticket] = r.Acquire(at, ledger.Acquire{
				Ticket: ticket, ReservationTokens: ledger.Tokens(5 + 5*(int(ticket[1])%6)), Priority: int32(rng.IntN(3)) - 1, Protected: rng.IntN(20) == 0,
				Holder: fmt.Sprint("h", int(ticket[1])%4), Session: fmt.Sprint("s", int(ticket[len(ticket)-1])%2), MaxWait: time.Duration(rng.IntN(8)-1) * time.Second,
			})
		}
	}
	r.Do(at+4*time.Second, func(*ledger.Ledger) {}) // leases and waiters run out after the last call
	return r
}

func TestOtherSettings(t *testing.T) {
	night := recording.Night(1)
	x := replayed(t, night, func(s *ledger.Settings) error { s.MaxWait = 5 * time.Second; return nil })
	if x.Replayed.ByReason["aged"] <= x.Recorded.ByReason["aged"] || x.Replayed.WaitMax > 5.05 {
		t.Errorf("with less patience: %+v", x.Replayed)
	}
	x = replayed(t, night, func(s *ledger.Settings) error { s.Headroom = 0.9; return nil })
	if x.Replayed.ByReason["aged"] >= x.Recorded.ByReason["aged"] || len(x.Notes) < 4 {
		t.Errorf("without the mistake: %+v %q", x.Replayed, x.Notes)
	}
	if _, err := Run(Input{Journal: story.Slice(night.Events), Pool: ledger.DefaultPool, Change: func(s *ledger.Settings) error { s.Headroom = 2; return nil }}); err == nil {
		t.Error("a headroom of 2 was accepted")
	}
	if _, err := Run(Input{Journal: story.Slice(night.Events), Pool: "nobody"}); err == nil {
		t.Error("a pool without events was replayed")
	}
}

// TestARecordingWithoutItsBeginning: what was there before is inferred, and nearly all is decided as it was.
func TestARecordingWithoutItsBeginning(t *testing.T) {
	night := recording.Night(1)
	night.Events = night.Events[len(night.Events)/3:]
	x := replayed(t, night, nil)
	near := func(what string, a, b int64) {
		if d := float64(a-b) / float64(a); d > 0.03 || d < -0.03 {
			t.Errorf("%s: %d recorded, %d replayed", what, a, b)
		}
	}
	near("admitted", x.Recorded.Admitted, x.Replayed.Admitted)
	near("bypassed", x.Recorded.Bypassed, x.Replayed.Bypassed)
}
