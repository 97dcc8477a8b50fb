package report

import (
	"math"
	"slices"
	"strings"
	"time"

	kvgatev1 "kvgate/rpc/kvgate/v1"
	"kvgate/rpc/story"
	"kvgate/rpc/words"
)

// points is how many a chart has.
const points = 360

// charts is the data of all charts, as the script reads it. Times are Unix seconds; nothing known is null.
type charts struct {
	T            []float64  `json:"t"`
	Reserved     []*float64 `json:"reserved"`
	Ceiling      []*float64 `json:"ceiling"`
	Pressure     []*float64 `json:"pressure"`
	Threshold    []*float64 `json:"threshold"`
	Evictable    []*float64 `json:"evictable"`
	EvictionRate []*float64 `json:"evictionRate"`
	Waiting      []*float64 `json:"waiting"`
	Oldest       []*float64 `json:"oldest"`
	Decisions    []decision `json:"decisions"`
	Marks        []mark     `json:"marks"`
	// Offset of the zone in seconds, Step the seconds between points.
	Offset int     `json:"offset"`
	Step   float64 `json:"step"`
}

// decision is how often per second one thing was decided.
type decision struct {
	Name  string    `json:"name"`
	Rate  []float64 `json:"rate"`
	total float64
}

// mark is a vertical line, or a band when it has an end.
type mark struct {
	T     float64  `json:"t"`
	End   *float64 `json:"end"`
	Kind  string   `json:"kind"`
	Label string   `json:"label"`
}

// fold goes through the journal once and keeps what the charts and tables need.
type fold struct {
	in          Input
	known       *surveyed
	from, until time.Time
	step        time.Duration
	reader      *story.Reader
	finder      *story.Finder
	sum         *tally
	c           charts
	rates       map[string]*decision
	at          int // the point being filled
	inside      int // events in the window
	read        int // events before the end of the window
	ended       bool
	// busy integrates reserved and ceiling over wall time in the window.
	busyReserved, busyCeiling float64
	previous                  time.Time
	newest                    time.Time // wall time of the newest event
	peakReserved, peakWaiting int64
	sessions                  map[string]*sessionSpan
}

func newFold(in Input, known *surveyed, from, until time.Time) *fold {
	f := &fold{
		in: in, known: known, from: from, until: until, step: max(until.Sub(from)/points, 1),
		finder: story.NewFinder(in.Pool), sum: newTally(in.Pool, from),
		rates: map[string]*decision{}, at: -1, sessions: map[string]*sessionSpan{}, previous: from,
	}
	f.reader = &story.Reader{Settings: known.settings, Done: f.sum.over}
	_, f.c.Offset = from.In(in.Zone).Zone()
	f.c.Step = f.step.Seconds()
	return f
}

func (f *fold) run() error {
	err := f.in.Journal(func(e *kvgatev1.JournalEvent) {
		f.finder.Read(e)
		if !f.ended {
			f.take(e)
		}
	})
	f.advance(f.until.Add(-1))
	f.reader.Open(f.sum.open)
	f.sum.finish(f.reader.Now)
	return err
}

// take takes an event, unless the window is over.
func (f *fold) take(e *kvgatev1.JournalEvent) {
	at := e.WallTime.AsTime()
	if e.WallTime == nil {
		at = f.previous
	}
	if f.ended = !at.Before(f.until); f.ended {
		return
	}
	if !at.Before(f.from) {
		f.advance(at)
	}
	f.reader.Read(e)
	f.read++
	f.newest = at
	if e.Pool == f.in.Pool {
		f.session(e, at)
	}
	if !at.Before(f.from) && e.Pool == f.in.Pool {
		f.inside++
		f.count(e)
		f.sample()
	}
}

// advance fills the points up to a time with what is known by then.
func (f *fold) advance(at time.Time) {
	p := f.reader.Pool(f.in.Pool)
	if p != nil && at.After(f.previous) {
		d := at.Sub(f.previous).Seconds()
		f.busyReserved += float64(p.Reserved) * d
		f.busyCeiling += float64(p.Ceiling) * d
	}
	if at.After(f.previous) {
		f.previous = at
	}
	to := min(int(at.Sub(f.from)/f.step), points-1)
	for f.at < to {
		f.at++
		t := f.from.Add(time.Duration(f.at) * f.step)
		f.c.T = append(f.c.T, float64(t.UnixMilli())/1000)
		f.point(p, t)
	}
}

// ledgerAt returns the ledger time at a wall time after the newest event read, taking it that somebody led meanwhile.
// What was after the end of the journal is not known, so time stands still there.
func (f *fold) ledgerAt(t time.Time) int64 {
	if f.newest.IsZero() {
		return f.reader.Now
	}
	if t.After(f.known.last) {
		t = f.known.last
	}
	return f.reader.Now + max(0, int64(t.Sub(f.newest)))
}

