package story_test

import (
	"fmt"
	"strings"
	"testing"
	"time"

	"google.golang.org/protobuf/types/known/durationpb"
	"google.golang.org/protobuf/types/known/timestamppb"

	"kvgate/ledger"
	kvgatev1 "kvgate/rpc/kvgate/v1"
	"kvgate/rpc/story"
)

// start is the wall time of ledger time 0 in scripted journals.
var start = time.Date(2026, 11, 30, 3, 12, 0, 0, time.UTC)

// script drives a real ledger and keeps its journal as the API gives it.
type script struct {
	t      *testing.T
	l      *ledger.Ledger
	index  uint64
	events []*story.Event
}

func newScript(t *testing.T, settings ledger.Patch) *script {
	s := &script{t: t, l: ledger.New()}
	settings.Set.Staleness, settings.Fields = time.Hour, append(settings.Fields, "staleness")
	s.l.Reset()
	s.do(0, func() {
		s.l.NewTerm(1, "n1")
		if _, err := s.l.UpdateSettings(ledger.DefaultPool, settings); err != nil {
			t.Fatal(err)
		}
	})
	return s
}

// do runs one log entry at a time after the start.
func (s *script) do(at time.Duration, op func()) {
	s.index++
	s.l.Advance(ledger.Time(at), 0)
	op()
	for n, e := range s.l.Events() {
		s.events = append(s.events, apiEvent(s.index, n, e, start.Add(at)))
	}
	s.l.Reset()
}

func apiEvent(index uint64, n int, e ledger.Event, wall time.Time) *story.Event {
	m := &story.Event{
		Index: index, N: uint32(n), LedgerTime: int64(e.At), WallTime: timestamppb.New(wall), Pool: e.Pool, Kind: string(e.Kind),
		TicketId: e.Ticket, SessionId: e.Session, HolderId: e.Holder, GroupId: e.Group, Tokens: int64(e.Tokens), Grant: uint64(e.Grant),
		Epoch: int64(e.Epoch), Reason: e.Reason, ReservedAfter: int64(e.ReservedAfter), CeilingAfter: int64(e.CeilingAfter),
		Priority: e.Priority, Deadline: int64(e.Deadline), Detail: e.Detail, WaitingAfter: e.WaitingAfter,
	}
	if e.Wait != 0 {
		m.Wait = durationpb.New(e.Wait)
	}
	if e.Grant != 0 && e.Ticket != "" {
		m.LeaseId = ledger.LeaseID(e.Epoch, e.Ticket)
	}
	if a := e.Arrival; a.Known {
		m.Arrival = &kvgatev1.Arrival{PromptTokens: int64(a.Prompt), MaxNewTokens: int64(a.MaxNew), ReservationTokens: int64(a.Outright)}
	}
	if u := e.Measured; u != nil {
		m.Measured = &kvgatev1.Measured{CapacityTokens: int64(u.Capacity), Pressure: u.Pressure}
	}
	if e.After != nil {
		m.SettingsBefore, m.SettingsAfter = apiSettings(e.Before), apiSettings(e.After)
	}
	return m
}

func apiSettings(s *ledger.Settings) *kvgatev1.Settings {
	return &kvgatev1.Settings{Headroom: &s.Headroom, PressureThreshold: &s.PressureThreshold, MaxWait: durationpb.New(s.MaxWait)}
}

func (s *script) engines(at time.Duration, engines ...ledger.Engine) {
	s.do(at, func() { s.l.Reconcile(ledger.DefaultPool, ledger.Round{Fresh: true, Engines: engines}) })
}

func (s *script) acquire(at time.Duration, op ledger.Acquire) (d ledger.Decision) {
	s.do(at, func() {
		op.Pool = ledger.DefaultPool
		var err error
		if d, err = s.l.Acquire(op); err != nil {
			s.t.Fatal(err)
		}
	})
	return d
}

func (s *script) release(at time.Duration, ticket string) {
	s.do(at, func() { s.l.Release(ledger.Release{Pool: ledger.DefaultPool, Ticket: ticket}) })
}

func (s *script) reader(ticket string) *story.Reader {
	r := &story.Reader{
		Watch:    func(_, t string) bool { return t == ticket },
		Settings: story.SettingsBefore(s.events, nil),
	}
	for _, e := range s.events {
		r.Read(e)
	}
	return r
}

