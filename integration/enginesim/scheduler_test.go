package enginesim_test

import (
	"math"
	"net/http"
	"sync"
	"testing"
	"time"

	"pgregory.net/rapid"

	"kvgate/integration/enginesim"
)

func TestNextTurnPrefillsOnlyWhatIsNew(t *testing.T) {
	simulate(t, enginesim.Config{}, func(t *testing.T, b *bench) {
		first := b.generate(turn("a", "", tokens(0, 100), 20))
		equal(t, "cached of the first turn", first.Meta.Cached, 0)
		history := join(tokens(0, 100), first.OutputIDs)
		second := b.generate(turn("b", "", join(history, tokens(500, 30)), 5))
		equal(t, "cached of the second turn", second.Meta.Cached, 119) // the last output token has no KV
		equal(t, "prompt tokens", second.Meta.Prompt, 150)
		equal(t, "recomputed", b.Stats().Recomputed, 0)
	})
}

func TestSessionsShareTheSystemPrompt(t *testing.T) {
	simulate(t, enginesim.Config{}, func(t *testing.T, b *bench) {
		system := tokens(0, 200)
		b.generate(turn("a", "s1", join(system, tokens(1000, 10)), 1))
		other := b.generate(turn("b", "s2", join(system, tokens(2000, 10)), 1))
		equal(t, "cached", other.Meta.Cached, 200)
		equal(t, "resident", b.Stats().Resident, 220)
	})
}

func TestIdleCacheIsResidentButNotUsed(t *testing.T) {
	simulate(t, enginesim.Config{}, func(t *testing.T, b *bench) {
		b.generate(turn("a", "", tokens(0, 100), 11))
		s := b.Stats()
		equal(t, "used", s.Used, 0)
		equal(t, "evictable", s.Evictable, 110)
		equal(t, "available", s.Available, s.Capacity-110)
	})
}

func TestFullPoolEvictsTheLeastRecentlyUsedAndCountsRecomputation(t *testing.T) {
	simulate(t, enginesim.Config{PoolTokens: 1000}, func(t *testing.T, b *bench) {
		for i := range 3 {
			b.generate(turn(rid(i), "", tokens(1000*i, 320), 1))
		}
		equal(t, "evicted so far", b.Stats().Evicted, 0)
		b.generate(turn("d", "", tokens(9000, 320), 1))
		equal(t, "evicted", b.Stats().Evicted, 320)
		again := b.generate(turn("e", "", tokens(0, 320), 1))
		equal(t, "cached of the evicted prompt", again.Meta.Cached, 0)
		equal(t, "recomputed", b.Stats().Recomputed, 320)
		kept := b.generate(turn("f", "", tokens(2000, 320), 1))
		equal(t, "cached of the youngest", kept.Meta.Cached, 319)
	})
}

func TestDecodeThatOutgrowsThePoolRetractsTheShortest(t *testing.T) {
	cfg := enginesim.Config{PoolTokens: 1000, NewTokenRatio: 0.05, NewTokenRatioMin: 0.01}
	simulate(t, cfg, func(t *testing.T, b *bench) {
		older := b.begin(turn("older", "", tokens(0, 64), 600))
		time.Sleep(time.Second)
		younger := b.begin(turn("younger", "", tokens(5000, 64), 600))
		first, second := <-older, <-younger
		equal(t, "completion of the older", first.Meta.Completion, 600)
		equal(t, "completion of the younger", second.Meta.Completion, 600)
		equal(t, "retractions of the older", first.Meta.Retractions, 0)
		equal(t, "retractions of the younger", second.Meta.Retractions, 1)
		s := b.Stats()
		equal(t, "retracted", s.Retracted, 1)
		equal(t, "used at the end", s.Used, 0)
		if s.Recomputed == 0 {
			t.Fatal("the output written before the retraction had to be computed again")
		}
	})
}

