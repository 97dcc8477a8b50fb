package enginesim

import (
	"encoding/json"
	"fmt"
	"net/http"
	"sync"
	"time"
)

// FaultKind names a way to fail.
type FaultKind string

const (
	FaultHang        FaultKind = "hang"         // requests for Path ("" means all) get no answer while it lasts
	FaultStatus      FaultKind = "status"       // requests for Path get Status instead of an answer
	FaultSlow        FaultKind = "slow"         // requests for Path wait Delay; a slow /metrics starves /health too
	FaultNaNUsage    FaultKind = "nan_usage"    // the usage gauges read NaN
	FaultMetricsGone FaultKind = "metrics_gone" // /metrics is 404
	FaultRefuse      FaultKind = "refuse"       // nothing listens; open connections are cut
	FaultRestart     FaultKind = "restart"      // the process is replaced at once, see Engine.Restart
)

// Fault is one thing that goes wrong. Faults of different kind or path add up; the same again replaces.
type Fault struct {
	Kind   FaultKind
	Path   string
	Status int           // of FaultStatus; 100 to 599
	Delay  time.Duration // of FaultSlow; real time
	For    time.Duration // real time after which it heals by itself; 0 means not
}

// Inject makes a fault happen from now on.
func (e *Engine) Inject(f Fault) error {
	switch f.Kind {
	case FaultRestart:
		e.calls.reset()
		e.Restart()
		return nil
	case FaultRefuse:
		return e.server.refuse(f.For)
	case FaultStatus:
		if f.Status < 100 || f.Status > 599 {
			return fmt.Errorf("%w: status %d, want 100 to 599", ErrFault, f.Status)
		}
	case FaultSlow:
		if f.Delay <= 0 {
			return fmt.Errorf("%w: delay %v, want more than 0", ErrFault, f.Delay)
		}
	case FaultHang, FaultNaNUsage, FaultMetricsGone:
	default:
		return fmt.Errorf("%w: kind %q, want hang, status, slow, nan_usage, metrics_gone, refuse, restart or heal", ErrFault, f.Kind)
	}
	e.faults.set(f)
	return nil
}

// Heal ends every fault. It fails when a refusing engine cannot get its address back.
func (e *Engine) Heal() error {
	e.faults.clear()
	return e.server.resume()
}

// faultSet is the faults that requests meet.
type faultSet struct {
	mu      sync.Mutex
	active  map[faultKey]*activeFault
	scrapes map[chan struct{}]struct{} // one per slow scrape going on, closed at its end
}

type faultKey struct {
	kind FaultKind
	path string
}

type activeFault struct {
	Fault
	gone  chan struct{} // closed when it ends
	timer *time.Timer
}

func newFaultSet() *faultSet {
	return &faultSet{active: map[faultKey]*activeFault{}, scrapes: map[chan struct{}]struct{}{}}
}

// beginScrape notes a slow scrape and returns the function that ends it.
func (s *faultSet) beginScrape() func() {
	s.mu.Lock()
	defer s.mu.Unlock()
	over := make(chan struct{})
	s.scrapes[over] = struct{}{}
	return func() {
		s.mu.Lock()
		defer s.mu.Unlock()
		delete(s.scrapes, over)
		close(over)
	}
}

// scraping returns the end of some slow scrape, or nil when none is going on.
func (s *faultSet) scraping() <-chan struct{} {
	s.mu.Lock()
	defer s.mu.Unlock()
	for over := range s.scrapes {
		return over
	}
	return nil
}

func (s *faultSet) set(f Fault) {
	s.mu.Lock()
	defer s.mu.Unlock()
	key := faultKey{f.Kind, f.Path}
	s.end(key)
	a := &activeFault{Fault: f, gone: make(chan struct{})}
	s.active[key] = a
	if f.For > 0 {
		a.timer = time.AfterFunc(f.For, func() { s.expire(key, a) })
	}
}