// tell returns the stories of a ticket as `journal explain` prints them.
func (s *script) tell(ticket string) string {
	var b strings.Builder
	r := s.reader(ticket)
	for _, l := range r.Pool(ledger.DefaultPool).Lives {
		if l.Ticket != ticket {
			continue
		}
		told := story.Tell(l, r.Now)
		for _, x := range told.Sentences {
			fmt.Fprintf(&b, "%s %s\n", x.At.Format("04:05.0"), x.Text)
		}
		fmt.Fprintf(&b, "%s\n", told.Sum)
	}
	return b.String()
}

func (s *script) expect(ticket, want string) {
	s.t.Helper()
	if got := s.tell(ticket); got != strings.TrimPrefix(want, "\n") {
		s.t.Errorf("story of %s:\n%s\nwant:%s", ticket, got, want)
	}
}

func engine(name string, capacity ledger.Tokens) ledger.Engine {
	return ledger.Engine{URL: "http://" + name + ":30000", Healthy: true, Capacity: capacity}
}

func headroom(share float64) ledger.Patch {
	return ledger.Patch{Set: ledger.Settings{Headroom: share}, Fields: []string{"headroom"}}
}

const sec = time.Second

func TestWaitBehindOthersThenForTokens(t *testing.T) {
	s := newScript(t, headroom(0.9))
	s.engines(1*sec, engine("e1", 20_000))
	s.acquire(2*sec, ledger.Acquire{Ticket: "a:0", PromptTokens: 9_000, MaxNewTokens: 1_000, MaxWait: -1, Holder: "w1"})
	s.acquire(3*sec, ledger.Acquire{Ticket: "b:0", ReservationTokens: 6_000, MaxWait: -1, Holder: "w2"})
	s.acquire(4*sec, ledger.Acquire{Ticket: "c:0", ReservationTokens: 4_000, MaxWait: -1})
	s.acquire(5*sec, ledger.Acquire{Ticket: "d:0", PromptTokens: 9_000, MaxNewTokens: 6_000, MaxWait: -1, Holder: "w3", Session: "s 1", Group: "g", Priority: 0})
	s.release(7*sec, "b:0")
	s.release(11*sec, "a:0")
	s.release(21500*time.Millisecond, "c:0")
	s.do(30*sec, func() {
		s.l.Release(ledger.Release{Pool: ledger.DefaultPool, Ticket: "d:0", Usage: &ledger.Usage{PromptTokens: 9_000, CompletionTokens: 512, Outcome: "ok", Engine: "e1"}})
	})
	s.expect("d:0", `
12:05.0 It arrived and asked for 15,000 tokens (9,000 prompt, 6,000 completion), holder w3, session "s 1", group g.
12:05.0 It had to wait (older_waiter), for at most 30s: 1 ticket was ahead of it in the queue, asking for 4,000 tokens: c:0 (4,000).
12:05.0 16,000 tokens were held by 2 leases: a:0 10,000 of holder w1 for 3s by then and b:0 6,000 of holder w2 for 2s by then.
12:07.0 It was first in the queue and waited for tokens (capacity_exhausted): 14,000 of 18,000 were reserved, 11,000 too many for it.
12:21.5 It was admitted after 16.5s in the queue, when c:0 released 4,000 tokens; lease 1:d:0.
12:30.0 It released 15,000 tokens after 8.5s (ok held=8.5s prompt=9000 completion=512 cached=0 engine=e1).
It waited 16.5s (2s behind others and 14.5s for tokens), held 15,000 tokens for 8.5s.
`)
	s.expect("a:0", `
12:02.0 It arrived and asked for 10,000 tokens (9,000 prompt, 1,000 completion), holder w1 and was admitted at once: 10,000 of 18,000 tokens were reserved then, its own included.
12:11.0 It released 10,000 tokens after 9s.
It did not wait, held 10,000 tokens for 9s.
`)
}

