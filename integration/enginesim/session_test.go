package enginesim_test

import (
	"encoding/json"
	"net/http"
	"testing"
	"time"

	"kvgate/integration/enginesim"
)

var radixOn = enginesim.Config{SessionRadix: true, PoolTokens: 10_000}

func TestCloseFreesExactlyTheSessionsOwnTokens(t *testing.T) {
	simulate(t, radixOn, func(t *testing.T, b *bench) {
		system := tokens(0, 100)
		b.generate(turn("a1", "a", join(system, tokens(1000, 40)), 1))
		b.generate(turn("a2", "a", join(system, tokens(1000, 40), tokens(2000, 60)), 1))
		b.generate(turn("b1", "b", join(system, tokens(3000, 30)), 1))
		b.closeSession("a")
		s := b.Stats()
		equal(t, "released", s.Released, 100)
		equal(t, "resident", s.Resident, 130)
	})
}

func TestCloseOfAnUnknownIDIs200AndLeavesATombstone(t *testing.T) {
	simulate(t, radixOn, func(t *testing.T, b *bench) {
		b.closeSession("ghost")
		equal(t, "tombstones", b.Stats().Tombstones, 1)
		b.generate(turn("a", "ghost", tokens(0, 50), 1))
		b.closeSession("ghost")
		equal(t, "released: the reused id was silently not tagged", b.Stats().Released, 0)
		equal(t, "resident", b.Stats().Resident, 50)
	})
}

func TestReusedIDIsSilentlyNotTagged(t *testing.T) {
	simulate(t, radixOn, func(t *testing.T, b *bench) {
		b.generate(turn("a", "a", tokens(0, 50), 1))
		b.closeSession("a")
		b.generate(turn("b", "a", tokens(0, 70), 1))
		b.closeSession("a")
		equal(t, "released", b.Stats().Released, 50)
		equal(t, "resident", b.Stats().Resident, 70)
	})
}

func TestCloseBeforeTheLastResponseFreesNothingAndNorDoesASecond(t *testing.T) {
	simulate(t, radixOn, func(t *testing.T, b *bench) {
		first := b.generate(turn("a1", "a", tokens(0, 50), 10))
		last := b.begin(turn("a2", "a", join(tokens(0, 50), first.OutputIDs), 100))
		time.Sleep(200 * time.Millisecond)
		equal(t, "running", b.Stats().Running, 1)
		b.closeSession("a")
		<-last
		b.closeSession("a")
		equal(t, "released", b.Stats().Released, 0)
		equal(t, "resident", b.Stats().Resident, 159)
	})
}

func TestCloseIsInertWithoutSessionRadix(t *testing.T) {
	simulate(t, enginesim.Config{}, func(t *testing.T, b *bench) {
		b.generate(turn("a", "a", tokens(0, 50), 1))
		b.closeSession("a")
		equal(t, "resident", b.Stats().Resident, 50)
		equal(t, "tombstones", b.Stats().Tombstones, 0)
	})
}

func TestCloseFrom0517OnDropsReferencesOnly(t *testing.T) {
	cfg := enginesim.Config{SessionRadix: true, PoolTokens: 1000, CloseMode: enginesim.CloseForgets}
	simulate(t, cfg, func(t *testing.T, b *bench) {
		b.generate(turn("a", "kept", tokens(0, 400), 1))
		b.generate(turn("b", "closed", tokens(5000, 400), 1))
		b.closeSession("closed")
		equal(t, "resident", b.Stats().Resident, 800)
		b.generate(turn("c", "", tokens(9000, 300), 1))
		again := b.generate(turn("d", "", tokens(0, 400), 1))
		equal(t, "cached of the open session", again.Meta.Cached, 399)
	})
}

func TestCloseRefusesABadBodyAndAWrongKey(t *testing.T) {
	simulate(t, enginesim.Config{APIKey: "secret"}, func(t *testing.T, b *bench) {
		const path = "/close_session"
		b.want(http.StatusBadRequest, "POST", path, `{"session_id":`, "secret")
		b.want(http.StatusBadRequest, "POST", path, `{}`, "secret")
		b.want(http.StatusBadRequest, "POST", path, `{"session_id":7}`, "secret")
		b.want(http.StatusUnauthorized, "POST", path, fields{"session_id": "a"})
		b.want(http.StatusUnauthorized, "POST", path, fields{"session_id": "a"}, "wrong")
		b.want(http.StatusOK, "POST", path, fields{"session_id": "a"}, "secret")
		equal(t, "ids heard", len(b.ClosedSessions()), 1)
		equal(t, "calls", b.Calls(path), 6)
	})
}

