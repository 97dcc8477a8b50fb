package enginesim

import (
	"cmp"
	"encoding/json"
	"slices"
	"sync"
)

// callLog counts calls per path and remembers the latest bodies of control calls.
type callLog struct {
	mu     sync.Mutex
	keep   int
	calls  map[callKey]int
	bodies map[string][]string
}

type callKey struct{ path, method string }

type callCount struct {
	path, method string
	count        int
}

func newCallLog(keep int) *callLog {
	return &callLog{keep: keep, calls: map[callKey]int{}, bodies: map[string][]string{}}
}

func (l *callLog) add(method, path string) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.calls[callKey{path, method}]++
}

func (l *callLog) addBody(path string, body []byte) {
	l.mu.Lock()
	defer l.mu.Unlock()
	kept := append(l.bodies[path], string(body))
	if len(kept) > l.keep {
		kept = slices.Clone(kept[len(kept)-l.keep:])
	}
	l.bodies[path] = kept
}

func (l *callLog) counts() []callCount {
	l.mu.Lock()
	defer l.mu.Unlock()
	out := make([]callCount, 0, len(l.calls))
	for k, n := range l.calls {
		out = append(out, callCount{k.path, k.method, n})
	}
	slices.SortFunc(out, func(a, b callCount) int {
		return cmp.Or(cmp.Compare(a.path, b.path), cmp.Compare(a.method, b.method))
	})
	return out
}

// reset is for a restart: the counters on /metrics begin anew, the bodies heard stay.
func (l *callLog) reset() {
	l.mu.Lock()
	defer l.mu.Unlock()
	clear(l.calls)
}

// Calls is the number of requests for path since the last restart, whatever came of them.
func (e *Engine) Calls(path string) int {
	n := 0
	for _, c := range e.calls.counts() {
		if c.path == path {
			n += c.count
		}
	}
	return n
}

// Bodies are the latest bodies of a control path (/close_session, /open_session, /abort_request,
// /hicache/pin_prefix) that got past faults and keys, in the order they came, restarts included.
func (e *Engine) Bodies(path string) []string {
	e.calls.mu.Lock()
	defer e.calls.mu.Unlock()
	return slices.Clone(e.calls.bodies[path])
}

// ClosedSessions are the session ids of the close calls that were heard, repeats included.
func (e *Engine) ClosedSessions() []string { return e.heard("/close_session", "session_id") }

// AbortedRIDs are the rids of the abort calls that were heard, repeats included.
func (e *Engine) AbortedRIDs() []string { return e.heard("/abort_request", "rid") }

func (e *Engine) heard(path, field string) []string {
	var out []string
	for _, body := range e.Bodies(path) {
		var fields map[string]any
		if json.Unmarshal([]byte(body), &fields) != nil {
			continue
		}
		if value, ok := fields[field].(string); ok {
			out = append(out, value)
		}
	}
	return out
}
