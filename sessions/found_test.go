package sessions

import (
	"reflect"
	"testing"
)

// discovering are the rules of a pool whose engines a router will list.
var discovering = func() Rules { r := rules; r.Discovers = true; return r }()

// unfound is a world whose engines no discovery has found yet.
func unfound(t *testing.T) *world {
	w := &world{Table: NewTable(), t: t}
	w.Started("p", "s", "", Flight{Ticket: "a", Bypassed: true})
	w.Ended("p", "a", Turn{Engine: e1})
	return w
}

func (w *world) closeBy(id string, r Rules) {
	w.t.Helper()
	must(w.Close(CloseRequest{Pool: "p", ID: id}, r))(w.t)
}

// TestACloseWaitsForEnginesToBeFound: a session that ends before the first discovery succeeds is owed by the
// engines that it finds, for a whole deadline from then on; and what waits survives in the rows.
func TestACloseWaitsForEnginesToBeFound(t *testing.T) {
	w := unfound(t)
	rows := map[string]Change{}
	w.closeBy("s", discovering)
	w.Changes(func(c Change) { rows[reflect.TypeOf(c).Name()+key(c)] = c })
	w.state("s", Closing, Telling)
	equal(t, "owed", owedEngines(w.get("s")), []string{" owed"})
	if work := w.Work(WorkQuery{}); len(work) != 1 || len(work[0].Engines) != 0 {
		t.Fatalf("work %+v, want a session without engines", work)
	}
	ld := NewLoader()
	for _, c := range rows {
		ld.Add(c)
	}
	loaded := &world{Table: must(ld.Finish())(t), t: t}
	for _, w := range []*world{w, loaded} {
		w.at(50)
		w.EnginesChanged("p", []Engine{{e1, "i1"}, {e2, "i1"}})
		equal(t, "owed once found", owedEngines(w.get("s")), []string{e1 + " owed", e2 + " owed"})
		equal(t, "work", w.Work(WorkQuery{})[0].Engines, []string{e1, e2})
		w.at(109)
		w.state("s", Closing, Telling)
		w.ack("s", e1, e2)
		w.state("s", Closed, NotClosing)
		c, sum := w.Counts("p")
		equal(t, "owed", c.Owed, 0)
		equal(t, "acknowledged", sum.Acked, 2)
	}
}

func key(c Change) string {
	switch {
	case c.Meta != nil:
		return "meta"
	case c.Pool != nil:
		return "pool"
	case c.Session != nil:
		return "session"
	case c.Owed != nil:
		return "owed"
	}
	return "other"
}

func TestEnginesThatAreNeverFoundFailTheClose(t *testing.T) {
	w := unfound(t)
	w.closeBy("s", discovering)
	w.Reset()
	w.at(60)
	w.state("s", ClosedWithFailures, NotClosing)
	equal(t, "reason", w.Events()[0].Reason, "close deadline, and the pool's engines were not found")
	equal(t, "failed", owedEngines(w.get("s")), []string{" failed"})
	_, sum := w.Counts("p")
	equal(t, "totals", sum, Totals{Opened: 1, Closed: 1, CloseFailures: 1, Failed: 1})
	w.EnginesChanged("p", []Engine{{e1, "i1"}})
	equal(t, "too late", owedEngines(w.get("s")), []string{" failed"})
}

// TestACloseIsOverAtOnceWhereNobodyOwesIt: discovery found none, there is nothing to discover, the engines are
// known to have served nothing, or the session was a placement only.
func TestACloseIsOverAtOnceWhereNobodyOwesIt(t *testing.T) {
	served := discovering
	served.ServedOnly = true
	cases := map[string]struct {
		before func(*world)
		id     string
		rules  Rules
	}{
		"discovery found none": {before: func(w *world) { w.EnginesChanged("p", nil) }, id: "s", rules: discovering},
		"nothing to discover":  {before: func(*world) {}, id: "s", rules: rules},
		"nothing was served": {before: func(w *world) {
			must(w.Open(OpenRequest{Pool: "p", ID: "idle"}))(w.t)
		}, id: "idle", rules: served},
		"a placement": {before: func(w *world) {
			must(w.Open(OpenRequest{Pool: "p", ID: "b", Kind: Bind}))(w.t)
		}, id: "b", rules: discovering},
	}
	for name, c := range cases {
		t.Run(name, func(t *testing.T) {
			w := unfound(t)
			c.before(w)
			w.closeBy(c.id, c.rules)
			w.state(c.id, Closed, NotClosing)
		})
	}
}

// TestFindingNoEnginesEndsTheWait: a router without workers has none that could hold anything.
func TestFindingNoEnginesEndsTheWait(t *testing.T) {
	w := unfound(t)
	w.closeBy("s", discovering)
	w.EnginesChanged("p", nil)
	w.state("s", Closed, NotClosing)
	w.EnginesChanged("p", []Engine{{e1, "i1"}})
	w.EnginesChanged("p", nil)
	must(w.Open(OpenRequest{Pool: "p", ID: "later"}))(t)
	w.closeBy("later", discovering)
	w.state("later", Closed, NotClosing)
}

// TestTheGuardSparesTheSameRequestID of another session: an engine would end both.
func TestTheGuardSparesTheSameRequestID(t *testing.T) {
	w := newWorld(t)
	for _, f := range []struct{ session, ticket, rid string }{{"s", "a", "same"}, {"s", "b", "mine"}, {"s", "c", "mine"}, {"other", "d", "same"}} {
		w.Started("p", f.session, "", Flight{Ticket: f.ticket, RID: f.rid})
	}
	w.close("s", Abort)
	work := w.Work(WorkQuery{})[0]
	equal(t, "aborts", work.Aborts, []AbortTask{{"b", "mine"}, {"c", "mine"}})
	equal(t, "joined", work.Joined, 1)
	w.Ended("p", "d", Turn{})
	equal(t, "once the other one ended", w.Work(WorkQuery{})[0].Joined, 0)
}
