package crash

import (
	"path/filepath"
	"strings"
	"testing"

	"connectrpc.com/connect"

	"kvgate/integration/procs"
	kvgatev1 "kvgate/rpc/kvgate/v1"
)

// admit acquires a ticket that must get a lease.
func (s *site) admit(b *book, ticket string) *entry {
	s.t.Helper()
	e := b.open(ticket)
	res, err := s.admission.Acquire(s.t.Context(), connect.NewRequest(acquireRequest(ticket)))
	if err != nil || res.Msg.Action != kvgatev1.Action_ACTION_ADMIT {
		s.t.Fatalf("acquire %s: %v, %v", ticket, res, err)
	}
	b.admitted(e, res.Msg.Grant)
	return e
}

// waitWritable waits until the node says so, or that it is not and why.
func (s *site) waitWritable(want bool) (health string) {
	s.t.Helper()
	procs.Eventually(s.t, patience, func() bool {
		st := s.status()
		health = st.Health
		return st.Writable == want
	}, func() string { return "health stays: " + health })
	return health
}

// wantRefusals: an acquire fails open, everything else says why it is refused, and reads go on.
func (s *site) wantRefusals(held *entry) {
	s.t.Helper()
	ctx := s.t.Context()
	res, err := s.admission.Acquire(ctx, connect.NewRequest(acquireRequest("while-refused")))
	if err != nil || res.Msg.Action != kvgatev1.Action_ACTION_BYPASS || res.Msg.Reason != kvgatev1.Reason_REASON_DEGRADED {
		s.t.Errorf("acquire answers %v, %v; want a bypass as degraded", res, err)
	}
	_, release := s.admission.Release(ctx, connect.NewRequest(&kvgatev1.ReleaseRequest{TicketId: held.ticket, Grant: held.grant}))
	_, cancel := s.admission.Cancel(ctx, connect.NewRequest(&kvgatev1.CancelRequest{TicketId: held.ticket}))
	_, renew := s.admission.Renew(ctx, connect.NewRequest(&kvgatev1.RenewRequest{LeaseIds: []string{"1:" + held.ticket}}))
	for name, err := range map[string]error{"release": release, "cancel": cancel, "renew": renew} {
		if connect.CodeOf(err) != connect.CodeUnavailable || !strings.Contains(err.Error(), "writes are refused") {
			s.t.Errorf("%s: %v, want that it is unavailable and why", name, err)
		}
	}
	if got := s.ticket(held.ticket); got.Grant != held.grant {
		s.t.Errorf("ticket %s reads as grant %d, want %d", held.ticket, got.Grant, held.grant)
	}
}

// TestFullDisk: below the floor of free space nothing is written, across a restart too, and afterwards all
// goes on from what was acknowledged.
func TestFullDisk(t *testing.T) {
	mounted := mountTmpfs(t, "160m")
	s := startSite(t, filepath.Join(mounted, "data"))
	b := newBook(t)
	held := s.admit(b, "before")
	free := fill(t, mounted, 32<<20)
	if health := s.waitWritable(false); !strings.Contains(health, "free") {
		t.Errorf("health says %q, want that there is no room", health)
	}
	s.wantRefusals(held)

	s.Kill9()
	s.Restart()
	procs.WaitReady(t, s.URL())
	s.waitWritable(false)
	s.wantRefusals(held)

	free()
	s.waitWritable(true)
	s.ready()
	b.audit(s)
	s.admit(b, "after")
	s.work(b)
	s.Kill9()
	s.restart()
	b.audit(s)
}

// work has clients do something for a while.
func (s *site) work(b *book) {
	s.t.Helper()
	said := b.alarm(100)
	stop := startLoad(s, b, "work")
	<-said
	stop()
	b.settle(s)
	b.audit(s)
}

// TestDiskRunsOutUnderLoad leaves no byte free while clients are at work. The node may refuse, or end
// and say why; it never forgets what it acknowledged.
func TestDiskRunsOutUnderLoad(t *testing.T) {
	mounted := mountTmpfs(t, "160m")
	s := startSite(t, filepath.Join(mounted, "data"))
	b := newBook(t)
	said := b.alarm(200)
	stop := startLoad(s, b, "full")
	<-said
	free := fill(t, mounted, 0)
	s.waitRefusing()
	free()
	stop()
	s.recover()
	b.audit(s)
	s.work(b)
}

// TestDiskBecomesReadOnly: the file system fails under load, and comes back with a new mount.
func TestDiskBecomesReadOnly(t *testing.T) {
	v := mountVolume(t, 256<<20)
	s := startSite(t, filepath.Join(v.dir, "data"))
	b := newBook(t)
	said := b.alarm(200)
	stop := startLoad(s, b, "readonly")
	<-said
	v.fail()
	s.waitRefusing()
	stop()
	s.Kill9() // a file system with open files cannot be unmounted
	v.unmount()
	v.repair()
	v.mount()
	s.restart()
	b.audit(s)
	s.work(b)
}

// waitRefusing waits until the node says that it does not write, or has ended with a reason in its log.
func (s *site) waitRefusing() {
	s.t.Helper()
	procs.Eventually(s.t, patience, func() bool {
		if s.ended() {
			return true
		}
		res, err := s.cluster.GetStatus(s.t.Context(), connect.NewRequest(&kvgatev1.GetStatusRequest{}))
		return err == nil && !res.Msg.Writable
	}, func() string { return "the node goes on as if its disk were fine" })
	if s.ended() && !strings.Contains(s.Logs(), "node halts") {
		s.t.Errorf("the node ended and does not say why")
	}
}

func (s *site) ended() bool {
	select {
	case <-s.Done():
		return true
	default:
		return false
	}
}

// recover brings the node back: by itself when it only refused, with a new process when it ended.
func (s *site) recover() {
	s.t.Helper()
	procs.Eventually(s.t, patience, func() bool {
		if s.ended() {
			s.restart()
		}
		res, err := s.cluster.GetStatus(s.t.Context(), connect.NewRequest(&kvgatev1.GetStatusRequest{}))
		return err == nil && res.Msg.Writable
	}, func() string { return "the node does not write again" })
	s.ready()
}
