package scrape

import (
	"context"
	"fmt"
	"log/slog"
	"time"
)

// emptyRounds is how many rounds in a row a router must list no workers before it is believed: a router
// that just restarted has none for a moment.
const emptyRounds = 2

// takeList folds in an answer of the router, or the static list.
func (p *Poller) takeList(ctx context.Context, found Discovery, err error) {
	p.noteListError(err)
	if err != nil {
		p.empty = 0
		p.fallBack(ctx)
		return
	}
	p.routerSaid = p.routerSaid || found.Source != SourceStatic
	p.noteUnsupported(found.Unsupported)
	if len(found.Engines) == 0 {
		p.empty++
		p.emptyWhy = emptyReason(found, p.set.ModelID)
		if p.empty < emptyRounds {
			return
		}
	} else {
		p.empty = 0
	}
	p.listedAt, p.fallback = time.Now(), false
	p.enlist(ctx, found)
}

// fallBack takes the static list in place of a router that never answered or has been silent for too long.
func (p *Poller) fallBack(ctx context.Context) {
	nothing := p.listErr != nil && p.listedAt.IsZero() && len(p.engines) == 0
	if len(p.set.EngineURLs) > 0 && (nothing || p.listTooOld(time.Now())) {
		p.fallback = true
		p.enlist(ctx, Static(p.set.EngineURLs))
	}
}

func emptyReason(d Discovery, model string) string {
	switch {
	case len(d.Unsupported) > 0:
		return fmt.Sprintf("%s lists no workers that can be scraped over HTTP", d.Source)
	case d.Others > 0:
		return fmt.Sprintf("%s lists no workers of model %s", d.Source, model)
	}
	return d.Source + " lists no workers"
}

// listTooOld: the router has been silent for longer than the staleness bound.
func (p *Poller) listTooOld(now time.Time) bool {
	since := p.listedAt
	if since.IsZero() {
		since = p.started
	}
	return p.set.RouterURL != "" && now.Sub(since) > p.set.Staleness
}

// enlist makes the list the known set and scrapes who is new in it.
func (p *Poller) enlist(ctx context.Context, found Discovery) {
	if found.Source != p.listSource {
		p.log.Info("engines are listed by another source", slog.String("source", found.Source), slog.String("before", p.listSource))
		p.listSource = found.Source
	}
	listed := make(map[string]bool, len(found.Engines))
	for _, l := range found.Engines {
		listed[l.URL] = true
		t := p.engines[l.URL]
		if t == nil {
			t = &track{}
			p.engines[l.URL] = t
		}
		if !t.present {
			p.log.Info("engine joined", slog.String("engine", l.URL))
		}
		t.listed, t.present = l, true
	}
	for url, t := range p.engines {
		if !listed[url] {
			p.drop(url, t)
		}
	}
	p.launchAll(ctx)
}

// drop forgets an engine. While a scrape of it is out the entry stays: should the engine come back
// meanwhile, it must not be scraped twice at once.
func (p *Poller) drop(url string, t *track) {
	if t.present {
		p.log.Info("engine left", slog.String("engine", url))
	}
	if t.inFlight {
		t.present = false
	} else {
		delete(p.engines, url)
	}
}

func (p *Poller) noteListError(err error) {
	if (err == nil) != (p.listErr == nil) || err != nil && err.Error() != p.listErr.Error() {
		if err != nil {
			p.log.Warn("router gives no list of engines", slog.String("router", p.set.RouterURL), slog.Any("err", err))
		} else {
			p.log.Info("router lists engines again", slog.String("router", p.set.RouterURL))
		}
	}
	p.listErr = err
}

func (p *Poller) noteUnsupported(urls []string) {
	for _, u := range urls {
		if !p.unsupported[u] && len(p.unsupported) < MaxWorkers {
			p.unsupported[u] = true
			p.log.Warn("worker cannot be scraped: only http and https are supported", slog.String("worker", u))
		}
	}
}
