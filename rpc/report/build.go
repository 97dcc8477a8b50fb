package report

import (
	"cmp"
	"slices"
	"time"

	kvgatev1 "kvgate/rpc/kvgate/v1"
	"kvgate/rpc/story"
)

// Input is what a report is made from.
type Input struct {
	// Events are the whole journal in order, of all pools.
	Events []*kvgatev1.JournalEvent
	// Settings are what the pools' settings are now.
	Settings map[string]*kvgatev1.Settings
	Pool     string
	// From and Until bound the window in wall time; a zero end is that of the journal.
	From, Until time.Time
	// Zone is that of the times that people read.
	Zone *time.Location
	// Source says where the journal came from, Kept from where on it is kept, Made when and by what the report
	// was made.
	Source, Kept, Made string
}

// worstCount is how many waits are explained.
const worstCount = 10

// Page is a report ready to be written.
type Page struct {
	Pool, Source, Kept, Made string
	From, Until              time.Time
	Zone                     *time.Location
	Tiles                    []tile
	Incidents                []story.Incident
	// MoreIncidents were left out.
	MoreIncidents int
	Waits         []waitBar
	Percentiles   []tile
	Worst         []worst
	Lanes         []lane
	MoreLanes     int
	Charts        charts
	Empty         bool
}

// tile is one number with its name.
type tile struct{ Name, Value, Note string }

// worst is one of the longest waits, in words.
type worst struct {
	story.Story
	Waited time.Duration
	Tokens int64
	Start  time.Time
	End    string
}

// maxIncidents bounds the list at the top.
const maxIncidents = 150

// Build computes a report.
func Build(in Input) *Page {
	p := &Page{Pool: in.Pool, Source: in.Source, Kept: in.Kept, Made: in.Made, Zone: in.Zone}
	p.From, p.Until = window(in)
	f := newFold(in, p.From, p.Until)
	f.run()
	p.Empty = f.inside == 0
	p.Charts = f.charts()
	p.Incidents, p.MoreIncidents = incidents(in, p.From, p.Until)
	p.Charts.Marks = marks(p.Incidents)
	lives := f.lives()
	p.Waits, p.Percentiles = waits(lives, f.reader.Now)
	p.Tiles = f.tiles(lives)
	p.Worst = worstWaits(in, lives, f.reader.Now)
	p.Lanes, p.MoreLanes = lanes(lives, f.sessions, p.From, p.Until, f.reader.Now)
	return p
}

// window fills in open ends from the journal.
func window(in Input) (from, until time.Time) {
	from, until = in.From, in.Until
	for _, e := range in.Events {
		if e.WallTime == nil {
			continue
		}
		at := e.WallTime.AsTime()
		if in.From.IsZero() && (from.IsZero() || at.Before(from)) {
			from = at
		}
		if in.Until.IsZero() && !at.Before(until) {
			until = at.Add(time.Millisecond)
		}
	}
	if in.Until.IsZero() {
		until = until.Add(until.Sub(from) / 50) // room to see the last event
	}
	if until.Sub(from) < time.Second {
		until = from.Add(time.Second)
	}
	return from, until
}

func incidents(in Input, from, until time.Time) (out []story.Incident, more int) {
	for _, i := range story.Incidents(in.Events, in.Pool) {
		end := i.At
		if i.Kind == story.Degraded {
			end = until
			if !i.Until.IsZero() {
				end = i.Until
			}
		}
		if i.At.Before(until) && !end.Before(from) {
			out = append(out, i)
		}
	}
	if len(out) <= maxIncidents {
		return out, 0
	}
	// What went wrong matters more than what was changed.
	slices.SortStableFunc(out, func(a, b story.Incident) int { return cmp.Compare(rank(a), rank(b)) })
	more = len(out) - maxIncidents
	out = out[:maxIncidents]
	slices.SortStableFunc(out, func(a, b story.Incident) int { return a.At.Compare(b.At) })
	return out, more
}

func rank(i story.Incident) int {
	switch {
	case i.Kind == story.Settings:
		return 0
	case i.Trouble:
		return 1
	}
	return 2
}

// worstWaits words the longest waits; a second pass follows just those in detail.
func worstWaits(in Input, lives []*story.Life, now int64) []worst {
	long := slices.DeleteFunc(slices.Clone(lives), func(l *story.Life) bool { return l.Waited(now) <= 0 })
	slices.SortStableFunc(long, func(a, b *story.Life) int { return cmp.Compare(b.Waited(now), a.Waited(now)) })
	long = long[:min(len(long), worstCount)]
	wanted := map[string]bool{}
	for _, l := range long {
		wanted[l.Ticket] = true
	}
	r := &story.Reader{
		Watch:    func(pool, ticket string) bool { return pool == in.Pool && wanted[ticket] },
		Settings: story.SettingsBefore(in.Events, in.Settings),
	}
	for _, e := range in.Events {
		r.Read(e)
	}
	type key struct {
		index uint64
		n     uint32
	}
	detailed := map[key]*story.Life{}
	if p := r.Pool(in.Pool); p != nil {
		for _, l := range p.Lives {
			if wanted[l.Ticket] {
				detailed[key{l.First.Index, l.First.N}] = l
			}
		}
	}
	out := make([]worst, 0, len(long))
	for _, l := range long {
		d := detailed[key{l.First.Index, l.First.N}]
		if d == nil {
			d = l
		}
		out = append(out, worst{Story: story.Tell(d, now), Waited: d.Waited(now), Tokens: d.Tokens, Start: d.WaitFrom(), End: ending(d)})
	}
	return out
}

// ending says in a word what became of a wait.
func ending(l *story.Life) string {
	switch {
	case l.Granted != nil:
		return "admitted"
	case l.Ended == nil:
		return "still waits"
	case l.Ended.Reason != "":
		return l.Ended.Reason
	}
	return l.Ended.Kind
}
