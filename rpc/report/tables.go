package report

import (
	"cmp"
	"fmt"
	"math"
	"slices"
	"time"

	kvgatev1 "kvgate/rpc/kvgate/v1"
	"kvgate/rpc/story"
	"kvgate/rpc/words"
)

// waitBar is one row of the distribution of waits. Widths are in percent of the longest row.
type waitBar struct {
	Label                    string
	Admitted, LetGo, Open    int
	AdmittedWidth, LetGoX    float64
	LetGoWidth, OpenX, OpenW float64
	upTo                     time.Duration
}

// waits sorts the tickets by how long they waited.
func waits(lives []*story.Life, now int64) (bars []waitBar, percentiles []tile) {
	bars = []waitBar{
		{Label: "not at all", upTo: 1}, {Label: "below 100 ms", upTo: 100 * time.Millisecond}, {Label: "100 ms to 1 s", upTo: time.Second},
		{Label: "1 to 5 s", upTo: 5 * time.Second}, {Label: "5 to 10 s", upTo: 10 * time.Second}, {Label: "10 to 30 s", upTo: 30 * time.Second},
		{Label: "30 to 60 s", upTo: time.Minute}, {Label: "1 minute and more", upTo: math.MaxInt64},
	}
	all := make([]time.Duration, 0, len(lives))
	for _, l := range lives {
		if !l.Arrived() {
			continue // how long it waited is not known
		}
		d := l.Waited(now)
		all = append(all, d)
		b := &bars[slices.IndexFunc(bars, func(b waitBar) bool { return d < b.upTo || b.upTo == math.MaxInt64 })]
		switch {
		case l.Granted != nil:
			b.Admitted++
		case l.Ended == nil:
			b.Open++
		default:
			b.LetGo++
		}
	}
	longest := 1
	for _, b := range bars {
		longest = max(longest, b.Admitted+b.LetGo+b.Open)
	}
	for i := range bars {
		bars[i].scale(longest)
	}
	return bars, quantiles(all)
}

func (b *waitBar) scale(longest int) {
	width := func(n int) float64 { return 100 * float64(n) / float64(longest) }
	b.AdmittedWidth, b.LetGoWidth, b.OpenW = width(b.Admitted), width(b.LetGo), width(b.Open)
	b.LetGoX = b.AdmittedWidth
	b.OpenX = b.LetGoX + b.LetGoWidth
}

func quantiles(all []time.Duration) []tile {
	if len(all) == 0 {
		return nil
	}
	slices.Sort(all)
	at := func(q float64) string { return words.Duration(all[min(int(q*float64(len(all))), len(all)-1)]) }
	return []tile{{"median", at(0.5), ""}, {"p90", at(0.9), ""}, {"p99", at(0.99), ""}, {"longest", words.Duration(all[len(all)-1]), ""}}
}

// sessionSpan is what the journal tells of a session itself.
type sessionSpan struct{ opened, closing, closed time.Time }

func (f *fold) session(e *kvgatev1.JournalEvent, at time.Time) {
	if e.SessionId == "" {
		return
	}
	s := f.sessions[e.SessionId]
	if s == nil || e.Kind == "session_opened" {
		s = &sessionSpan{}
		f.sessions[e.SessionId] = s
	}
	switch e.Kind {
	case "session_opened":
		s.opened = at
	case "session_closing":
		s.closing = at
	case "session_closed":
		s.closed = at
	}
}

// lane is one session over time. Positions are in percent of the window.
type lane struct {
	Session string
	Tickets int
	Note    string
	Bars    []laneBar
	waited  time.Duration
	first   time.Time
}

type laneBar struct {
	X, Width float64
	// Kind is open, closing, wait, held or gone.
	Kind  string
	Title string
}

// maxLanes bounds how many sessions are drawn, maxBars how many bars each has.
const (
	maxLanes = 40
	maxBars  = 400
)

// lanes draws the sessions that waited longest, in the order of their first tickets.
func lanes(lives []*story.Life, spans map[string]*sessionSpan, from, until time.Time, now int64) (out []lane, more int) {
	byName := map[string]*lane{}
	place := scale{from, until}
	for _, l := range lives {
		if l.Session == "" {
			continue
		}
		x := byName[l.Session]
		if x == nil {
			x = &lane{Session: l.Session, first: l.First.WallTime.AsTime()}
			if s := spans[l.Session]; s != nil {
				x.Bars = place.session(s)
			}
			byName[l.Session] = x
		}
		x.Tickets++
		x.waited += l.Waited(now)
		if len(x.Bars) < maxBars {
			x.Bars = append(x.Bars, place.life(l, now)...)
		}
	}
	for _, x := range byName {
		x.Note = words.Count(x.Tickets, "ticket", "tickets") + ", waited " + words.Duration(x.waited)
		out = append(out, *x)
	}
	slices.SortFunc(out, func(a, b lane) int { return cmp.Or(cmp.Compare(b.waited, a.waited), cmp.Compare(a.Session, b.Session)) })
	more = max(0, len(out)-maxLanes)
	out = out[:len(out)-more]
	slices.SortFunc(out, func(a, b lane) int { return cmp.Or(a.first.Compare(b.first), cmp.Compare(a.Session, b.Session)) })
	return out, more
}

// scale places times in the window.
type scale struct{ from, until time.Time }

func (s scale) at(t time.Time) float64 {
	x := 100 * float64(t.Sub(s.from)) / float64(s.until.Sub(s.from))
	return math.Round(1000*min(max(x, 0), 100)) / 1000
}

// bar returns a bar that can be seen however short it is.
func (s scale) bar(kind, title string, from, until time.Time) laneBar {
	x, end := s.at(from), s.at(until)
	return laneBar{X: x, Width: math.Round(1000*max(end-x, 0.15)) / 1000, Kind: kind, Title: title}
}

func (s scale) session(x *sessionSpan) (out []laneBar) {
	end := s.until
	if !x.closed.IsZero() {
		end = x.closed
	}
	if !x.opened.IsZero() {
		out = append(out, s.bar("open", "open", x.opened, end))
	}
	if !x.closing.IsZero() {
		out = append(out, s.bar("closing", "closing for "+words.Duration(end.Sub(x.closing)), x.closing, end))
	}
	return out
}

func (s scale) life(l *story.Life, now int64) (out []laneBar) {
	decided := l.DecidedAt()
	if decided.IsZero() {
		decided = s.until
	}
	if from := l.WaitFrom(); !from.IsZero() {
		out = append(out, s.bar("wait", fmt.Sprintf("%s waited %s", l.Ticket, words.Duration(l.Waited(now))), from, decided))
	}
	held, ok := l.Held(now)
	switch {
	case ok && l.Ended != nil:
		out = append(out, s.bar("held", fmt.Sprintf("%s held %s tokens for %s (%s)", l.Ticket, words.Number(l.Tokens), words.Duration(held), l.Ended.Kind), decided, l.Ended.WallTime.AsTime()))
	case ok:
		out = append(out, s.bar("held", fmt.Sprintf("%s holds %s tokens", l.Ticket, words.Number(l.Tokens)), decided, s.until))
	case l.Ended != nil && l.Ended.Grant == 0:
		out = append(out, s.bar("gone", fmt.Sprintf("%s went on without a lease (%s)", l.Ticket, ending(l)), decided, decided))
	}
	return out
}
