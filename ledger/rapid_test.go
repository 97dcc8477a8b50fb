package ledger_test

import (
	"errors"
	"fmt"
	"math"
	"reflect"
	"testing"
	"time"

	"pgregory.net/rapid"

	"kvgate/ledger"
)

// TestModel runs random operations against the ledger, a twin that is now and then rebuilt from the
// ledger's rows, and the model, and compares all that can be seen of them after every step.
func TestModel(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		r := newRun(t)
		for range 4 { // one Repeat makes about 30 steps: too few for a queue to build up
			t.Repeat(r.actions())
		}
	})
}

// run is one random history.
type run struct {
	led   *ledger.Ledger
	twin  *ledger.Ledger
	model *model
	// rows and twinRows are what a store would hold that took over every change.
	rows, twinRows image
}

func newRun(t *rapid.T) *run {
	r := &run{led: ledger.New(), twin: ledger.New(), model: newModel(), rows: image{}, twinRows: image{}}
	r.flush(t)
	r.settings(t, ledger.DefaultPool, []string{"staleness"}, nil, ledger.Settings{Staleness: time.Hour}, func(s *ledger.Settings) {
		s.Staleness = time.Hour
	})
	r.reconcile(t, ledger.DefaultPool, ledger.Round{Fresh: true, Engines: []ledger.Engine{{URL: "http://a:1", Healthy: true, Capacity: 100}}})
	return r
}

// actions are what a history is made of. Repeated entries make an action more frequent.
func (r *run) actions() map[string]func(*rapid.T) {
	return map[string]func(*rapid.T){
		"":          r.check,
		"acquire1":  r.acquire,
		"acquire2":  r.acquire,
		"acquire3":  r.acquire,
		"release1":  r.release,
		"release2":  r.release,
		"renew":     r.renew,
		"cancel":    r.cancel,
		"detach":    r.detach,
		"reclaim":   r.reclaim,
		"advance1":  r.advance,
		"advance2":  r.advance,
		"reconcile": r.round,
		"recover":   r.recover,
		"settings":  r.patch,
		"delete":    r.deletePool,
		"drain":     r.drain,
		"newTerm":   r.newTerm,
		"meta":      r.meta,
		"reload":    r.reload,
		"flush":     r.flush,
	}
}

var (
	pools   = []string{ledger.DefaultPool, ledger.DefaultPool, ledger.DefaultPool, ledger.DefaultPool, "b", "absent"}
	tickets = []string{"t0", "t1", "t2", "t3", "t4", "t5", "t6", "t7"}
	// calls are few, so that the same one comes again.
	calls   = []uint64{0, 0, 1, 2}
	ended   = []uint64{0, 0, 0, 1, 2}
	holders = []string{"", "", "h0", "h1", "h2"}
	// durations share divisors so that deadlines meet.
	durations = []time.Duration{0, 1, time.Second, 2 * time.Second, 5 * time.Second, 10 * time.Second, 30 * time.Second}
)

func draw[T any](t *rapid.T, name string, from ...T) T { return rapid.SampledFrom(from).Draw(t, name) }

// both runs an operation on the ledger and its twin and demands the same answer, decisions and events.
func (r *run) both(t *rapid.T, op func(*ledger.Ledger) (any, error)) (any, error) {
	v1, err1 := op(r.led)
	v2, err2 := op(r.twin)
	same(t, "answer of the reloaded ledger", v2, v1)
	same(t, "error of the reloaded ledger", fmt.Sprint(err2), fmt.Sprint(err1))
	return v1, err1
}

func same(t rapid.TB, what string, got, want any) {
	t.Helper()
	if !reflect.DeepEqual(got, want) {
		t.Fatalf("%s:\n got %+v\nwant %+v", what, got, want)
	}
}

