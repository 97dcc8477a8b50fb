package report

import (
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
