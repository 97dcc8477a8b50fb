package story

import (
	"fmt"
	"strings"
	"time"

	"kvgate/rpc/words"
)

// Sentence is one step of a story.
type Sentence struct {
	// At is wall time; the zero time when the journal does not tell it.
	At time.Time `json:"at"`
	// LedgerTime in nanoseconds.
	LedgerTime int64  `json:"ledgerTime,string"`
	Text       string `json:"text"`
}

// Story is one life in plain sentences.
type Story struct {
	Pool      string     `json:"pool"`
	Ticket    string     `json:"ticket"`
	Sentences []Sentence `json:"sentences"`
	// Sum says how long each part took.
	Sum string `json:"sum"`
}

// teller collects the sentences of one life.
type teller struct {
	l   *Life
	now int64
	out []Sentence
}

func (t *teller) say(e *Event, format string, args ...any) {
	t.out = append(t.out, Sentence{wall(e), e.LedgerTime, fmt.Sprintf(format, args...)})
}

// Tell words one life. now is the ledger time until which an open life is counted.
func Tell(l *Life, now int64) Story {
	t := &teller{l: l, now: now}
	if !l.Arrived() && !marked(l.First) {
		t.say(l.First, "What came before this is not in the journal any more.")
	}
	blocks := l.Blocks
	for _, e := range l.Steps {
		for len(blocks) > 0 && before(&blocks[0], e) {
			t.block(&blocks[0])
			blocks = blocks[1:]
		}
		t.step(e)
		for len(blocks) > 0 && blocks[0].From == e.LedgerTime && e == l.Waiting {
			blocks = blocks[1:] // the sentence about the arrival has said so
		}
	}
	for i := range blocks {
		t.block(&blocks[i])
	}
	return Story{Pool: l.Pool, Ticket: l.Ticket, Sentences: t.out, Sum: t.sum()}
}

// marked reports that the ticket was cancelled while it neither waited nor held a lease.
func marked(e *Event) bool { return e.Kind == "cancelled" && e.Reason == "unknown" }

func before(b *Block, e *Event) bool {
	return b.From < e.LedgerTime || b.From == e.LedgerTime && e.Kind != "waiting"
}

func (t *teller) step(e *Event) {
	l := t.l
	switch {
	case e == l.Waiting:
		t.say(e, "It arrived%s.", t.asked(e))
		t.met(e)
	case e == l.Granted && l.Waiting == nil && e.Wait.AsDuration() == 0:
		t.say(e, "It arrived%s and was admitted at once: %s of %s tokens were reserved then, its own included.",
			t.asked(e), words.Number(e.ReservedAfter), words.Number(e.CeilingAfter))
	case e == l.Granted:
		t.say(e, "It was admitted after %s in the queue%s; lease %s.", words.Duration(e.Wait.AsDuration()), t.freed(), quote(e.LeaseId))
	case e.Kind == "leader":
		t.say(e, "%s became leader (term %d); the call that waited was cut off, the ticket kept its place.", quote(e.Detail), e.Epoch)
	default:
		t.other(e)
	}
}

// other words what happens to a ticket after it arrived and beside its grant.
func (t *teller) other(e *Event) {
	switch e.Kind {
	case "bypassed":
		t.bypassed(e)
	case "attached":
		t.attached(e)
	case "detached":
		t.say(e, "Its call went away without a cancel; a retry had %s to come back.", words.Duration(time.Duration(e.Deadline-e.LedgerTime)))
	case "renewed":
		t.say(e, "Its lease was renewed for %s.", words.Duration(time.Duration(e.Deadline-e.LedgerTime)))
	case "released":
		t.say(e, "It released %s tokens%s%s.", words.Number(e.Tokens), t.after(), usage(e))
	case "lease_expired":
		t.say(e, "Its lease ran out%s, neither released nor renewed: %s tokens were taken back.", t.after(), words.Number(e.Tokens))
	case "unclaimed":
		t.say(e, "Nobody came back for the lease: %s tokens were taken back%s.", words.Number(e.Tokens), t.after())
	case "abandoned":
		t.say(e, "Nobody came back for it in time: it was dropped from the queue as abandoned after %s.", words.Duration(e.Wait.AsDuration()))
	case "cancelled":
		t.cancelled(e)
	case "holder_expired":
		t.holderExpired(e)
	case "abort_sent":
		t.say(e, "The engines were asked to abort it, because its session was closing.")
	case "abort_refused":
		t.say(e, "Its abort was not taken by %s (%s); kvgate asks again.", strings.Join(e.Engines, ", "), e.Reason)
	case "ticket_forgotten":
		t.say(e, "It was let go without a lease and nobody reported its end: it counts as over.")
	case "pool_deleted":
		t.say(e, "The pool was deleted.")
	}
}