func (r *run) acquire(t *rapid.T) {
	tokens := func(name string) ledger.Tokens { return ledger.Tokens(rapid.IntRange(0, 45).Draw(t, name)) }
	op := ledger.Acquire{
		Pool: draw(t, "pool", pools...), Ticket: draw(t, "ticket", tickets...), PromptTokens: tokens("prompt"),
		MaxNewTokens: tokens("maxNew"), ReservationTokens: draw(t, "reservation", 0, tokens("outright")),
		Mode:      draw(t, "mode", ledger.ModeUnspecified, ledger.ModeTrain, ledger.ModeTrain, ledger.ModeEval),
		Protected: rapid.IntRange(0, 15).Draw(t, "protected") == 0, Priority: draw[int32](t, "priority", 0, 0, 0, 1, -1),
		Session: draw(t, "session", "", "s0", "s1"), Group: draw(t, "group", "", "g"), Holder: draw(t, "holder", holders...),
		RID: draw(t, "rid", "", "rid"), MaxWait: draw(t, "maxWait", append([]time.Duration{-1, -1}, durations...)...),
		TTL: draw(t, "ttl", durations...), Call: draw(t, "call", calls...),
	}
	if w := r.anyWaiter(op.Pool, op.Ticket); w != nil && rapid.Bool().Draw(t, "retry") {
		op = w.op
	}
	if rapid.IntRange(0, 30).Draw(t, "break") == 0 {
		op.PromptTokens = draw(t, "bad", -1, ledger.MaxTokens+1, math.MinInt64, math.MaxInt64)
	}
	got, err := r.both(t, func(l *ledger.Ledger) (any, error) { return l.Acquire(op) })
	want, wantErr := r.model.Acquire(op)
	same(t, "decision", got, want)
	if !errors.Is(err, wantErr) {
		t.Fatalf("error %v, want %v", err, wantErr)
	}
}

func (r *run) anyWaiter(pool, ticket string) *modelWaiter {
	if p := r.model.pool(pool); p != nil {
		return p.waiter(ticket)
	}
	return nil
}

// fence draws fences that mostly, but not always, name the present lease of the ticket.
func (r *run) fence(t *rapid.T, pool, ticket string) (ref ledger.LeaseRef) {
	ref.Ticket = ticket
	var x modelLease
	if p := r.model.pool(pool); p != nil && p.lease(ticket) != nil {
		x = *p.lease(ticket)
	}
	if rapid.Bool().Draw(t, "byEpoch") {
		ref.HasEpoch, ref.Epoch = true, x.epoch+draw[uint64](t, "epochOff", 0, 0, 1)
	}
	if rapid.Bool().Draw(t, "byGrant") {
		ref.Grant = x.grant + draw[ledger.Seq](t, "grantOff", 0, 0, 1)
	}
	return ref
}

func (r *run) release(t *rapid.T) {
	pool, ticket := draw(t, "pool", pools...), draw(t, "ticket", tickets...)
	ref := r.fence(t, pool, ticket)
	op := ledger.Release{
		Pool: pool, Ticket: ticket, Epoch: ref.Epoch, HasEpoch: ref.HasEpoch, Grant: ref.Grant, Holder: draw(t, "holder", holders...),
		Ended: draw(t, "ended", ended...),
		Usage: draw(t, "usage", nil, &ledger.Usage{}, &ledger.Usage{PromptTokens: 7, CompletionTokens: 3, CachedTokens: 2, Outcome: "stop"}),
	}
	got, _ := r.both(t, func(l *ledger.Ledger) (any, error) { return l.Release(op), nil })
	same(t, "released", got, r.model.Release(op))
}

func (r *run) renew(t *rapid.T) {
	pool, ttl := draw(t, "pool", pools...), draw(t, "ttl", durations...)
	refs := []ledger.LeaseRef{
		r.fence(t, pool, draw(t, "ticket", tickets...)), r.fence(t, pool, draw(t, "ticket", tickets...)),
	}
	got, _ := r.both(t, func(l *ledger.Ledger) (any, error) { return l.Renew(pool, refs, ttl), nil })
	same(t, "renewed", got, r.model.Renew(pool, refs, ttl))
}

