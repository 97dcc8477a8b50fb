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

	recorded, replayed []happening
}

func (r *replay) result(end int64) *Result {
	out := &Result{replayed: r.out}
	for _, e := range r.events {
		if e.Pool == r.pool {
			out.recorded = append(out.recorded, fromJournal(e))
		}
	}
	// What happened in the replay after the end of the recording has nothing to be compared with.
	out.replayed = slices.DeleteFunc(slices.Clone(r.out), func(h happening) bool { return h.At > end })
	out.Recorded, out.Replayed = column(out.recorded, end), column(out.replayed, end)
	out.Notes = r.notes()
	return out
}

func column(all []happening, end int64) Column {
	c := Column{ByReason: map[string]int64{}}
	var waits []time.Duration
	var reserved, ceiling float64
	var last happening
	for _, h := range all {
		switch h.Kind {
		case "admitted":
			c.Admitted++
			if h.arrival {
				c.AdmittedAtOnce++
			}
			waits = append(waits, h.Wait)
		case "waiting":
			c.Queued++
		case "bypassed", "abandoned":
			c.Bypassed++
			c.ByReason[h.Reason]++
			waits = append(waits, h.Wait)
		case "lease_expired", "unclaimed":
			c.Reclaimed++
		case "holder_expired":
			if h.Reason == "leased" {
				c.Reclaimed++
			}
		}
		if h.budget {
			reserved += float64(last.Reserved) * float64(h.At-last.At)
			ceiling += float64(last.Ceiling) * float64(h.At-last.At)
			last = h
			c.PeakReserved = max(c.PeakReserved, h.Reserved)
		}
	}
	reserved += float64(last.Reserved) * float64(end-last.At)
	ceiling += float64(last.Ceiling) * float64(end-last.At)
	if ceiling > 0 {
		c.Utilisation = reserved / ceiling
	}
	c.quantiles(waits)
	return c
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
	} else if len(r.holds) == 0 {
		notes = append(notes, "No lease of the recording was released, so leases given only in the replay end by their TTL.")
	}
	add(r.ownWait, "%s own max_wait; another setting does not change it.", words.Count(r.ownWait, "ticket named its", "tickets named their"))
	add(r.refused, "%s would have been refused, because the queue was full (max_waiters); clients go on without a lease then.", words.Count(r.refused, "call", "calls"))
	if r.restored {
		notes = append(notes, "An operator replaced the state by a snapshot in the recording: what came before is left out.")
	}
	add(r.inherited, "The recording does not begin at the start: %s there before it, as far as later events prove it.", words.Count(r.inherited, "ticket was", "tickets were"))
	return notes
}