func TestConservativeEstimateQueuesRatherThanRetracts(t *testing.T) {
	cfg := enginesim.Config{PoolTokens: 1000, NewTokenRatio: 1, NewTokenRatioMin: 1}
	simulate(t, cfg, func(t *testing.T, b *bench) {
		older := b.begin(turn("older", "", tokens(0, 64), 600))
		younger := b.begin(turn("younger", "", tokens(5000, 64), 600))
		time.Sleep(time.Second)
		equal(t, "queued", b.Stats().Queued, 1)
		<-older
		<-younger
		equal(t, "retracted", b.Stats().Retracted, 0)
	})
}

func TestNothingOvertakesTheHeadOfTheQueue(t *testing.T) {
	cfg := enginesim.Config{PoolTokens: 1000, NewTokenRatio: 1, NewTokenRatioMin: 1}
	simulate(t, cfg, func(t *testing.T, b *bench) {
		running := b.begin(turn("running", "", tokens(0, 100), 500))
		big := b.begin(turn("big", "", tokens(2000, 600), 10))
		small := b.begin(turn("small", "", tokens(4000, 10), 1))
		time.Sleep(2 * time.Second)
		equal(t, "queued", b.Stats().Queued, 2)
		<-running
		<-big
		<-small
	})
}

func TestMaxRunningBoundsTheBatch(t *testing.T) {
	simulate(t, enginesim.Config{MaxRunning: 2}, func(t *testing.T, b *bench) {
		var all []<-chan answer
		for i := range 5 {
			all = append(all, b.begin(turn(rid(i), "", tokens(1000*i, 10), 50)))
		}
		time.Sleep(200 * time.Millisecond)
		equal(t, "running", b.Stats().Running, 2)
		for _, c := range all {
			<-c
		}
		equal(t, "completed", b.Stats().Completed, 5)
	})
}

func TestLongPromptIsPrefilledInChunksAndBlocksDecode(t *testing.T) {
	cfg := enginesim.Config{PrefillRate: 10_000, PrefillCost: 10 * time.Millisecond, DecodeRate: 100, Speed: 4}
	simulate(t, cfg, func(t *testing.T, b *bench) {
		decoding := b.begin(turn("decoding", "", tokens(0, 1), 100))
		long := b.generate(turn("long", "", tokens(100_000, 20_000), 1))
		// Three chunks and, before them, at most one decode step of the other request.
		if low := 2.03; long.Meta.Latency < low-1e-6 || long.Meta.Latency > low+0.02 {
			t.Fatalf("latency %v s, want %v s for three chunks", long.Meta.Latency, low)
		}
		blocked := <-decoding
		if alone := 0.01 + 0.0001 + 0.99; blocked.Meta.Latency < alone+2.03-0.02 {
			t.Fatalf("latency %v s, want 2.03 s more than the %v s it takes alone", blocked.Meta.Latency, alone)
		}
	})
}

func TestDecodeSlowsDownWithTheBatch(t *testing.T) {
	cfg := enginesim.Config{DecodeRate: 100, DecodeSlowdown: 0.5}
	simulate(t, cfg, func(t *testing.T, b *bench) {
		alone := b.generate(turn("alone", "", tokens(0, 1), 101))
		x := b.begin(turn("x", "", tokens(10, 1), 101))
		y := b.begin(turn("y", "", tokens(20, 1), 101))
		pair := (<-x).Meta.Latency
		<-y
		if ratio := pair / alone.Meta.Latency; math.Abs(ratio-1.5) > 0.05 {
			t.Fatalf("a pair took %.2f times as long, want about 1.5", ratio)
		}
	})
}

func TestSameSeedSameOutput(t *testing.T) {
	run := func(seed uint64) (a answer) {
		simulate(t, enginesim.Config{Seed: seed}, func(t *testing.T, b *bench) {
			a = b.generate(fields{"input_ids": tokens(0, 50), "sampling_params": fields{"max_new_tokens": 5000}})
		})
		return a
	}
	one, two, other := run(1), run(1), run(2)
	equal(t, "text", one.Text, two.Text)
	equal(t, "latency", one.Meta.Latency, two.Meta.Latency)
	equal(t, "finish", one.Meta.Finish.Type, "stop")
	if one.Text == other.Text {
		t.Fatal("another seed gave the same text")
	}
}