func (r *run) cancel(t *rapid.T) {
	op := ledger.Cancel{
		Pool: draw(t, "pool", pools...), Ticket: draw(t, "ticket", tickets...), Call: draw(t, "call", calls...),
		Ended: draw(t, "ended", ended...),
	}
	got, _ := r.both(t, func(l *ledger.Ledger) (any, error) { return l.Cancel(op), nil })
	same(t, "cancel", got, r.model.Cancel(op))
}

func (r *run) detach(t *rapid.T) {
	pool, ticket := draw(t, "pool", pools...), draw(t, "ticket", tickets...)
	var seq ledger.Seq
	attempt := draw[uint32](t, "attempt", 0, 0, 0, 1)
	if p := r.model.pool(pool); p != nil {
		if w := p.waiter(ticket); w != nil {
			seq, attempt = w.seq, attempt+w.attempt
		}
		if x := p.lease(ticket); x != nil {
			seq, attempt = draw(t, "seq", x.grant, x.waiter, x.grant+1), attempt+x.attempt
		}
	}
	got, _ := r.both(t, func(l *ledger.Ledger) (any, error) { return l.Detach(pool, ticket, seq, attempt), nil })
	same(t, "detached", got, r.model.Detach(pool, ticket, seq, attempt))
}

func (r *run) reclaim(t *rapid.T) {
	pool, holder := draw(t, "pool", pools...), draw(t, "holder", holders...)
	seen := draw[ledger.Time](t, "seen", 0, r.model.now)
	if p := r.model.pool(pool); p != nil && len(p.active) > 0 && rapid.Bool().Draw(t, "exact") {
		h := rapid.SampledFrom(p.active).Draw(t, "known")
		holder, seen = h.name, h.at
	}
	type answer struct {
		N    int
		More bool
	}
	got, _ := r.both(t, func(l *ledger.Ledger) (any, error) {
		n, more := l.ReclaimHolder(pool, holder, seen)
		return answer{n, more}, nil
	})
	n, more := r.model.ReclaimHolder(pool, holder, seen)
	same(t, "reclaimed", got, answer{n, more})
}

// advance moves time by steps that often hit a deadline exactly, or miss it by one.
func (r *run) advance(t *rapid.T) {
	to := r.model.now.Add(draw(t, "step", append([]time.Duration{-time.Second, time.Minute}, durations...)...))
	if due := r.model.deadlines(); len(due) > 0 && rapid.Bool().Draw(t, "exact") {
		to = due[rapid.IntRange(0, min(3, len(due)-1)).Draw(t, "which")].at + draw[ledger.Time](t, "off", -1, 0, 0, 1)
	}
	limit := draw(t, "limit", 0, 0, 0, 1, 2)
	got, _ := r.both(t, func(l *ledger.Ledger) (any, error) { return l.Advance(to, limit), nil })
	same(t, "more is due", got, r.model.Advance(to, limit))
	if due, ok := r.led.NextDue(); limit == 0 && ok && due <= r.led.Now() {
		t.Fatalf("at %d a deadline of %d is left", r.led.Now(), due)
	}
}

// recover brings the default pool back to where queues form.
func (r *run) recover(t *rapid.T) {
	names := []string{"admission", "headroom", "pressureThreshold"}
	r.settings(t, ledger.DefaultPool, nil, names, ledger.Settings{}, func(s *ledger.Settings) {
		defaults := ledger.DefaultSettings()
		for _, name := range names {
			copySetting(s, &defaults, name)
		}
	})
	r.reconcile(t, ledger.DefaultPool, ledger.Round{Fresh: true, Engines: []ledger.Engine{
		{URL: "http://a:1", Healthy: true, Capacity: 100, Pressure: draw(t, "pressure", 0, 0, 0.5)},
	}})
}

