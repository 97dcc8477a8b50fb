package main

import (
	"strconv"
	"strings"
	"time"
)

const allowedTimes = `a time such as 2006-01-02T15:04:05Z, "2006-01-02 15:04", 15:04, "yesterday 03:12", 10m, -10m, "10m ago", a Unix time in seconds, or ledger:1h30m for ledger time`

// datedLayouts are the notations with a date; without a zone they are in the reader's.
var datedLayouts = []string{
	"2006-01-02 15:04:05.999999999", "2006-01-02 15:04", "2006-01-02T15:04:05.999999999", "2006-01-02T15:04", time.DateOnly,
	"2006-01-02 15:04:05.999999999Z07:00", "2006-01-02 15:04:05 -0700", "2006-01-02 15:04:05 -0700 MST", "2006-01-02 15:04Z07:00",
	"2006/01/02 15:04:05", "2006/01/02 15:04", "2006/01/02", "2.1.2006 15:04:05", "2.1.2006 15:04", "2.1.2006", "20060102T150405Z0700", "20060102150405",
	time.RFC1123, time.RFC1123Z, time.RFC850, time.RFC822, time.RFC822Z, time.ANSIC, time.UnixDate,
	"2 Jan 2006 15:04:05", "2 Jan 2006 15:04", "2 Jan 2006", "Jan 2 2006 15:04:05", "Jan 2 2006 15:04", "Jan 2, 2006 15:04", "Jan 2, 2006",
}

// clockLayouts are times of day, yearless those without a year.
var (
	clockLayouts    = []string{"15:04:05.999999999", "15:04", "3:04pm", "3pm"}
	yearlessLayouts = []string{time.Stamp, "Jan 2 15:04", "2 Jan 15:04", "2 Jan 15:04:05", "01-02 15:04", "01-02 15:04:05"}
)

// parseTime reads a point in time as people write it. Without a zone it is in now's location. A time
// of day, or a date without a year, means its latest occurrence that is not after now; a span means that long
// before now; a whole number is Unix time in seconds, milliseconds or nanoseconds by its size.
func parseTime(s string, now time.Time) (time.Time, bool) {
	s = strings.TrimSpace(s)
	if s == "now" {
		return now, true
	}
	if t, err := time.Parse(time.RFC3339Nano, s); err == nil {
		return t, true
	}
	for _, layout := range datedLayouts {
		if t, err := time.ParseInLocation(layout, s, now.Location()); err == nil {
			return t, true
		}
	}
	for _, layout := range yearlessLayouts {
		if t, err := time.Parse(layout, s); err == nil {
			return latestYear(t, now), true
		}
	}
	if t, ok := parseClock(s); ok {
		return latest(t, now), true
	}
	if t, ok := onDay(s, now); ok {
		return t, true
	}
	if t, ok := unixTime(s); ok {
		return t.In(now.Location()), true
	}
	return before(s, now)
}

func parseClock(s string) (time.Time, bool) {
	s = strings.ToLower(s)
	for _, layout := range clockLayouts {
		if t, err := time.Parse(layout, s); err == nil {
			return t, true
		}
	}
	return time.Time{}, false
}

// latest returns the last time that a clock in now's location showed the time of day of t.
func latest(t, now time.Time) time.Time {
	if today := clockOn(t, now, 0); !today.After(now) {
		return today
	}
	return clockOn(t, now, -1)
}

// clockOn returns the time of day of t so many days after now's day.
func clockOn(t, now time.Time, days int) time.Time {
	return time.Date(now.Year(), now.Month(), now.Day()+days, t.Hour(), t.Minute(), t.Second(), t.Nanosecond(), now.Location())
}

func latestYear(t, now time.Time) time.Time {
	at := func(year int) time.Time {
		return time.Date(year, t.Month(), t.Day(), t.Hour(), t.Minute(), t.Second(), t.Nanosecond(), now.Location())
	}
	if this := at(now.Year()); !this.After(now) {
		return this
	}
	return at(now.Year() - 1)
}

// onDay reads "yesterday 03:12", "today" and the name of a weekday, which means its latest one.
func onDay(s string, now time.Time) (time.Time, bool) {
	word, rest, _ := strings.Cut(strings.ToLower(s), " ")
	rest = strings.TrimSpace(strings.TrimPrefix(strings.TrimSpace(rest), "at "))
	days, known := 0, word == "today"
	if word == "yesterday" {
		days, known = -1, true
	}
	for back := range 7 {
		if strings.EqualFold(now.AddDate(0, 0, -back).Weekday().String(), word) {
			days, known = -back, true
		}
	}
	if !known {
		return time.Time{}, false
	}
	if rest == "" {
		return clockOn(time.Time{}, now, days), true
	}
	t, ok := parseClock(rest)
	return clockOn(t, now, days), ok
}

// unixTime reads seconds, milliseconds or nanoseconds since 1970, with a fraction for seconds.
func unixTime(s string) (time.Time, bool) {
	f, err := strconv.ParseFloat(strings.TrimPrefix(s, "@"), 64)
	if err != nil || f < 1e8 || f > 1e19 {
		return time.Time{}, false
	}
	switch {
	case f >= 1e17:
		n, err := strconv.ParseInt(strings.TrimPrefix(s, "@"), 10, 64)
		return time.Unix(0, n), err == nil
	case f >= 1e11:
		return time.UnixMilli(int64(f)), true
	}
	whole := int64(f)
	return time.Unix(whole, int64((f-float64(whole))*1e9)), true
}

// before reads "10m", "-10m" and "10m ago".
func before(s string, now time.Time) (time.Time, bool) {
	span := strings.TrimPrefix(s, "-")
	if span == s {
		span = strings.TrimSuffix(s, "ago")
	}
	d, err := parseDuration(strings.TrimSpace(span))
	return now.Add(-d), err == nil && d >= 0
}

// moment is a point in time on one of the two clocks.
type moment struct {
	wall time.Time
	// ledger is in nanoseconds; inLedger says that it counts.
	ledger   int64
	inLedger bool
}

func (p moment) equal(o moment) bool {
	return p.wall.Equal(o.wall) && p.ledger == o.ledger && p.inLedger == o.inLedger
}

func (p moment) isZero() bool { return !p.inLedger && p.wall.IsZero() }

// timeFlag reads a time flag; "" is the zero moment.
func timeFlag(name, value string, now time.Time) (moment, error) {
	if value == "" {
		return moment{}, nil
	}
	if text, ok := strings.CutPrefix(strings.TrimSpace(value), "ledger:"); ok {
		n, err := strconv.ParseInt(text, 10, 64)
		if err != nil {
			var d time.Duration
			d, err = parseDuration(text)
			n = int64(d)
		}
		if err != nil || n < 0 {
			return moment{}, badValue(name, value, "ledger time as a duration or in nanoseconds, such as ledger:1h30m")
		}
		return moment{ledger: n, inLedger: true}, nil
	}
	t, ok := parseTime(value, now)
	if !ok {
		return moment{}, badValue(name, value, allowedTimes)
	}
	return moment{wall: t}, nil
}
