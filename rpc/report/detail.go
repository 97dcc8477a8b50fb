package report

import (
	"slices"

	kvgatev1 "kvgate/rpc/kvgate/v1"
	"kvgate/rpc/story"
)

// detail goes through the journal once more for what the report shows of single tickets: the longest waits step by
// step, to the end of the journal, and what the sessions that are drawn did in the window.
type detail struct {
	f         *fold
	drawn     []*sessionSum
	moreLanes int
	byPlace   map[place]*story.Life // of the longest waits
	bars      map[string]*laneBars  // of the sessions that are drawn
	waits     story.Reader
	window    story.Reader
	endless   []*story.Life
}

func newDetail(f *fold) *detail {
	d := &detail{f: f, byPlace: map[place]*story.Life{}, bars: map[string]*laneBars{}}
	d.drawn, d.moreLanes = f.sum.drawn()
	for _, s := range d.drawn {
		d.bars[s.name] = &laneBars{}
	}
	tickets := map[string]bool{}
	for _, w := range f.sum.long {
		tickets[w.life.Ticket] = true
		d.byPlace[placeOf(w.life)] = w.life
	}
	d.waits = story.Reader{
		Watch:    func(pool, ticket string) bool { return pool == f.in.Pool && tickets[ticket] },
		Settings: f.known.settings, Done: d.followed,
	}
	d.window = story.Reader{Done: d.over}
	return d
}

func (d *detail) run() error {
	if len(d.drawn) == 0 && len(d.byPlace) == 0 {
		return nil
	}
	read := 0
	err := d.f.in.Journal(func(e *kvgatev1.JournalEvent) {
		d.waits.Read(e)
		if read++; read <= d.f.read {
			d.window.Read(e)
		}
	})
	d.waits.Open(d.followed)
	d.window.Open(d.over)
	for _, l := range d.endless {
		d.bar(l, d.f.reader.Now)
	}
	return err
}

// followed takes a ticket that was watched.
func (d *detail) followed(l *story.Life) {
	if at := placeOf(l); l.Pool == d.f.in.Pool && d.byPlace[at] != nil {
		d.byPlace[at] = l
	}
}

// over takes a ticket of the window.
func (d *detail) over(l *story.Life) {
	switch {
	case l.Pool != d.f.in.Pool || d.bars[l.Session] == nil:
	case l.Ended == nil:
		d.endless = append(d.endless, l)
	case !l.Ended.WallTime.AsTime().Before(d.f.from):
		d.bar(l, 0)
	}
}

func (d *detail) bar(l *story.Life, now int64) {
	place := scale{d.f.from, d.f.until}
	d.bars[l.Session].add(placeOf(l), place.life(l, now))
}

// worst words the longest waits.
func (d *detail) worst() []worst {
	out := make([]worst, 0, len(d.f.sum.long))
	now := d.f.reader.Now
	for _, w := range d.f.sum.long {
		l := d.byPlace[placeOf(w.life)]
		out = append(out, worst{Story: story.Tell(l, now), Waited: l.Waited(now), Tokens: l.Tokens, Start: l.WaitFrom(), End: ending(l)})
	}
	return out
}

// lanes draws the sessions.
func (d *detail) lanes() (out []lane) {
	for _, s := range d.drawn {
		x := lane{Session: s.name, Tickets: s.tickets, Note: s.note()}
		if span := d.f.sessions[s.name]; span != nil {
			x.Bars = scale{d.f.from, d.f.until}.session(span)
		}
		for _, b := range d.bars[s.name].sorted() {
			if len(x.Bars) < maxBars {
				x.Bars = append(x.Bars, b.bars...)
			}
		}
		out = append(out, x)
	}
	return out
}

// laneBars are the bars of a session's tickets. Tickets come in the order of their ends and are drawn in that of their
// beginnings, so it keeps as many of the first ones as could be drawn.
type laneBars struct{ list []ticketBars }

type ticketBars struct {
	at   place
	bars []laneBar
}

func (b *laneBars) add(at place, bars []laneBar) {
	if len(bars) == 0 {
		return
	}
	b.list = append(b.list, ticketBars{at, bars})
	if len(b.list) >= 2*maxBars {
		b.trim()
	}
}

func (b *laneBars) sorted() []ticketBars {
	slices.SortFunc(b.list, func(x, y ticketBars) int { return x.at.compare(y.at) })
	return b.list
}

// trim drops the tickets that come when the lane is full already.
func (b *laneBars) trim() {
	n := 0
	for i, x := range b.sorted() {
		if n >= maxBars {
			clear(b.list[i:])
			b.list = b.list[:i]
			return
		}
		n += len(x.bars)
	}
}