func TestSeveralIncarnationsRetriesAndALeaderChange(t *testing.T) {
	s := newScript(t, headroom(1))
	s.engines(0, engine("e1", 100))
	s.acquire(sec, ledger.Acquire{Ticket: "x", ReservationTokens: 100, MaxWait: -1})
	s.release(2*sec, "x")
	s.acquire(2*sec, ledger.Acquire{Ticket: "big", ReservationTokens: 100, MaxWait: -1, Holder: "dead"})
	d := s.acquire(3*sec, ledger.Acquire{Ticket: "x", ReservationTokens: 60, MaxWait: 20 * sec})
	s.do(4*sec, func() { s.l.Detach(ledger.DefaultPool, "x", d.Seq, d.Attempt) })
	s.acquire(5*sec, ledger.Acquire{Ticket: "x", ReservationTokens: 60, MaxWait: 18 * sec})
	s.do(6*sec, func() { s.l.NewTerm(2, "n2") })
	s.acquire(7*sec, ledger.Acquire{Ticket: "x", ReservationTokens: 60, MaxWait: 16 * sec})
	s.do(9*sec, func() {
		h := s.l.Holder("dead")
		s.l.ReclaimHolder(ledger.DefaultPool, "dead", h[0].LastActive)
	})
	s.do(20*sec, func() { s.l.Cancel(ledger.Cancel{Pool: ledger.DefaultPool, Ticket: "x"}) })
	s.expect("x", `
12:01.0 It arrived and asked for 100 tokens and was admitted at once: 100 of 100 tokens were reserved then, its own included.
12:02.0 It released 100 tokens after 1s.
It did not wait, held 100 tokens for 1s.
12:03.0 It arrived and asked for 60 tokens.
12:03.0 It had to wait (capacity_exhausted), for at most 20s: it needed 60 tokens and 0 of 100 were free.
12:03.0 100 tokens were held by 1 lease: big 100 of holder dead for 1s by then.
12:04.0 Its call went away without a cancel; a retry had 10s to come back.
12:05.0 A retry of the call found its place in the queue, after 2s there.
12:06.0 n2 became leader (term 2); the call that waited was cut off, the ticket kept its place.
12:07.0 A retry of the call found its place in the queue, after 4s there.
12:09.0 It was admitted after 6s in the queue, when holder dead was given up and what it held came back (big: 100 tokens); lease 1:x.
12:20.0 It was cancelled while it held the lease after 11s: 60 tokens came back.
It waited 6s, held 60 tokens for 11s.
`)
}

func TestPressureAgeingAndTheOpenEnd(t *testing.T) {
	s := newScript(t, ledger.Patch{Set: ledger.Settings{Headroom: 1, PressureThreshold: 0.8}, Fields: []string{"headroom", "pressureThreshold"}})
	hot := engine("e1", 100)
	hot.Pressure = 0.95
	s.engines(0, hot)
	s.acquire(sec, ledger.Acquire{Ticket: "aged", ReservationTokens: 10, MaxWait: 3 * sec})
	s.acquire(2*sec, ledger.Acquire{Ticket: "cool", ReservationTokens: 10, MaxWait: -1})
	cool := hot
	cool.Pressure = 0.5
	s.engines(6*sec, cool)
	s.acquire(7*sec, ledger.Acquire{Ticket: "rest", ReservationTokens: 80, MaxWait: -1})
	s.acquire(8*sec, ledger.Acquire{Ticket: "open", ReservationTokens: 50, MaxWait: -1})
	s.acquire(9*sec, ledger.Acquire{Ticket: "huge", ReservationTokens: 500, MaxWait: -1})
	s.expect("aged", `
12:01.0 It arrived and asked for 10 tokens.
12:01.0 It had to wait (pressure_guard), for at most 3s: the engines' pressure of 95.0% was at or above the threshold 80.0%.
12:06.0 It was let go without a lease after 3s in the queue (aged): its patience was over while 0 of 100 tokens were reserved.
It waited 3s, got no lease.
`)
	s.expect("cool", `
12:02.0 It arrived and asked for 10 tokens.
12:02.0 It had to wait (older_waiter), for at most 30s: 1 ticket was ahead of it in the queue, asking for 10 tokens: aged (10).
12:06.0 It was first in the queue and waited for the engines' pressure to fall (pressure_guard): 95.0% was too high.
12:06.0 It was admitted after 4s in the queue, when the engines' pressure fell to 50.0%; lease 1:cool.
It waited 4s (2s behind others and 2s for the pressure to fall), holds 10 tokens, for 3s so far.
`)
	s.expect("open", `
12:08.0 It arrived and asked for 50 tokens.
12:08.0 It had to wait (capacity_exhausted), for at most 30s: it needed 50 tokens and 10 of 100 were free.
12:08.0 90 tokens were held by 2 leases: rest 80 for 1s by then and cool 10 for 2s by then.
It still waits, for 1s so far.
`)
	s.expect("huge", `
12:09.0 It arrived and asked for 500 tokens and was let go at once without a lease (oversized): it could never fit below the ceiling of 100 tokens.
It did not wait, got no lease.
`)
}