func (r *run) round(t *rapid.T) {
	round := ledger.Round{
		Fresh: rapid.IntRange(0, 4).Draw(t, "fresh") > 0, Degrade: rapid.IntRange(0, 9).Draw(t, "degrade") == 0,
		Reason: draw(t, "reason", "", "no workers"), Repeats: draw[int64](t, "repeats", 0, 0, 3, -1),
		Discovery: draw(t, "discovery", "static", "router /workers"),
	}
	for range rapid.IntRange(0, 4).Draw(t, "engines") {
		round.Engines = append(round.Engines, ledger.Engine{
			URL: draw(t, "url", "http://a:1", "http://b:1", "http://c:1"), Healthy: rapid.IntRange(0, 5).Draw(t, "healthy") > 0,
			Capacity: draw[ledger.Tokens](t, "capacity", 0, 33, 50, 100, 100, -5), Error: draw(t, "error", "", "timeout"),
			Pressure: draw(t, "pressure", 0, 0, 0.5, 0.91, 0.92, 7, -1), Usage: draw(t, "usage", 0, 0.5, math.NaN()),
			Role: draw(t, "role", ledger.RoleUnspecified, ledger.RoleRegular, ledger.RolePrefill, ledger.RoleDecode, ledger.RoleEncode),
		})
	}
	r.reconcile(t, draw(t, "pool", pools...), round)
}

func (r *run) reconcile(t *rapid.T, pool string, round ledger.Round) {
	got, _ := r.both(t, func(l *ledger.Ledger) (any, error) { return l.Reconcile(pool, round), nil })
	same(t, "reconciled", got, r.model.Reconcile(pool, round))
}

// change is one setting with the values that histories give it.
type change struct {
	name string
	set  func(*rapid.T, *ledger.Settings)
}

var changes = []change{
	{"admission", func(t *rapid.T, s *ledger.Settings) { s.Admission = rapid.IntRange(0, 3).Draw(t, "on") > 0 }},
	{"lifecycle", func(t *rapid.T, s *ledger.Settings) { s.Lifecycle = rapid.Bool().Draw(t, "on") }},
	{"headroom", func(t *rapid.T, s *ledger.Settings) { s.Headroom = draw(t, "headroom", 0.1, 0.33, 0.5, 0.9, 1) }},
	{"pressureThreshold", func(t *rapid.T, s *ledger.Settings) { s.PressureThreshold = draw(t, "threshold", 0.4, 0.92, 1) }},
	{"expectedDecodeCap", func(t *rapid.T, s *ledger.Settings) { s.ExpectedDecodeCap = draw[ledger.Tokens](t, "cap", 0, 1, 10) }},
	{"maxWait", func(t *rapid.T, s *ledger.Settings) { s.MaxWait = draw(t, "maxWait", durations...) }},
	{"scope", func(t *rapid.T, s *ledger.Settings) { s.Scope = draw(t, "scope", ledger.ScopeTrain, ledger.ScopeAll) }},
	{"leaseTtl", func(t *rapid.T, s *ledger.Settings) { s.LeaseTTL = draw(t, "leaseTtl", durations[1:]...) }},
	{"maxTtl", func(t *rapid.T, s *ledger.Settings) { s.MaxTTL = draw(t, "maxTtl", 10*time.Minute, time.Hour) }},
	{"detachGrace", func(t *rapid.T, s *ledger.Settings) { s.DetachGrace = draw(t, "grace", durations...) }},
	{"staleness", func(t *rapid.T, s *ledger.Settings) {
		s.Staleness = draw(t, "staleness", 6*time.Second, time.Hour, time.Hour)
	}},
	{"oversize", func(t *rapid.T, s *ledger.Settings) {
		s.Oversize = draw(t, "oversize", ledger.OversizeBypass, ledger.OversizeWait)
	}},
	{"maxWaiters", func(t *rapid.T, s *ledger.Settings) { s.MaxWaiters = draw[int64](t, "maxWaiters", 1, 3, 100) }},
	{"capacityRoles", func(t *rapid.T, s *ledger.Settings) {
		s.CapacityRoles = draw(t, "roles", ledger.RolesAuto, ledger.RolesAuto, ledger.RolesRegular, ledger.RolesDecode, ledger.RolesPrefill)
	}},
	{"engineUrls", func(t *rapid.T, s *ledger.Settings) { s.EngineURLs = []string{"http://a:1"} }},
}

