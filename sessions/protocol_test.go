package sessions

import (
	"fmt"
	"testing"
	"time"
)

func ticketName(i int) string { return fmt.Sprintf("t%06d", i) }

func TestCloseJoinsThenTells(t *testing.T) {
	w := newWorld(t)
	w.Started("p", "s", "", Flight{Ticket: "a"})
	w.Queued("p", "s", "", "b", "", "")
	w.Queued("p", "s", "", "c", "", "")
	w.Reset()
	w.close("s", Join)
	w.state("s", Closing, Joining)
	equal(t, "effects", w.TakeEffects(), []Effect{{Pool: "p", Session: "s", Drop: []string{"b", "c"}}})
	equal(t, "queued", w.Queued("p", "s", "", "d", "", ""), false)
	equal(t, "started", w.Started("p", "s", "", Flight{Ticket: "d"}), false)
	equal(t, "work", len(w.Work(WorkQuery{})), 0)
	w.at(10)
	w.Ended("p", "a", Turn{Engine: e1})
	w.state("s", Closing, Telling)
	equal(t, "owed", owedEngines(w.get("s")), []string{e1 + " owed", e2 + " owed"})
	equal(t, "effects", w.TakeEffects(), nil)
	w.ack("s", e1, "http://nobody")
	w.ack("s", e1)
	equal(t, "owed", owedEngines(w.get("s")), []string{e2 + " owed"})
	w.ack("s", e2)
	w.state("s", Closed, NotClosing)
	equal(t, "events", w.heard(), []EventKind{SessionClosing, SessionPhase, CloseSent, CloseSent, SessionClosed})
	_, sum := w.Counts("p")
	equal(t, "totals", sum, Totals{Opened: 1, Closed: 1, Acked: 2})
}

func TestJoinThatLastsTooLongAborts(t *testing.T) {
	w := newWorld(t)
	w.Started("p", "s", "", Flight{Ticket: "leased", RID: "r1"})
	w.Started("p", "s", "", Flight{Ticket: "bypassed", RID: "r2", Bypassed: true})
	w.close("s", Join)
	w.at(29)
	w.state("s", Closing, Joining)
	w.at(30)
	w.state("s", Closing, Aborting)
	work := w.Work(WorkQuery{})
	equal(t, "aborts", work[0].Aborts, []AbortTask{{"leased", "r1"}, {"bypassed", "r2"}})
	equal(t, "engines", work[0].Engines, []string{e1, e2})
	seq := w.get("s").Seq
	w.Report([]Report{{Pool: "p", Session: "s", Seq: seq, Aborted: []string{"leased", "stranger"}}})
	equal(t, "aborts", w.Work(WorkQuery{})[0].Aborts, []AbortTask{{"bypassed", "r2"}})
	w.at(35)
	w.state("s", Closing, Telling)
	equal(t, "effects", w.TakeEffects(), []Effect{{Pool: "p", Session: "s", Release: []string{"leased"}}})
	equal(t, "in flight", w.get("s").InFlight, 0)
}

func TestAbortHurriesAJoinAndTheJoinTimeoutIsTheCallers(t *testing.T) {
	w := newWorld(t)
	w.Started("p", "s", "", Flight{Ticket: "a"})
	must(w.Close(CloseRequest{Pool: "p", ID: "s", Timeout: 100 * time.Second}, rules))(t)
	w.at(99)
	w.close("s", Join)
	w.state("s", Closing, Joining)
	w.close("s", Abort)
	w.state("s", Closing, Aborting)
	w.Ended("p", "a", Turn{})
	w.state("s", Closing, Telling)
}

func TestAbortWithoutPatienceSkipsTheWait(t *testing.T) {
	w := newWorld(t)
	w.Started("p", "s", "", Flight{Ticket: "a"})
	must(w.Close(CloseRequest{Pool: "p", ID: "s", Mode: Abort}, Rules{Lifecycle: true, CloseDeadline: time.Second}))(t)
	w.state("s", Closing, Telling)
}

func TestDeadlineMakesDebtsFail(t *testing.T) {
	w := newWorld(t)
	must(w.Open(OpenRequest{Pool: "p", ID: "s"}))(t)
	w.close("s", Join)
	w.at(20)
	w.ack("s", e2)
	counts, _ := w.Counts("p")
	equal(t, "counts", counts, Counts{Closing: 1, Owed: 1, OldestOwed: 20 * time.Second})
	w.at(60)
	w.state("s", ClosedWithFailures, NotClosing)
	v := w.get("s")
	equal(t, "owed", owedEngines(v), []string{e1 + " failed"})
	w.ack("s", e1)
	counts, sum := w.Counts("p")
	equal(t, "counts", counts, Counts{Closed: 1})
	equal(t, "totals", sum, Totals{Opened: 1, Closed: 1, CloseFailures: 1, Acked: 1, Failed: 1})
}

