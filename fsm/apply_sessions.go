package fsm

import (
	"fmt"

	"kvgate/fsm/fsmpb"
	"kvgate/ledger"
	"kvgate/sessions"
)

// applySession runs the operations on sessions and pins. Those of a pool that does not exist fail with
// ledger.ErrUnknownPool, so that no pool of the table outlives its ledger.
func applySession(c *core, op *fsmpb.Op) (Result, error) {
	switch k := op.GetKind().(type) {
	case *fsmpb.Op_OpenSession:
		r := decodeOpen(k.OpenSession)
		return answer(c.check(r.Pool, r.ID, named{"groupId", r.Group}, named{"engineUrl", r.Engine}), func() (sessions.View, error) {
			return c.table.Open(r)
		})
	case *fsmpb.Op_TouchSession:
		r := k.TouchSession
		return answer(c.check(r.Pool, r.Id), func() (sessions.View, error) { return c.table.Touch(r.Pool, r.Id) })
	case *fsmpb.Op_BindSession:
		r := decodeBind(k.BindSession)
		return answer(c.check(r.Pool, r.ID, named{"engineUrl", r.Engine}), func() (sessions.View, error) { return c.table.Bind(r) })
	case *fsmpb.Op_CloseSession:
		r := decodeClose(k.CloseSession)
		return answer(c.check(r.Pool, r.ID), func() (sessions.View, error) { return c.table.Close(r, c.rules(r.Pool)) })
	case *fsmpb.Op_CloseGroup:
		r := k.CloseGroup
		return answer(c.check(r.Pool, "", named{"groupId", r.Group}), func() (int, error) {
			return c.table.CloseGroup(r.Pool, r.Group, sessions.Mode(r.Mode), c.rules(r.Pool))
		})
	case *fsmpb.Op_ReportCloses:
		return Result{Value: c.table.Report(decodeReports(k.ReportCloses))}, nil
	}
	return applyPin(c, op)
}

// applyPin runs the operations on pins.
func applyPin(c *core, op *fsmpb.Op) (Result, error) {
	switch k := op.GetKind().(type) {
	case *fsmpb.Op_Pin:
		r := decodePin(k.Pin)
		return answer(c.check(r.Pool, r.Session, named{"pinId", r.ID}, named{"engineUrl", r.Engine}), func() (sessions.PinView, error) {
			return c.table.Pin(r, c.rules(r.Pool))
		})
	case *fsmpb.Op_ReportPin:
		r := k.ReportPin
		return answer(c.check(r.Pool, "", named{"engineUrl", r.Engine}), func() (sessions.PinView, error) {
			return c.table.ReportPin(r.Pool, r.Id, r.Engine, r.LedgerOnly)
		})
	case *fsmpb.Op_Unpin:
		r := k.Unpin
		return answer(c.check(r.Pool, ""), func() (bool, error) { return c.table.Unpin(r.Pool, r.Id), nil })
	}
	return Result{}, fmt.Errorf("%w: operation of an unknown kind: install the newer kvgate on this node", ErrUnknownVersion)
}

// answer makes a result of what fn says, unless the operation is refused already.
func answer[T any](refusal error, fn func() (T, error)) (Result, error) {
	if refusal != nil {
		var none T
		return Result{none, refusal}, nil
	}
	v, err := fn()
	return Result{v, err}, nil
}

// check refuses pools that are not known and names that are too long. The table says what must not be empty.
func (c *core) check(pool, session string, names ...named) error {
	if _, known := c.ledger.Budget(pool); !known {
		return fmt.Errorf("%w: %q", ledger.ErrUnknownPool, pool)
	}
	if err := checkNames(named{"sessionId", session}); err != nil {
		return err
	}
	return checkNames(names...)
}
