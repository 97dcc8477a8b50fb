package whatif

import (
	"fmt"
	"slices"
	"strings"
	"time"

	"kvgate/ledger"
	kvgatev1 "kvgate/rpc/kvgate/v1"
	"kvgate/rpc/words"
)

// happening is what counts of an event, recorded or replayed.
type happening struct {
	At                int64
	Kind, Ticket      string
	Reason            string
	Wait              time.Duration
	Tokens            int64
	Reserved, Ceiling int64
	arrival           bool
	// budget: Reserved and Ceiling are told.
	budget bool
}

func fromLedger(e ledger.Event) happening {
	return happening{
		At: int64(e.At), Kind: string(e.Kind), Ticket: e.Ticket, Reason: e.Reason, Wait: e.Wait, Tokens: int64(e.Tokens),
		Reserved: int64(e.ReservedAfter), Ceiling: int64(e.CeilingAfter), arrival: e.Arrival.Known, budget: e.Kind != ledger.KindPoolDeleted,
	}
}

func fromJournal(e *kvgatev1.JournalEvent) happening {
	return happening{
		At: e.LedgerTime, Kind: e.Kind, Ticket: e.TicketId, Reason: e.Reason, Wait: e.Wait.AsDuration(), Tokens: e.Tokens,
		Reserved: e.ReservedAfter, Ceiling: e.CeilingAfter, arrival: e.Arrival != nil, budget: e.Epoch > 0 || e.CeilingAfter > 0 || e.ReservedAfter > 0,
	}
}

// Column is what was decided in one run.
type Column struct {
	Admitted       int64            `json:"admitted"`
	AdmittedAtOnce int64            `json:"admittedAtOnce"`
	Queued         int64            `json:"queued"`
	Bypassed       int64            `json:"bypassed"`
	ByReason       map[string]int64 `json:"bypassedByReason"`
	Reclaimed      int64            `json:"leasesTakenBack"`
	// Waits are seconds over all that were decided, those that did not wait included.
	WaitMean float64 `json:"waitMeanSeconds"`
	WaitP50  float64 `json:"waitP50Seconds"`
	WaitP90  float64 `json:"waitP90Seconds"`
	WaitP99  float64 `json:"waitP99Seconds"`
	WaitMax  float64 `json:"waitMaxSeconds"`
	// Utilisation is reserved ÷ ceiling over ledger time; PeakReserved is in tokens.
	Utilisation  float64 `json:"utilisation"`
	PeakReserved int64   `json:"peakReservedTokens"`
}

// Result compares a recording with its replay.
type Result struct {
	Recorded Column   `json:"recorded"`
	Replayed Column   `json:"replayed"`
	Notes    []string `json:"notes"`

	recorded, replayed []happening // as far as they are kept
}

func (r *replay) result() *Result {
	out := &Result{recorded: r.known.column.kept, replayed: r.column.kept}
	out.Recorded, out.Replayed = r.known.column.finish(int64(r.end)), r.column.finish(int64(r.end))
	out.Notes = r.notes()
	return out
}

// sum makes a column of what happens, one after the other.
type sum struct {
	column            Column
	waits             []time.Duration
	reserved, ceiling float64
	last              happening
	keep              bool
	kept              []happening
}

func newSum(keep bool) sum { return sum{column: Column{ByReason: map[string]int64{}}, keep: keep} }

func (s *sum) add(h happening) {
	if s.keep {
		s.kept = append(s.kept, h)
	}
	c := &s.column
	switch h.Kind {
	case "admitted":
		c.Admitted++
		if h.arrival {
			c.AdmittedAtOnce++
		}
		s.waits = append(s.waits, h.Wait)
	case "waiting":
		c.Queued++
	case "bypassed", "abandoned":
		c.Bypassed++
		c.ByReason[h.Reason]++
		s.waits = append(s.waits, h.Wait)
	case "lease_expired", "unclaimed":
		c.Reclaimed++
	case "holder_expired":
		if h.Reason == "leased" {
			c.Reclaimed++
		}
	}
	if h.budget {
		s.lasted(h.At)
		s.last = h
		c.PeakReserved = max(c.PeakReserved, h.Reserved)
	}
}

// lasted integrates what was reserved until a ledger time.
func (s *sum) lasted(at int64) {
	s.reserved += float64(s.last.Reserved) * float64(at-s.last.At)
	s.ceiling += float64(s.last.Ceiling) * float64(at-s.last.At)
}

// finish returns the column of all that happened until the end.
func (s *sum) finish(end int64) Column {
	s.lasted(end)
	if s.ceiling > 0 {
		s.column.Utilisation = s.reserved / s.ceiling
	}
	s.column.quantiles(s.waits)
	return s.column
}

func (c *Column) quantiles(waits []time.Duration) {
	if len(waits) == 0 {
		return
	}
	slices.Sort(waits)
	var sum time.Duration
	for _, w := range waits {
		sum += w
	}
	at := func(q float64) float64 { return waits[min(int(q*float64(len(waits))), len(waits)-1)].Seconds() }
	c.WaitMean = sum.Seconds() / float64(len(waits))
	c.WaitP50, c.WaitP90, c.WaitP99, c.WaitMax = at(0.5), at(0.9), at(0.99), waits[len(waits)-1].Seconds()
}

// Reasons lists the bypass reasons of both columns, sorted.
func (x *Result) Reasons() []string {
	var out []string
	for _, c := range []Column{x.Recorded, x.Replayed} {
		for reason := range c.ByReason {
			if !slices.Contains(out, reason) {
				out = append(out, reason)
			}
		}
	}
	slices.SortFunc(out, strings.Compare)
	return out
}

// notes says what a replay cannot know.
func (r *replay) notes() []string {
	notes := []string{
		"Callers come when they came: a replay cannot know that an earlier answer would have had them come sooner, or a bypass do otherwise.",
		"Engines report what they reported: a replay cannot know how pressure and evictions would have answered other admissions.",
		"Leases are held as long as recorded, however full the engines were meanwhile.",
	}
	add := func(n int, format string, args ...any) {
		if n > 0 {
			notes = append(notes, fmt.Sprintf(format, args...))
		}
	}
	if d, ok := r.usualHold(); ok {
		add(r.guessed, "%s a lease only in the replay; each is taken to have held it for the recorded median, %s.", words.Count(r.guessed, "ticket got", "tickets got"), words.Duration(d))
	} else if len(r.known.holds) == 0 {
		notes = append(notes, "No lease of the recording was released, so leases given only in the replay end by their TTL.")
	}
	add(r.ownWait, "%s own max_wait; another setting does not change it.", words.Count(r.ownWait, "ticket named its", "tickets named their"))
	add(r.refused, "%s would have been refused, because the queue was full (max_waiters); clients go on without a lease then.", words.Count(r.refused, "call", "calls"))
	if r.known.restored {
		notes = append(notes, "An operator replaced the state by a snapshot in the recording: what came before is left out.")
	}
	add(r.inherited, "The recording does not begin at the start: %s there before it, as far as later events prove it.", words.Count(r.inherited, "ticket was", "tickets were"))
	return notes
}