func TestPromptThatCannotFitIsRefused(t *testing.T) {
	simulate(t, enginesim.Config{PoolTokens: 100}, func(t *testing.T, b *bench) {
		b.want(http.StatusBadRequest, "POST", "/generate", turn("a", "", tokens(0, 100), 1))
		clipped := b.generate(turn("b", "", tokens(0, 50), 1000))
		equal(t, "completion is clipped to the pool", clipped.Meta.Completion, 48)
	})
}

// op is one step of the random work of TestTokensAreConserved.
type op struct {
	kind      string // turn, streaming turn, close, abort, open or wait
	session   string
	from      int // where the prompt starts; low values overlap
	prompt    int // tokens
	output    int // tokens
	rid       int
	pauseTime time.Duration
}

var anyOp = rapid.Custom(func(t *rapid.T) op {
	return op{
		kind: rapid.SampledFrom([]string{
			"turn", "turn", "turn", "turn", "streaming turn", "streaming turn", "close", "abort", "open", "wait",
		}).Draw(t, "kind"),
		session:   rapid.SampledFrom([]string{"s0", "s1", "s2", "s3"}).Draw(t, "session"),
		from:      20 * rapid.IntRange(0, 3).Draw(t, "from"),
		prompt:    rapid.IntRange(1, 200).Draw(t, "prompt"),
		output:    rapid.IntRange(1, 150).Draw(t, "output"),
		rid:       rapid.IntRange(0, 30).Draw(t, "rid"),
		pauseTime: time.Duration(rapid.IntRange(1, 3000).Draw(t, "ms")) * time.Millisecond,
	}
})

// TestTokensAreConserved drives an engine with random work and then asks where every token is.
func TestTokensAreConserved(t *testing.T) {
	cfg := enginesim.Config{
		PoolTokens: 600, ChunkedPrefill: 64, SessionRadix: true, StreamingSessions: true,
		NewTokenRatio: 0.1, NewTokenRatioMin: 0.01, MaxRunning: 6,
	}
	rapid.Check(t, func(rt *rapid.T) {
		ops := rapid.SliceOfN(anyOp, 1, 40).Draw(rt, "ops")
		var idle, flushed enginesim.Snapshot
		simulate(t, cfg, func(t *testing.T, b *bench) {
			b.work(ops)
			idle = b.Stats()
			b.call(http.MethodPost, "/flush_cache", nil)
			flushed = b.Stats()
		})
		if idle.Running != 0 || idle.Queued != 0 || idle.Used != 0 || idle.Held != 0 || idle.StreamingSessions != 0 {
			rt.Fatalf("idle, yet %+v", idle)
		}
		if idle.Available+idle.Evictable != idle.Capacity {
			rt.Fatalf("available %d + evictable %d, want %d", idle.Available, idle.Evictable, idle.Capacity)
		}
		if flushed.Resident != 0 {
			rt.Fatalf("resident %d after a flush, want 0", flushed.Resident)
		}
	})
}

// work runs ops, then closes every session so that nothing may be left pinned.
func (b *bench) work(ops []op) {
	var running sync.WaitGroup
	for i, o := range ops {
		switch o.kind {
		case "close":
			b.call(http.MethodPost, "/close_session", fields{"session_id": o.session})
		case "abort":
			b.call(http.MethodPost, "/abort_request", fields{"rid": rid(o.rid)})
		case "open":
			b.call(http.MethodPost, "/open_session", fields{"session_id": o.session, "streaming": true, "capacity_of_str_len": 1})
		case "wait":
			time.Sleep(o.pauseTime)
		default:
			body := turn(rid(i), o.session, tokens(o.from, o.prompt), o.output)
			if o.kind == "streaming turn" {
				body["session_params"] = fields{"id": o.session}
			}
			running.Go(func() { b.call(http.MethodPost, "/generate", body) })
		}
	}
	closeAll := func() {
		for _, session := range []string{"s0", "s1", "s2", "s3"} {
			b.call(http.MethodPost, "/close_session", fields{"session_id": session})
		}
		b.settle()
	}
	closeAll()
	running.Wait()
	closeAll()
}
