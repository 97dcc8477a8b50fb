package report

import (
	"cmp"
	"math"
	"slices"
	"time"

	"kvgate/rpc/story"
	"kvgate/rpc/words"
)

// place orders tickets by their first events.
type place struct {
	index uint64
	n     uint32
}

func placeOf(l *story.Life) place { return place{l.First.Index, l.First.N} }

func (p place) compare(o place) int {
	return cmp.Or(cmp.Compare(p.index, o.index), cmp.Compare(p.n, o.n))
}

// tally sums up the tickets that were there in the window, and lets go of each as soon as it is over.
type tally struct {
	pool string
	from time.Time
	// endless have no end that the journal tells; how long those waited is known once the end of the window is.
	endless []*story.Life

	tickets, lost int
	reclaimed     int64
	bars          []waitBar
	all           []time.Duration // how long each waited
	long          []longWait
	sessions      map[string]*sessionSum
}

// longWait is one of the longest waits so far.
type longWait struct {
	life   *story.Life
	waited time.Duration
}

// sessionSum is what the tickets of a session sum up to.
type sessionSum struct {
	name    string
	tickets int
	waited  time.Duration
	first   place
	began   time.Time
}

func newTally(pool string, from time.Time) *tally {
	return &tally{pool: pool, from: from, sessions: map[string]*sessionSum{}, bars: []waitBar{
		{Label: "not at all", upTo: 1}, {Label: "below 100 ms", upTo: 100 * time.Millisecond}, {Label: "100 ms to 1 s", upTo: time.Second},
		{Label: "1 to 5 s", upTo: 5 * time.Second}, {Label: "5 to 10 s", upTo: 10 * time.Second}, {Label: "10 to 30 s", upTo: 30 * time.Second},
		{Label: "30 to 60 s", upTo: time.Minute}, {Label: "1 minute and more", upTo: math.MaxInt64},
	}}
}

// over takes a ticket that is over.
func (t *tally) over(l *story.Life) {
	switch {
	case l.Ended == nil:
		t.open(l)
	case l.Pool == t.pool && !l.Ended.WallTime.AsTime().Before(t.from):
		t.add(l, 0)
	}
}

// open takes a ticket whose end is not told.
func (t *tally) open(l *story.Life) {
	if l.Pool == t.pool {
		t.endless = append(t.endless, l)
	}
}

// finish takes in the tickets without an end, at the ledger time at which the window ends.
func (t *tally) finish(now int64) {
	for _, l := range t.endless {
		t.add(l, now)
	}
	t.endless = nil
}

func (t *tally) add(l *story.Life, now int64) {
	t.tickets++
	waited := l.Waited(now)
	if e := l.Ended; e != nil && e.Grant != 0 && (e.Kind == "holder_expired" || e.Kind == "lease_expired" || e.Kind == "unclaimed") {
		t.lost++
		t.reclaimed += e.Tokens
	}
	if l.Arrived() { // else how long it waited is not known
		t.wait(l, waited)
	}
	if waited > 0 {
		t.worst(longWait{l, waited})
	}
	if l.Session != "" {
		t.session(l, waited)
	}
}

// wait counts a ticket among those that waited about as long.
func (t *tally) wait(l *story.Life, d time.Duration) {
	t.all = append(t.all, d)
	b := &t.bars[slices.IndexFunc(t.bars, func(b waitBar) bool { return d < b.upTo || b.upTo == math.MaxInt64 })]
	switch {
	case l.Granted != nil:
		b.Admitted++
	case l.Ended == nil:
		b.Open++
	default:
		b.LetGo++
	}
}

// worst keeps the longest waits; of two that are as long, the one that came first.
func (t *tally) worst(w longWait) {
	order := func(a, b longWait) int {
		return cmp.Or(cmp.Compare(b.waited, a.waited), placeOf(a.life).compare(placeOf(b.life)))
	}
	at, _ := slices.BinarySearchFunc(t.long, w, order)
	if at >= worstCount {
		return
	}
	t.long = slices.Insert(t.long, at, w)
	t.long = t.long[:min(len(t.long), worstCount)]
}

func (t *tally) session(l *story.Life, waited time.Duration) {
	s := t.sessions[l.Session]
	if s == nil {
		s = &sessionSum{name: l.Session, first: place{math.MaxUint64, math.MaxUint32}}
		t.sessions[l.Session] = s
	}
	s.tickets++
	s.waited += waited
	if at := placeOf(l); at.compare(s.first) <= 0 {
		s.first, s.began = at, l.First.WallTime.AsTime()
	}
}

// waits returns the distribution of waits.
func (t *tally) waits() (bars []waitBar, percentiles []tile) {
	longest := 1
	for _, b := range t.bars {
		longest = max(longest, b.Admitted+b.LetGo+b.Open)
	}
	for i := range t.bars {
		t.bars[i].scale(longest)
	}
	return t.bars, quantiles(t.all)
}

// drawn returns the sessions that waited longest, in the order of their first tickets, and how many more there are.
func (t *tally) drawn() (out []*sessionSum, more int) {
	for _, s := range t.sessions {
		out = append(out, s)
	}
	slices.SortFunc(out, func(a, b *sessionSum) int {
		return cmp.Or(cmp.Compare(b.waited, a.waited), cmp.Compare(a.name, b.name))
	})
	more = max(0, len(out)-maxLanes)
	out = out[:len(out)-more]
	slices.SortFunc(out, func(a, b *sessionSum) int { return cmp.Or(a.began.Compare(b.began), cmp.Compare(a.name, b.name)) })
	return out, more
}

func (s *sessionSum) note() string {
	return words.Count(s.tickets, "ticket", "tickets") + ", waited " + words.Duration(s.waited)
}
