package sessions

import (
	"bytes"
	"encoding/gob"
	"fmt"
	"maps"
	"slices"
	"testing"
	"time"

	"pgregory.net/rapid"
)

// history drives the table, a table that is loaded from the first one's rows now and then, and the model,
// and compares them after each step.
type history struct {
	*rapid.T
	table, twin *Table
	disk        map[string]Change
	m           *model
	now         Time
	rules       Rules
}

func TestRandomHistoriesAgainstTheModel(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		h := &history{T: t, table: NewTable(), twin: NewTable(), disk: map[string]Change{}, m: &model{engines: map[string]string{}}, rules: rules}
		h.engines()
		t.Repeat(map[string]func(*rapid.T){
			"":        func(*rapid.T) { h.compare() },
			"open":    func(*rapid.T) { h.open() },
			"bind":    func(*rapid.T) { h.bind() },
			"touch":   func(*rapid.T) { h.touch() },
			"queue":   func(*rapid.T) { h.queue() },
			"start":   func(*rapid.T) { h.start() },
			"end":     func(*rapid.T) { h.end() },
			"holder":  func(*rapid.T) { h.holder() },
			"close":   func(*rapid.T) { h.close() },
			"ack":     func(*rapid.T) { h.ack() },
			"engines": func(*rapid.T) { h.engines() },
			"pin":     func(*rapid.T) { h.pin() },
			"unpin":   func(*rapid.T) { h.unpin() },
			"time":    func(*rapid.T) { h.pass() },
			"rules":   func(*rapid.T) { h.setRules() },
			"reload":  func(*rapid.T) { h.reload() },
		})
	})
}

func (h *history) pick(what string, of ...string) string {
	return rapid.SampledFrom(of).Draw(h.T, what)
}
func (h *history) session() string { return h.pick("session", "s1", "s2", "s3") }
func (h *history) name() string    { return h.pick("ticket", "t", "t1", "t12", "t2") }
func (h *history) url() string     { return h.pick("engine", e1, e2, "http://10.0.0.3:30000") }
func (h *history) seconds(what string, of ...int) time.Duration {
	return time.Duration(rapid.SampledFrom(of).Draw(h.T, what)) * time.Second
}

// do runs an operation on both tables, which must answer alike, and returns what the first answered.
func (h *history) do(op func(*Table) string) string {
	a, b := op(h.table), op(h.twin)
	if a != b {
		h.Fatalf("the table answers %s, the reloaded one %s", a, b)
	}
	return a
}

func (h *history) expect(got string, want any) {
	if got != fmt.Sprint(want) {
		h.Fatalf("the table answers %s, the model %v", got, want)
	}
}

func ok(_ any, err error) string { return fmt.Sprint(err == nil) }

func (h *history) open() {
	kind := Kind(rapid.IntRange(1, 3).Draw(h.T, "kind"))
	r := OpenRequest{Pool: "p", ID: h.session(), Kind: kind, Engine: h.url(), IdleTimeout: h.seconds("idle", 0, 20, 400)}
	got := h.do(func(t *Table) string { return ok(t.Open(r)) })
	h.expect(got, h.m.open(r.ID, kind, r.IdleTimeout, r.Engine))
}

func (h *history) bind() {
	r := BindRequest{Pool: "p", ID: h.session(), Engine: h.url(), TTL: h.seconds("ttl", 0, 10, 500)}
	got := h.do(func(t *Table) string { return ok(t.Bind(r)) })
	h.expect(got, h.m.bind(r.ID, r.Engine, r.TTL))
}

func (h *history) touch() {
	id := h.session()
	h.do(func(t *Table) string { return ok(t.Touch("p", id)) })
	if s := h.m.find(id); s != nil && s.state == Open {
		s.active = h.m.now
	}
}

func (h *history) queue() {
	id, x := h.session(), mTicket{name: h.name(), holder: h.pick("holder", "", "h1", "h2"), waiting: true}
	got := h.do(func(t *Table) string { return fmt.Sprint(t.Queued("p", id, "", x.name, "", x.holder)) })
	h.expect(got, h.m.ticket(id, x))
}

