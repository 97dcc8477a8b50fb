package story

import (
	"fmt"
	"slices"
	"strings"
	"time"

	"kvgate/rpc/words"
)

// Incident is something that an operator wants to be told first.
type Incident struct {
	// At and Until are wall time; Until is zero for what has no length, or lasts.
	At    time.Time `json:"at"`
	Until time.Time `json:"until,omitzero"`
	Index uint64    `json:"index,string"`
	Pool  string    `json:"pool,omitempty"`
	// Kind is one of the constants below.
	Kind  string `json:"kind"`
	Title string `json:"title"`
	// Detail is one or more sentences.
	Detail string `json:"detail,omitempty"`
	// Tickets concerned, in order; at most MaxTickets of Affected.
	Tickets  []string `json:"tickets,omitempty"`
	Affected int      `json:"affected,omitempty"`
	// Trouble tells what went wrong from what was changed on purpose.
	Trouble bool `json:"trouble"`
}

// MaxTickets bounds how many tickets an incident names.
const MaxTickets = 20

// Kinds of incidents.
const (
	EngineLost    = "engine_lost"
	EngineJoined  = "engine_joined"
	HolderExpired = "holder_expired"
	LeaseExpired  = "lease_expired"
	Settings      = "settings"
	Leader        = "leader"
	Degraded      = "degraded"
	CloseFailed   = "close_failed"
	PoolDeleted   = "pool_deleted"
	Restored      = "restored"
)

// Finder collects what stands out among the events that it is given, in order.
type Finder struct {
	pool string
	out  []*Incident
	// at are the newest incidents of a (kind, pool, subject), which events of the same log entry add to.
	at       map[string]*Incident
	tokens   map[*Incident]int64
	waiters  map[*Incident]int
	degraded map[string]*Incident
	ceiling  map[string]int64
	// last is the newest incident of a pool that a change of its ceiling belongs to; effects says what it did.
	last    map[string]*Incident
	effects map[*Incident]*effect
}

// effect is what a change, or the loss of an engine, does to tickets from then on.
type effect struct {
	// fitted is the ceiling before it, when it lowered that; off: it turned admission off.
	fitted int64
	off    bool
	// gone counts the tickets that were let go for it, why says for what reason.
	gone int
	why  string
}

// NewFinder returns a finder for a pool, or for all pools when pool is empty.
func NewFinder(pool string) *Finder {
	return &Finder{
		pool: pool, at: map[string]*Incident{}, tokens: map[*Incident]int64{}, waiters: map[*Incident]int{},
		degraded: map[string]*Incident{}, ceiling: map[string]int64{}, last: map[string]*Incident{},
		effects: map[*Incident]*effect{},
	}
}

// Read takes the next event.
func (f *Finder) Read(e *Event) {
	if f.pool == "" || e.Pool == "" || e.Pool == f.pool {
		f.read(e)
	}
}

// Incidents returns what was found, in order. The finder is of no use afterwards.
func (f *Finder) Incidents() []Incident {
	out := make([]Incident, len(f.out))
	for i, x := range f.out {
		if did := f.effects[x]; did != nil && did.gone > 0 {
			x.Detail = join(x.Detail, fmt.Sprintf("%s let go without a lease for it (%s).", words.Count(did.gone, "ticket was", "tickets were"), did.why))
		}
		out[i] = *x
	}
	return out
}

func (f *Finder) read(e *Event) {
	switch e.Kind {
	case "epoch":
		f.engines(e)
	case "holder_expired":
		f.holder(e)
	case "lease_expired", "unclaimed":
		f.expired(e)
	case "settings":
		f.settings(e)
	case "leader":
		f.add(e, Incident{Kind: Leader, Title: fmt.Sprintf("%s leads (term %d)", quote(e.Detail), e.Epoch)})
	case "degraded", "recovered":
		f.outage(e)
	case "capacity":
		f.resized(e)
	case "bypassed":
		f.letGo(e)
	case "close_failed":
		f.add(e, Incident{Kind: CloseFailed, Trouble: true, Title: "Session " + quote(e.SessionId) + " was not closed on every engine", Detail: e.Reason})
	case "restored":
		f.add(e, Incident{Kind: Restored, Title: "An operator replaced the state by a snapshot", Detail: sentence(capital(e.Detail))})
	case "pool_deleted":
		f.add(e, Incident{Kind: PoolDeleted, Title: "Pool " + quote(e.Pool) + " was deleted", Detail: asked(e)})
	}
	if tellsBudget(e.Kind) {
		f.ceiling[e.Pool] = e.CeilingAfter
	}
}

func (f *Finder) add(e *Event, i Incident) *Incident {
	i.At, i.Index, i.Pool = wall(e), e.Index, e.Pool
	f.out = append(f.out, &i)
	return &i
}

// same returns the incident of the same log entry and subject, or a new one.
func (f *Finder) same(e *Event, subject string, fresh func() Incident) *Incident {
	key := subject + "\x00" + e.Pool
	if i := f.at[key]; i != nil && i.Index == e.Index {
		return i
	}
	i := f.add(e, fresh())
	f.at[key] = i
	return i
}

func (i *Incident) name(ticket string) {
	i.Affected++
	if len(i.Tickets) < MaxTickets && !slices.Contains(i.Tickets, ticket) {
		i.Tickets = append(i.Tickets, ticket)
	}
}

