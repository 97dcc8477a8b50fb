package sessions

import (
	"errors"
	"testing"
	"time"
)

func TestATicketOpensItsSession(t *testing.T) {
	w := newWorld(t)
	w.Queued("p", "s", "g", "t1", "", "h")
	v := w.get("s")
	equal(t, "kind", v.Kind, Radix)
	equal(t, "group", v.Group, "g")
	equal(t, "waiting", v.Waiting, 1)
	w.Started("p", "s", "g", Flight{Ticket: "t1"})
	v = w.get("s")
	equal(t, "waiting", v.Waiting, 0)
	equal(t, "in flight", v.InFlight, 1)
	equal(t, "request id", v.Tickets[0].RID, "t1")
	equal(t, "holder it queued with", v.Tickets[0].Holder, "h")
	equal(t, "in flight", w.Ended("p", "t1", Turn{Engine: e1 + "@3", Tokens: 70}), true)
	v = w.get("s")
	equal(t, "turns", v.Turns, int64(1))
	equal(t, "footprint", v.Footprint, int64(70))
	equal(t, "served", v.Served, []string{e1})
	equal(t, "again", w.Ended("p", "t1", Turn{}), false)
}

func TestOpenAgainAnswersTheOpenOne(t *testing.T) {
	w := newWorld(t)
	r := OpenRequest{Pool: "p", ID: "s", Group: "g", Kind: Bind, IdleTimeout: 10 * time.Second}
	first := must(w.Open(r))(t)
	w.at(9)
	again := must(w.Open(OpenRequest{Pool: "p", ID: "s"}))(t)
	equal(t, "number", again.Seq, first.Seq)
	equal(t, "kind", again.Kind, Bind)
	w.at(18)
	w.state("s", Open, NotClosing)
	w.at(19)
	w.state("s", Closed, NotClosing)
	if _, err := w.Open(OpenRequest{Pool: "p", ID: "s", Kind: Radix}); err != nil {
		t.Fatalf("a closed id: %v", err)
	}
}

func TestDefaultIdleTimeouts(t *testing.T) {
	w := newWorld(t)
	for kind, want := range map[Kind]time.Duration{KindUnspecified: 0, Radix: 0, Streaming: 300 * time.Second, Bind: 300 * time.Second} {
		v := must(w.Open(OpenRequest{Pool: "p", ID: kind.String(), Kind: kind, Engine: e1, IdleTimeout: -1}))(t)
		equal(t, kind.String(), v.IdleTimeout, want)
	}
}

func TestReopenedIDIsANewIncarnationAndSaysSo(t *testing.T) {
	w := newWorld(t)
	first := must(w.Open(OpenRequest{Pool: "p", ID: "s"}))(t)
	w.close("s", Join)
	if _, err := w.Open(OpenRequest{Pool: "p", ID: "s"}); !errors.Is(err, ErrClosing) {
		t.Fatalf("while it closes: %v", err)
	}
	w.ack("s", e1, e2)
	second := must(w.Open(OpenRequest{Pool: "p", ID: "s"}))(t)
	equal(t, "reused", second.Reused, true)
	equal(t, "placement says so", w.Placement("p", "s").Reused, true)
	if second.Seq == first.Seq {
		t.Fatal("the new incarnation has the old number")
	}
	w.close("s", Join)
	w.Report([]Report{{Pool: "p", Session: "s", Seq: first.Seq, Acked: []string{e1, e2}}})
	equal(t, "acknowledgements for the old incarnation", len(w.get("s").Owed), 2)
}