func (h *history) start() {
	id, x := h.session(), mTicket{name: h.name(), holder: h.pick("holder", "", "h1", "h2"), bypassed: rapid.Bool().Draw(h.T, "bypassed")}
	f := Flight{Ticket: x.name, Holder: x.holder, Bypassed: x.bypassed}
	got := h.do(func(t *Table) string { return fmt.Sprint(t.Started("p", id, "", f)) })
	h.expect(got, h.m.ticket(id, x))
}

func (h *history) end() {
	name, engine := h.name(), h.pick("served by", "", e1, e2)
	got := h.do(func(t *Table) string { return fmt.Sprint(t.Ended("p", name, Turn{Engine: engine})) })
	s, x := h.m.owner(name)
	h.expect(got, x != nil && !x.waiting)
	if x != nil {
		h.m.end(s, x, engine)
	}
}

func (h *history) holder() {
	name := h.pick("holder", "h1", "h2")
	h.do(func(t *Table) string { return fmt.Sprint(t.HolderEnded("p", name)) })
	h.m.holderEnded(name)
}

func (h *history) close() {
	r := CloseRequest{Pool: "p", ID: h.session(), Mode: Mode(rapid.IntRange(1, 2).Draw(h.T, "mode"))}
	h.do(func(t *Table) string { return ok(t.Close(r, h.rules)) })
	h.m.close(h.m.find(r.ID), r.Mode, h.rules)
}

func (h *history) ack() {
	id, engine := h.session(), h.url()
	h.do(func(t *Table) string {
		v, _ := t.Get("p", id)
		return fmt.Sprint(t.Report([]Report{{Pool: "p", Session: id, Seq: v.Seq, Acked: []string{engine}}}))
	})
	h.m.ack(h.m.find(id), engine)
}

func (h *history) engines() {
	set := map[string]string{}
	var listed []Engine
	for i, e := range []string{e1, e2, "http://10.0.0.3:30000"} {
		if n := rapid.IntRange(0, 5).Draw(h.T, "incarnation"); n > 0 || i == 0 {
			set[e] = fmt.Sprint("i", max(1, n-3))
			listed = append(listed, Engine{URL: e, Incarnation: set[e]})
		}
	}
	h.do(func(t *Table) string { t.EnginesChanged("p", listed); return "" })
	h.m.setEngines(set)
}

func (h *history) pin() {
	r := PinRequest{
		Pool: "p", ID: h.pick("pin", "x", "y"), Session: h.pick("of", "", "s1", "s2"), Engine: h.pick("on", "", e1, e2),
		Tokens: rapid.Int64Range(1, 400).Draw(h.T, "tokens"), TTL: h.seconds("ttl", 0, 600, 9000),
	}
	got := h.do(func(t *Table) string { return ok(t.Pin(r, h.rules)) })
	s := h.m.find(r.Session)
	h.expect(got, (r.Session == "" || s != nil) && h.m.pin(r.ID, s, r.Engine, r.Tokens, r.TTL, h.rules))
}

func (h *history) unpin() {
	id := h.pick("pin", "x", "y")
	h.do(func(t *Table) string { return fmt.Sprint(t.Unpin("p", id)) })
	h.m.pins = slices.DeleteFunc(h.m.pins, func(p *mPin) bool { return p.id == id })
}

func (h *history) pass() {
	h.now = h.now.Add(h.seconds("pass", 1, 5, 30, 61, 700))
	limit := rapid.IntRange(1, 5).Draw(h.T, "limit")
	h.do(func(t *Table) string {
		for more := true; more; {
			_, more = t.Expire(h.now, limit, func(string) Rules { return h.rules })
		}
		return ""
	})
	h.m.pass(h.now, h.rules)
}

func (h *history) setRules() {
	h.rules.Lifecycle = rapid.IntRange(0, 4).Draw(h.T, "lifecycle") > 0
	h.rules.ServedOnly = rapid.Bool().Draw(h.T, "served only")
	h.rules.AbortTimeout = h.seconds("abort timeout", 0, 5)
	h.rules.JoinTimeout = h.seconds("join timeout", 0, 30)
}

