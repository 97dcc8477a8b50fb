package cluster

import (
	"slices"
	"testing"
	"time"

	"google.golang.org/protobuf/proto"

	kvgatev1 "kvgate/rpc/kvgate/v1"
)

// record is what a real episode left behind, for tampering with.
type record struct {
	ops    []*Op
	events []Event
}

func (r record) clone() record {
	out := record{ops: make([]*Op, len(r.ops))}
	for i, o := range r.ops {
		c := *o
		out.ops[i] = &c
	}
	for _, e := range r.events {
		out.events = append(out.events, Event{proto.Clone(e.JournalEvent).(*kvgatev1.JournalEvent), e.Pos})
	}
	return out
}

// event returns the first event from at on that fits, or nil.
func (r record) event(at int, fits func(*Event) bool) *Event {
	for i := at; i < len(r.events); i++ {
		if fits(&r.events[i]) {
			return &r.events[i]
		}
	}
	return nil
}

func kind(name string) func(*Event) bool { return func(e *Event) bool { return e.Kind == name } }

// op returns the last known operation that fits, or nil.
func (r record) op(fits func(*Op) bool) *Op {
	for _, o := range slices.Backward(r.ops) {
		if o.Known && fits(o) {
			return o
		}
	}
	return nil
}

func (r *record) drop(e *Event) { r.events = slices.Delete(r.events, e.Pos, e.Pos+1); r.number() }

func (r *record) number() {
	for i := range r.events {
		r.events[i].Pos = i
	}
}

func admitted(o *Op) bool { return o.Kind == OpAcquire && o.Grant != 0 }

// lies are changes to what happened, each of which the checker must find.
var lies = map[string]func(*record){
	"a grant is missing from the journal": func(r *record) { r.drop(r.event(0, kind("admitted"))) },
	"a release is missing":                func(r *record) { r.drop(r.event(0, kind("released"))) },
	"a lease is granted twice": func(r *record) {
		e := r.event(0, kind("admitted"))
		r.events = slices.Insert(r.events, e.Pos, *e)
		r.number()
	},
	"a sum is wrong":       func(r *record) { r.event(0, kind("released")).ReservedAfter++ },
	"the ceiling is lower": func(r *record) { e := r.event(0, kind("admitted")); e.CeilingAfter = e.ReservedAfter - 1 },
	"a lease expires early": func(r *record) {
		e := r.event(0, kind("lease_expired"))
		e.LedgerTime = r.events[e.Pos-1].LedgerTime
		r.event(0, func(x *Event) bool { return x.Kind == "admitted" && x.Grant == e.Grant }).Deadline = e.LedgerTime + 1
		e.Deadline = e.LedgerTime + 1
	},
	"time goes back": func(r *record) { r.events[len(r.events)-1].LedgerTime = 0 },
	"the queue is not first in, first out": func(r *record) {
		for at := 0; ; {
			e := r.event(at, kind("admitted"))
			at = e.Pos + 1
			if e.Wait != nil && e.WaitingAfter > 0 {
				// Somebody behind it gets the place in the queue that it had.
				next := r.event(at, func(x *Event) bool { return x.Kind == "admitted" && x.Wait != nil && x.Priority < e.Priority })
				first := r.event(0, func(x *Event) bool { return x.Kind == "waiting" && x.TicketId == e.TicketId })
				if next != nil && first != nil {
					first.Priority = -1
					return
				}
			}
		}
	},
	"a client got a lease that nobody granted": func(r *record) { r.op(admitted).Grant += 100_000 },
	"a client got another's lease": func(r *record) {
		a := r.op(admitted)
		a.Grant = r.op(func(o *Op) bool { return admitted(o) && o.Ticket != a.Ticket }).Grant
	},
	"a release did nothing, it is said": func(r *record) {
		o := r.op(func(o *Op) bool { return o.Kind == OpRelease && o.OK })
		other := *o
		other.OK, other.Start, other.End = false, o.Start.Add(-time.Microsecond), o.Start.Add(-time.Nanosecond)
		r.ops = append(r.ops, &other)
	},
	"a release happened that the journal does not have": func(r *record) {
		o := r.op(func(o *Op) bool { return o.Kind == OpRelease && o.OK })
		other := *o
		other.Start, other.End = o.End.Add(time.Microsecond), o.End.Add(time.Millisecond)
		r.ops = append(r.ops, &other)
	},
	"a read is stale": func(r *record) {
		o := r.op(func(o *Op) bool { return o.Kind == OpRelease && o.OK })
		other := *o
		other.Kind, other.Fence, other.Grant = OpTicket, 0, o.Fence
		other.State = kvgatev1.TicketState_TICKET_STATE_LEASED
		other.Start, other.End = o.End.Add(time.Microsecond), o.End.Add(time.Millisecond)
		r.ops = append(r.ops, &other)
	},
	"a sum is read that never was": func(r *record) { r.op(func(o *Op) bool { return o.Kind == OpBudget }).Reserved += 7 },
	"the journal's order contradicts real time": func(r *record) {
		// What was granted last is said to have been asked for, and answered, after everything else; an
		// earlier grant is said to have come after that.
		early, late := r.op(admitted), r.op(admitted)
		for _, o := range r.ops {
			if admitted(o) && o.Grant < early.Grant {
				early = o
			}
		}
		r.ops = slices.DeleteFunc(r.ops, func(o *Op) bool { return o.Ticket == early.Ticket && o != early })
		early.Start, early.End = late.End.Add(time.Second), late.End.Add(2*time.Second)
	},
	"an answer took too long": func(r *record) { o := r.op(admitted); o.End = o.End.Add(time.Minute) },
	"a waiter is let go early": func(r *record) {
		e := r.event(0, func(e *Event) bool { return e.Kind == "bypassed" && e.Reason == "aged" && e.Wait != nil })
		for _, o := range r.ops {
			if o.Ticket == e.TicketId && o.Kind == OpAcquire {
				o.MaxWait += time.Minute
			}
		}
	},
	"an undocumented error": func(r *record) { o := r.op(admitted); o.Known, o.Code = false, "internal" },
}

// TestCheckerFindsLies records what happens without faults, which passes, and then tampers with it.
func TestCheckerFindsLies(t *testing.T) {
	c := Start(t, Options{EngineTokens: 4000})
	l := c.StartLoad(5, 16)
	work(l, 2500*time.Millisecond)
	h := l.Stop()
	events, err := c.Journal()
	if err != nil {
		t.Fatal(err)
	}
	truth := record{h.Ops(), events}
	if _, err := Check(truth.ops, truth.events, true); err != nil {
		t.Fatalf("the truth is refused: %v", err)
	}
	for name, tell := range lies {
		t.Run(name, func(t *testing.T) {
			r := truth.clone()
			tell(&r)
			if _, err := Check(r.ops, r.events, true); err == nil {
				t.Error("not found")
			} else {
				t.Log(err)
			}
		})
	}
}