// engines tells which engines came and went.
func (f *Finder) engines(e *Event) {
	var lost, joined []string
	for _, part := range strings.Fields(e.Detail) {
		switch part[0] {
		case '-':
			lost = append(lost, part[1:])
		case '+':
			joined = append(joined, part[1:])
		}
	}
	if len(joined) > 0 {
		f.last[e.Pool] = f.add(e, Incident{Kind: EngineJoined, Title: plural(joined, "Engine", "Engines") + " joined"})
	}
	if len(lost) > 0 {
		f.last[e.Pool] = f.add(e, Incident{Kind: EngineLost, Trouble: true, Title: plural(lost, "Engine", "Engines") + " lost", Detail: sentence(e.Reason)})
	}
}

func plural(names []string, one, many string) string {
	if len(names) == 1 {
		return one + " " + names[0]
	}
	return many + " " + words.List(names)
}

func sentence(s string) string {
	if s == "" || strings.HasSuffix(s, ".") {
		return s
	}
	return s + "."
}

func join(a, b string) string {
	if a == "" || b == "" {
		return a + b
	}
	return a + " " + b
}

// resized adds a change of the ceiling to what brought it about.
func (f *Finder) resized(e *Event) {
	i := f.last[e.Pool]
	if i == nil || i.Index != e.Index {
		return
	}
	if was := f.ceiling[e.Pool]; e.CeilingAfter < was {
		f.effect(i).fitted = was
	}
	i.Detail = join(i.Detail, fmt.Sprintf("The ceiling went from %s to %s tokens.", words.Number(f.ceiling[e.Pool]), words.Number(e.CeilingAfter)))
}

// holder sums up what a holder that went silent had.
func (f *Finder) holder(e *Event) {
	i := f.same(e, HolderExpired+e.HolderId, func() Incident {
		return Incident{Kind: HolderExpired, Trouble: true, Title: "Holder " + quote(e.HolderId) + " went silent and was given up"}
	})
	i.name(e.TicketId)
	if e.Grant != 0 {
		f.tokens[i] += e.Tokens
	} else {
		f.waiters[i]++
	}
	leases := i.Affected - f.waiters[i]
	share := ""
	if e.CeilingAfter > 0 {
		share = fmt.Sprintf(", %s of the ceiling,", words.Percent(float64(f.tokens[i])/float64(e.CeilingAfter)))
	}
	i.Detail = fmt.Sprintf("%s with %s tokens%s came back", words.Count(leases, "lease", "leases"), words.Number(f.tokens[i]), share)
	if n := f.waiters[i]; n > 0 {
		i.Detail += "; " + words.Count(n, "waiting ticket", "waiting tickets") + " left the queue"
	}
	i.Detail += "."
}

func (f *Finder) expired(e *Event) {
	i := f.same(e, LeaseExpired+e.Kind, func() Incident { return Incident{Kind: LeaseExpired, Trouble: true} })
	i.name(e.TicketId)
	f.tokens[i] += e.Tokens
	what := "ran out, neither released nor renewed"
	if e.Kind == "unclaimed" {
		what = "went to callers that never came back"
	}
	i.Title = fmt.Sprintf("%s with %s tokens %s", words.Count(i.Affected, "lease", "leases"), words.Number(f.tokens[i]), what)
}

func (f *Finder) settings(e *Event) {
	i := f.add(e, Incident{Kind: Settings, Title: "Settings changed: " + changes(e), Detail: asked(e)})
	f.last[e.Pool] = i
	f.effect(i).off = e.SettingsBefore.GetAdmission() && e.SettingsAfter != nil && !e.SettingsAfter.GetAdmission()
}

// asked says who asked for a change, where that is known.
func asked(e *Event) string {
	if e.By == "" {
		return ""
	}
	return "Asked for by " + e.By + "."
}

func (f *Finder) effect(i *Incident) *effect {
	if f.effects[i] == nil {
		f.effects[i] = &effect{}
	}
	return f.effects[i]
}

// outage opens and closes a time without usable capacity.
func (f *Finder) outage(e *Event) {
	open := f.degraded[e.Pool]
	if e.Kind == "recovered" {
		if open != nil {
			open.Until = wall(e)
			open.Title = "Degraded for " + words.Duration(max(0, open.Until.Sub(open.At)))
			delete(f.degraded, e.Pool)
		}
		return
	}
	if open == nil {
		open = f.add(e, Incident{Kind: Degraded, Trouble: true, Title: "Degraded, and not over yet"})
		f.degraded[e.Pool] = open
	}
	open.Detail = join(open.Detail, sentence(capital(e.Reason)))
}

func capital(s string) string {
	if s == "" {
		return s
	}
	return strings.ToUpper(s[:1]) + s[1:]
}

// letGo counts what an outage, a change of settings or a lost engine let go without a lease, as long as it lasted.
func (f *Finder) letGo(e *Event) {
	i := f.last[e.Pool]
	if e.Reason == "degraded" {
		i = f.degraded[e.Pool]
	}
	if i == nil {
		return
	}
	did := f.effect(i)
	switch {
	case e.Reason == "degraded", e.Reason == "disabled" && did.off, e.Reason == "oversized" && e.Tokens <= did.fitted:
		did.gone, did.why = did.gone+1, e.Reason
		i.name(e.TicketId)
	}
}