func TestAbortMatchesByPrefixAndIsAlways200(t *testing.T) {
	simulate(t, enginesim.Config{}, func(t *testing.T, b *bench) {
		hit := b.begin(turn("req-1", "", tokens(0, 10), 1000))
		alsoHit := b.begin(turn("req-10", "", tokens(1000, 10), 1000))
		spared := b.begin(turn("req-2", "", tokens(2000, 10), 50))
		time.Sleep(100 * time.Millisecond)
		b.want(http.StatusOK, "POST", "/abort_request", fields{"rid": "nobody"})
		b.want(http.StatusOK, "POST", "/abort_request", fields{"rid": "req-1"})
		equal(t, "req-1", (<-hit).Meta.Finish.Type, "abort")
		equal(t, "req-10", (<-alsoHit).Meta.Finish.Type, "abort")
		equal(t, "req-2", (<-spared).Meta.Finish.Type, "length")
		equal(t, "aborted", b.Stats().Aborted, 2)
		equal(t, "used", b.Stats().Used, 0)
	})
}

func TestAbortReachesTheQueueAndAPartlyComputedPrompt(t *testing.T) {
	simulate(t, enginesim.Config{MaxRunning: 1, ChunkedPrefill: 100}, func(t *testing.T, b *bench) {
		long := b.begin(turn("long", "", tokens(0, 1000), 5))
		queued := b.begin(turn("queued", "", tokens(5000, 10), 5))
		time.Sleep(40 * time.Millisecond)
		b.want(http.StatusOK, "POST", "/abort_request", fields{})
		equal(t, "long", (<-long).Meta.Finish.Type, "abort")
		equal(t, "queued", (<-queued).Meta.Finish.Type, "abort")
		equal(t, "used", b.Stats().Used, 0)
	})
}

func TestAbortWantsTheAdminKeyOnceOneIsSet(t *testing.T) {
	simulate(t, enginesim.Config{APIKey: "api", AdminKey: "admin"}, func(t *testing.T, b *bench) {
		b.want(http.StatusUnauthorized, "POST", "/abort_request", fields{"rid": "a"}, "api")
		b.want(http.StatusOK, "POST", "/abort_request", fields{"rid": "a"}, "admin")
		b.want(http.StatusUnauthorized, "POST", "/close_session", fields{"session_id": "a"}, "admin")
		b.want(http.StatusOK, "GET", "/health", nil)
		equal(t, "rids heard", len(b.AbortedRIDs()), 1)
	})
	simulate(t, enginesim.Config{APIKey: "api"}, func(t *testing.T, b *bench) {
		b.want(http.StatusOK, "POST", "/abort_request", fields{"rid": "a"}, "api")
	})
}

func open(id string, more ...any) fields {
	f := fields{"session_id": id, "streaming": true, "capacity_of_str_len": 1000}
	for i := 0; i+1 < len(more); i += 2 {
		f[more[i].(string)] = more[i+1]
	}
	return f
}

func streamingTurn(rid, id string, input []int32, n int) fields {
	body := turn(rid, "", input, n)
	body["session_params"] = fields{"id": id}
	return body
}

func TestOpenAnswersTheIDOnceAndRefusesDuplicates(t *testing.T) {
	simulate(t, enginesim.Config{StreamingSessions: true, DP: 2}, func(t *testing.T, b *bench) {
		w := b.want(http.StatusOK, "POST", "/open_session", open("s"))
		var id string
		if err := json.Unmarshal(w.Body.Bytes(), &id); err != nil || id != "s" {
			t.Fatalf("answer %q, want a JSON string with the id", w.Body)
		}
		b.want(http.StatusBadRequest, "POST", "/open_session", open("s"))
		b.want(http.StatusBadRequest, "POST", "/open_session", open("x", "timeout", -1))
		b.want(http.StatusBadRequest, "POST", "/open_session", `{"session_id":"x"}`)
		b.closeSession("s")
		b.want(http.StatusOK, "POST", "/open_session", open("s"))
	})
}

func TestOpenOfAStreamingSessionNeedsTheFlag(t *testing.T) {
	simulate(t, enginesim.Config{}, func(t *testing.T, b *bench) {
		b.want(http.StatusBadRequest, "POST", "/open_session", open("s"))
	})
}

