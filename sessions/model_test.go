package sessions

import (
	"maps"
	"slices"
	"strings"
	"time"
)

// model is the contract of the table for one pool, written for reading and not for speed: everything is
// found by looking through everything.
type model struct {
	now      Time
	seq      int // orders what is due at the same instant
	engines  map[string]string
	sessions []*mSession
	pins     []*mPin
	drop     []string
	release  []string
}

type mSession struct {
	id       string
	seq      int
	kind     Kind
	state    State
	phase    Phase
	implicit bool
	engine   string
	lost     bool
	idle     time.Duration
	active   Time
	until    Time // of the phase, or when a closed record goes
	binding  string
	ttl      time.Duration
	tickets  []*mTicket
	turns    int
	served   map[string]bool
	debts    map[string]string // engine to owed, acked, failed or left
	rules    Rules
}

type mTicket struct {
	name, holder      string
	seq               int
	waiting, bypassed bool
	until             Time
}

type mPin struct {
	id, engine string
	seq        int
	session    *mSession
	tokens     int64
	until      Time
}

func (m *model) next() int { m.seq++; return m.seq }

func (m *model) find(id string) *mSession {
	for _, s := range m.sessions {
		if s.id == id {
			return s
		}
	}
	return nil
}

func (m *model) open(id string, kind Kind, idle time.Duration, engine string) bool {
	s := m.find(id)
	if kind == Streaming && m.engines[engine] == "" {
		return false
	}
	if s == nil || s.state > Closing {
		m.add(id, kind, idle, engine, false)
		return true
	}
	if s.state == Closing || !s.implicit && (kind != s.kind || kind == Streaming && engine != s.engine) {
		return false
	}
	if s.implicit {
		s.implicit, s.kind, s.idle = false, kind, idle
		if kind == Streaming {
			s.engine = engine
		}
	}
	if kind == Streaming {
		s.lost = false
	}
	s.active = m.now
	return true
}

func (m *model) add(id string, kind Kind, idle time.Duration, engine string, implicit bool) *mSession {
	m.sessions = slices.DeleteFunc(m.sessions, func(s *mSession) bool { return s.id == id })
	s := &mSession{id: id, seq: m.next(), kind: kind, state: Open, implicit: implicit, idle: idle, active: m.now}
	if kind == Streaming {
		s.engine = engine
	}
	s.served = map[string]bool{}
	m.sessions = append(m.sessions, s)
	return s
}

func (m *model) bind(id, engine string, ttl time.Duration) bool {
	if len(m.engines) > 0 && m.engines[engine] == "" {
		return false
	}
	s := m.find(id)
	if s == nil {
		s = m.add(id, Bind, idleDefault, "", true)
	}
	if s.state != Open {
		return false
	}
	s.binding, s.ttl, s.active = engine, ttl, m.now
	return true
}

// ticket is a notice that a ticket waits or was let through.
func (m *model) ticket(id string, x mTicket) bool {
	s := m.find(id)
	if s == nil {
		s = m.add(id, Radix, 0, "", true)
	}
	if s.state != Open {
		return false
	}
	if s.implicit && s.kind == Bind {
		s.kind, s.idle = Radix, 0
	}
	if owner, old := m.owner(x.name); old != nil {
		if owner == s && old.waiting && x.waiting {
			return true
		}
		if owner == s && !x.waiting {
			if x.holder == "" {
				x.holder = old.holder
			}
			owner.take(old)
		} else {
			m.end(owner, old, "")
		}
	}
	if x.bypassed && x.holder == "" {
		x.until = m.now.Add(600 * time.Second)
	}
	x.seq = m.next()
	s.tickets = append(s.tickets, &x)
	return true
}

func (m *model) owner(name string) (*mSession, *mTicket) {
	for _, s := range m.sessions {
		for _, x := range s.tickets {
			if x.name == name {
				return s, x
			}
		}
	}
	return nil, nil
}

func (s *mSession) take(x *mTicket) {
	s.tickets = slices.DeleteFunc(s.tickets, func(y *mTicket) bool { return x == y })
}

