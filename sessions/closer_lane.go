package sessions

import (
	"errors"
	"time"

	"github.com/cenkalti/backoff/v5"
)

// lane is the queue of one engine's calls of one kind. An engine that fails them is left alone for a while, then
// probed with one call, so that a dead one costs the others nothing.
type lane struct {
	// path is of the calls that the lane is for.
	url, path string
	opt       *Options
	queue     fifo
	// engine is shared by the lanes of one engine.
	engine *engineLoad
	// late are tasks that the engine refused; each has its own pause.
	late []*task
	// again: it is the turn of those. Else an engine that refuses many calls would hear of nothing else.
	again  bool
	flying int
	// window is how many calls may be in flight. It starts small and grows with each answer: engines
	// that hang from the start must not take all of Options.Parallel before the first times out.
	window  int
	failing bool
	retry   retry
	lastErr string
}

const firstWindow = 2

// engineLoad counts the calls in flight to one engine.
type engineLoad struct{ flying int }

func newLane(url, path string, opt *Options) *lane {
	return &lane{url: url, path: path, opt: opt, engine: &engineLoad{}, window: min(firstWindow, opt.PerEngine), retry: retry{opt: opt}}
}

func (l *lane) push(t *task) {
	if t.retry.set() {
		l.late = append(l.late, t)
		return
	}
	l.queue.push(t)
}

// pop takes the task that may start now, nil when there is none. held: the rate is used up, so that only aborts may
// start, and of those none that was refused before.
func (l *lane) pop(now time.Time, held bool) *task {
	switch {
	case l.flying >= l.window || l.engine.flying >= l.opt.PerEngine || now.Before(l.retry.at):
		return nil
	case held && l.path == pathAbort:
		return l.queue.pop()
	case held:
		return nil
	}
	if l.again = !l.again; l.again {
		if t := l.popLate(now); t != nil {
			return t
		}
		return l.queue.pop()
	}
	if t := l.queue.pop(); t != nil {
		return t
	}
	return l.popLate(now)
}

func (l *lane) popLate(now time.Time) *task {
	kept := l.late[:0]
	var found *task
	for _, t := range l.late {
		switch {
		case t.state == taskVoid:
		case found == nil && !now.Before(t.retry.at):
			found = t
		default:
			kept = append(kept, t)
		}
	}
	clear(l.late[len(kept):])
	l.late = kept
	return found
}

func (l *lane) queued() int { return len(l.late) + l.queue.len() }

// end takes in how a call ended and reports whether that changed whether the engine is thought to answer.
func (l *lane) end(err error, now time.Time) (changed bool) {
	l.flying--
	if err == nil || refused(err) {
		changed = l.failing
		l.failing, l.lastErr = false, ""
		l.retry.reset()
		l.window = min(l.window+1, l.opt.PerEngine)
		return changed
	}
	changed = !l.failing
	l.failing, l.lastErr, l.window = true, err.Error(), 1
	if !now.Before(l.retry.at) { // calls that fail together count once
		l.retry.fail(now)
	}
	return changed
}

// refused reports whether the engine answered, and objects to this call only.
func refused(err error) bool { return errors.Is(err, ErrRefused) }

// retry is a pause that grows with each failure.
type retry struct {
	opt   *Options
	at    time.Time
	pause *backoff.ExponentialBackOff
}

func (r *retry) set() bool { return !r.at.IsZero() }

func (r *retry) fail(now time.Time) {
	if r.pause == nil {
		r.pause = backoff.NewExponentialBackOff()
		r.pause.InitialInterval, r.pause.MaxInterval = r.opt.FirstRetry, r.opt.LastRetry
		r.pause.Reset()
	}
	r.at = now.Add(r.pause.NextBackOff())
}

func (r *retry) reset() {
	r.at = time.Time{}
	r.pause = nil
}

// fifo is a queue that skips what was called off.
type fifo struct {
	list []*task
	head int
}

func (q *fifo) push(t *task) { q.list = append(q.list, t) }

func (q *fifo) pop() *task {
	for q.head < len(q.list) {
		t := q.list[q.head]
		q.list[q.head] = nil
		q.head++
		if q.head == len(q.list) {
			q.list, q.head = q.list[:0], 0
		}
		if t.state == taskWaiting {
			return t
		}
	}
	return nil
}

func (q *fifo) len() int { return len(q.list) - q.head }