func TestClosedRecordIsForgottenAfterTenMinutes(t *testing.T) {
	w := newWorld(t)
	w.Started("p", "s", "", Flight{Ticket: "a"})
	w.Ended("p", "a", Turn{})
	w.close("s", Join)
	w.ack("s", e1, e2)
	w.at(599)
	equal(t, "answer", w.close("s", Join).State, Closed)
	w.at(600)
	if _, ok := w.Get("p", "s"); ok {
		t.Fatal("still there")
	}
	v := w.close("s", Join)
	equal(t, "unknown id", v.State, Closed)
	equal(t, "debts", w.Work(WorkQuery{}), []Work{})
	w.Started("p", "s", "", Flight{Ticket: "a"})
	equal(t, "reused", w.get("s").Reused, false)
}

func TestIdleClockStartsWhenTheLastTicketEnds(t *testing.T) {
	w := newWorld(t)
	must(w.Open(OpenRequest{Pool: "p", ID: "s", IdleTimeout: 10 * time.Second}))(t)
	w.at(5)
	w.Queued("p", "s", "", "a", "", "")
	w.at(100)
	w.state("s", Open, NotClosing)
	w.Started("p", "s", "", Flight{Ticket: "a"})
	w.Started("p", "s", "", Flight{Ticket: "b"})
	w.at(200)
	w.Ended("p", "a", Turn{})
	w.at(300)
	w.state("s", Open, NotClosing)
	w.Ended("p", "b", Turn{})
	w.at(309)
	w.state("s", Open, NotClosing)
	w.at(310)
	w.state("s", Closing, Telling)
	_, sum := w.Counts("p")
	equal(t, "idle", sum.Idle, int64(1))
}

func TestBindingSlidesAndIsHeldByTurns(t *testing.T) {
	w := newWorld(t)
	v := must(w.Bind(BindRequest{Pool: "p", ID: "s", Engine: e1 + "/@1", DPRank: 1, TTL: 10 * time.Second}))(t)
	equal(t, "engine", v.Binding.Engine, e1)
	equal(t, "kind until a ticket comes", v.Kind, Bind)
	w.Started("p", "s", "", Flight{Ticket: "a"})
	equal(t, "kind", w.get("s").Kind, Radix)
	w.at(50)
	equal(t, "rank", w.Placement("p", "s").Binding.DPRank, int32(1))
	w.Ended("p", "a", Turn{})
	w.at(59)
	must(w.Touch("p", "s"))(t)
	w.at(68)
	if w.Placement("p", "s").Binding == nil {
		t.Fatal("gone before its time")
	}
	w.at(69)
	if w.Placement("p", "s").Binding != nil {
		t.Fatal("still there")
	}
	w.state("s", Open, NotClosing)
}

func TestBindingGoesWithItsEngine(t *testing.T) {
	for name, listed := range map[string][]Engine{
		"absent":          {{e2, "i1"}},
		"new incarnation": {{e1, "i2"}, {e2, "i1"}},
	} {
		t.Run(name, func(t *testing.T) {
			w := newWorld(t)
			must(w.Bind(BindRequest{Pool: "p", ID: "s", Engine: e1}))(t)
			must(w.Bind(BindRequest{Pool: "p", ID: "other", Engine: e2}))(t)
			w.EnginesChanged("p", []Engine{{e1, ""}, {e2, "i1"}, {"http://10.0.0.3:30000", "x"}})
			if w.get("s").Binding == nil {
				t.Fatal("gone although its engine is listed")
			}
			w.EnginesChanged("p", listed)
			if w.get("s").Binding != nil || w.get("other").Binding == nil {
				t.Fatalf("bindings: %v, %v", w.get("s").Binding, w.get("other").Binding)
			}
		})
	}
}

