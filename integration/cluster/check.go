package cluster

import (
	"fmt"
	"slices"
	"strings"
	"time"
)

// Result is what a check found out about an episode that passed.
type Result struct {
	Ops, Known, Tickets, Events, Grants, Expired, Leaders int
	// TTLErrors are how much later, in real time, leases expired than their TTL says.
	TTLErrors []time.Duration
}

// checker holds what an episode left behind.
type checker struct {
	ops    []*Op
	events []Event
	replay *replay
	clocks bool
	// byTicket holds the journal of each ticket.
	byTicket map[string][]*Event
	problems []string
	result   Result
}

// Check proves that what the clients saw is linearizable with the journal as witness, and that the
// journal keeps the ledger's invariants. clocks says that wall clocks were not stepped, so that what
// depends on them is checked, too.
func Check(ops []*Op, events []Event, clocks bool) (Result, error) {
	c := &checker{ops: ops, events: events, clocks: clocks, replay: newReplay(), byTicket: map[string][]*Event{}}
	for i := range events {
		e := &events[i]
		c.replay.step(e)
		if e.TicketId != "" {
			c.byTicket[e.TicketId] = append(c.byTicket[e.TicketId], e)
		}
		if e.Kind == "leader" {
			c.result.Leaders++
		}
	}
	if err := c.replay.err("the journal contradicts itself"); err != nil {
		return c.result, err
	}
	for _, check := range []func(){c.answers, c.durations, c.realTime, c.budgets, c.tickets, c.ages, c.expiries} {
		check()
	}
	c.count()
	if len(c.problems) > 0 {
		return c.result, fmt.Errorf("%d problems:\n  %s", len(c.problems), strings.Join(c.problems[:min(len(c.problems), maxProblems)], "\n  "))
	}
	return c.result, nil
}

func (c *checker) problem(o *Op, format string, args ...any) {
	c.problems = append(c.problems, o.String()+": "+fmt.Sprintf(format, args...))
}

func (c *checker) count() {
	c.result.Ops, c.result.Events = len(c.ops), len(c.events)
	c.result.Tickets, c.result.Grants = len(c.byTicket), len(c.replay.grants)
	for _, o := range c.ops {
		if o.Known {
			c.result.Known++
		}
	}
}

// documented are the codes that a node may answer while faults strike.
var documented = []string{
	"", codeUntracked, codeTransport, codeLeft, codeLate, "no_leader", "timeout", "read_only", "shutdown", "too_many_waiters",
}

// answers checks that every acknowledged grant is in the journal as it was told, and every error is one
// that the API documents.
func (c *checker) answers() {
	for _, o := range c.ops {
		if !slices.Contains(documented, o.Code) {
			c.problem(o, "undocumented error")
		}
		if o.Kind == OpAcquire && (o.Code == "no_leader" || o.Code == "timeout" || o.Code == "read_only") {
			c.problem(o, "an Acquire that cannot be decided is let go, not refused")
		}
		if !o.Known || o.Kind != OpAcquire || o.Grant == 0 {
			continue
		}
		l := c.replay.grants[o.Grant]
		switch {
		case l == nil:
			c.problem(o, "the journal knows no such grant")
		case l.grant.TicketId != o.Ticket || l.grant.LeaseId != o.Lease:
			c.problem(o, "the journal gives that grant to %s as %s", l.grant.TicketId, l.grant.LeaseId)
		}
	}
}

// durationSlack is for two loaded cores.
const durationSlack = 1500 * time.Millisecond

// durations checks that nodes which ran all the time answered in time.
func (c *checker) durations() {
	for _, o := range c.ops {
		if o.Code == codeLeft || o.Code == codeTransport || o.Node.wasImpaired(o.Start, o.End) {
			continue
		}
		if took, limit := o.End.Sub(o.Start), bound(o.Kind, o.MaxWait); o.Code == codeLate || took > limit+durationSlack {
			c.problem(o, "a node answers within %v", limit)
		}
	}
}

// marks returns for each operation whose effect is known to be one event of the journal that event's
// place, and the stretch of real time in which it took effect: from the first attempt of its chain to its
// answer.
func (c *checker) marks() (out []mark) {
	first := map[string]time.Time{}
	for _, o := range c.ops {
		key := chainKey(o)
		if at, ok := first[key]; !ok || o.Start.Before(at) {
			first[key] = o.Start
		}
	}
	for _, o := range c.ops {
		if e := c.effect(o); e != nil && o.Known {
			out = append(out, mark{first[chainKey(o)], o.End, e.Pos, o})
		}
	}
	return out
}

// chainKey groups attempts that may have caused each other's event: all Acquires of a ticket, and all
// releases of a grant.
func chainKey(o *Op) string { return fmt.Sprintf("%s %s %d", o.Kind, o.Ticket, o.Fence) }