func (s *mSession) flights() int {
	n := 0
	for _, x := range s.tickets {
		if !x.waiting {
			n++
		}
	}
	return n
}

func (m *model) end(s *mSession, x *mTicket, engine string) {
	s.take(x)
	s.active = m.now
	if !x.waiting {
		s.turns++
		if m.engines[engine] != "" {
			s.served[engine] = true
		}
	}
	m.advance(s)
}

func (m *model) holderEnded(holder string) {
	var names []string
	for _, s := range m.sessions {
		for _, x := range s.tickets {
			if x.bypassed && !x.waiting && x.holder == holder {
				names = append(names, x.name)
			}
		}
	}
	slices.Sort(names)
	for _, name := range names {
		if s, x := m.owner(name); x != nil {
			m.end(s, x, "")
		}
	}
}

func (m *model) close(s *mSession, mode Mode, r Rules) {
	switch {
	case s == nil:
		return
	case s.state == Closing && s.phase == Joining && mode == Abort:
		s.until = m.now
	case s.state == Open:
		s.state, s.phase, s.rules, s.binding, s.debts = Closing, Joining, r, "", map[string]string{}
		s.until = m.now
		if mode != Abort {
			s.until = m.now.Add(r.JoinTimeout)
		}
		for _, x := range slices.Clone(s.tickets) {
			if x.waiting {
				m.drop = append(m.drop, x.name)
				s.take(x)
			}
		}
		m.pins = slices.DeleteFunc(m.pins, func(p *mPin) bool { return p.session == s })
		if !r.Lifecycle {
			s.tickets = nil
			m.finish(s)
			return
		}
	}
	m.advance(s)
}

// advance takes the steps of a close that can be taken now.
func (m *model) advance(s *mSession) {
	if s.state != Closing || s.phase == Telling {
		return
	}
	if s.phase == Joining && s.flights() > 0 && m.now >= s.until {
		s.phase, s.until = Aborting, m.now.Add(s.rules.AbortTimeout)
	}
	if s.flights() > 0 && (s.phase != Aborting || m.now < s.until) {
		return
	}
	for _, x := range s.tickets {
		if !x.bypassed {
			m.release = append(m.release, x.name)
		}
	}
	s.turns += len(s.tickets)
	s.tickets = nil
	s.phase, s.until = Telling, m.now.Add(s.rules.CloseDeadline)
	for e := range m.engines {
		everyone := s.kind == Radix && (!s.rules.ServedOnly || s.turns > 0 && len(s.served) == 0)
		if everyone || s.kind == Radix && s.served[e] || s.kind == Streaming && e == s.engine && !s.lost {
			s.debts[e] = "owed"
		}
	}
	m.settle(s)
}

func (s *mSession) owing(state string) []string {
	var out []string
	for _, e := range slices.Sorted(maps.Keys(s.debts)) {
		if s.debts[e] == state {
			out = append(out, e)
		}
	}
	return out
}

func (m *model) settle(s *mSession) {
	if len(s.owing("owed")) == 0 {
		m.finish(s)
	}
}

func (m *model) finish(s *mSession) {
	s.state, s.phase, s.until = Closed, NotClosing, m.now.Add(keepClosed)
	for _, e := range s.owing("owed") {
		s.debts[e], s.state = "failed", ClosedWithFailures
	}
}

func (m *model) ack(s *mSession, engine string) {
	if s != nil && s.state == Closing && s.phase == Telling && s.debts[engine] == "owed" {
		s.debts[engine] = "acked"
		m.settle(s)
	}
}

func (m *model) setEngines(set map[string]string) {
	old := m.engines
	m.engines = set
	for e, inc := range old {
		if set[e] == inc {
			continue
		}
		for _, s := range m.sessions {
			delete(s.served, e)
			if s.engine == e {
				s.lost = true
			}
			if s.binding == e {
				s.binding = ""
			}
			if s.state == Closing && s.debts[e] == "owed" {
				s.debts[e] = "left"
			}
		}
		m.pins = slices.DeleteFunc(m.pins, func(p *mPin) bool { return p.engine == e })
	}
	for _, s := range m.sessions {
		if s.state == Closing && s.phase == Telling {
			m.settle(s)
		}
	}
}

