package fsm

import (
	"errors"
	"sync"
	"testing"
	"time"

	"kvgate/ledger"
	"kvgate/store"
)

// fakeDisk is full while err says so.
type fakeDisk struct {
	mu  sync.Mutex
	err error
}

func (f *fakeDisk) check() error {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.err
}

func (f *fakeDisk) becomes(err error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.err = err
}

// TestFullDiskRefusesWrites: reads go on, health says why, and writes work again as soon as there is room.
func TestFullDiskRefusesWrites(t *testing.T) {
	var disk fakeDisk
	s := startSingle(t, func(o *Options) { o.CheckDisk = disk.check })
	budget(t, s.Replica, 100)
	admit(t, s.Replica, ask("a", 60))
	disk.becomes(store.ErrNoSpace)
	eventually(t, "the node notices", func() bool { return !s.Status().Writable })

	calls := map[string]func() error{
		"acquire": func() error { _, err := s.Acquire(t.Context(), ask("b", 10)); return err },
		"release": func() error {
			_, err := s.Release(t.Context(), ledger.Release{Pool: ledger.DefaultPool, Ticket: "a"})
			return err
		},
		"cancel": func() error {
			_, err := s.Cancel(t.Context(), ledger.Cancel{Pool: ledger.DefaultPool, Ticket: "a"})
			return err
		},
		"settings": func() error { _, err := s.UpdateSettings(t.Context(), "b", ledger.Patch{}); return err },
		"reconcile": func() error {
			return s.Reconcile(t.Context(), ledger.DefaultPool, ledger.Round{Fresh: true})
		},
	}
	for name, call := range calls {
		if err := call(); !errors.Is(err, ErrReadOnly) || !errors.Is(err, store.ErrNoSpace) {
			t.Errorf("%s: %v, want that writes are refused and why", name, err)
		}
	}
	if st := s.Status(); st.Writable || st.Health == "ok" || !st.Ready {
		t.Errorf("status: writable %v, ready %v, health %q", st.Writable, st.Ready, st.Health)
	}
	must(t, s.View(t.Context(), false, func(l *ledger.Ledger) {
		if v, _ := l.Ticket(ledger.DefaultPool, "a"); v.Lease == nil {
			t.Error("a refused release took effect")
		}
	}))

	disk.becomes(nil)
	eventually(t, "the node notices", func() bool { return s.Status().Writable })
	release(t, s.Replica, "a")
	if st := s.Status(); !st.Writable || st.Health != "ok" {
		t.Errorf("status after there is room: writable %v, health %q", st.Writable, st.Health)
	}
}

// TestGuardLooksAtTheDisk: the node's own guard refuses below its floor.
func TestGuardLooksAtTheDisk(t *testing.T) {
	s := startSingle(t, func(o *Options) { o.FreeSpaceFloor = 1 << 62 })
	if _, err := s.Acquire(t.Context(), ask("a", 1)); !errors.Is(err, ErrReadOnly) {
		t.Errorf("error %v, want that writes are refused", err)
	}
	if st := s.Status(); st.Writable {
		t.Errorf("status says that the node can write: %+v", st)
	}
}

// TestWatchdogNotices a write that does not come back.
func TestWatchdogNotices(t *testing.T) {
	c := &clock{}
	w := newWatchdog(time.Minute, c.Now)
	if _, stalled := w.stalled(); stalled {
		t.Error("stalled before anything was written")
	}
	w.before(store.OpStoreLogs)
	if _, stalled := w.stalled(); stalled {
		t.Error("stalled at once")
	}
	c.Advance(2 * time.Minute)
	if took, stalled := w.stalled(); !stalled || took < 2*time.Minute {
		t.Errorf("stalled %v for %v", stalled, took)
	}
	w.after(store.OpStoreLogs, 0, nil)
	if _, stalled := w.stalled(); stalled {
		t.Error("stalled after the write came back")
	}
}