// asked says what the ticket wanted.
func (t *teller) asked(e *Event) string {
	l := t.l
	var b strings.Builder
	fmt.Fprintf(&b, " and asked for %s tokens", words.Number(l.Tokens))
	a := e.Arrival
	if a != nil && a.ReservationTokens == 0 {
		charged := l.Tokens - a.PromptTokens
		fmt.Fprintf(&b, " (%s prompt, %s completion", words.Number(a.PromptTokens), words.Number(charged))
		if charged < a.MaxNewTokens {
			fmt.Fprintf(&b, " expected of at most %s", words.Number(a.MaxNewTokens))
		}
		b.WriteByte(')')
	}
	var who []string
	for _, w := range [][2]string{{"holder", l.Holder}, {"session", l.Session}, {"group", l.Group}} {
		if w[1] != "" {
			who = append(who, w[0]+" "+quote(w[1]))
		}
	}
	if l.Priority != 0 {
		who = append(who, fmt.Sprintf("priority %d", l.Priority))
	}
	if len(who) > 0 {
		b.WriteString(", " + strings.Join(who, ", "))
	}
	return b.String()
}

// met says why it could not go at once, who was ahead, and who held the tokens.
func (t *teller) met(e *Event) {
	patience := words.Duration(time.Duration(e.Deadline - e.LedgerTime))
	m := t.l.Met
	if m == nil {
		t.say(e, "It had to wait (%s), for at most %s.", e.Reason, patience)
		return
	}
	why := ""
	switch e.Reason {
	case olderWaiter:
		var sum int64
		for _, s := range m.Ahead {
			sum += s.Tokens
		}
		why = fmt.Sprintf("%s ahead of it in the queue, asking for %s tokens: %s", were(len(m.Ahead), "ticket"), words.Number(sum), t.shares(m.Ahead))
	case pressureGuard:
		why = fmt.Sprintf("the engines' pressure of %s was at or above the threshold %s", words.Percent(m.Pressure), words.Percent(m.Threshold))
	default:
		why = fmt.Sprintf("it needed %s tokens and %s of %s were free", words.Number(t.l.Tokens), words.Number(max(0, m.Ceiling-m.Reserved)), words.Number(m.Ceiling))
	}
	t.say(e, "It had to wait (%s), for at most %s: %s.", e.Reason, patience, why)
	if m.Leases > 0 {
		t.say(e, "%s tokens were held by %s%s.", words.Number(m.Reserved), words.Count(m.Leases, "lease", "leases"), t.holders(m, e.LedgerTime))
	}
}

func were(n int, what string) string {
	if n == 1 {
		return "1 " + what + " was"
	}
	return words.Number(n) + " " + what + "s were"
}

func (t *teller) shares(all []Share) string {
	parts := make([]string, 0, maxShares+1)
	for _, s := range all[:min(len(all), maxShares)] {
		parts = append(parts, quote(s.Ticket)+" ("+words.Number(s.Tokens)+")")
	}
	if more := len(all) - len(parts); more > 0 {
		parts = append(parts, words.Number(more)+" more")
	}
	return words.List(parts)
}

