package sessions

import (
	"slices"
	"strings"
)

// EnginesChanged takes in what a successful discovery lists, healthy or not. An engine that is absent,
// or has another incarnation, has left: it owes nothing any more, and bindings and pins on it are gone.
// An engine that is merely unhealthy must be listed. The work is bounded by the engines when the set
// did not change, else by the pool's sessions.
func (t *Table) EnginesChanged(pool string, listed []Engine) {
	p := t.pools[pool]
	if p == nil && len(listed) == 0 {
		return
	}
	p = t.at(pool)
	engines, knew := tidy(listed), p.known()
	gone := departed(p.Engines, engines)
	if slices.Equal(engines, p.Engines) && knew {
		return
	}
	p.Engines, p.ListedNone = engines, len(engines) == 0
	t.touch(p)
	if !knew {
		t.enginesFound(p)
	}
	if len(gone) == 0 {
		return
	}
	for s := range p.sessions.all() {
		t.enginesLeft(s, gone)
	}
	for _, x := range p.pins.list() {
		t.pinLeft(x, gone)
	}
}

// known reports whether a discovery ever succeeded.
func (p *pool) known() bool { return len(p.Engines) > 0 || p.ListedNone }

// enginesFound has the closes that waited for it owed by the engines that now are known.
func (t *Table) enginesFound(p *pool) {
	for s := range p.sessions.all() {
		if s.awaitsEngines() {
			s.Close.PhaseUntil = t.now.Add(s.Close.CloseDeadline)
			t.owe(s, s.creditors())
		}
	}
}

// tidy folds ranks, and sorts.
func tidy(listed []Engine) []Engine {
	out := make([]Engine, 0, len(listed))
	for _, e := range listed {
		if url := EngineURL(e.URL); url != "" {
			out = append(out, Engine{URL: url, Incarnation: e.Incarnation})
		}
	}
	slices.SortStableFunc(out, func(a, b Engine) int { return strings.Compare(a.URL, b.URL) })
	return slices.CompactFunc(out, func(a, b Engine) bool { return a.URL == b.URL })
}

// departed returns the engines of before that are not in now, or are in another incarnation. An
// incarnation that is not known is taken to be the other one, also in now.
func departed(before, now []Engine) []string {
	var gone []string
	for _, b := range before {
		i, found := slices.BinarySearchFunc(now, b.URL, func(e Engine, url string) int { return strings.Compare(e.URL, url) })
		switch {
		case !found:
			gone = append(gone, b.URL)
		case now[i].Incarnation == "":
			now[i].Incarnation = b.Incarnation
		case b.Incarnation != "" && now[i].Incarnation != b.Incarnation:
			gone = append(gone, b.URL)
		}
	}
	return gone
}

func among(sorted []string, s string) bool {
	_, found := slices.BinarySearch(sorted, s)
	return found
}

func (t *Table) enginesLeft(s *session, gone []string) {
	for _, engine := range gone {
		if rest := removeString(s.Served, engine); len(rest) != len(s.Served) {
			s.Served = rest
			t.touch(s)
		}
	}
	if s.Engine != "" && !s.EngineLost && among(gone, s.Engine) {
		s.EngineLost = true
		t.touch(s)
	}
	if s.Binding != nil && among(gone, s.Binding.Engine) {
		t.unbind(s, "engine left")
	}
	if paid := t.pay(s, gone); len(paid) > 0 {
		s.settle(0, 0, len(paid))
		t.touch(s.pool)
		t.emit(s.pool, s, Event{Kind: CloseVoided, Engines: paid, Reason: "engine left"})
		if s.debts() == 0 {
			t.finish(s)
		}
	}
}

// Engines returns what the last successful discovery of a pool listed, sorted by URL. The slice must not
// be changed.
func (t *Table) Engines(pool string) []Engine {
	if p := t.pools[pool]; p != nil {
		return p.Engines
	}
	return nil
}