func TestBypassedAttemptsEnd(t *testing.T) {
	w := newWorld(t)
	w.Started("p", "s", "", Flight{Ticket: "alone", Bypassed: true, TTL: 10 * time.Second})
	w.Started("p", "s", "", Flight{Ticket: "held", Holder: "h", Bypassed: true, TTL: 10 * time.Second})
	w.Started("p", "s", "", Flight{Ticket: "leased", Holder: "h"})
	w.at(9)
	equal(t, "in flight", w.get("s").InFlight, 3)
	w.at(10)
	equal(t, "in flight after the lease ttl", w.get("s").InFlight, 2)
	w.Flying(func(pool, holder string, n int) { equal(t, pool+" "+holder, n, 1) })
	w.Reset()
	n, more := w.HolderEnded("p", "h")
	equal(t, "ended", n, 1)
	equal(t, "more", more, false)
	if e := w.Events(); len(e) != 1 || e[0].Kind != TicketForgotten || e[0].Ticket != "held" || e[0].Holder != "h" || e[0].Reason != "holder expired" {
		t.Errorf("journal has %+v, want the end of the holder's attempt", e)
	}
	equal(t, "the lease ends in the ledger", w.get("s").Tickets[0].Ticket, "leased")
	w.Ended("p", "leased", Turn{})
	equal(t, "turns", w.get("s").Turns, int64(3))
}

func TestATicketThatChangesSessionEndsInTheFirst(t *testing.T) {
	w := newWorld(t)
	w.Started("p", "a", "", Flight{Ticket: "x", Bypassed: true})
	w.Started("p", "b", "", Flight{Ticket: "x"})
	equal(t, "first", w.get("a").InFlight, 0)
	equal(t, "second", w.get("b").InFlight, 1)
}

func TestHolderEndingOfManyIsBounded(t *testing.T) {
	w := newWorld(t)
	for i := range MaxReclaim + 1 {
		w.Started("p", "s", "", Flight{Ticket: ticketName(i), Holder: "h", Bypassed: true})
	}
	n, more := w.HolderEnded("p", "h")
	equal(t, "ended", n, MaxReclaim)
	equal(t, "more", more, true)
	n, more = w.HolderEnded("p", "h")
	equal(t, "ended", n, 1)
	equal(t, "more", more, false)
}

func TestListPages(t *testing.T) {
	w := newWorld(t)
	for i := range 700 {
		must(w.Open(OpenRequest{Pool: "p", ID: ticketName(i * 7919 % 700), Group: []string{"a", "b"}[i%2]}))(t)
	}
	w.close(ticketName(3), Join)
	var seen []string
	for after, more := "", true; more; {
		var page []View
		page, more = w.List("p", Filter{}, after, 99)
		for _, v := range page {
			seen = append(seen, v.ID)
		}
		after = seen[len(seen)-1]
	}
	equal(t, "sessions", len(seen), 700)
	for i, id := range seen {
		equal(t, "order", id, ticketName(i))
	}
	page, _ := w.List("p", Filter{State: Closing}, "", 10)
	equal(t, "closing", len(page), 1)
	page, more := w.List("p", Filter{Group: "a"}, "", 350)
	equal(t, "group", len(page), 350)
	equal(t, "more", more, false)
}

