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

// applyBatch runs one batch on the ledger, when its version is at most newest. It is a pure function.
func applyBatch(l *ledger.Ledger, b *fsmpb.Batch, newest uint32) (*batchResult, error) {
	if b.Version < OldestVersion || b.Version > newest {
		return nil, fmt.Errorf("%w: batch has version %d, this build knows %d to %d: install the newer kvgate on this node",
			ErrUnknownVersion, b.Version, OldestVersion, newest)
	}
	before := len(l.Decisions())
	out := &batchResult{results: make([]Result, len(b.Ops))}
	out.more = l.Advance(ledger.Time(b.LedgerTime), maxDue)
	l.RaiseVersion(b.Version)
	for i, op := range b.Ops {
		if b.Version < callsVersion {
			forgetCall(op)
		}
		r, err := applyOp(l, op)
		if err != nil {
			return nil, err
		}
		out.results[i] = r
		if _, tick := op.Kind.(*fsmpb.Op_Tick); tick {
			out.results[i].Value = out.more
		}
	}
	if d := l.Decisions()[before:]; len(d) > 0 {
		out.decisions = append(out.decisions, d...)
	}
	return out, nil
}

// forgetCall makes an operation what it was before calls had numbers.
func forgetCall(op *fsmpb.Op) {
	if a := op.GetAcquire(); a != nil {
		a.Call = 0
	}
	if c := op.GetCancel(); c != nil {
		c.Call = 0
	}
}

// applyOp runs one operation. An error means that this build does not know its kind.
func applyOp(l *ledger.Ledger, op *fsmpb.Op) (Result, error) {
	switch k := op.GetKind().(type) {
	case *fsmpb.Op_Acquire:
		a := decodeAcquire(k.Acquire)
		if err := checkName("holderId", a.Holder); a.Holder != "" && err != nil {
			return Result{ledger.Decision{}, err}, nil
		}
		d, err := l.Acquire(a)
		return Result{d, err}, nil
	case *fsmpb.Op_Release:
		return Result{Value: l.Release(decodeRelease(k.Release))}, nil
	case *fsmpb.Op_Renew:
		return Result{Value: l.Renew(k.Renew.Pool, decodeRefs(k.Renew), time.Duration(k.Renew.Ttl))}, nil
	case *fsmpb.Op_Cancel:
		return Result{Value: l.Cancel(k.Cancel.Pool, k.Cancel.Ticket, k.Cancel.Call)}, nil
	case *fsmpb.Op_Detach:
		return Result{Value: l.Detach(k.Detach.Pool, k.Detach.Ticket, ledger.Seq(k.Detach.Seq), k.Detach.Attempt)}, nil
	case *fsmpb.Op_ReclaimHolder:
		_, more := l.ReclaimHolder(k.ReclaimHolder.Pool, k.ReclaimHolder.Holder, ledger.Time(k.ReclaimHolder.LastActive))
		return Result{Value: more}, nil
	case *fsmpb.Op_Reconcile:
		return Result{Value: l.Reconcile(k.Reconcile.Pool, decodeRound(k.Reconcile))}, nil
	}
	return applyAdmin(l, op)
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

// applyAdmin runs the operations of operators and of leadership.
func applyAdmin(l *ledger.Ledger, op *fsmpb.Op) (Result, error) {
	switch k := op.GetKind().(type) {
	case *fsmpb.Op_UpdateSettings:
		if err := checkName("pool", k.UpdateSettings.Pool); err != nil {
			return Result{ledger.Settings{}, err}, nil
		}
		s, err := l.UpdateSettings(k.UpdateSettings.Pool, decodePatch(k.UpdateSettings.Patch, k.UpdateSettings.Clear))
		return Result{s, err}, nil
	case *fsmpb.Op_DeletePool:
		return Result{Value: l.DeletePool(k.DeletePool.Pool)}, nil
	case *fsmpb.Op_DrainStep:
		m, err := l.DrainStep(k.DrainStep.Pool, k.DrainStep.Run, k.DrainStep.Step)
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
	return Result{}, fmt.Errorf("%w: operation of an unknown kind: install the newer kvgate on this node", ErrUnknownVersion)
}
