package ledger_test

import (
	"fmt"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/cockroachdb/datadriven"

	"kvgate/ledger"
)

// TestScripts runs testdata/*.txt, one topic a file. Each command is a line, its expected output
// follows ---- and ends with an empty line. Regenerate with: go test ./ledger -run TestScripts -rewrite,
// then read the difference against the design.
//
//	new [setting=value…]        a ledger whose default pool has one engine "a" of 100 tokens, headroom 1, staleness 1 h
//	reconcile [degrade] [failed] [repeats=n] [reason=…]    a poll; the lines below it are the engines
//	set [setting=value…] [clear=setting]
//	acquire TICKET tokens=n | prompt=n new=n [priority=n] [holder=h] [maxWait=d] [ttl=d] [eval] [protected]
//	release TICKET [epoch=n] [grant=n]
//	renew TICKET [ttl=d] [epoch=n] [grant=n]
//	cancel TICKET
//	detach TICKET [attempt=n]   the answer last given for the ticket did not reach its caller
//	advance DURATION [limit=n]
//	reclaim HOLDER [seen=d]     without seen: the holder's last activity
//	term N NODE, drain [run=r] step=n, delete, budget, queue, leases, holders
//
// The answer comes first, then what happened besides, as "@time what".
func TestScripts(t *testing.T) {
	datadriven.Walk(t, "testdata/script", func(t *testing.T, path string) {
		s := &script{}
		datadriven.RunTest(t, path, func(t *testing.T, d *datadriven.TestData) string { return s.run(t, d) })
	})
}

// script is one file's ledger.
type script struct {
	led  *ledger.Ledger
	pool string
	// told is the newest answer per ticket.
	told map[string]ledger.Decision
}

// run executes one command, notes the answers that blocked calls got, and prints what happened.
func (s *script) run(t *testing.T, d *datadriven.TestData) string {
	commands := map[string]func(*args) string{
		"new": s.new, "reconcile": s.reconcile, "set": s.set, "acquire": s.acquire, "release": s.release,
		"renew": s.renew, "cancel": s.cancel, "detach": s.detach, "advance": s.advance, "reclaim": s.reclaim,
		"term": s.term, "drain": s.drain, "delete": s.delete, "budget": s.budget, "queue": s.queue, "leases": s.leases,
		"holders": s.holders,
	}
	command, ok := commands[d.Cmd]
	if !ok {
		d.Fatalf(t, "unknown command %s", d.Cmd)
	}
	a := &args{t: t, d: d}
	s.pool = a.text("pool", ledger.DefaultPool)
	var out strings.Builder
	if answer := command(a); answer != "" {
		fmt.Fprintln(&out, answer)
	}
	a.allUsed()
	for _, x := range s.led.Decisions() {
		s.told[x.Ticket] = x
	}
	for _, e := range s.led.Events() {
		if !own(d.Cmd, a.ticket, e) {
			fmt.Fprintln(&out, eventText(e))
		}
	}
	checkInvariants(t, s.led)
	s.led.Reset()
	if out.Len() == 0 {
		return "ok\n"
	}
	return out.String()
}

// own: the event only repeats the answer.
func own(command, ticket string, e ledger.Event) bool {
	repeats := map[string][]ledger.Kind{
		"acquire": {ledger.KindAdmitted, ledger.KindWaiting, ledger.KindBypassed},
		"release": {ledger.KindReleased}, "renew": {ledger.KindRenewed}, "cancel": {ledger.KindCancelled},
		"detach": {ledger.KindDetached}, "set": {ledger.KindSettings}, "drain": {ledger.KindDrained}, "term": {ledger.KindLeader},
	}
	return e.Ticket == ticket && slices.Contains(repeats[command], e.Kind)
}