func TestBadInput(t *testing.T) {
	w := newWorld(t)
	must(w.Open(OpenRequest{Pool: "p", ID: "radix", Kind: Radix}))(t)
	must(w.Open(OpenRequest{Pool: "p", ID: "stream", Kind: Streaming, Engine: e1}))(t)
	must(w.Open(OpenRequest{Pool: "p", ID: "gone"}))(t)
	w.close("gone", Join)
	open := func(r OpenRequest) error { r.Pool = "p"; _, err := w.Open(r); return err }
	bind := func(r BindRequest) error { r.Pool = "p"; _, err := w.Bind(r); return err }
	closing := func(r CloseRequest) error { r.Pool = "p"; _, err := w.Close(r, rules); return err }
	pin := func(r PinRequest, ru Rules) error { r.Pool = "p"; _, err := w.Pin(r, ru); return err }
	group := func(g string, m Mode) error { _, err := w.CloseGroup("p", g, m, rules); return err }
	touch := func(id string) error { _, err := w.Touch("p", id); return err }
	report := func(id string) error { _, err := w.ReportPin("p", id, e1, true); return err }
	for name, c := range map[string]struct {
		err, want error
		field     string
	}{
		"open without an id":         {open(OpenRequest{}), ErrInvalid, "sessionId"},
		"open with another kind":     {open(OpenRequest{ID: "x", Kind: 9}), ErrInvalid, "kind"},
		"open idle for ever":         {open(OpenRequest{ID: "x", IdleTimeout: 1 << 62}), ErrInvalid, "idleTimeout"},
		"streaming without engine":   {open(OpenRequest{ID: "x", Kind: Streaming}), ErrInvalid, "engineUrl"},
		"streaming on a stranger":    {open(OpenRequest{ID: "x", Kind: Streaming, Engine: "http://nobody"}), ErrUnknownEngine, ""},
		"open as another kind":       {open(OpenRequest{ID: "radix", Kind: Bind}), ErrKind, ""},
		"streaming on another":       {open(OpenRequest{ID: "stream", Kind: Streaming, Engine: e2}), ErrKind, ""},
		"open while closing":         {open(OpenRequest{ID: "gone"}), ErrClosing, ""},
		"bind without an id":         {bind(BindRequest{Engine: e1}), ErrInvalid, "sessionId"},
		"bind to nothing":            {bind(BindRequest{ID: "x"}), ErrInvalid, "engineUrl"},
		"bind to a negative rank":    {bind(BindRequest{ID: "x", Engine: e1, DPRank: -1}), ErrInvalid, "dpRank"},
		"bind for less than no time": {bind(BindRequest{ID: "x", Engine: e1, TTL: -1}), ErrInvalid, "ttl"},
		"bind to a stranger":         {bind(BindRequest{ID: "x", Engine: "http://nobody"}), ErrUnknownEngine, ""},
		"bind what closes":           {bind(BindRequest{ID: "gone", Engine: e1}), ErrClosing, ""},
		"close without an id":        {closing(CloseRequest{}), ErrInvalid, "sessionId"},
		"close in another mode":      {closing(CloseRequest{ID: "x", Mode: 7}), ErrInvalid, "mode"},
		"close with a past timeout":  {closing(CloseRequest{ID: "x", Timeout: -1}), ErrInvalid, "timeout"},
		"group without a name":       {group("", Join), ErrInvalid, "groupId"},
		"group in another mode":      {group("g", 7), ErrInvalid, "mode"},
		"touch a stranger":           {touch("x"), ErrUnknown, ""},
		"touch what closes":          {touch("gone"), ErrClosing, ""},
		"gate of what closes":        {w.Gate("p", "gone"), ErrClosing, ""},
		"pin without an id":          {pin(PinRequest{Tokens: 1}, rules), ErrInvalid, "pinId"},
		"pin no tokens":              {pin(PinRequest{ID: "x"}, rules), ErrInvalid, "tokens"},
		"pin too many tokens":        {pin(PinRequest{ID: "x", Tokens: 1 << 60}, rules), ErrInvalid, "tokens"},
		"pin with pins off":          {pin(PinRequest{ID: "x", Tokens: 1}, Rules{Ceiling: 10}), ErrPinsDisabled, ""},
		"pin beyond the budget":      {pin(PinRequest{ID: "x", Tokens: 501}, rules), ErrPinBudget, ""},
		"pin for a stranger":         {pin(PinRequest{ID: "x", Tokens: 1, Session: "x"}, rules), ErrUnknown, ""},
		"pin for what closes":        {pin(PinRequest{ID: "x", Tokens: 1, Session: "gone"}, rules), ErrClosing, ""},
		"pin on a stranger":          {pin(PinRequest{ID: "x", Tokens: 1, Engine: "http://nobody"}, rules), ErrUnknownEngine, ""},
		"report of no pin":           {report("x"), ErrUnknownPin, ""},
	} {
		t.Run(name, func(t *testing.T) {
			if !errors.Is(c.err, c.want) {
				t.Fatalf("got %v, want %v", c.err, c.want)
			}
			var fe *FieldError
			if errors.As(c.err, &fe); fe != nil && (fe.Field != c.field || fe.Allowed == "") {
				t.Fatalf("got %q, want field %q", fe, c.field)
			}
		})
	}
	for _, id := range []string{"x", "unknown"} {
		if _, ok := w.Get("p", id); ok {
			t.Errorf("a refused call left session %q behind", id)
		}
	}
}

