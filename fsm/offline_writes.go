package fsm

import (
	"context"
	"fmt"
	"io"
	"time"

	"kvgate/ledger"
)

// What an [Offline] refuses, so that it is a whole backend.

func (o *Offline) refuse() error {
	return fmt.Errorf("%w: %s takes no changes", ErrReadOnlySnapshot, o.path)
}

// Acquire fails: nothing is decided here.
func (o *Offline) Acquire(context.Context, ledger.Acquire) (ledger.Decision, error) {
	return ledger.Decision{}, o.refuse()
}

// Release fails.
func (o *Offline) Release(context.Context, ledger.Release) (bool, error) { return false, o.refuse() }

// Renew fails.
func (o *Offline) Renew(context.Context, string, []ledger.LeaseRef, time.Duration) ([]ledger.Renewed, error) {
	return nil, o.refuse()
}

// Cancel fails.
func (o *Offline) Cancel(context.Context, ledger.Cancel) (ledger.CancelState, error) {
	return 0, o.refuse()
}

// Heartbeat fails.
func (o *Offline) Heartbeat(context.Context, string) (HolderStatus, error) {
	return HolderStatus{}, o.refuse()
}

// DrainStep fails.
func (o *Offline) DrainStep(context.Context, string, string, int64) (map[string]float64, error) {
	return nil, o.refuse()
}

// UpdateSettings fails.
func (o *Offline) UpdateSettings(context.Context, string, ledger.Patch) (ledger.Settings, error) {
	return ledger.Settings{}, o.refuse()
}

// DeletePool fails.
func (o *Offline) DeletePool(context.Context, string, string) (bool, error) { return false, o.refuse() }

// Restore fails.
func (o *Offline) Restore(context.Context, io.Reader, RestoreOptions) (Restored, error) {
	return Restored{}, o.refuse()
}

// AddNode fails.
func (o *Offline) AddNode(context.Context, string, string) error { return o.refuse() }

// RemoveNode fails.
func (o *Offline) RemoveNode(context.Context, string) error { return o.refuse() }

// TransferLeadership fails.
func (o *Offline) TransferLeadership(context.Context, string) error { return o.refuse() }
