package sessions

import (
	"cmp"
	"slices"
	"strings"
	"time"
)

const (
	// slowAbort is how long an abort is in flight before it is shown, and told, as not answered. It is well below
	// the default abort_timeout, after which nobody waits for it.
	slowAbort = time.Second
	// maxRefusals bounds how many refusals one batch of reports tells, so that a log entry stays short.
	maxRefusals = 1024
	// maxAbortStatus bounds how many aborts Status lists of one session.
	maxAbortStatus = 256

	noAnswerYet = "no answer yet"
)

// OwedStatus is what the closer knows of one engine that must be told of a close, or asked for an abort.
type OwedStatus struct {
	Engine string
	// Ticket is what the engine is asked to abort; empty for the close itself.
	Ticket   string
	Attempts int
	// LastError is empty when no call failed.
	LastError string
	// NextTry is the pause until the next call; 0 when one is due or in flight.
	NextTry time.Duration
}

// Status returns what this node, as leader, knows of the calls about a session that are not over: its close,
// sorted by engine, then its aborts, sorted by ticket and engine. Of more than 256 aborts it returns those, the
// ones that failed first. It is nil when nothing is known. It is safe for concurrent use.
func (c *Closer) Status(pool, session string) []OwedStatus {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.desk.status(pool, session, time.Now())
}

func (d *desk) status(pool, session string, now time.Time) []OwedStatus {
	j := d.byName[jobName{pool, session}]
	if j == nil {
		return nil
	}
	var closes, aborts []OwedStatus
	for name, t := range j.tasks {
		switch {
		case t.state == taskDone:
		case name.ticket == "":
			closes = append(closes, t.status(now))
		default:
			aborts = append(aborts, t.status(now))
		}
	}
	if len(aborts) > maxAbortStatus {
		slices.SortFunc(aborts, func(a, b OwedStatus) int {
			return cmp.Or(cmp.Compare(min(1, len(b.LastError)), min(1, len(a.LastError))), byTicket(a, b))
		})
		aborts = aborts[:maxAbortStatus]
	}
	out := append(closes, aborts...)
	slices.SortFunc(out, byTicket)
	return out
}

func byTicket(a, b OwedStatus) int {
	return cmp.Or(strings.Compare(a.Ticket, b.Ticket), strings.Compare(a.Engine, b.Engine))
}

func (t *task) status(now time.Time) OwedStatus {
	s := OwedStatus{Engine: t.lane.url, Ticket: t.abort.Ticket, Attempts: t.attempts, LastError: cmp.Or(t.lastErr, t.lane.lastErr)}
	if t.state == taskWaiting {
		s.NextTry = max(0, t.retry.at.Sub(now), t.lane.retry.at.Sub(now))
	}
	return s
}

// Refusal is an abort that an engine did not take, so far: it is asked again.
type Refusal struct {
	Ticket, Engine string
	// Reason is the engine's answer, or why there was none.
	Reason string
}

// refuse notes that an abort failed, once for each engine and ticket in a term. When the engine fails them all,
// those that stand behind it in the lane are not going to be asked soon, so they are noted, too.
func (d *desk) refuse(t *task, err error) {
	if t.path != pathAbort {
		return
	}
	d.note(t, err.Error())
	if refused(err) {
		return
	}
	for _, other := range t.lane.queue.list[t.lane.queue.head:] {
		if other.state == taskWaiting {
			d.note(other, "not asked yet, others fail: "+err.Error())
		}
	}
}

// overdue notes the aborts in flight that an engine does not answer.
func (d *desk) overdue(now time.Time) {
	for t := range d.air {
		if t.path == pathAbort && t.state == taskFlying && now.Sub(t.begun) >= slowAbort && d.wanted(t) {
			t.lastErr = cmp.Or(t.lastErr, noAnswerYet)
			d.note(t, noAnswerYet)
		}
	}
}

func (d *desk) note(t *task, reason string) {
	if t.noted {
		return
	}
	t.noted = true
	t.job.refused = append(t.job.refused, Refusal{Ticket: t.abort.Ticket, Engine: t.lane.url, Reason: clip(reason)})
	d.list(t.job)
}

// reports takes a batch of what is to be reported. A job whose refusals do not fit stays listed.
func (d *desk) reports() []Report {
	n, room := min(len(d.pending), MaxReports), maxRefusals
	batch := make([]Report, n)
	var rest []*job
	for i, j := range d.pending[:n] {
		fit := min(room, len(j.refused))
		batch[i] = Report{Pool: j.Pool, Session: j.Session, Seq: j.Seq, Acked: j.acked, Aborted: j.aborted, Refused: j.refused[:fit:fit]}
		room -= fit
		j.acked, j.aborted, j.refused = nil, nil, j.refused[fit:]
		if j.listed = len(j.refused) > 0; j.listed {
			rest = append(rest, j)
		}
	}
	d.pending = append(slices.Delete(d.pending, 0, n), rest...)
	return batch
}

// unreported puts back a batch that was not taken.
func (d *desk) unreported(batch []Report) {
	for i := range batch {
		r := &batch[i]
		if j := d.jobs[r.Seq]; j != nil {
			j.acked = append(j.acked, r.Acked...)
			j.aborted = append(j.aborted, r.Aborted...)
			j.refused = append(j.refused, r.Refused...)
			d.list(j)
		}
	}
}
