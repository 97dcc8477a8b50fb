package scrape

import (
	"errors"
	"fmt"
	"strconv"
	"strings"
	"time"

	"kvgate/ledger"
)

// askAgain is how long an engine that would not tell its capacity is left alone with the question.
const askAgain = 15 * time.Second

// track is what the poller remembers of one engine.
type track struct {
	listed  Listed
	present bool // in the current list
	logged  bool // healthy when last logged

	inFlight bool
	round    uint64    // that started the scrape in flight
	launched time.Time // of the scrape in flight
	suspect  bool      // the scrape before it brought no answer

	sample  Sample
	sampled time.Time // zero: none yet
	news    bool      // a sample came in since the last round was closed
	err     error     // of the last scrape that came back
	seen    bool      // a scrape came back
	askedAt time.Time // when the info endpoints last refused to tell

	// known is what the previous leader measured, if it was healthy then. It stands in until the first
	// scrape comes back, so that a change of leader does not make a slow engine unhealthy.
	known       *ledger.Engine
	incarnation string
	rate        float64
}

// restartPrefix starts the incarnations of engines that do not tell when they were started.
const restartPrefix = "restart-"

// take folds in a scrape that came back at now.
func (t *track) take(s Sample, err error, now time.Time) {
	t.inFlight, t.seen, t.err = false, true, err
	if err != nil {
		return
	}
	previous, since := t.sample, now.Sub(t.sampled)
	first := t.sampled.IsZero()
	restarted := !first && wentBack(previous, s)
	t.name(s, restarted)
	t.rate = 0
	if !first && !restarted && s.HasEvicted && previous.HasEvicted && since > 0 {
		t.rate = (s.Evicted - previous.Evicted) / since.Seconds()
	}
	if restarted {
		// A new process may have another capacity: ask again next time.
		s.Info = Info{}
	}
	t.sample, t.sampled = s, now
}

// wentBack: another process answers than before. Counters that vanished went back to zero: a label set
// shows only after its first count.
func wentBack(a, b Sample) bool {
	if a.Start > 0 && b.Start > 0 {
		return a.Start != b.Start
	}
	for i := range a.Counters {
		if b.Counters[i] < a.Counters[i] {
			return true
		}
	}
	return false
}

// name sets the incarnation: the start time where the page tells it, else the number of restarts seen.
func (t *track) name(s Sample, restarted bool) {
	switch {
	case s.Start > 0:
		t.incarnation = "start-" + strconv.FormatFloat(s.Start, 'f', -1, 64)
	case restarted:
		n, _ := strconv.Atoi(strings.TrimPrefix(t.incarnation, restartPrefix))
		t.incarnation = restartPrefix + strconv.Itoa(n+1)
	}
}

// overdue: the scrape in flight should have come back.
func (t *track) overdue(timeout time.Duration, now time.Time) bool {
	return t.inFlight && now.Sub(t.launched) >= timeout
}

// trouble says why the engine is not healthy, "" if it is.
func (t *track) trouble(timeout time.Duration, now time.Time) string {
	switch {
	case t.overdue(timeout, now):
		return fmt.Sprintf("no answer within %s", timeout)
	case !t.seen && (t.known == nil || !t.inFlight):
		return "not scraped yet"
	case errors.Is(t.err, ErrUnreachable) && strings.HasSuffix(t.err.Error(), "no answer in time"):
		return fmt.Sprintf("no answer within %s", timeout)
	case t.err != nil:
		return clip(t.err.Error())
	case t.listed.Unhealthy:
		return "the router calls it unhealthy"
	}
	return ""
}

// engine is the row of a round. The figures of an engine that does not answer are left out: they are
// nobody's.
func (t *track) engine(timeout time.Duration, now time.Time) ledger.Engine {
	e := ledger.Engine{
		URL: t.listed.URL, Role: t.role(), Incarnation: t.incarnation, Error: t.trouble(timeout, now),
	}
	e.Healthy = e.Error == ""
	if !t.seen && e.Healthy {
		return *t.known
	}
	if t.sampled.IsZero() || t.err != nil || t.overdue(timeout, now) {
		return e
	}
	s := &t.sample
	e.Capacity, e.Used, e.Evictable, e.DPRanks = s.Capacity, s.Used, s.Evictable, s.DPRanks
	e.Usage, e.Pressure, e.EvictionRate = s.Usage, s.Pressure, t.rate
	e.Running, e.Queued = s.Running, s.Queued
	return e
}

// role prefers the router's word over the page's.
func (t *track) role() ledger.Role {
	if t.listed.Role != ledger.RoleUnspecified {
		return t.listed.Role
	}
	if t.sample.Role != ledger.RoleUnspecified {
		return t.sample.Role
	}
	return ledger.RoleRegular
}