func (t *teller) holders(m *Met, now int64) string {
	parts := make([]string, 0, maxShares)
	for _, s := range m.Holders {
		text := quote(s.Ticket) + " " + words.Number(s.Tokens)
		if s.Holder != "" {
			text += " of holder " + quote(s.Holder)
		}
		parts = append(parts, text+" for "+words.Duration(time.Duration(now-s.Since))+" by then")
	}
	intro := ": "
	if m.Leases > len(parts) {
		intro = ", the largest "
	}
	return intro + words.List(parts)
}

// block words a change of what held the ticket back.
func (t *teller) block(b *Block) {
	at := &Event{LedgerTime: b.From}
	text := ""
	switch b.Reason {
	case olderWaiter:
		text = fmt.Sprintf("It was behind others again: %s ahead, asking for %s tokens.", were(b.Ahead, "ticket"), words.Number(b.AheadTokens))
	case pressureGuard:
		text = fmt.Sprintf("It was first in the queue and waited for the engines' pressure to fall (pressure_guard): %s was too high.", words.Percent(b.Pressure))
	default:
		text = fmt.Sprintf("It was first in the queue and waited for tokens (capacity_exhausted): %s of %s were reserved, %s too many for it.",
			words.Number(b.Reserved), words.Number(b.Ceiling), words.Number(b.Reserved+t.l.Tokens-b.Ceiling))
	}
	t.say(at, "%s", text)
	t.out[len(t.out)-1].At = b.At
}

// freed says what made room.
func (t *teller) freed() string {
	e := t.l.Freed
	if e == nil {
		return ""
	}
	switch e.Kind {
	case "released":
		return fmt.Sprintf(", when %s released %s tokens", quote(e.TicketId), words.Number(e.Tokens))
	case "lease_expired", "unclaimed":
		return fmt.Sprintf(", when the lease of %s was taken back with %s tokens (%s)", quote(e.TicketId), words.Number(e.Tokens), e.Kind)
	case "holder_expired":
		return fmt.Sprintf(", when holder %s was given up and what it held came back (%s: %s tokens)", quote(e.HolderId), quote(e.TicketId), words.Number(e.Tokens))
	case "cancelled", "bypassed", "abandoned":
		return fmt.Sprintf(", when %s gave up its place or its lease (%s)", quote(e.TicketId), strings.TrimSuffix(e.Kind+" "+e.Reason, " "))
	case "capacity", "recovered":
		return fmt.Sprintf(", when the ceiling became %s tokens", words.Number(e.CeilingAfter))
	case "usage":
		return fmt.Sprintf(", when the engines' pressure fell to %s", words.Percent(e.GetMeasured().GetPressure()))
	case "settings":
		return ", when the settings changed: " + e.Detail
	}
	return ""
}

func (t *teller) attached(e *Event) {
	switch {
	case e.Reason != "":
		t.say(e, "A retry of the call had less patience: it would wait until %s after its arrival.", words.Duration(time.Duration(e.Deadline-t.l.First.LedgerTime)))
	case e.Grant != 0:
		t.say(e, "A retry of the call took the lease.")
	default:
		t.say(e, "A retry of the call found its place in the queue, after %s there.", words.Duration(e.Wait.AsDuration()))
	}
}

func (t *teller) bypassed(e *Event) {
	if e.Arrival != nil && t.l.Granted != nil && e != t.l.First {
		t.say(e, "A retry was let through without being asked for a lease (%s); the lease stayed.", e.Reason)
		return
	}
	if e == t.l.First {
		t.say(e, "It arrived%s and was let go at once without a lease (%s)%s.", t.asked(e), e.Reason, bypassWhy(e))
		return
	}
	t.say(e, "It was let go without a lease after %s in the queue (%s)%s.", words.Duration(e.Wait.AsDuration()), e.Reason, bypassWhy(e))
}