func (m *model) pin(id string, session *mSession, engine string, tokens int64, ttl time.Duration, r Rules) bool {
	others := int64(0)
	p := mPin{id: id, engine: engine, session: session, tokens: tokens, until: m.now.Add(min(max(ttl, 300*time.Second), time.Hour))}
	for _, q := range m.pins {
		if q.id != id {
			others += q.tokens
		} else {
			p.until = max(p.until, q.until)
		}
	}
	if session != nil && session.state != Open || engine != "" && len(m.engines) > 0 && m.engines[engine] == "" {
		return false
	}
	if float64(others+tokens) > r.PinRatio*float64(r.Ceiling) {
		return false
	}
	m.pins = slices.DeleteFunc(m.pins, func(q *mPin) bool { return q.id == id })
	p.seq = m.next()
	m.pins = append(m.pins, &p)
	return true
}

func (m *model) pinned() (sum int64) {
	for _, p := range m.pins {
		sum += p.tokens
	}
	return sum
}

// pass lets time pass: whatever is due goes, the earliest deadline first.
func (m *model) pass(to Time, r Rules) {
	m.now = to
	for {
		at, seq, do := Time(0), 0, func() {}
		offer := func(t Time, n int, f func()) {
			if t <= to && (seq == 0 || t < at || t == at && n < seq) {
				at, seq, do = t, n, f
			}
		}
		for _, s := range m.sessions {
			m.offer(s, r, offer)
		}
		for _, p := range m.pins {
			offer(p.until, p.seq, func() { m.pins = slices.DeleteFunc(m.pins, func(q *mPin) bool { return p == q }) })
		}
		if seq == 0 {
			return
		}
		do()
	}
}

func (m *model) offer(s *mSession, r Rules, offer func(Time, int, func())) {
	for _, x := range s.tickets {
		if x.until > 0 {
			offer(x.until, x.seq, func() { m.end(s, x, "") })
		}
	}
	switch {
	case s.state > Closing:
		offer(s.until, s.seq, func() { m.sessions = slices.DeleteFunc(m.sessions, func(y *mSession) bool { return s == y }) })
	case s.state == Closing && s.phase == Telling:
		offer(s.until, s.seq, func() { m.finish(s) })
	case s.state == Closing:
		offer(s.until, s.seq, func() { m.advance(s) })
	case len(s.tickets) == 0:
		unbind := s.binding != "" && s.ttl > 0
		if unbind {
			offer(s.active.Add(s.ttl), s.seq, func() { s.binding = "" })
		}
		if s.idle > 0 && !(unbind && s.ttl <= s.idle) {
			offer(s.active.Add(s.idle), s.seq, func() {
				// The binding of a session that is late for both goes first; nobody can tell.
				m.close(s, Join, r)
			})
		}
	}
}

// image is a session in words, to compare with the table's.
func (s *mSession) image() string {
	var tickets []string
	for _, x := range s.tickets {
		tickets = append(tickets, x.name+"/"+x.holder+"/"+flag(x.waiting, "w")+flag(x.bypassed, "b"))
	}
	var debts []string
	for _, state := range []string{"owed", "failed"} {
		for _, e := range s.owing(state) {
			debts = append(debts, e+" "+state)
		}
	}
	slices.Sort(debts)
	return strings.Join([]string{s.id, s.kind.String(), s.state.String(), s.phase.String(), s.binding,
		strings.Join(tickets, ","), strings.Join(debts, ",")}, " | ")
}

func viewImage(v View) string {
	var tickets []string
	for _, x := range v.Tickets {
		tickets = append(tickets, x.Ticket+"/"+x.Holder+"/"+flag(x.Waiting, "w")+flag(x.Bypassed, "b"))
	}
	binding := ""
	if v.Binding != nil {
		binding = v.Binding.Engine
	}
	return strings.Join([]string{v.ID, v.Kind.String(), v.State.String(), v.Close.Phase.String(), binding,
		strings.Join(tickets, ","), strings.Join(owedEngines(v), ",")}, " | ")
}

func flag(on bool, s string) string {
	if on {
		return s
	}
	return ""
}
