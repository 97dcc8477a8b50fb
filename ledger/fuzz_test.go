package ledger_test

import (
	"testing"
	"time"

	"kvgate/ledger"
)

// FuzzLedger turns bytes into operations. Whatever they are, the ledger does not panic, keeps its
// invariants, and its rows rebuild it.
func FuzzLedger(f *testing.F) {
	f.Add([]byte{})
	f.Add([]byte{7, 1, 100, 0, 0, 0, 1, 60, 0, 9, 0, 2, 60, 0, 9, 1, 1, 0})
	f.Add([]byte("acquire, wait, release, advance, degrade, recover, drain, delete"))
	f.Fuzz(func(t *testing.T, data []byte) {
		l, rows := ledger.New(), image{}
		in := &tape{data: data}
		for !in.done() {
			in.step(l)
			checkInvariants(t, l)
			rows.apply(l)
			l.Reset()
		}
		rows.apply(l)
		sameImage(t, rows, imageOf(exported(l)))
		checkReload(t, l)
	})
}

func checkReload(t *testing.T, l *ledger.Ledger) {
	t.Helper()
	loader := ledger.NewLoader()
	for _, c := range exported(l) {
		loader.Add(c)
	}
	again, err := loader.Finish()
	if err != nil {
		t.Fatalf("reload: %v", err)
	}
	sameRows(t, exported(again), exported(l))
}

// tape reads numbers off the fuzzer's bytes; past the end they are 0.
type tape struct {
	data []byte
	pos  int
}

func (in *tape) done() bool { return in.pos >= len(in.data) }

func (in *tape) byte() byte {
	if in.done() {
		return 0
	}
	in.pos++
	return in.data[in.pos-1]
}

// signed reads small numbers mostly, and huge ones of either sign where the byte is at an end.
func (in *tape) signed() int64 {
	switch b := in.byte(); b {
	case 255:
		return 1<<63 - 1
	case 254:
		return -1 << 63
	default:
		return int64(b) - 3
	}
}

func (in *tape) duration() time.Duration { return time.Duration(in.signed()) * time.Second / 4 }

func (in *tape) pick(from ...string) string { return from[int(in.byte())%len(from)] }

func (in *tape) pool() string { return in.pick(ledger.DefaultPool, ledger.DefaultPool, "b", "absent") }

func (in *tape) ticket() string { return in.pick("t0", "t1", "t2", "t3", "t4", "") }

func (in *tape) holder() string { return in.pick("", "h0", "h1") }

// step runs one operation.
func (in *tape) step(l *ledger.Ledger) {
	ops := []func(*ledger.Ledger){
		in.acquire, in.acquire, in.release, in.renew, in.cancel, in.detach, in.advance, in.reconcile, in.reconcile,
		in.settings, in.others,
	}
	ops[int(in.byte())%len(ops)](l)
}

func (in *tape) acquire(l *ledger.Ledger) {
	flags := in.byte()
	_, _ = l.Acquire(ledger.Acquire{
		Pool: in.pool(), Ticket: in.ticket(), ReservationTokens: ledger.Tokens(in.signed()), PromptTokens: ledger.Tokens(in.signed()),
		Mode: ledger.Mode(flags >> 4), Protected: flags&1 != 0, Priority: int32(in.signed()), Holder: in.holder(),
		MaxWait: in.duration(), TTL: in.duration(),
	})
}

func (in *tape) release(l *ledger.Ledger) {
	op := ledger.Release{Pool: in.pool(), Ticket: in.ticket(), Grant: ledger.Seq(in.byte() % 8), Holder: in.holder()}
	if in.byte()&1 != 0 {
		op.Usage = &ledger.Usage{PromptTokens: ledger.Tokens(in.signed()), CompletionTokens: ledger.Tokens(in.signed())}
	}
	l.Release(op)
}

func (in *tape) renew(l *ledger.Ledger) {
	ref := ledger.LeaseRef{Ticket: in.ticket(), Epoch: uint64(in.byte()), HasEpoch: in.byte()&1 != 0}
	l.Renew(in.pool(), []ledger.LeaseRef{ref, ref}, in.duration())
}

func (in *tape) cancel(l *ledger.Ledger) {
	l.Cancel(ledger.Cancel{Pool: in.pool(), Ticket: in.ticket()})
}

func (in *tape) detach(l *ledger.Ledger) {
	l.Detach(in.pool(), in.ticket(), ledger.Seq(in.byte()), uint32(in.byte()))
}

// advance moves by at most a year: a machine's time does not run further.
func (in *tape) advance(l *ledger.Ledger) {
	d := min(in.duration(), year)
	if due, ok := l.NextDue(); ok && in.byte()&1 != 0 {
		d = due.Sub(l.Now())
	}
	l.Advance(l.Now().Add(max(d, -time.Hour)), int(in.byte()%4))
}

func (in *tape) reconcile(l *ledger.Ledger) {
	flags := in.byte()
	r := ledger.Round{Fresh: flags&1 == 0, Degrade: flags&14 == 14, Repeats: in.signed() % 1000}
	for range in.byte() % 4 {
		r.Engines = append(r.Engines, ledger.Engine{
			URL: in.pick("a", "b", "c", ""), Healthy: in.byte()%4 != 0, Capacity: ledger.Tokens(in.signed()),
			Pressure: float64(in.signed()) / 100, Usage: float64(in.signed()), Role: ledger.Role(in.byte() % 8),
		})
	}
	l.Reconcile(in.pool(), r)
}

func (in *tape) settings(l *ledger.Ledger) {
	names := ledger.SettingNames()
	set := ledger.Settings{
		Admission: in.byte()%4 != 0, Headroom: float64(in.signed()) / 100, PressureThreshold: float64(in.signed()) / 100,
		MaxWait: in.duration(), LeaseTTL: in.duration(), DetachGrace: in.duration(), Staleness: in.duration(),
		ExpectedDecodeCap: ledger.Tokens(in.signed()), MaxWaiters: in.signed(),
		Oversize: ledger.Oversize(in.byte() % 4), CapacityRoles: ledger.CapacityRoles(in.byte() % 6), Scope: ledger.Scope(in.byte() % 4),
	}
	patch := ledger.Patch{Set: set, Fields: []string{names[int(in.byte())%len(names)]}}
	if in.byte()%8 == 0 {
		patch.Clear = names
	}
	_, _ = l.UpdateSettings(in.pool(), patch)
}

func (in *tape) others(l *ledger.Ledger) {
	switch in.byte() % 5 {
	case 0:
		l.NewTerm(uint64(in.byte()), "n")
	case 1:
		l.DeletePool(in.pool(), "")
	case 2:
		_, _ = l.DrainStep(in.pool(), "r", in.signed())
	case 3:
		for _, h := range holdersOf(l) {
			l.ReclaimHolder(h.Pool, h.Holder, h.LastActive-ledger.Time(in.byte()&1))
		}
	case 4:
		l.TrimJournal(uint64(in.byte()))
	}
}