func bypassWhy(e *Event) string {
	switch e.Reason {
	case "aged":
		return fmt.Sprintf(": its patience was over while %s of %s tokens were reserved", words.Number(e.ReservedAfter), words.Number(e.CeilingAfter))
	case "degraded":
		return ": no usable capacity was known"
	case "oversized":
		return fmt.Sprintf(": it could never fit below the ceiling of %s tokens", words.Number(e.CeilingAfter))
	case "disabled":
		return ": admission was switched off"
	case "out_of_scope":
		return ": the pool does not admit this mode"
	case "session_closing":
		return ": its session was closing"
	}
	return ""
}

func (t *teller) cancelled(e *Event) {
	if e.Grant != 0 {
		t.say(e, "It was cancelled while it held the lease%s: %s tokens came back.", t.after(), words.Number(e.Tokens))
		return
	}
	if marked(e) {
		t.say(e, "It was cancelled before it arrived; an arrival within the lease TTL is let go without a lease.")
		return
	}
	t.say(e, "It was cancelled after %s in the queue.", words.Duration(e.Wait.AsDuration()))
}

func (t *teller) holderExpired(e *Event) {
	if e.Grant != 0 {
		t.say(e, "Its holder %s went silent and was given up%s: %s tokens were taken back.", quote(e.HolderId), t.after(), words.Number(e.Tokens))
		return
	}
	t.say(e, "Its holder %s went silent and was given up: it left the queue after %s.", quote(e.HolderId), words.Duration(e.Wait.AsDuration()))
}

// after says how long the lease was held.
func (t *teller) after() string {
	d, ok := t.l.Held(t.now)
	if !ok {
		return ""
	}
	return " after " + words.Duration(d)
}

func usage(e *Event) string {
	if e.Reason == "" && e.Detail == "" {
		return ""
	}
	return " (" + strings.TrimSpace(e.Reason+" "+e.Detail) + ")"
}

// sum says how long each part of the life took.
func (t *teller) sum() string {
	l := t.l
	waited := l.Waited(t.now)
	parts := []string{}
	switch {
	case l.Waiting == nil && waited == 0:
		parts = append(parts, "It did not wait")
	case l.Granted == nil && l.Ended == nil:
		parts = append(parts, "It still waits, for "+words.Duration(waited)+" so far"+t.split())
	default:
		parts = append(parts, "It waited "+words.Duration(waited)+t.split())
	}
	if held, ok := t.l.Held(t.now); ok && l.Ended == nil {
		parts = append(parts, "holds "+words.Number(l.Tokens)+" tokens, for "+words.Duration(held)+" so far")
	} else if ok {
		parts = append(parts, "held "+words.Number(l.Tokens)+" tokens for "+words.Duration(held))
	} else if l.Ended != nil && l.Ended.Grant == 0 {
		parts = append(parts, "got no lease")
	}
	return strings.Join(parts, ", ") + "."
}

var blockNames = []struct{ reason, words string }{
	{olderWaiter, "behind others"}, {capacityExhausted, "for tokens"}, {pressureGuard, "for the pressure to fall"},
}

// split says how much of the wait each reason took; nothing when there was one reason only.
func (t *teller) split() string {
	if len(t.l.Blocks) < 2 {
		return ""
	}
	took := map[string]time.Duration{}
	end := t.now
	if t.l.Granted != nil {
		end = t.l.Granted.LedgerTime
	} else if t.l.Ended != nil {
		end = t.l.Ended.LedgerTime
	}
	for i := len(t.l.Blocks) - 1; i >= 0; i-- {
		b := &t.l.Blocks[i]
		took[b.Reason] += time.Duration(end - b.From)
		end = b.From
	}
	var parts []string
	for _, n := range blockNames {
		if d := took[n.reason]; d > 0 {
			parts = append(parts, words.Duration(d)+" "+n.words)
		}
	}
	return " (" + words.List(parts) + ")"
}

// quote writes an id as it is when that cannot be misread.
func quote(id string) string {
	if id != "" && !strings.ContainsFunc(id, func(r rune) bool { return r <= ' ' || strings.ContainsRune(`"(),;`, r) || r >= 0x7f }) {
		return id
	}
	return fmt.Sprintf("%q", id)
}