// point appends one point to every series.
func (f *fold) point(p *story.Pool, t time.Time) {
	c := &f.c
	add := func(s *[]*float64, v float64, known bool) {
		if !known {
			*s = append(*s, nil)
			return
		}
		v = rounded(v)
		*s = append(*s, &v)
	}
	known := p != nil && p.Told
	if p == nil {
		p = &story.Pool{}
	}
	m := p.Measured
	add(&c.Reserved, float64(p.Reserved), known)
	add(&c.Ceiling, float64(p.Ceiling), known)
	add(&c.Waiting, float64(p.Waiting), known)
	add(&c.Oldest, p.OldestWait(f.ledgerAt(t)).Seconds(), known)
	add(&c.Pressure, 100*m.GetPressure(), m != nil)
	add(&c.Threshold, 100*p.Threshold, p.Threshold > 0)
	add(&c.Evictable, share(m), m.GetCapacityTokens() > 0)
	add(&c.EvictionRate, m.GetEvictionRate(), m != nil)
}

// rounded keeps three digits behind the point: more would only make the file longer.
func rounded(v float64) float64 { return math.Round(1000*v) / 1000 }

func share(m *kvgatev1.Measured) float64 {
	return 100 * float64(m.GetEvictableTokens()) / float64(max(1, m.GetCapacityTokens()))
}

// sample raises the current point to a peak between points.
func (f *fold) sample() {
	p := f.reader.Pool(f.in.Pool)
	f.peakReserved, f.peakWaiting = max(f.peakReserved, p.Reserved), max(f.peakWaiting, p.Waiting)
	raise := func(s []*float64, v float64) {
		v = rounded(v)
		if at := &s[f.at]; *at == nil || **at < v {
			*at = &v
		}
	}
	raise(f.c.Reserved, float64(p.Reserved))
	raise(f.c.Waiting, float64(p.Waiting))
	if p.Measured != nil {
		raise(f.c.Pressure, 100*p.Measured.Pressure)
		raise(f.c.EvictionRate, p.Measured.EvictionRate)
	}
	ceiling := float64(p.Ceiling)
	f.c.Ceiling[f.at] = &ceiling
}

// count counts a decision.
func (f *fold) count(e *kvgatev1.JournalEvent) {
	name := ""
	switch e.Kind {
	case "admitted":
		name = "admitted at once"
		if e.Arrival == nil || e.Wait.AsDuration() > 0 {
			name = "admitted after waiting"
		}
	case "waiting":
		name = "queued: " + e.Reason
	case "bypassed", "abandoned":
		name = "let go: " + e.Reason
	default:
		return
	}
	d := f.rates[name]
	if d == nil {
		d = &decision{Name: name, Rate: make([]float64, points)}
		f.rates[name] = d
	}
	// In a short window a point is shorter than a second; a rate over less than that is noise.
	bin := max(1, int(math.Ceil(1/f.c.Step)))
	first := f.at / bin * bin
	last := min(first+bin, points)
	for i := first; i < last; i++ {
		d.Rate[i] += 1 / (f.c.Step * float64(last-first))
	}
	d.total++
}

func (f *fold) charts() charts {
	for _, d := range f.rates {
		for i := range d.Rate {
			d.Rate[i] = rounded(d.Rate[i])
		}
		f.c.Decisions = append(f.c.Decisions, *d)
	}
	slices.SortFunc(f.c.Decisions, func(a, b decision) int { return strings.Compare(a.Name, b.Name) })
	return f.c
}

func (f *fold) tiles() []tile {
	var admitted, waited, letGo float64
	for _, d := range f.c.Decisions {
		switch {
		case strings.HasPrefix(d.Name, "admitted"):
			admitted += d.total
		case strings.HasPrefix(d.Name, "queued"):
			waited += d.total
		default:
			letGo += d.total
		}
	}
	used := "unknown"
	if f.busyCeiling > 0 {
		used = words.Percent(f.busyReserved / f.busyCeiling)
	}
	count := func(n float64) string { return words.Number(int64(n)) }
	return []tile{
		{"tickets", words.Number(f.sum.tickets), "arrived or still open in the window"},
		{"admitted", count(admitted), "leases granted"},
		{"queued", count(waited), "could not go at once"},
		{"let go", count(letGo), "bypassed without a lease"},
		{"utilisation", used, "reserved ÷ ceiling, over time"},
		{"peak reserved", words.Number(f.peakReserved), "tokens"},
		{"longest queue", words.Number(f.peakWaiting), "tickets at once"},
		{"leases taken back", words.Number(f.sum.lost), words.Number(f.sum.reclaimed) + " tokens"},
	}
}

func marks(all []story.Incident) []mark {
	out := []mark{}
	for _, i := range all {
		m := mark{T: float64(i.At.UnixMilli()) / 1000, Kind: i.Kind, Label: i.Title}
		if !i.Until.IsZero() {
			end := float64(i.Until.UnixMilli()) / 1000
			m.End = &end
		}
		out = append(out, m)
	}
	return out
}
