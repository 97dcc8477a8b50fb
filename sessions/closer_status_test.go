package sessions

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"
)

// patient are rules under which a session stays in the aborting phase until its tickets are released.
func patient() Rules {
	out := rules
	out.AbortTimeout = time.Hour
	return out
}

// abortAll begins tickets of session s and closes it by abort.
func (n *node) abortAll(t *testing.T, tickets ...string) {
	t.Helper()
	n.do(func(tab *Table) {
		for _, x := range tickets {
			tab.Started("p", "s", "", Flight{Ticket: x})
		}
		must(tab.Close(CloseRequest{Pool: "p", ID: "s", Mode: Abort}, patient()))(t)
	})
}

// refusals returns the abort_refused events so far as "ticket engines: reason".
func (n *node) refusals() (out []string) {
	for _, e := range n.told {
		if e.Kind == AbortRefused {
			out = append(out, fmt.Sprintf("%s %s: %s", e.Ticket, strings.Join(e.Engines, " "), e.Reason))
		}
	}
	return out
}

// TestRefusedAbortsAreShownAndToldOnce: which engine refuses which abort, how often it was asked and why, while it
// goes on; and in the journal once for each, however often it is asked.
func TestRefusedAbortsAreShownAndToldOnce(t *testing.T) {
	tried := make(chan string, 10_000)
	f := &fakeEngines{answer: func(_ context.Context, engine, path, id string) error {
		if path == pathAbort && engine == "e2" {
			tried <- id
			return ErrRefused
		}
		return nil
	}}
	n := newNode("e1", "e2")
	c := runCloser(t, n, f, fastOptions())
	n.abortAll(t, "a", "b")
	for seen := map[string]int{}; seen["a"] < 4 || seen["b"] < 4; {
		seen[<-tried]++
	}
	n.until(t, "both to be told", func(*Table) bool { return len(n.refusals()) == 2 })
	got := c.Status("p", "s")
	equal(t, "aborts", len(got), 2)
	for i, s := range got {
		if want := []string{"a", "b"}[i]; s.Ticket != want || s.Engine != "e2" || s.Attempts < 4 || s.LastError != ErrRefused.Error() {
			t.Errorf("abort %d of %s: %+v", i, want, s)
		}
	}
	n.do(func(tab *Table) { tab.Ended("p", "a", Turn{}); tab.Ended("p", "b", Turn{}) })
	n.until(t, "closed", isState("s", Closed))
	equal(t, "events", n.refusals(), []string{"a e2: " + ErrRefused.Error(), "b e2: " + ErrRefused.Error()})
	equal(t, "status of what is over", len(c.Status("p", "s")), 0)
}

// TestAnEngineThatTakesNoAbortIsToldOfForEachTicket, although one call at a time probes it.
func TestAnEngineThatTakesNoAbortIsToldOfForEachTicket(t *testing.T) {
	n, f := newNode("e1"), &fakeEngines{answer: func(context.Context, string, string, string) error { return ErrUnauthorized }}
	opt := fastOptions()
	opt.FirstRetry, opt.LastRetry = time.Hour, time.Hour
	runCloser(t, n, f, opt)
	n.abortAll(t, "a", "b", "c", "d", "e")
	n.until(t, "all to be told", func(*Table) bool { return len(n.refusals()) == 5 })
	asked, not := 0, 0
	for _, line := range n.refusals() {
		if strings.Contains(line, "not asked yet, others fail: "+ErrUnauthorized.Error()) {
			not++
		} else if strings.HasSuffix(line, " e1: "+ErrUnauthorized.Error()) {
			asked++
		}
	}
	equal(t, "asked", asked, len(f.heard()))
	equal(t, "told", asked+not, 5)
}

// TestAnAbortWithoutAnswerIsTold well before its call times out.
func TestAnAbortWithoutAnswerIsTold(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := &fakeEngines{answer: func(ctx context.Context, engine, _, _ string) error {
			if engine == "hangs" {
				<-ctx.Done()
				return errors.Join(ErrUnreachable, ctx.Err())
			}
			return nil
		}}
		n := newNode("e1", "hangs")
		c := runCloser(t, n, f, Options{})
		n.abortAll(t, "a")
		n.until(t, "the silence to be told", func(*Table) bool { return len(n.refusals()) == 1 })
		if took := time.Since(n.start); took > 2*time.Second {
			t.Errorf("told after %v", took)
		}
		equal(t, "events", n.refusals(), []string{"a hangs: " + noAnswerYet})
		equal(t, "status", c.Status("p", "s"), []OwedStatus{{Engine: "hangs", Ticket: "a", Attempts: 1, LastError: noAnswerYet}})
		n.do(func(tab *Table) { tab.EnginesChanged("p", []Engine{{"e1", "i1"}}); tab.Ended("p", "a", Turn{}) })
		n.until(t, "closed", isState("s", Closed))
	})
}

func TestRefusalsAreBoundedInAReport(t *testing.T) {
	d, now := newDesk(Options{Parallel: 1, PerEngine: 8}), time.Now()
	w := Work{Pool: "p", Session: "s", Seq: 1, Phase: Aborting, Engines: []string{"e1"}}
	for i := range maxRefusals + 10 {
		w.Aborts = append(w.Aborts, AbortTask{Ticket: ticketName(i), RID: ticketName(i)})
	}
	d.take([]Work{w}, now)
	d.end(d.next(now, 1)[0], ErrUnauthorized, now)
	first := d.reports()
	equal(t, "refusals", len(first[0].Refused), maxRefusals)
	second := d.reports()
	equal(t, "the rest", len(second[0].Refused), 10)
	equal(t, "pending", len(d.pending), 0)
	d.unreported(first)
	equal(t, "again", d.reports(), first)
	equal(t, "status", len(d.status("p", "s", now)), maxAbortStatus)
}

// TestRefusalsInTheJournal: one event for each ticket and reason, none for what is over.
func TestRefusalsInTheJournal(t *testing.T) {
	w := newWorld(t)
	w.Started("p", "s", "", Flight{Ticket: "a", Holder: "h"})
	w.Started("p", "s", "", Flight{Ticket: "b"})
	w.Started("p", "other", "", Flight{Ticket: "c"})
	must(w.Close(CloseRequest{Pool: "p", ID: "s", Mode: Abort}, patient()))(t)
	w.Reset()
	report := Report{Pool: "p", Session: "s", Seq: w.get("s").Seq, Refused: []Refusal{
		{"b", e1, "y"}, {"a", e2, "x"}, {"c", e1, "x"}, {"gone", e1, "x"}, {"a", e1, "x"},
	}}
	rev := w.byRev("s")
	equal(t, "reports", w.Report([]Report{report}), 1)
	equal(t, "revision", w.byRev("s"), rev)
	var got []string
	for _, e := range w.Events() {
		got = append(got, fmt.Sprint(e.Kind, e.Session, e.Ticket, e.Holder, e.Engines, e.Reason))
	}
	want := []string{
		fmt.Sprint(AbortRefused, "s", "a", "h", []string{e1, e2}, "x"), fmt.Sprint(AbortRefused, "s", "b", "", []string{e1}, "y"),
	}
	if !slices.Equal(got, want) {
		t.Fatalf("events %q, want %q", got, want)
	}
	w.Ended("p", "a", Turn{})
	w.Ended("p", "b", Turn{})
	w.Reset()
	equal(t, "reports of what is over", w.Report([]Report{report}), 0)
	equal(t, "events of what is over", len(w.Events()), 0)
}

func (w *world) byRev(id string) uint64 { return w.find("p", id).rev }
