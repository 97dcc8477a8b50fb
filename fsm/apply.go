package fsm

import (
	"fmt"
	"strings"
	"time"

	"kvgate/fsm/fsmpb"
	"kvgate/ledger"
)

// Version is the newest version of the command semantics that this build knows, OldestVersion the
// oldest. A leader writes the newest one that every member knows.
const (
	OldestVersion uint32 = 1
	Version       uint32 = 2
	// callsVersion is the first one in which calls that come again are told by their number.
	callsVersion uint32 = 2
)

// maxDue bounds how many deadlines one batch lets go, so that a mass expiry cannot stall the log.
const maxDue = 8192

// Result answers one operation of a batch. Value depends on the operation:
//
//	Acquire         ledger.Decision
//	Release         bool, whether there was a lease
//	Renew           []ledger.Renewed
//	Cancel          ledger.CancelState
//	Detach          bool
//	ReclaimHolder   bool, whether tickets are left
//	Reconcile       bool, whether the pool exists
//	UpdateSettings  ledger.Settings
//	DeletePool      bool
//	DrainStep       map[string]float64
//	Tick            bool, whether more is due
//	SetCluster      string, the cluster's id
//	OpenSession     sessions.View, and so TouchSession, BindSession and CloseSession
//	CloseGroup      int, how many sessions are closing because of it
//	ReportCloses    int, how many reports said something new
//	Pin             sessions.PinView, and so ReportPin
//	Unpin           bool, whether there was a pin
type Result struct {
	Value any
	Err   error
}

// batchResult is what Apply returns for one log entry.
type batchResult struct {
	results []Result
	// decisions were taken on tickets that had waited, in order.
	decisions []ledger.Decision
	// more: deadlines are due that this batch did not reach.
	more bool
}

// applyBatch runs one batch, when its version is at most newest. It is a pure function.
func applyBatch(c *core, b *fsmpb.Batch, newest uint32) (*batchResult, error) {
	if b.Version < OldestVersion || b.Version > newest {
		return nil, fmt.Errorf("%w: batch has version %d, this build knows %d to %d: install the newer kvgate on this node",
			ErrUnknownVersion, b.Version, OldestVersion, newest)
	}
	before := len(c.ledger.Decisions())
	out := &batchResult{results: make([]Result, len(b.Ops))}
	out.more = c.pass(ledger.Time(b.LedgerTime), maxDue)
	c.ledger.RaiseVersion(b.Version)
	for i, op := range b.Ops {
		if b.Version < callsVersion {
			forgetCall(op)
		}
		r, err := applyOp(c, op)
		if err != nil {
			return nil, err
		}
		c.settle()
		out.results[i] = r
		if _, tick := op.Kind.(*fsmpb.Op_Tick); tick {
			out.results[i].Value = out.more
		}
	}
	if d := c.ledger.Decisions()[before:]; len(d) > 0 {
		out.decisions = append(out.decisions, d...)
	}
	return out, nil
}

// forgetCall makes an operation what it was before calls had numbers.
func forgetCall(op *fsmpb.Op) {
	if a := op.GetAcquire(); a != nil {
		a.Call, a.Joins = 0, false
	}
	if c := op.GetCancel(); c != nil {
		c.Call, c.Ended = 0, 0
	}
	if r := op.GetRelease(); r != nil {
		r.Ended = 0
	}
}

