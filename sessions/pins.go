package sessions

import (
	"fmt"
	"math"
	"strconv"
	"strings"
	"time"
)

const (
	minPinTTL = 300 * time.Second
	maxPinTTL = 3600 * time.Second
	// maxPinTokens keeps sums of tokens far from overflow.
	maxPinTokens = 1_000_000_000_000
)

// ParsePinTTL reads a pin's time to live as the Dynamo documents define it: whole seconds ("600"), or
// "5m" or "1h"; anything else means 300 s. The result is clamped to [300, 3600] s.
func ParsePinTTL(s string) time.Duration {
	unit := time.Second
	digits := s
	switch {
	case strings.HasSuffix(s, "m"):
		unit, digits = time.Minute, s[:len(s)-1]
	case strings.HasSuffix(s, "h"):
		unit, digits = time.Hour, s[:len(s)-1]
	}
	if digits == "" || strings.Trim(digits, "0123456789") != "" {
		return minPinTTL
	}
	n, err := strconv.ParseInt(digits, 10, 64)
	if err != nil || n > int64(maxPinTTL/unit) {
		return maxPinTTL // more digits than an int64 holds are still a number of seconds
	}
	return max(minPinTTL, time.Duration(n)*unit)
}

// PinRequest keeps a conversation prefix from eviction for a while.
type PinRequest struct {
	Pool, ID string
	// Session that the pin goes with; empty for none.
	Session string
	Tokens  int64
	// TTL is clamped to [300, 3600] s; see ParsePinTTL.
	TTL time.Duration
	// Engine to pin on; empty for none in particular.
	Engine string
}

func (r *PinRequest) validate() error {
	switch {
	case r.ID == "":
		return fieldError("pinId", `""`, "1 to 256 bytes")
	case r.Tokens <= 0 || r.Tokens > maxPinTokens:
		return fieldError("tokens", r.Tokens, "1 to 10^12")
	}
	return nil
}

// Pin reserves tokens for a prefix. Pinning an id again takes over the new tokens, session and engine,
// and keeps the later expiry.
//
// Errors: *FieldError, ErrPinsDisabled, ErrPinBudget, ErrUnknown or ErrClosing for the session,
// ErrUnknownEngine when the pool lists engines and this is none of them.
func (t *Table) Pin(r PinRequest, rules Rules) (PinView, error) {
	if err := r.validate(); err != nil {
		return PinView{}, err
	}
	if !(rules.PinRatio > 0) {
		return PinView{}, fmt.Errorf("%w: pin_ratio of pool %q is 0", ErrPinsDisabled, r.Pool)
	}
	var s *session
	if r.Session != "" {
		var err error
		if s, err = t.mustBeOpen(r.Pool, r.Session); err != nil {
			return PinView{}, err
		}
	}
	p := t.at(r.Pool)
	if r.Engine = EngineURL(r.Engine); r.Engine != "" && len(p.Engines) > 0 && !p.lists(r.Engine) {
		return PinView{}, fmt.Errorf("%w: engine %q, pool %q", ErrUnknownEngine, r.Engine, r.Pool)
	}
	old := p.byPin[r.ID]
	if err := p.affords(old, r.Tokens, rules); err != nil {
		return PinView{}, err
	}
	return t.place(p, s, old, r).view(t.now), nil
}

// affords says whether the pin budget has room for the tokens in place of an older pin's.
func (p *pool) affords(old *pin, tokens int64, rules Rules) error {
	others := p.pinned
	if old != nil {
		others -= old.Tokens
	}
	budget := int64(math.Floor(min(rules.PinRatio, 1) * float64(max(rules.Ceiling, 0))))
	if others+tokens > budget {
		return fmt.Errorf("%w: %d tokens asked, %d of %d pinned", ErrPinBudget, tokens, others, budget)
	}
	return nil
}

func (t *Table) place(p *pool, s *session, old *pin, r PinRequest) *pin {
	row := PinRow{
		Pool: p.name, ID: r.ID, Engine: r.Engine, Tokens: r.Tokens, Since: t.now,
		Until: t.now.Add(min(max(r.TTL, minPinTTL), maxPinTTL)),
	}
	if s != nil {
		row.Session = s.Seq
	}
	if old != nil {
		row.Since, row.Until = old.Since, max(row.Until, old.Until)
		if old.Engine == r.Engine {
			row.Held, row.LedgerOnly = old.Held, old.LedgerOnly
		}
		t.dropPin(old)
	}
	row.Seq = t.nextSeq()
	x := t.addPin(p, s, row)
	t.emit(p, s, Event{Kind: Pinned, Pin: x.ID, Tokens: x.Tokens, Engines: listOf(x.Engine)})
	return x
}

func (t *Table) addPin(p *pool, s *session, row PinRow) *pin {
	x := &pin{PinRow: row, pool: p, s: s, due: due{seq: row.Seq}}
	p.byPin[x.ID] = x
	p.pins.insert(x)
	p.pinned += x.Tokens
	if s != nil {
		if s.pins == nil {
			s.pins = newOrdered(byPinID)
		}
		s.pins.insert(x)
	}
	t.arm(x, x.Until)
	t.touch(x)
	return x
}

func (t *Table) dropPin(x *pin) {
	delete(x.pool.byPin, x.ID)
	x.pool.pins.remove(x)
	x.pool.pinned -= x.Tokens
	if x.s != nil {
		x.s.pins.remove(x)
	}
	t.disarm(x)
	t.erase(x)
}

func (t *Table) unpin(x *pin, reason string) {
	t.dropPin(x)
	t.emit(x.pool, x.s, Event{Kind: Unpinned, Pin: x.ID, Tokens: x.Tokens, Engines: listOf(x.Engine), Reason: reason})
}

// Unpin drops a pin and reports whether there was one.
func (t *Table) Unpin(pool, id string) bool {
	if p := t.pools[pool]; p != nil && p.byPin[id] != nil {
		t.unpin(p.byPin[id], "asked")
		return true
	}
	return false
}

// ReportPin notes what became of a pin on an engine: held, or, where the engine knows no pins, ledger
// only. Errors: ErrUnknownPin.
func (t *Table) ReportPin(pool, id, engine string, ledgerOnly bool) (PinView, error) {
	p := t.pools[pool]
	if p == nil || p.byPin[id] == nil {
		return PinView{}, fmt.Errorf("%w: %q", ErrUnknownPin, id)
	}
	x := p.byPin[id]
	engine = EngineURL(engine)
	if len(p.Engines) > 0 && !p.lists(engine) {
		return x.view(t.now), nil
	}
	x.Held, x.LedgerOnly = removeString(x.Held, engine), removeString(x.LedgerOnly, engine)
	if ledgerOnly {
		x.LedgerOnly = insertString(x.LedgerOnly, engine)
	} else {
		x.Held = insertString(x.Held, engine)
	}
	t.touch(x)
	return x.view(t.now), nil
}

// pinLeft takes engines that left out of a pin, and drops the pin when it named one of them.
func (t *Table) pinLeft(x *pin, gone []string) {
	if among(gone, x.Engine) {
		t.unpin(x, "engine left")
		return
	}
	for _, engine := range gone {
		held, only := removeString(x.Held, engine), removeString(x.LedgerOnly, engine)
		if len(held)+len(only) != len(x.Held)+len(x.LedgerOnly) {
			x.Held, x.LedgerOnly = held, only
			t.touch(x)
		}
	}
}