func TestAStoryWhoseBeginningWasTrimmed(t *testing.T) {
	s := newScript(t, headroom(1))
	s.engines(0, engine("e1", 100))
	s.acquire(sec, ledger.Acquire{Ticket: "x", ReservationTokens: 100, MaxWait: -1})
	s.release(2*sec, "x")
	s.events = s.events[len(s.events)-1:]
	s.expect("x", `
12:02.0 What came before this is not in the journal any more.
12:02.0 It released 100 tokens.
It did not wait.
`)
}

func TestIncidents(t *testing.T) {
	s := newScript(t, headroom(0.9))
	s.engines(sec, engine("e1", 10_000), engine("e2", 10_000))
	s.acquire(2*sec, ledger.Acquire{Ticket: "w:1", ReservationTokens: 3_200, MaxWait: -1, Holder: "worker-7"})
	s.acquire(2*sec, ledger.Acquire{Ticket: "w:2", ReservationTokens: 4_000, MaxWait: -1, Holder: "worker-7"})
	s.do(20*sec, func() { s.l.ReclaimHolder(ledger.DefaultPool, "worker-7", s.l.Holder("worker-7")[0].LastActive) })
	dead := engine("e2", 10_000)
	dead.Healthy, dead.Error = false, "connection refused"
	s.engines(30*sec, engine("e1", 10_000), dead)
	s.do(40*sec, func() {
		if _, err := s.l.UpdateSettings(ledger.DefaultPool, ledger.Patch{Set: ledger.Settings{Headroom: 0.09, MaxWait: 90 * sec}, Fields: []string{"headroom", "maxWait"}}); err != nil {
			t.Fatal(err)
		}
	})
	s.acquire(45*sec, ledger.Acquire{Ticket: "wide", ReservationTokens: 8_000, MaxWait: -1}) // fitted before
	s.acquire(46*sec, ledger.Acquire{Ticket: "huge", ReservationTokens: 80_000, MaxWait: -1})
	s.do(50*sec, func() {
		s.l.Reconcile(ledger.DefaultPool, ledger.Round{Degrade: true, Reason: "no engines listed", Engines: []ledger.Engine{engine("e1", 10_000), dead}})
	})
	s.acquire(51*sec, ledger.Acquire{Ticket: "late", ReservationTokens: 100, MaxWait: -1})
	s.do(52*sec, func() { s.l.NewTerm(2, "n2") })
	s.engines(55*sec, engine("e1", 10_000), dead)
	var got strings.Builder
	f := story.NewFinder("")
	for _, e := range s.events {
		f.Read(e)
	}
	for _, i := range f.Incidents() {
		fmt.Fprintf(&got, "%s %s trouble=%t | %s | %s | %s\n", i.At.Format("04:05"), i.Kind, i.Trouble, i.Title, i.Detail, strings.Join(i.Tickets, " "))
	}
	want := `12:00 leader trouble=false | n1 leads (term 1) |  | 
12:00 settings trouble=false | Settings changed: nothing has another value |  | 
`
	want = strings.Replace(want, "nothing has another value", "headroom=0.9 staleness=1h0m0s (was 6s)", 1)
	want += `12:01 engine_joined trouble=false | Engines http://e1:30000 and http://e2:30000 joined | The ceiling went from 0 to 18,000 tokens. | 
12:20 holder_expired trouble=true | Holder worker-7 went silent and was given up | 2 leases with 7,200 tokens, 40.0% of the ceiling, came back. | w:1 w:2
12:30 engine_lost trouble=true | Engine http://e2:30000 lost | http://e2:30000: connection refused. The ceiling went from 18,000 to 9,000 tokens. | 
12:40 settings trouble=false | Settings changed: headroom 0.9 -> 0.09, maxWait 30s -> 1m30s | The ceiling went from 9,000 to 900 tokens. 1 ticket was let go without a lease for it (oversized). | wide
12:50 degraded trouble=true | Degraded for 5s | No engines listed. 1 ticket was let go without a lease for it (degraded). | late
12:52 leader trouble=false | n2 leads (term 2) |  | 
`
	if got.String() != want {
		t.Errorf("got:\n%s\nwant:\n%s", got.String(), want)
	}
}