// applyOp runs one operation. An error means that this build does not know its kind.
func applyOp(c *core, op *fsmpb.Op) (Result, error) {
	l := c.ledger
	switch k := op.GetKind().(type) {
	case *fsmpb.Op_Acquire:
		a := decodeAcquire(k.Acquire)
		if err := checkNames(named{"holderId", a.Holder}, named{"sessionId", a.Session}, named{"groupId", a.Group}, named{"rid", a.RID}); err != nil {
			return Result{ledger.Decision{}, err}, nil
		}
		if v, _ := l.Ticket(a.Pool, a.Ticket); k.Acquire.Joins && v.Waiter == nil && v.Lease == nil {
			return Result{Value: c.ended(&a)}, nil
		}
		d, err := c.acquire(&a)
		return Result{d, err}, nil
	case *fsmpb.Op_Release:
		r := decodeRelease(k.Release)
		return Result{Value: c.release(&r)}, nil
	case *fsmpb.Op_Renew:
		return Result{Value: l.Renew(k.Renew.Pool, decodeRefs(k.Renew), time.Duration(k.Renew.Ttl))}, nil
	case *fsmpb.Op_Cancel:
		c := ledger.Cancel{Pool: k.Cancel.Pool, Ticket: k.Cancel.Ticket, Call: k.Cancel.Call, Ended: k.Cancel.Ended}
		return Result{Value: l.Cancel(c)}, nil
	case *fsmpb.Op_Detach:
		return Result{Value: l.Detach(k.Detach.Pool, k.Detach.Ticket, ledger.Seq(k.Detach.Seq), k.Detach.Attempt)}, nil
	case *fsmpb.Op_ReclaimHolder:
		h := k.ReclaimHolder
		return Result{Value: c.reclaim(h.Pool, h.Holder, ledger.Time(h.LastActive), h.NewestFlight)}, nil
	case *fsmpb.Op_Reconcile:
		return Result{Value: c.reconcile(k.Reconcile.Pool, decodeRound(k.Reconcile))}, nil
	}
	return applyAdmin(c, op)
}

// ended answers who waited for a ticket that has ended without the answer being heard. Why it ended is not
// remembered: what a new ticket would meet explains it, or its time was up, or somebody cancelled or released it.
func (c *core) ended(a *ledger.Acquire) ledger.Decision {
	set, known := c.ledger.Settings(a.Pool)
	budget, _ := c.ledger.Budget(a.Pool)
	d := ledger.Decision{
		Pool: a.Pool, Ticket: a.Ticket, Action: ledger.ActionBypass, Reason: ledger.Cancelled,
		Tokens: set.Reservation(a.PromptTokens, a.MaxNewTokens, a.ReservationTokens),
	}
	switch {
	case !known:
		d.Reason = ledger.Degraded
	case a.Session != "" && c.table.Gate(a.Pool, a.Session) != nil:
		d.Reason = ledger.SessionClosing
	case !set.Admission:
		d.Reason = ledger.Disabled
	case budget.Degraded:
		d.Reason = ledger.Degraded
	case a.MaxWait == 0:
		d.Reason = ledger.Aged
	}
	return d
}

// maxName bounds, in bytes, what becomes part of a row's key.
const maxName = 256

// checkName refuses a name that could not be a row's key, on which every node would halt.
func checkName(field, name string) error {
	if name == "" || len(name) > maxName || strings.ContainsRune(name, 0) {
		return &ledger.FieldError{Field: field, Value: fmt.Sprintf("%.300q", name), Allowed: "1 to 256 bytes of printable text"}
	}
	return nil
}

// named is a text and the API's name of its field.
type named struct{ field, text string }

// checkNames checks the names that are not empty.
func checkNames(names ...named) error {
	for _, n := range names {
		if n.text == "" {
			continue
		}
		if err := checkName(n.field, n.text); err != nil {
			return err
		}
	}
	return nil
}

// applyAdmin runs the operations of operators and of leadership.
func applyAdmin(c *core, op *fsmpb.Op) (Result, error) {
	l := c.ledger
	switch k := op.GetKind().(type) {
	case *fsmpb.Op_UpdateSettings:
		if err := checkName("pool", k.UpdateSettings.Pool); err != nil {
			return Result{ledger.Settings{}, err}, nil
		}
		s, err := l.UpdateSettings(k.UpdateSettings.Pool, decodePatch(k.UpdateSettings))
		return Result{s, err}, nil
	case *fsmpb.Op_DeletePool:
		return Result{Value: c.deletePool(k.DeletePool.Pool, k.DeletePool.By)}, nil
	case *fsmpb.Op_DrainStep:
		m, err := c.drain(k.DrainStep.Pool, k.DrainStep.Run, k.DrainStep.Step)
		return Result{m, err}, nil
	case *fsmpb.Op_Tick:
		return Result{}, nil
	case *fsmpb.Op_NewTerm:
		l.NewTerm(k.NewTerm.Term, k.NewTerm.Node)
		return Result{}, nil
	case *fsmpb.Op_TrimJournal:
		l.TrimJournal(k.TrimJournal.FirstIndex)
		return Result{}, nil
	case *fsmpb.Op_SetCluster:
		return Result{Value: l.SetCluster(k.SetCluster.Id)}, nil
	}
	return applySession(c, op)
}