// patch sets or clears one setting; now and then it is out of range and must change nothing.
func (r *run) patch(t *rapid.T) {
	pool, c := draw(t, "pool", pools...), rapid.SampledFrom(changes).Draw(t, "setting")
	if rapid.IntRange(0, 5).Draw(t, "invalid") == 0 {
		_, err := r.both(t, func(l *ledger.Ledger) (any, error) {
			return l.UpdateSettings(pool, ledger.Patch{Fields: []string{"staleness"}, Set: ledger.Settings{Staleness: -1}})
		})
		if !errors.Is(err, ledger.ErrInvalid) {
			t.Fatalf("error %v for a bad setting", err)
		}
		return
	}
	if rapid.IntRange(0, 3).Draw(t, "clear") == 0 {
		defaults := ledger.DefaultSettings()
		r.settings(t, pool, nil, []string{c.name}, ledger.Settings{}, func(s *ledger.Settings) { copySetting(s, &defaults, c.name) })
		return
	}
	set := ledger.Settings{}
	c.set(t, &set)
	r.settings(t, pool, []string{c.name}, nil, set, func(s *ledger.Settings) { copySetting(s, &set, c.name) })
}

// copySetting copies a field by its API name.
func copySetting(dst, src *ledger.Settings, name string) {
	field := map[string]string{"leaseTtl": "LeaseTTL", "maxTtl": "MaxTTL", "engineUrls": "EngineURLs"}[name]
	if field == "" {
		field = string(name[0]-'a'+'A') + name[1:]
	}
	reflect.ValueOf(dst).Elem().FieldByName(field).Set(reflect.ValueOf(src).Elem().FieldByName(field))
}

func (r *run) settings(t *rapid.T, pool string, fields, clear []string, set ledger.Settings, change func(*ledger.Settings)) {
	got, err := r.both(t, func(l *ledger.Ledger) (any, error) {
		return l.UpdateSettings(pool, ledger.Patch{Set: set, Fields: fields, Clear: clear})
	})
	if err != nil {
		t.Fatalf("settings: %v", err)
	}
	same(t, "settings", got, r.model.UpdateSettings(pool, change))
}

func (r *run) deletePool(t *rapid.T) {
	pool := draw(t, "pool", "absent", "b", "b", "b", "b", "b", "b", ledger.DefaultPool)
	got, _ := r.both(t, func(l *ledger.Ledger) (any, error) { return l.DeletePool(pool, ""), nil })
	same(t, "deleted", got, r.model.DeletePool(pool))
}

func (r *run) drain(t *rapid.T) {
	pool, name, step := draw(t, "pool", pools...), draw(t, "run", "", "r"), rapid.Int64Range(0, 2).Draw(t, "step")
	got, err := r.both(t, func(l *ledger.Ledger) (any, error) { return l.DrainStep(pool, name, step) })
	want, wantErr := r.model.DrainStep(pool, name, step)
	if !errors.Is(err, wantErr) {
		t.Fatalf("error %v, want %v", err, wantErr)
	}
	sameMetrics(t, got.(map[string]float64), want)
}

// sameMetrics allows for sums taken in another order.
func sameMetrics(t *rapid.T, got, want map[string]float64) {
	for k, v := range want {
		g, ok := got[k]
		if !ok || math.Abs(g-v) > 1e-9 {
			t.Fatalf("metric %s is %v (%v), want %v", k, g, ok, v)
		}
	}
	if len(got) != len(want) {
		t.Fatalf("metrics %v, want %v", got, want)
	}
}