// mark is an event and when it happened: not before from, not after to.
type mark struct {
	from, to time.Time
	pos      int
	op       *Op
}

// effect returns the event that an operation caused, nil when it caused none or it cannot be told which.
func (c *checker) effect(o *Op) *Event {
	switch {
	case o.Kind == OpAcquire && o.Grant != 0:
		if l := c.replay.grants[o.Grant]; l != nil {
			return l.grant
		}
	case o.Kind == OpRelease && o.OK:
		if l := c.replay.grants[o.Fence]; l != nil && l.ended != nil && l.ended.Kind == "released" {
			return l.ended
		}
		c.problem(o, "the journal knows no such release")
	}
	return nil
}

// realTime checks that the journal's order agrees with real time: when one operation was answered before
// another began, its event comes first.
func (c *checker) realTime() {
	marks := c.marks()
	byStart, byEnd := slices.Clone(marks), slices.Clone(marks)
	slices.SortFunc(byStart, func(a, b mark) int { return a.from.Compare(b.from) })
	slices.SortFunc(byEnd, func(a, b mark) int { return a.to.Compare(b.to) })
	done, newest := 0, mark{pos: -1}
	for _, m := range byStart {
		for done < len(byEnd) && byEnd[done].to.Before(m.from) {
			if byEnd[done].pos > newest.pos {
				newest = byEnd[done]
			}
			done++
		}
		if m.pos < newest.pos {
			c.problem(m.op, "its event %d lies before event %d of what was answered %v before it began (%v)",
				m.pos, newest.pos, m.from.Sub(newest.to), newest.op)
		}
	}
}

// budgets checks linearizable reads: what was reserved was so after some event between the newest one
// that was known before the read began and the first one that began after it was answered.
func (c *checker) budgets() {
	marks := c.marks()
	for _, o := range c.ops {
		if o.Kind != OpBudget || !o.Known {
			continue
		}
		low, high := -1, len(c.events)
		for _, m := range marks {
			if m.to.Before(o.Start) {
				low = max(low, m.pos)
			}
			if m.from.After(o.End) {
				high = min(high, m.pos)
			}
		}
		if !c.reservedBetween(low, high, o.Reserved) {
			c.problem(o, "no such amount was reserved between events %d and %d", low, high)
		}
	}
}

func (c *checker) reservedBetween(low, high int, want int64) bool {
	for at := low; at < high; at++ {
		if at < 0 && want == 0 {
			return true
		}
		if at >= 0 && c.events[at].Kind != "leader" && c.events[at].Kind != "settings" && c.events[at].ReservedAfter == want {
			return true
		}
	}
	// Events that do not carry the amount leave it as it was.
	for at := min(low, len(c.events)-1); at >= 0; at-- {
		if k := c.events[at].Kind; k != "leader" && k != "settings" {
			return c.events[at].ReservedAfter == want
		}
	}
	return want == 0
}

// ages checks that no waiter was let go as aged before its caller's patience was over, in real time: a retry
// says what is left of the max wait, so the wait may end before the deadline of the first attempt.
func (c *checker) ages() {
	if !c.clocks {
		return
	}
	patience := map[string]time.Time{}
	for _, o := range c.ops {
		until := o.Start.Add(o.MaxWait)
		if old, ok := patience[o.Ticket]; o.Kind == OpAcquire && (!ok || until.Before(old)) {
			patience[o.Ticket] = until
		}
	}
	for i := range c.events {
		e := &c.events[i]
		if early := patience[e.TicketId].Sub(e.wall()); e.Kind == "bypassed" && e.Reason == "aged" && early > earliest {
			c.problems = append(c.problems, fmt.Sprintf("event %d.%d: %s was let go as aged %v before its caller's patience was over", e.Index, e.N, e.TicketId, early))
		}
	}
}

// earliest is how much earlier than its TTL, in real time, a lease may expire: the clocks of the two
// wall times are read at different moments of a batch.
const earliest = 20 * time.Millisecond

// expiries collects how much later than their TTL leases expired in real time, as far as the wall time of
// the event that set the deadline is the time from which it counts. Episodes that step wall clocks cannot
// be measured.
func (c *checker) expiries() {
	if !c.clocks {
		return
	}
	for _, l := range c.replay.grants {
		if l.ended == nil || l.ended.Kind != "lease_expired" {
			continue
		}
		c.result.Expired++
		from := l.setAt()
		if from.Kind == "admitted" && from.Wait != nil {
			continue // granted when another's deadline passed, maybe before the entry's own time
		}
		ttl := time.Duration(l.deadline - from.LedgerTime)
		c.result.TTLErrors = append(c.result.TTLErrors, l.ended.wall().Sub(from.wall())-ttl)
	}
}