func TestEngineURL(t *testing.T) {
	for raw, want := range map[string]string{
		"http://A:30000@7/":      "http://a:30000",
		" HTTPS://h/Path/@12 ":   "https://h/Path",
		"http://h:1":             "http://h:1",
		"http://user@host":       "http://user@host",
		"":                       "",
		"@3":                     "",
		"nonsense":               "nonsense",
		"http://h:30000///":      "http://h:30000",
		"http://[::1]:30000@0":   "http://[::1]:30000",
		"http://h:30000/v1@2/@3": "http://h:30000/v1@2",
	} {
		equal(t, raw, EngineURL(raw), want)
	}
}

// TestCheckOpenSaysWhetherTheEngineMustBeCalled, and changes nothing.
func TestCheckOpenSaysWhetherTheEngineMustBeCalled(t *testing.T) {
	w := newWorld(t)
	ask := OpenRequest{Pool: "p", ID: "s", Kind: Streaming, Engine: e1, IdleTimeout: -1}
	check := func(what string, wantCall bool, want error) {
		t.Helper()
		before := len(w.Events())
		call, err := w.CheckOpen(ask)
		if call != wantCall || !errors.Is(err, want) || len(w.Events()) != before {
			t.Fatalf("%s: call %v, error %v", what, call, err)
		}
	}
	equal(t, "idle", ask.Idle(), 300*time.Second)
	check("new", true, nil)
	must(w.Open(ask))(t)
	check("open there", false, nil)
	w.EnginesChanged("p", []Engine{{e1, "i2"}, {e2, "i1"}})
	check("restarted", true, nil)
	must(w.Open(ask))(t)
	check("open there again", false, nil)
	ask.Engine = e2
	check("lives elsewhere", false, ErrKind)
	ask.Engine = "http://10.0.0.9:1"
	check("not listed", false, ErrUnknownEngine)
	ask.Engine = e1
	w.close("s", Join)
	equal(t, "debts of the restarted engine", owedEngines(w.get("s")), []string{e1 + " owed"})
	check("closing", false, ErrClosing)
	ask = OpenRequest{Pool: "p", ID: "r", IdleTimeout: -1}
	check("radix", false, nil)
	equal(t, "idle of radix", ask.Idle(), 0)
	w.Started("p", "r", "", Flight{Ticket: "t"})
	ask.Kind, ask.Engine = Streaming, e1
	check("opened by a ticket", true, nil)
}

// TestHoldersOfBypassedAttempts: what the watch of holders asks.
func TestHoldersOfBypassedAttempts(t *testing.T) {
	w := newWorld(t)
	w.at(3)
	w.Started("p", "s", "", Flight{Ticket: "a", Holder: "h", Bypassed: true})
	w.at(5)
	w.Started("p", "s", "", Flight{Ticket: "0", Holder: "h", Bypassed: true})
	w.Started("p", "s", "", Flight{Ticket: "leased", Holder: "other"})
	seq, since := w.Newest("p", "h")
	equal(t, "newest", seq, w.get("s").Tickets[1].Seq)
	equal(t, "since", since, 5*second)
	equal(t, "pools", w.Flies("h"), []string{"p"})
	equal(t, "pools of a holder of leases", len(w.Flies("other")), 0)
	must(w.Bind(BindRequest{Pool: "p", ID: "s", Engine: e2, DPRank: 1}))(t)
	equal(t, "placement", w.PlacementOf("p", "a").Binding.Engine, e2)
	equal(t, "placement of no ticket", w.PlacementOf("p", "none"), Placement{})
}
