package scrape

import (
	"context"
	"fmt"
	"log/slog"
	"math"
	"slices"
	"strings"
	"time"

	"kvgate/ledger"
)

// usageSteps is how finely two rounds' usages are compared, per unit.
const usageSteps = 1e4

// sameRound reports whether b tells nothing that a did not, Repeats aside.
func sameRound(a, b *ledger.Round) bool {
	return a.Fresh == b.Fresh && a.Degrade == b.Degrade && a.Reason == b.Reason && a.Discovery == b.Discovery &&
		slices.EqualFunc(a.Engines, b.Engines, func(x, y ledger.Engine) bool { return coarse(x) == coarse(y) })
}

func coarse(e ledger.Engine) ledger.Engine {
	e.Usage = math.Round(e.Usage*usageSteps) / usageSteps
	e.Pressure = math.Round(e.Pressure*usageSteps) / usageSteps
	e.EvictionRate = math.Round(e.EvictionRate)
	return e
}

// sameErrors reports whether two rounds say the same of each engine's trouble.
func sameErrors(a, b []ledger.Engine) bool {
	return slices.EqualFunc(a, b, func(x, y ledger.Engine) bool { return x.URL == y.URL && x.Error == y.Error })
}

// compose writes down what this round saw.
func (p *Poller) compose(now time.Time) ledger.Round {
	r := ledger.Round{Discovery: p.listSource}
	for _, t := range p.engines {
		if t.present {
			r.Engines = append(r.Engines, t.engine(p.set.PollTimeout, now))
		}
	}
	slices.SortFunc(r.Engines, func(a, b ledger.Engine) int { return strings.Compare(a.URL, b.URL) })
	switch {
	case p.empty >= emptyRounds:
		r.Fresh, r.Degrade, r.Reason, r.Engines = true, true, p.emptyWhy, nil
	case !p.fallback && p.listTooOld(now):
		r.Degrade, r.Reason = true, p.silence()
	default:
		p.judge(&r, now)
	}
	return r
}

// judge decides what a round whose list counts is worth. It is a snapshot only with news of an engine that
// can be used, or when the router itself says that none can: one poll in which every scrape failed, however
// it failed, must not flush the queue. When that lasts for longer than the staleness bound, the engines are
// given up. A pool that has no healthy engine to lose is told at once what is wrong with those it has.
func (p *Poller) judge(r *ledger.Round, now time.Time) {
	r.Fresh = p.usable() || p.routerSaid && p.allCalledUnhealthy()
	if r.Fresh || p.newsAt.IsZero() {
		p.newsAt = now
	}
	if r.Fresh {
		return
	}
	r.Reason = p.nothing(len(r.Engines))
	lost := now.Sub(p.newsAt) > p.set.Staleness
	r.Degrade = (lost || !p.held) && p.settled > 0 && len(r.Engines) > 0
}

// usable: an engine that the router does not call unhealthy gave a sample in this round.
func (p *Poller) usable() bool {
	for _, t := range p.engines {
		if t.present && t.news && !t.listed.Unhealthy {
			return true
		}
	}
	return false
}

// allCalledUnhealthy: the router lists engines and means none of them to be used.
func (p *Poller) allCalledUnhealthy() bool {
	some := false
	for _, t := range p.engines {
		if t.present && !t.listed.Unhealthy {
			return false
		}
		some = some || t.present
	}
	return some
}

func anyHealthy(engines []ledger.Engine) bool {
	return slices.ContainsFunc(engines, func(e ledger.Engine) bool { return e.Healthy })
}

func (p *Poller) silence() string {
	why := "no answer yet"
	switch {
	case p.listErr != nil:
		why = p.listErr.Error()
	case p.empty > 0:
		why = p.emptyWhy
	}
	return clip(fmt.Sprintf("the router's list is older than %s: %s", p.set.Staleness, why))
}

func (p *Poller) nothing(engines int) string {
	switch {
	case p.listErr != nil:
		return clip("neither the router nor an engine gave an answer that can be used: " + p.listErr.Error())
	case p.empty > 0 && engines == 0:
		return p.emptyWhy + ", for the first time"
	case engines == 0:
		return "no engines known yet"
	}
	return "no engine gave its figures"
}

// propose hands a round over unless it says nothing new.
func (p *Poller) propose(ctx context.Context, r ledger.Round, now time.Time) error {
	if !p.worth(&r, now) {
		if r.Fresh {
			p.repeats++
		}
		p.count(func(s *Status) { s.Suppressed++ })
		return nil
	}
	if r.Fresh {
		r.Repeats = p.repeats
	}
	proposing, cancel := context.WithTimeout(ctx, p.set.PollInterval)
	defer cancel()
	err := p.proposer.Reconcile(proposing, p.pool, r)
	p.noteProposal(err)
	if err != nil {
		// Nobody knows whether it was applied: the next round is proposed whatever it says.
		p.last = nil
		p.held = p.held || anyHealthy(r.Engines)
		return fmt.Errorf("propose round: %w", err)
	}
	p.count(func(s *Status) { s.Proposed++ })
	p.told = r.Engines
	if r.Fresh || r.Degrade {
		p.held = anyHealthy(r.Engines)
	}
	p.last, p.lastAt = &r, now
	if r.Fresh {
		p.repeats = 0
	}
	return nil
}

// worth: a snapshot is worth proposing when it reads otherwise than the last proposed one, or when that
// one has aged a third of the staleness bound. A round without a usable answer only carries error texts.
func (p *Poller) worth(r *ledger.Round, now time.Time) bool {
	if !r.Fresh && !r.Degrade {
		return !sameErrors(p.told, r.Engines) && len(r.Engines) > 0
	}
	if !r.Fresh {
		return p.last == nil || !sameRound(p.last, r) // it keeps nothing from growing stale
	}
	return p.last == nil || !sameRound(p.last, r) || now.Sub(p.lastAt) >= p.set.Staleness/3
}

func (p *Poller) noteProposal(err error) {
	said := ""
	if err != nil {
		said = err.Error()
	}
	if said != p.lastSaid && err != nil {
		p.log.Warn("round was not taken", slog.Any("err", err))
	}
	p.lastSaid = said
}
