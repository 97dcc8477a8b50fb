package fsm

import (
	"fmt"

	"kvgate/ledger"
	"kvgate/sessions"
	"kvgate/store"
)

// loadCore builds the ledger and the session table from their rows.
func loadCore(state *store.State) (*core, error) {
	ld := newCoreLoader()
	for _, b := range store.Buckets() {
		err := state.ForEach(b, func(k, v []byte) error { return ld.add(b, k, v) })
		if err != nil {
			return nil, err
		}
	}
	return ld.finish()
}

// coreLoader takes rows in any order.
type coreLoader struct {
	ledger *ledger.Loader
	table  *sessions.Loader
}

func newCoreLoader() *coreLoader {
	return &coreLoader{ledger: ledger.NewLoader(), table: sessions.NewLoader()}
}

func (ld *coreLoader) add(b store.Bucket, key, value []byte) error {
	row, ok, err := decodeSessionRow(b, key, value)
	if ok || err != nil {
		ld.table.Add(row)
		return err
	}
	change, err := decodeRow(b, key, value)
	if err == nil {
		ld.ledger.Add(change)
	}
	return err
}

// finish loads the table first: what is pinned is not in the ledger's rows.
func (ld *coreLoader) finish() (*core, error) {
	t, err := ld.table.Finish()
	if err != nil {
		return nil, fmt.Errorf("%w: %w", ErrCorrupt, err)
	}
	for _, pool := range t.Pools() {
		ld.ledger.SetPinned(pool, ledger.Tokens(t.Pinned(pool)))
	}
	l, err := ld.ledger.Finish()
	if err != nil {
		return nil, fmt.Errorf("%w: %w", ErrCorrupt, err)
	}
	t.SetNow(sessions.Time(l.Now()))
	return newCore(l, t), nil
}