// reload puts a table that is loaded from the rows on disk in the twin's place.
func (h *history) reload() {
	h.persist()
	ld := NewLoader()
	for _, key := range slices.Sorted(maps.Keys(h.disk)) {
		ld.Add(h.disk[key])
	}
	twin, err := ld.Finish()
	if err != nil {
		h.Fatal(err)
	}
	twin.SetNow(h.table.Now())
	h.twin = twin
}

// persist writes changed rows as the replica does, and forgets them.
func (h *history) persist() {
	h.table.Changes(func(c Change) {
		key := rowKey(c)
		if c.Deleted {
			if _, ok := h.disk[key]; !ok {
				h.Fatalf("row %s is deleted and was never written", key)
			}
			delete(h.disk, key)
			return
		}
		h.disk[key] = copied(c)
	})
	h.table.Reset()
	h.twin.Reset()
}

func rowKey(c Change) string {
	switch {
	case c.Meta != nil:
		return "meta"
	case c.Pool != nil:
		return "pool " + c.Pool.Pool
	case c.Session != nil:
		return fmt.Sprintf("session %d", c.Session.Seq)
	case c.Ticket != nil:
		return fmt.Sprintf("ticket %d", c.Ticket.Seq)
	case c.Owed != nil:
		return fmt.Sprintf("owed %d", c.Owed.Session)
	}
	return fmt.Sprintf("pin %d", c.Pin.Seq)
}

func copied(c Change) Change {
	var buf bytes.Buffer
	var out Change
	if err := gob.NewEncoder(&buf).Encode(c); err != nil {
		panic(err)
	}
	if err := gob.NewDecoder(&buf).Decode(&out); err != nil {
		panic(err)
	}
	return out
}

func rowsOf(t *Table) string {
	var out []string
	t.Export(func(c Change) { out = append(out, rowText(c)) })
	return fmt.Sprint(out)
}

func rowText(c Change) string {
	switch {
	case c.Session != nil:
		row := *c.Session
		binding := row.Binding
		row.Binding = nil
		return fmt.Sprintf("%+v %+v\n", row, binding)
	case c.Owed != nil:
		return fmt.Sprintf("%+v\n", *c.Owed)
	case c.Ticket != nil:
		return fmt.Sprintf("%+v\n", *c.Ticket)
	case c.Pin != nil:
		return fmt.Sprintf("%+v\n", *c.Pin)
	case c.Pool != nil:
		return fmt.Sprintf("%+v\n", *c.Pool)
	}
	return fmt.Sprintf("%+v\n", *c.Meta)
}

// compare checks the table against the model, the twin and itself.
func (h *history) compare() {
	same(h.T, "events", fmt.Sprintf("%+v", h.table.Events()), fmt.Sprintf("%+v", h.twin.Events()))
	same(h.T, "rows", rowsOf(h.table), rowsOf(h.twin))
	effects := h.table.TakeEffects()
	same(h.T, "effects", fmt.Sprint(effects), fmt.Sprint(h.twin.TakeEffects()))
	var drop, release []string
	for _, e := range effects {
		drop, release = append(drop, e.Drop...), append(release, e.Release...)
	}
	same(h.T, "dropped waiters", fmt.Sprint(drop), fmt.Sprint(h.m.drop))
	same(h.T, "released leases", fmt.Sprint(release), fmt.Sprint(h.m.release))
	h.m.drop, h.m.release = nil, nil
	slices.SortFunc(h.m.sessions, func(a, b *mSession) int { return bytes.Compare([]byte(a.id), []byte(b.id)) })
	var want, got []string
	for _, s := range h.m.sessions {
		want = append(want, s.image())
	}
	page, _ := h.table.List("p", Filter{}, "", 100)
	for _, v := range page {
		got = append(got, viewImage(v))
	}
	same(h.T, "sessions", fmt.Sprint(got), fmt.Sprint(want))
	same(h.T, "pinned", h.table.Pinned("p"), h.m.pinned())
	checkTable(h.T, h.table)
	h.persist()
}

func same[T comparable](t rapid.TB, what string, got, want T) {
	if got != want {
		t.Fatalf("%s:\n got %v\nwant %v", what, got, want)
	}
}