func (r *run) newTerm(t *rapid.T) {
	term := r.led.Meta().Term + 1
	r.both(t, func(l *ledger.Ledger) (any, error) { l.NewTerm(term, "n1"); return nil, nil })
	r.model.NewTerm()
}

func (r *run) meta(t *rapid.T) {
	first := rapid.Uint64Range(0, 100).Draw(t, "first")
	r.both(t, func(l *ledger.Ledger) (any, error) { l.TrimJournal(first); return l.SetCluster("c"), nil })
}

// reload replaces the twin by one that was built from the ledger's rows in any order.
func (r *run) reload(t *rapid.T) {
	r.flush(t)
	loader := ledger.NewLoader()
	for _, c := range rapid.Permutation(exported(r.led)).Draw(t, "order") {
		loader.Add(c)
	}
	twin, err := loader.Finish()
	if err != nil {
		t.Fatalf("reload: %v", err)
	}
	r.twin = twin
}

// flush takes over the changes into the image and forgets what was collected.
func (r *run) flush(t *rapid.T) {
	r.rows.apply(r.led)
	r.twinRows.apply(r.twin)
	for _, l := range []*ledger.Ledger{r.led, r.twin} {
		l.Reset()
	}
	want := imageOf(exported(r.led))
	sameImage(t, r.rows, want)
	sameImage(t, r.twinRows, want)
	r.model.decisions = nil
}

// check compares all that can be seen.
func (r *run) check(t *rapid.T) {
	same(t, "decisions", list(r.led.Decisions()), list(r.model.decisions))
	same(t, "decisions of the reloaded ledger", list(r.twin.Decisions()), list(r.led.Decisions()))
	same(t, "events of the reloaded ledger", list(r.twin.Events()), list(r.led.Events()))
	sameRows(t, exported(r.twin), exported(r.led))
	same(t, "time", r.led.Now(), r.model.now)
	var names []string
	for _, p := range r.model.pools {
		names = append(names, p.name)
		r.checkPool(t, p)
	}
	same(t, "pools", r.led.Pools(), names)
	same(t, "holders", holdersOf(r.led), sortedHolders(r.model.Holders()))
	r.checkDue(t)
	checkInvariants(t, r.led)
}

func (r *run) checkPool(t *rapid.T, p *modelPool) {
	budget, _ := r.led.Budget(p.name)
	if budget.Degraded != (budget.DegradedReason != "") {
		t.Fatalf("degraded is %v, its reason %q", budget.Degraded, budget.DegradedReason)
	}
	budget.DegradedReason = ""
	same(t, "budget", budget, r.model.Budget(p))
	leases, _ := r.led.Leases(p.name, 0, 1000, ledger.LeaseFilter{})
	same(t, "leases", leases, r.model.Leases(p))
	waiters, _ := r.led.Waiters(p.name, 1, 1000)
	same(t, "queue", waiters, r.model.Waiters(p))
	set, _ := r.led.Settings(p.name)
	same(t, "settings", set, p.set)
	capacity, _ := r.led.Capacity(p.name)
	same(t, "engines", fmt.Sprint(capacity.Engines), fmt.Sprint(p.engines))
	got, _ := r.led.Totals(p.name)
	same(t, "totals", got, totals(p.facts))
}

func (r *run) checkDue(t *rapid.T) {
	due := r.model.deadlines()
	pending := 0
	for _, d := range due {
		if d.rank != 3 {
			pending++
		}
	}
	same(t, "pending deadlines", r.led.Pending(), pending)
	at, ok := r.led.NextDue()
	if ok != (len(due) > 0) || ok && at != due[0].at {
		t.Fatalf("next due %d (%v), want %+v", at, ok, due)
	}
}

// list makes nil and empty equal.
func list[T any](s []T) []T { return append([]T{}, s...) }
