package main

import (
	"strings"
	"time"
)

const allowedTimes = `a time such as 2006-01-02T15:04:05Z, "2006-01-02 15:04", 15:04, -10m or "10m ago"`

// parseTime reads a point in time as people write it. Without a zone it is in now's location. A time
// of day means its latest occurrence that is not after now; a span means that long before now.
func parseTime(s string, now time.Time) (time.Time, bool) {
	s = strings.TrimSpace(s)
	if s == "now" {
		return now, true
	}
	if t, err := time.Parse(time.RFC3339Nano, s); err == nil {
		return t, true
	}
	for _, layout := range []string{"2006-01-02 15:04:05", "2006-01-02 15:04", "2006-01-02T15:04:05", "2006-01-02T15:04", time.DateOnly} {
		if t, err := time.ParseInLocation(layout, s, now.Location()); err == nil {
			return t, true
		}
	}
	for _, layout := range []string{"15:04:05", "15:04"} {
		if t, err := time.Parse(layout, s); err == nil {
			return latest(t, now), true
		}
	}
	return before(s, now)
}

// latest returns the last time that a clock in now's location showed the time of day of t.
func latest(t, now time.Time) time.Time {
	at := func(days int) time.Time {
		return time.Date(now.Year(), now.Month(), now.Day()+days, t.Hour(), t.Minute(), t.Second(), 0, now.Location())
	}
	if today := at(0); !today.After(now) {
		return today
	}
	return at(-1)
}

// before reads "-10m" and "10m ago".
func before(s string, now time.Time) (time.Time, bool) {
	span, dashed := strings.CutPrefix(s, "-")
	if !dashed {
		var ago bool
		if span, ago = strings.CutSuffix(s, "ago"); !ago {
			return time.Time{}, false
		}
	}
	d, err := parseDuration(strings.TrimSpace(span))
	return now.Add(-d), err == nil
}

// timeFlag reads a time flag; "" is the zero time.
func timeFlag(name, value string, now time.Time) (time.Time, error) {
	if value == "" {
		return time.Time{}, nil
	}
	t, ok := parseTime(value, now)
	if !ok {
		return time.Time{}, badValue(name, value, allowedTimes)
	}
	return t, nil
}
