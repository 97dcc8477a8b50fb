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
	// Journal is the whole journal, of all pools. It is read three times.
	Journal story.Journal
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

// Build computes a report. It holds what is open at a time, and a few words of each ticket and session; the events
// are read anew for what else is needed. Errors: those of the journal.
func Build(in Input) (*Page, error) {
	p := &Page{Pool: in.Pool, Source: in.Source, Kept: in.Kept, Made: in.Made, Zone: in.Zone}
	s, err := survey(in)
	if err != nil {
		return nil, err
	}
	p.From, p.Until = s.window()
	f := newFold(in, s, p.From, p.Until)
	if err := f.run(); err != nil {
		return nil, err
	}
	p.Empty = f.inside == 0
	p.Charts = f.charts()
	p.Incidents, p.MoreIncidents = incidents(f.finder.Incidents(), p.From, p.Until)
	p.Charts.Marks = marks(p.Incidents)
	p.Waits, p.Percentiles = f.sum.waits()
	p.Tiles = f.tiles()
	d := newDetail(f)
	if err := d.run(); err != nil {
		return nil, err
	}
	p.Worst, p.Lanes, p.MoreLanes = d.worst(), d.lanes(), d.moreLanes
	return p, nil
}

// surveyed is what must be known of a journal before it is folded.
type surveyed struct {
	in          Input
	from, until time.Time
	// last is the wall time of the last event.
	last     time.Time
	settings map[string]*kvgatev1.Settings
}

func survey(in Input) (*surveyed, error) {
	s := &surveyed{in: in, from: in.From, until: in.Until}
	changed := map[string]bool{}
	var first []*kvgatev1.JournalEvent // the first change of each pool's settings
	err := in.Journal(func(e *kvgatev1.JournalEvent) {
		s.last = e.WallTime.AsTime()
		s.stretch(e)
		if e.Kind == "settings" && e.SettingsBefore != nil && !changed[e.Pool] {
			changed[e.Pool] = true
			first = append(first, e)
		}
	})
	s.settings = story.SettingsBefore(first, in.Settings)
	return s, err
}

// stretch makes open ends of the window take in an event.
func (s *surveyed) stretch(e *kvgatev1.JournalEvent) {
	if e.WallTime == nil {
		return
	}
	at := e.WallTime.AsTime()
	if s.in.From.IsZero() && (s.from.IsZero() || at.Before(s.from)) {
		s.from = at
	}
	if s.in.Until.IsZero() && !at.Before(s.until) {
		s.until = at.Add(time.Millisecond)
	}
}

func (s *surveyed) window() (from, until time.Time) {
	from, until = s.from, s.until
	if s.in.Until.IsZero() {
		until = until.Add(until.Sub(from) / 50) // room to see the last event
	}
	if until.Sub(from) < time.Second {
		until = from.Add(time.Second)
	}
	return from, until
}

// incidents keeps those of the window.
func incidents(all []story.Incident, from, until time.Time) (out []story.Incident, more int) {
	for _, i := range all {
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