func TestStreamingSessionPinsItsTokensUntilClosed(t *testing.T) {
	simulate(t, enginesim.Config{StreamingSessions: true, PoolTokens: 1000}, func(t *testing.T, b *bench) {
		b.want(http.StatusOK, "POST", "/open_session", open("s"))
		b.generate(streamingTurn("a", "s", tokens(0, 300), 21))
		second := b.generate(streamingTurn("b", "s", tokens(1000, 30), 11))
		equal(t, "prompt tokens: the turn appends", second.Meta.Prompt, 351)
		equal(t, "cached", second.Meta.Cached, 320)
		s := b.Stats()
		equal(t, "used by the idle session", s.Used, 361)
		equal(t, "held outside the tree", s.Held, 61)
		equal(t, "streaming sessions", s.StreamingSessions, 1)
		for i := range 4 {
			b.generate(turn(rid(i), "", tokens(10_000*(i+1), 500), 1))
		}
		third := b.generate(streamingTurn("c", "s", tokens(2000, 10), 1))
		equal(t, "cached after pressure", third.Meta.Cached, 361)
		b.closeSession("s")
		equal(t, "used after the close", b.Stats().Used, 0)
		b.want(http.StatusBadRequest, "POST", "/generate", streamingTurn("d", "s", tokens(0, 1), 1))
	})
}

func TestStreamingCloseDuringATurnWaitsForIt(t *testing.T) {
	simulate(t, enginesim.Config{StreamingSessions: true}, func(t *testing.T, b *bench) {
		b.want(http.StatusOK, "POST", "/open_session", open("s"))
		last := b.begin(streamingTurn("a", "s", tokens(0, 100), 100))
		b.closeSession("s")
		equal(t, "sessions during the turn", b.Stats().StreamingSessions, 1)
		<-last
		b.settle()
		equal(t, "sessions after it", b.Stats().StreamingSessions, 0)
		equal(t, "used after it", b.Stats().Used, 0)
	})
}

func TestStreamingTurnsDoNotOverlapAndAnAbortedOneMakesWay(t *testing.T) {
	simulate(t, enginesim.Config{StreamingSessions: true, MaxRunning: 1}, func(t *testing.T, b *bench) {
		b.want(http.StatusOK, "POST", "/open_session", open("s"))
		other := b.begin(turn("other", "", tokens(0, 10), 100))
		queued := b.begin(streamingTurn("queued", "s", tokens(0, 100), 100))
		b.want(http.StatusBadRequest, "POST", "/generate", streamingTurn("second", "s", tokens(0, 1), 1))
		b.want(http.StatusOK, "POST", "/abort_request", fields{"rid": "queued"})
		equal(t, "queued", (<-queued).Meta.Finish.Type, "abort")
		<-other
		equal(t, "next turn", b.generate(streamingTurn("third", "s", tokens(0, 5), 1)).Meta.Completion, 1)
	})
}

func TestStreamingSessionTimesOutWhenIdle(t *testing.T) {
	simulate(t, enginesim.Config{StreamingSessions: true}, func(t *testing.T, b *bench) {
		b.want(http.StatusOK, "POST", "/open_session", open("s", "timeout", 60))
		time.Sleep(50 * time.Second)
		b.generate(streamingTurn("a", "s", tokens(0, 100), 2))
		time.Sleep(50 * time.Second)
		equal(t, "sessions", b.Stats().StreamingSessions, 1)
		time.Sleep(11 * time.Second)
		equal(t, "sessions", b.Stats().StreamingSessions, 0)
		equal(t, "used", b.Stats().Used, 0)
	})
}

func TestPlainSessionKeepsHistoryButPinsNothing(t *testing.T) {
	simulate(t, enginesim.Config{}, func(t *testing.T, b *bench) {
		b.want(http.StatusOK, "POST", "/open_session", open("s", "streaming", false))
		b.generate(streamingTurn("a", "s", tokens(0, 100), 11))
		equal(t, "used", b.Stats().Used, 0)
		second := b.generate(streamingTurn("b", "s", tokens(500, 10), 1))
		equal(t, "prompt", second.Meta.Prompt, 121)
		equal(t, "cached", second.Meta.Cached, 110)
	})
}

func TestPinPrefixIsThereOnlyOnRequest(t *testing.T) {
	pin := fields{"token_ids": tokens(0, 400), "ttl_seconds": 300}
	simulate(t, enginesim.Config{}, func(t *testing.T, b *bench) {
		b.want(http.StatusNotFound, "POST", "/hicache/pin_prefix", pin)
	})
	simulate(t, enginesim.Config{PinPrefix: true, PoolTokens: 1000}, func(t *testing.T, b *bench) {
		b.generate(turn("a", "", tokens(0, 400), 1))
		b.want(http.StatusOK, "POST", "/hicache/pin_prefix", pin)
		b.want(http.StatusBadRequest, "POST", "/hicache/pin_prefix", fields{"token_ids": tokens(0, 1)})
		for i := range 3 {
			b.generate(turn(rid(i), "", tokens(10_000*(i+1), 500), 1))
		}
		equal(t, "used while pinned", b.Stats().Used, 400)
		time.Sleep(301 * time.Second)
		b.settle()
		equal(t, "used after the ttl", b.Stats().Used, 0)
	})
}