func TestEnginesThatLeftOweNothing(t *testing.T) {
	w := newWorld(t)
	must(w.Open(OpenRequest{Pool: "p", ID: "s"}))(t)
	w.close("s", Join)
	w.EnginesChanged("p", []Engine{{e1, "i1"}})
	equal(t, "owed", owedEngines(w.get("s")), []string{e1 + " owed"})
	w.EnginesChanged("p", []Engine{{e1, "restarted"}, {e2, "i1"}})
	w.state("s", Closed, NotClosing)
	equal(t, "left", w.get("s").Close.Left, 2)
}

func TestWhoIsTold(t *testing.T) {
	served := rules
	served.ServedOnly = true
	off := rules
	off.Lifecycle = false
	open := func(kind Kind) func(*world) {
		return func(w *world) {
			must(w.Open(OpenRequest{Pool: "p", ID: "s", Kind: kind, Engine: e2}))(w.t)
		}
	}
	turn := func(engine string) func(*world) {
		return func(w *world) {
			w.Started("p", "s", "", Flight{Ticket: "a"})
			w.Ended("p", "a", Turn{Engine: engine})
		}
	}
	lose := func(w *world) {
		open(Streaming)(w)
		w.EnginesChanged("p", []Engine{{e1, "i1"}, {e2, "restarted"}})
	}
	for name, c := range map[string]struct {
		rules Rules
		do    func(*world)
		want  []string
	}{
		"broadcast":                            {rules, turn(e1), []string{e1, e2}},
		"broadcast of a session without turns": {rules, open(Radix), []string{e1, e2}},
		"served":                               {served, turn(e2), []string{e2}},
		"served, by an engine of nobody's":     {served, turn("http://nobody"), []string{e1, e2}},
		"served, but no release said where":    {served, turn(""), []string{e1, e2}},
		"served, without turns":                {served, open(Radix), nil},
		"streaming":                            {rules, open(Streaming), []string{e2}},
		"streaming on a restarted engine":      {rules, lose, nil},
		"bind":                                 {rules, open(Bind), nil},
		"lifecycle off":                        {off, turn(e1), nil},
	} {
		t.Run(name, func(t *testing.T) {
			w := newWorld(t)
			c.do(w)
			v := must(w.Close(CloseRequest{Pool: "p", ID: "s"}, c.rules))(t)
			var got []string
			for _, o := range v.Owed {
				got = append(got, o.Engine)
			}
			equal(t, "told", got, c.want)
			if c.want == nil {
				equal(t, "state", v.State, Closed)
			}
		})
	}
}

func TestLifecycleOffLeavesWhatIsInFlightToTheLedger(t *testing.T) {
	w := newWorld(t)
	w.Started("p", "s", "", Flight{Ticket: "a"})
	w.Queued("p", "s", "", "b", "", "")
	v := must(w.Close(CloseRequest{Pool: "p", ID: "s", Mode: Abort}, Rules{}))(t)
	equal(t, "state", v.State, Closed)
	equal(t, "effects", w.TakeEffects(), []Effect{{Pool: "p", Session: "s", Drop: []string{"b"}}})
	equal(t, "later release", w.Ended("p", "a", Turn{}), false)
}

// TestAttemptsThatNobodyReleasedRanSomewhere: in scope served, a session whose only attempts were aborted is owed
// by every engine, because nobody said which of them ran it; one that had none is owed by none.
func TestAttemptsThatNobodyReleasedRanSomewhere(t *testing.T) {
	served := rules
	served.ServedOnly = true
	for attempts, want := range [][]string{nil, {e1 + " owed", e2 + " owed"}} {
		w := newWorld(t)
		must(w.Open(OpenRequest{Pool: "p", ID: "s"}))(t)
		for range attempts {
			w.Started("p", "s", "", Flight{Ticket: "a"})
		}
		must(w.Close(CloseRequest{Pool: "p", ID: "s", Mode: Abort}, served))(t)
		w.at(5)
		equal(t, "owed", owedEngines(w.get("s")), want)
	}
}

func TestPrefixGuard(t *testing.T) {
	w := newWorld(t)
	fly := func(session, ticket string) { w.Started("p", session, "", Flight{Ticket: ticket}) }
	fly("s", "req-1")
	fly("s", "req-2")
	fly("other", "req-10")
	fly("other", "req")
	w.Queued("p", "other", "", "req-20", "", "")
	w.close("s", Abort)
	aborts := func() ([]AbortTask, int) {
		got := w.Work(WorkQuery{})[0]
		return got.Aborts, got.Joined
	}
	got, joined := aborts()
	equal(t, "aborts", got, []AbortTask{{"req-2", "req-2"}})
	equal(t, "joined", joined, 1)
	w.Ended("p", "req-10", Turn{})
	got, _ = aborts()
	equal(t, "once the longer one ended", got, []AbortTask{{"req-1", "req-1"}, {"req-2", "req-2"}})
	strangers := WorkQuery{Prefix: func(_, rid string) bool { return rid == "req-2" }}
	equal(t, "with a stranger in flight", w.Work(strangers)[0].Joined, 1)
}

