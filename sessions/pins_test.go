package sessions

import (
	"errors"
	"testing"
	"time"
)

func TestParsePinTTL(t *testing.T) {
	const s = time.Second
	for text, want := range map[string]time.Duration{
		"600": 600 * s, "5m": 300 * s, "1h": 3600 * s, "20m": 1200 * s,
		"1": 300 * s, "0": 300 * s, "299": 300 * s, "301": 301 * s, "3600": 3600 * s, "3601": 3600 * s, "61m": 3600 * s, "9h": 3600 * s,
		"": 300 * s, "m": 300 * s, "h": 300 * s, "-600": 300 * s, "+600": 300 * s, " 600": 300 * s, "600s": 300 * s,
		"1.5h": 300 * s, "10d": 300 * s, "5M": 300 * s, "1h30m": 300 * s, "٣٠٠": 300 * s,
		"99999999999999999999": 3600 * s, "99999999999999999999h": 3600 * s,
	} {
		equal(t, text, ParsePinTTL(text), want)
	}
}

func TestPinsExpireOnTimeAndRepinningNeverShortens(t *testing.T) {
	w := newWorld(t)
	pin := func(tokens int64, ttl time.Duration) PinView {
		return must(w.Pin(PinRequest{Pool: "p", ID: "x", Tokens: tokens, TTL: ttl}, rules))(t)
	}
	equal(t, "clamped", pin(100, 5*time.Hour).ExpiresIn, time.Hour)
	w.at(3000)
	equal(t, "later expiry kept", pin(200, 300*time.Second).ExpiresIn, 600*time.Second)
	equal(t, "pinned", w.Pinned("p"), int64(200))
	equal(t, "prolonged", pin(500, 700*time.Second).ExpiresIn, 700*time.Second)
	w.at(3699)
	equal(t, "pinned", w.Pinned("p"), int64(500))
	w.at(3700)
	equal(t, "pinned", w.Pinned("p"), int64(0))
	equal(t, "unpin", w.Unpin("p", "x"), false)
}

func TestPinBudgetIsAShareOfTheCeiling(t *testing.T) {
	w := newWorld(t)
	must(w.Pin(PinRequest{Pool: "p", ID: "a", Tokens: 400}, rules))(t)
	if _, err := w.Pin(PinRequest{Pool: "p", ID: "b", Tokens: 101}, rules); !errors.Is(err, ErrPinBudget) {
		t.Fatal(err)
	}
	must(w.Pin(PinRequest{Pool: "p", ID: "b", Tokens: 100}, rules))(t)
	must(w.Pin(PinRequest{Pool: "p", ID: "a", Tokens: 300}, rules))(t)
	equal(t, "pinned", w.Pinned("p"), int64(400))
	equal(t, "unpin", w.Unpin("p", "a"), true)
	equal(t, "pinned", w.Pinned("p"), int64(100))
}

func TestClosingDropsItsPins(t *testing.T) {
	w := newWorld(t)
	must(w.Open(OpenRequest{Pool: "p", ID: "s"}))(t)
	must(w.Pin(PinRequest{Pool: "p", ID: "a", Session: "s", Tokens: 10}, rules))(t)
	must(w.Pin(PinRequest{Pool: "p", ID: "b", Session: "s", Tokens: 20}, rules))(t)
	must(w.Pin(PinRequest{Pool: "p", ID: "c", Tokens: 30}, rules))(t)
	page, more := w.Pins("p", "s", "", 1)
	equal(t, "page", page[0].ID, "a")
	equal(t, "more", more, true)
	equal(t, "in the session's view", len(w.get("s").Pins), 2)
	w.close("s", Join)
	page, _ = w.Pins("p", "", "", 10)
	equal(t, "left", len(page), 1)
	equal(t, "pinned", w.Pinned("p"), int64(30))
}

func TestPinsSayWhichEngineHoldsThem(t *testing.T) {
	w := newWorld(t)
	v := must(w.Pin(PinRequest{Pool: "p", ID: "a", Tokens: 10}, rules))(t)
	equal(t, "before any report", v.LedgerOnly, true)
	must(w.ReportPin("p", "a", e1+"@0", true))(t)
	v = must(w.ReportPin("p", "a", e2, false))(t)
	equal(t, "held", v.Held, []string{e2})
	equal(t, "refused", v.Refused, []string{e1})
	equal(t, "ledger only", v.LedgerOnly, false)
	w.EnginesChanged("p", []Engine{{e1, "i1"}})
	page, _ := w.Pins("p", "", "", 10)
	equal(t, "ledger only once its engine left", page[0].LedgerOnly, true)
}

func TestPinOnAnEngineGoesWithIt(t *testing.T) {
	w := newWorld(t)
	must(w.Pin(PinRequest{Pool: "p", ID: "a", Tokens: 10, Engine: e2}, rules))(t)
	w.EnginesChanged("p", []Engine{{e1, "i1"}, {e2, "restarted"}})
	equal(t, "pinned", w.Pinned("p"), int64(0))
}