func eventText(e ledger.Event) string {
	parts := []string{fmt.Sprintf("@%v", time.Duration(e.At))}
	for _, p := range []string{e.Ticket, string(e.Kind), e.Reason, e.Detail} {
		if p != "" {
			parts = append(parts, p)
		}
	}
	if e.Kind == ledger.KindEpoch {
		parts = append(parts, fmt.Sprintf("epoch=%d", e.Epoch))
	}
	if e.Wait > 0 {
		parts = append(parts, fmt.Sprintf("waited=%v", e.Wait))
	}
	return strings.Join(parts, " ")
}

func decisionText(d ledger.Decision, err error) string {
	switch {
	case err != nil:
		return "error: " + err.Error()
	case d.Action == ledger.ActionAdmit:
		return fmt.Sprintf("admit lease=%s grant=%d tokens=%d ttl=%v", ledger.LeaseID(d.Epoch, d.Ticket), d.Seq, d.Tokens, d.ExpiresIn)
	case d.Action == ledger.ActionWait:
		return fmt.Sprintf("wait %v waiter=%d tokens=%d", d.Wait, d.Waiter, d.Tokens)
	}
	return strings.Join(append([]string{"bypass", d.Reason.String()}, d.Warnings...), " ")
}

func (s *script) new(a *args) string {
	s.led, s.told = ledger.New(), map[string]ledger.Decision{}
	patch := a.patch()
	if !a.flag("headroom") {
		patch.Set.Headroom, patch.Fields = 1, append(patch.Fields, "headroom")
	}
	if !a.flag("staleness") {
		patch.Set.Staleness, patch.Fields = time.Hour, append(patch.Fields, "staleness")
	}
	if _, err := s.led.UpdateSettings(s.pool, patch); err != nil {
		return "error: " + err.Error()
	}
	s.led.Reconcile(s.pool, ledger.Round{Fresh: true, Engines: []ledger.Engine{{URL: "a", Healthy: true, Capacity: 100}}})
	s.led.Reset()
	return ""
}

func (s *script) reconcile(a *args) string {
	r := ledger.Round{
		Fresh: !a.flag("failed"), Degrade: a.flag("degrade"), Reason: a.text("reason", ""), Repeats: a.int("repeats", 0),
	}
	for line := range strings.Lines(a.d.Input) {
		r.Engines = append(r.Engines, a.engine(strings.Fields(line)))
	}
	s.led.Reconcile(s.pool, r)
	return ""
}

func (s *script) set(a *args) string {
	if _, err := s.led.UpdateSettings(s.pool, a.patch()); err != nil {
		return "error: " + err.Error()
	}
	return ""
}

func (s *script) acquire(a *args) string {
	op := ledger.Acquire{
		Pool: s.pool, Ticket: a.name(), ReservationTokens: ledger.Tokens(a.int("tokens", 0)),
		PromptTokens: ledger.Tokens(a.int("prompt", 0)), MaxNewTokens: ledger.Tokens(a.int("new", 0)),
		Priority: int32(a.int("priority", 0)), Holder: a.text("holder", ""), Protected: a.flag("protected"),
		MaxWait: a.duration("maxWait", -1), TTL: a.duration("ttl", 0), Call: uint64(a.int("call", 0)),
	}
	if a.flag("eval") {
		op.Mode = ledger.ModeEval
	}
	d, err := s.led.Acquire(op)
	if err == nil {
		s.told[op.Ticket] = d
	}
	return decisionText(d, err)
}

func (s *script) release(a *args) string {
	ref := a.ref()
	op := ledger.Release{Pool: s.pool, Ticket: ref.Ticket, Epoch: ref.Epoch, HasEpoch: ref.HasEpoch, Grant: ref.Grant}
	op.Ended = uint64(a.int("ended", 0))
	return fmt.Sprintf("released=%v", s.led.Release(op))
}

func (s *script) renew(a *args) string {
	r := s.led.Renew(s.pool, []ledger.LeaseRef{a.ref()}, a.duration("ttl", 0))[0]
	if !r.OK {
		return "not renewed"
	}
	return fmt.Sprintf("renewed for %v", r.ExpiresIn)
}