func TestCloseGroupClosesAll(t *testing.T) {
	w := newWorld(t)
	const n = maxGroupSteps + 50
	for i := range n {
		must(w.Open(OpenRequest{Pool: "p", ID: ticketName(i), Group: "g"}))(t)
	}
	must(w.Open(OpenRequest{Pool: "p", ID: "outsider", Group: "h"}))(t)
	w.close(ticketName(7), Join)
	equal(t, "closing", must(w.CloseGroup("p", "g", Join, rules))(t), n-1)
	for i := range n {
		if w.Gate("p", ticketName(i)) == nil {
			t.Fatalf("session %d still takes tickets", i)
		}
	}
	w.at(0)
	equal(t, "work", len(w.Work(WorkQuery{})), n)
	w.state("outsider", Open, NotClosing)
	equal(t, "again", must(w.CloseGroup("p", "g", Join, rules))(t), 0)
	equal(t, "unknown", must(w.CloseGroup("nowhere", "g", Join, rules))(t), 0)
}

func TestExpireIsBoundedAndInOrder(t *testing.T) {
	w := newWorld(t)
	for i := range 10 {
		must(w.Open(OpenRequest{Pool: "p", ID: ticketName(i), IdleTimeout: time.Duration(10-i) * time.Second}))(t)
	}
	w.Reset()
	n, more := w.Expire(100*second, 4, anyRules)
	equal(t, "let go", n, 4)
	equal(t, "more", more, true)
	var ids []string
	for _, e := range w.Events() {
		if e.Kind == SessionClosing {
			ids = append(ids, e.Session)
		}
	}
	equal(t, "order", ids, []string{ticketName(9), ticketName(8), ticketName(7), ticketName(6)})
	next, any := w.NextDue()
	equal(t, "next", next, 5*second)
	equal(t, "any", any, true)
}

func TestWorkLeavesOutWhatTheCallerHas(t *testing.T) {
	w := newWorld(t)
	must(w.Open(OpenRequest{Pool: "p", ID: "s"}))(t)
	w.close("s", Join)
	first := w.Work(WorkQuery{})[0]
	have := WorkQuery{Have: func(seq, rev uint64) bool { return seq == first.Seq && rev == first.Rev }}
	equal(t, "same", w.Work(have)[0].Same, true)
	w.ack("s", e1)
	second := w.Work(have)[0]
	equal(t, "same after an acknowledgement", second.Same, false)
	equal(t, "engines", second.Engines, []string{e2})
}

func TestRemovedPoolLeavesNothing(t *testing.T) {
	w := newWorld(t)
	w.Started("p", "s", "g", Flight{Ticket: "a", Holder: "h", Bypassed: true})
	must(w.Open(OpenRequest{Pool: "p", ID: "closing"}))(t)
	w.close("closing", Join)
	must(w.Pin(PinRequest{Pool: "p", ID: "x", Session: "s", Tokens: 10}, rules))(t)
	equal(t, "removed", w.RemovePool("p"), true)
	_, any := w.NextDue()
	equal(t, "deadlines", any, false)
	w.Changes(func(c Change) {
		if c.Meta == nil {
			t.Errorf("a row that was never stored: %+v", c)
		}
	})
	w.Export(func(c Change) {
		if c.Meta == nil {
			t.Errorf("a row is left: %+v", c)
		}
	})
	equal(t, "again", w.RemovePool("p"), false)
}

func TestWhatIsDueTogetherGoesInTheOrderItCame(t *testing.T) {
	w := newWorld(t)
	ids := []string{"c", "a", "d", "b"}
	for _, id := range ids {
		must(w.Open(OpenRequest{Pool: "p", ID: id, IdleTimeout: time.Second}))(t)
	}
	w.Reset()
	w.Expire(second, 100, anyRules)
	var order []string
	for _, e := range w.Events() {
		if e.Kind == SessionClosing {
			order = append(order, e.Session)
		}
	}
	equal(t, "order", order, ids)
}

func TestTheRequestIDOfAWaiterIsTheFlights(t *testing.T) {
	w := newWorld(t)
	w.Queued("p", "s", "", "t", "rid-7", "")
	w.Started("p", "s", "", Flight{Ticket: "t"})
	w.close("s", Abort)
	equal(t, "aborts", w.Work(WorkQuery{})[0].Aborts, []AbortTask{{"t", "rid-7"}})
}