func (s *faultSet) expire(key faultKey, a *activeFault) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.active[key] == a {
		s.end(key)
	}
}

// end needs the lock.
func (s *faultSet) end(key faultKey) {
	a := s.active[key]
	if a == nil {
		return
	}
	if a.timer != nil {
		a.timer.Stop()
	}
	close(a.gone)
	delete(s.active, key)
}

func (s *faultSet) clear() {
	s.mu.Lock()
	defer s.mu.Unlock()
	for key := range s.active {
		s.end(key)
	}
}

// find returns the fault of a kind for path: its own or the one for all paths.
func (s *faultSet) find(kind FaultKind, path string) *activeFault {
	s.mu.Lock()
	defer s.mu.Unlock()
	if a := s.active[faultKey{kind, path}]; a != nil {
		return a
	}
	return s.active[faultKey{kind, ""}]
}

func (s *faultSet) has(kind FaultKind) bool { return s.find(kind, "") != nil }

// withFaults makes requests meet the faults of their path before they meet next.
func (e *Engine) withFaults(next http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		path := r.URL.Path
		if a := e.faults.find(FaultHang, path); a != nil && !e.outlast(r, a.gone) {
			panic(http.ErrAbortHandler)
		}
		for scrape := e.faults.scraping(); path == "/health" && scrape != nil; scrape = e.faults.scraping() {
			if !e.outlast(r, scrape) {
				panic(http.ErrAbortHandler)
			}
		}
		if a := e.faults.find(FaultSlow, path); a != nil && !e.crawl(r, a) {
			panic(http.ErrAbortHandler)
		}
		if a := e.faults.find(FaultStatus, path); a != nil {
			writeError(w, a.Status, "injected fault")
			return
		}
		next.ServeHTTP(w, r)
	})
}

// outlast waits for gone. It reports false when the client or the engine goes first.
func (e *Engine) outlast(r *http.Request, gone <-chan struct{}) bool {
	select {
	case <-gone:
		return true
	case <-r.Context().Done():
	case <-e.ended:
	}
	return false
}

func (e *Engine) crawl(r *http.Request, a *activeFault) bool {
	if r.URL.Path == "/metrics" {
		defer e.faults.beginScrape()()
	}
	timer := time.NewTimer(a.Delay)
	defer timer.Stop()
	select {
	case <-timer.C:
	case <-a.gone:
	case <-r.Context().Done():
		return false
	case <-e.ended:
		return false
	}
	return true
}

// serveFault answers POST /_sim/fault {"kind","path","status","delay_ms","for_ms"}; kind "heal" ends all.
// A refusing engine does not hear it: give refuse a for_ms.
func (e *Engine) serveFault(w http.ResponseWriter, r *http.Request) {
	var body struct {
		Kind    FaultKind `json:"kind"`
		Path    string    `json:"path"`
		Status  int       `json:"status"`
		DelayMS int64     `json:"delay_ms"`
		ForMS   int64     `json:"for_ms"`
	}
	if err := json.NewDecoder(r.Body).Decode(&body); err != nil {
		writeError(w, http.StatusBadRequest, "body: "+err.Error())
		return
	}
	f := Fault{
		Kind: body.Kind, Path: body.Path, Status: body.Status,
		Delay: time.Duration(body.DelayMS) * time.Millisecond, For: time.Duration(body.ForMS) * time.Millisecond,
	}
	if f.Kind == FaultRefuse && e.URL() != "" {
		// The answer has to leave first: the refusal cuts this connection too.
		writeJSON(w, http.StatusOK, map[string]any{"ok": true})
		_ = http.NewResponseController(w).Flush()
		_ = e.Inject(f)
		return
	}
	inject := func() error { return e.Inject(f) }
	if f.Kind == "heal" {
		inject = e.Heal
	}
	if err := inject(); err != nil {
		writeError(w, http.StatusBadRequest, err.Error())
		return
	}
	writeJSON(w, http.StatusOK, map[string]any{"ok": true})
}
