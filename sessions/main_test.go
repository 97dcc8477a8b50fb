package sessions

import (
	"reflect"
	"testing"
	"time"

	"go.uber.org/goleak"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

const second = Time(time.Second)

// rules are a pool's defaults.
var rules = Rules{
	Lifecycle: true, JoinTimeout: 30 * time.Second, AbortTimeout: 5 * time.Second, CloseDeadline: time.Minute,
	PinRatio: 0.5, Ceiling: 1000,
}

func anyRules(string) Rules { return rules }

// world is a table with one pool "p" of two engines.
type world struct {
	*Table
	t *testing.T
}

const (
	e1 = "http://10.0.0.1:30000"
	e2 = "http://10.0.0.2:30000"
)

func newWorld(t *testing.T) *world {
	w := &world{Table: NewTable(), t: t}
	w.EnginesChanged("p", []Engine{{e1, "i1"}, {e2, "i1"}})
	return w
}

// at lets time pass until s seconds, as the replica does.
func (w *world) at(s int) {
	w.t.Helper()
	for more := true; more; {
		_, more = w.Expire(Time(s)*second, 3, anyRules)
	}
}

func (w *world) get(id string) View {
	w.t.Helper()
	v, ok := w.Get("p", id)
	if !ok {
		w.t.Fatalf("no session %q", id)
	}
	return v
}

func (w *world) close(id string, mode Mode) View {
	w.t.Helper()
	return must(w.Close(CloseRequest{Pool: "p", ID: id, Mode: mode}, rules))(w.t)
}

func (w *world) state(id string, state State, phase Phase) {
	w.t.Helper()
	v := w.get(id)
	if v.State != state || v.Close.Phase != phase {
		w.t.Fatalf("session %q is %v in phase %v, want %v in phase %v", id, v.State, v.Close.Phase, state, phase)
	}
}

func (w *world) ack(id string, engines ...string) {
	w.Report([]Report{{Pool: "p", Session: id, Seq: w.get(id).Seq, Acked: engines}})
}

// heard returns the kinds of events since it was last asked.
func (w *world) heard() []EventKind {
	var out []EventKind
	for _, e := range w.Events() {
		out = append(out, e.Kind)
	}
	w.Reset()
	return out
}

func must[T any](v T, err error) func(testing.TB) T {
	return func(t testing.TB) T {
		t.Helper()
		if err != nil {
			t.Fatal(err)
		}
		return v
	}
}

func equal[T any](t testing.TB, what string, got, want T) {
	t.Helper()
	if !reflect.DeepEqual(got, want) {
		t.Fatalf("%s: got %+v, want %+v", what, got, want)
	}
}

func owedEngines(v View) []string {
	var out []string
	for _, c := range v.Owed {
		out = append(out, c.Engine+" "+c.Debt.String())
	}
	return out
}