func (s *script) cancel(a *args) string {
	op := ledger.Cancel{Pool: s.pool, Ticket: a.name(), Call: uint64(a.int("call", 0)), Ended: uint64(a.int("ended", 0))}
	return [...]string{"", "was waiting", "was leased", "was unknown"}[s.led.Cancel(op)]
}

func (s *script) detach(a *args) string {
	ticket := a.name()
	d := s.told[ticket]
	attempt := a.int("attempt", int64(d.Attempt))
	return fmt.Sprintf("detached=%v", s.led.Detach(s.pool, ticket, d.Seq, uint32(attempt)))
}

func (s *script) advance(a *args) string {
	d, err := time.ParseDuration(a.name())
	a.must(err)
	if s.led.Advance(s.led.Now().Add(d), int(a.int("limit", 0))) {
		return "more is due"
	}
	return ""
}

func (s *script) reclaim(a *args) string {
	name := a.name()
	var last ledger.Time
	for _, h := range s.led.Holder(name) {
		last = h.LastActive
	}
	n, _ := s.led.ReclaimHolder(s.pool, name, ledger.Time(a.duration("seen", time.Duration(last))))
	return fmt.Sprintf("reclaimed=%d", n)
}

func (s *script) term(a *args) string {
	term, err := strconv.ParseUint(a.name(), 10, 64)
	a.must(err)
	s.led.NewTerm(term, "n")
	a.ticket = ""
	return ""
}

// drain prints the metrics that are not 0.
func (s *script) drain(a *args) string {
	m, err := s.led.DrainStep(s.pool, a.text("run", ""), a.int("step", 0))
	if err != nil {
		return "error: " + err.Error()
	}
	var lines []string
	for k, v := range m {
		if v != 0 {
			lines = append(lines, fmt.Sprintf("%s %.4g", k, v))
		}
	}
	slices.Sort(lines)
	return strings.Join(lines, "\n")
}

func (s *script) delete(*args) string { return fmt.Sprintf("deleted=%v", s.led.DeletePool(s.pool, "")) }

func (s *script) budget(*args) string {
	b, ok := s.led.Budget(s.pool)
	if !ok {
		return "no such pool"
	}
	return fmt.Sprintf("ceiling=%d reserved=%d available=%d epoch=%d pressure=%v degraded=%v waiting=%d leases=%d",
		b.Ceiling, b.Reserved, b.Available(), b.Epoch, b.Pressure, b.Degraded, b.Waiting, b.Leases)
}

func (s *script) queue(*args) string {
	waiters, _ := s.led.Waiters(s.pool, 1, 1000)
	lines := []string{fmt.Sprintf("%d waiting", len(waiters))}
	for _, w := range waiters {
		line := fmt.Sprintf("%d. %s priority=%d tokens=%d %v waited=%v ages in %v", w.Position, w.Ticket, w.Priority, w.Tokens, w.Reason, w.Waited, w.AgesIn)
		if !w.Attached {
			line += " detached"
		}
		lines = append(lines, line)
	}
	return strings.Join(lines, "\n")
}

func (s *script) leases(*args) string {
	leases, _ := s.led.Leases(s.pool, 0, 1000, ledger.LeaseFilter{})
	lines := []string{fmt.Sprintf("%d held", len(leases))}
	for _, x := range leases {
		lines = append(lines, fmt.Sprintf("%s grant=%d tokens=%d expires in %v", ledger.LeaseID(x.Epoch, x.Ticket), x.Grant, x.Tokens, x.ExpiresIn))
	}
	return strings.Join(lines, "\n")
}

func (s *script) holders(*args) string {
	lines := []string{}
	for _, h := range holdersOf(s.led) {
		lines = append(lines, fmt.Sprintf("%s leases=%d waiters=%d active @%v", h.Holder, h.Leases, h.Waiters, time.Duration(h.LastActive)))
	}
	return fmt.Sprintf("%d holders\n", len(lines)) + strings.Join(lines, "\n")
}
