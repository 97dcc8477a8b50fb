package sessions

import "time"

// desk is what the closer has in hand: jobs by session, lanes by engine and kind of call.
type desk struct {
	opt    Options
	jobs   map[uint64]*job
	byName map[jobName]*job
	lanes  map[laneName]*lane
	// order is that of the lanes; turn is the one that is asked first, so that all get their turn.
	order  []*lane
	turn   int
	flying int
	// air are the tasks in flight, also those that were called off.
	air map[*task]struct{}
	// pending are the jobs that have something to report.
	pending []*job
}

type jobName struct{ pool, session string }

// laneName names a lane. Aborts have one of their own: an engine that refuses those, for want of the admin key
// say, or is slow to answer them, takes closes all the same.
type laneName struct{ engine, path string }

// job is the work of one session.
type job struct {
	Work
	tasks map[taskName]*task
	// acked and aborted are to be reported.
	acked, aborted []string
	refused        []Refusal
	listed, seen   bool
}

type taskName struct{ engine, ticket string }

const (
	pathClose = "/close_session"
	pathAbort = "/abort_request"
)

// task is one call that must be made until it is answered with 200.
type task struct {
	job   *job
	lane  *lane
	path  string
	abort AbortTask
	since time.Time
	// begun is when the last call began.
	begun    time.Time
	attempts int
	lastErr  string
	retry    retry
	state    taskState
	// noted: that the abort failed was noted to be reported.
	noted  bool
	cancel func()
}

type taskState uint8

const (
	taskWaiting taskState = iota
	taskFlying
	taskDone
	// taskVoid: nobody wants it any more.
	taskVoid
)

func newDesk(opt Options) *desk {
	return &desk{opt: opt, jobs: map[uint64]*job{}, byName: map[jobName]*job{}, lanes: map[laneName]*lane{}, air: map[*task]struct{}{}}
}

// have reports whether the work of a session is known as it is.
func (d *desk) have(seq, rev uint64) bool {
	j := d.jobs[seq]
	return j != nil && j.Rev == rev
}

// take makes the desk match what the source says.
func (d *desk) take(work []Work, now time.Time) {
	for i := range work {
		w := &work[i]
		j := d.jobs[w.Seq]
		if j == nil {
			j = &job{tasks: map[taskName]*task{}}
			d.jobs[w.Seq] = j
			d.byName[jobName{w.Pool, w.Session}] = j
		}
		j.seen = true
		if !w.Same {
			d.update(j, *w, now)
		}
	}
	for seq, j := range d.jobs {
		if !j.seen {
			d.drop(seq, j)
		}
		j.seen = false
	}
	d.overdue(now)
	d.sweep()
}

func (d *desk) drop(seq uint64, j *job) {
	for name, t := range j.tasks {
		j.void(name, t)
	}
	delete(d.jobs, seq)
	if name := (jobName{j.Pool, j.Session}); d.byName[name] == j {
		delete(d.byName, name)
	}
}

// update voids the tasks that are no longer wanted and adds those that are new.
func (d *desk) update(j *job, w Work, now time.Time) {
	j.Work = w
	want := make(map[taskName]bool, len(w.Engines)*max(1, len(w.Aborts)))
	for _, engine := range w.Engines {
		if w.Phase == Telling {
			want[taskName{engine: engine}] = true
			d.add(j, engine, AbortTask{}, now)
		}
		for _, a := range w.Aborts {
			want[taskName{engine, a.Ticket}] = true
			d.add(j, engine, a, now)
		}
	}
	for name, t := range j.tasks {
		if !want[name] {
			j.void(name, t)
		}
	}
}

func (d *desk) add(j *job, engine string, a AbortTask, now time.Time) {
	name := taskName{engine, a.Ticket}
	if old := j.tasks[name]; old != nil && old.abort == a {
		return
	} else if old != nil {
		j.void(name, old)
	}
	path := pathClose
	if a.Ticket != "" {
		path = pathAbort
	}
	l := d.lane(engine, path)
	t := &task{job: j, lane: l, path: path, abort: a, since: now, retry: retry{opt: &d.opt}}
	j.tasks[name] = t
	l.push(t)
}

// void calls a task off. One in flight is cut short: an abort must not reach a request that began since.
func (j *job) void(name taskName, t *task) {
	delete(j.tasks, name)
	if t.state == taskFlying && t.path == pathAbort {
		t.cancel()
	}
	if t.state != taskFlying {
		t.state = taskVoid
	}
}

func (d *desk) lane(engine, path string) *lane {
	name := laneName{engine, path}
	l := d.lanes[name]
	if l == nil {
		l = newLane(engine, path, &d.opt)
		for _, other := range []string{pathClose, pathAbort} {
			if o := d.lanes[laneName{engine, other}]; o != nil {
				l.engine = o.engine
			}
		}
		d.lanes[name] = l
		d.order = append(d.order, l)
	}
	return l
}

// sweep forgets lanes that have nothing to do.
func (d *desk) sweep() {
	if len(d.jobs) > 0 || d.flying > 0 {
		return
	}
	d.order, d.turn = nil, 0
	clear(d.lanes)
}

// next takes the tasks that may start now, one per lane and round. Aborts are taken beyond what the rate allows: their
// phase lasts abort_timeout, and a close that is told while the request still runs frees nothing.
func (d *desk) next(now time.Time, allowed int) (ready []*task) {
	for idle := 0; d.flying < d.opt.Parallel && idle < len(d.order); {
		l := d.order[d.turn%len(d.order)]
		d.turn++
		t := l.pop(now, len(ready) >= allowed)
		if t == nil {
			idle++
			continue
		}
		idle = 0
		t.state = taskFlying
		t.attempts++
		t.begun = now
		d.air[t] = struct{}{}
		l.flying++
		l.engine.flying++
		d.flying++
		ready = append(ready, t)
	}
	return ready
}

// wanted reports whether a task was not called off.
func (d *desk) wanted(t *task) bool { return t.job.tasks[taskName{t.lane.url, t.abort.Ticket}] == t }

// end takes in how a call ended. It reports whether that changed whether the engine is thought to answer.
func (d *desk) end(t *task, err error, now time.Time) (changed bool) {
	d.flying--
	t.lane.engine.flying--
	delete(d.air, t)
	if !d.wanted(t) {
		// Called off, maybe cut short: that says nothing about the engine.
		t.state = taskVoid
		t.lane.flying--
		return false
	}
	changed = t.lane.end(err, now)
	if err == nil {
		t.state, t.lastErr = taskDone, ""
		d.done(t)
		return changed
	}
	t.state, t.lastErr = taskWaiting, err.Error()
	d.refuse(t, err)
	if refused(err) {
		t.retry.fail(now)
	}
	t.lane.push(t)
	return changed
}

// done notes what is to be reported. An abort is, once every engine was asked.
func (d *desk) done(t *task) {
	j := t.job
	if t.path == pathClose {
		j.acked = append(j.acked, t.lane.url)
		d.list(j)
		return
	}
	for _, engine := range j.Engines {
		if other := j.tasks[taskName{engine, t.abort.Ticket}]; other != nil && other.state != taskDone {
			return
		}
	}
	j.aborted = append(j.aborted, t.abort.Ticket)
	d.list(j)
}

func (d *desk) list(j *job) {
	if !j.listed {
		j.listed = true
		d.pending = append(d.pending, j)
	}
}

func (d *desk) queued() int {
	n := 0
	for _, l := range d.order {
		n += l.queued()
	}
	return n
}
