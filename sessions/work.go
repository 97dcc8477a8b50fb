package sessions

import "strings"

// AbortTask is a ticket that engines must be asked to abort.
type AbortTask struct{ Ticket, RID string }

// Work is what engines must be told about one session.
type Work struct {
	Pool, Session string
	// Seq is the session's number, Rev changes with the work.
	Seq, Rev uint64
	// Same: the caller has this already, so that what follows is left out.
	Same bool
	// Phase is Aborting or Telling.
	Phase Phase
	// Engines are to be told: all engines of the pool when aborting, those that owe when telling.
	Engines []string
	// Aborts are the tickets in flight that may be aborted now.
	Aborts []AbortTask
	// Joined counts those that may not: another request in flight has a request id that begins with
	// theirs, or one of another session has the same, and an engine would abort that one too.
	Joined int
}

// WorkQuery says what is known to who asks for work. Both may be nil.
type WorkQuery struct {
	// Have reports whether the caller knows the work of that number and revision.
	Have func(seq, rev uint64) bool
	// Prefix reports whether any request in flight that no session knows has a request id that begins
	// with rid.
	Prefix func(pool, rid string) bool
}

// Work returns what engines must be told, by the number of the session.
func (t *Table) Work(q WorkQuery) []Work {
	out := make([]Work, 0, t.busy.len())
	for s := range t.busy.all() {
		w := Work{Pool: s.Pool, Session: s.ID, Seq: s.Seq, Rev: s.rev, Phase: s.Close.Phase}
		switch {
		case w.Phase == Aborting:
			// What may be aborted also depends on other sessions, so it is worked out each time.
			t.aborts(s, q, &w)
		case q.Have != nil && q.Have(s.Seq, s.rev):
			w.Same = true
		default:
			for _, c := range s.owed.Creditors {
				if c.Engine != "" {
					w.Engines = append(w.Engines, c.Engine)
				}
			}
		}
		out = append(out, w)
	}
	return out
}

func (t *Table) aborts(s *session, q WorkQuery, w *Work) {
	for _, e := range s.pool.Engines {
		w.Engines = append(w.Engines, e.URL)
	}
	for x := s.first; x != nil; x = x.next {
		switch {
		case x.Waiting || x.AbortSent || x.RID == "":
		case s.pool.hitsOthers(x) || q.Prefix != nil && q.Prefix(s.Pool, x.RID):
			w.Joined++
		default:
			w.Aborts = append(w.Aborts, AbortTask{Ticket: x.Ticket, RID: x.RID})
		}
	}
}

// hitsOthers reports whether an abort of x would end another request in flight: one whose id is longer and
// begins with x's, or one of another session with the same id. Those stand from the first with the same id on.
func (p *pool) hitsOthers(x *ticket) bool {
	for y := range p.rids.from(func(y *ticket) bool { return y.RID >= x.RID }) {
		switch {
		case !strings.HasPrefix(y.RID, x.RID):
			return false
		case y.RID != x.RID || y.s != x.s:
			return true
		}
	}
	return false
}
