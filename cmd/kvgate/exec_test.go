package main

import (
	"bufio"
	"context"
	"io"
	"os"
	"os/exec"
	"regexp"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"connectrpc.com/connect"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/durationpb"

	kvgatev1 "kvgate/rpc/kvgate/v1"
)

const admitted = "kvgate: admit capacity_available: lease 3:t, 5 tokens, waited 1.3s"

func TestExecReleasesHoweverTheChildEnds(t *testing.T) {
	tests := []struct {
		script string
		code   int
		stdout string
	}{
		{"echo hello", 0, "hello"},
		{"exit 7", 7, ""},
		{"kill -KILL $$", 128 + 9, ""},
		{"kill -SEGV $$", 128 + 11, ""},
	}
	for _, test := range tests {
		f, released := lessor(tenMinutes)
		r := at(t, f, "acquire", "t", "--tokens", "5", "--holder", "", "--exec", "sh", "-c", test.script)
		t.Run(test.script, func(t *testing.T) {
			r.expect(t, result{code: test.code, stdout: test.stdout, stderr: admitted})
		})
		want := &kvgatev1.ReleaseRequest{TicketId: "t", LeaseId: "3:t", Grant: 4711}
		if got := <-released; !proto.Equal(got, want) {
			t.Errorf("%s: released %v, want %v", test.script, got, want)
		}
	}
}

func TestExecArgumentsBelongToTheChild(t *testing.T) {
	forms := [][]string{
		{"acquire", "t", "--tokens", "5", "--exec", "echo", "--ticket", "x", "--exec", "--", "y"},
		{"acquire", "t", "--tokens", "5", "--exec", "--", "echo", "--ticket", "x", "--exec", "--", "y"},
		{"acquire", "t", "--tokens", "5", "--", "echo", "--ticket", "x", "--exec", "--", "y"},
	}
	for _, form := range forms {
		f, _ := lessor(tenMinutes)
		at(t, f, form...).expect(t, result{stdout: "--ticket x --exec -- y", stderr: admitted})
	}
}

func TestExecThatCannotStartTakesNoLease(t *testing.T) {
	f, _ := lessor(tenMinutes)
	r := at(t, f, "acquire", "t", "--tokens", "5", "--exec", "kvgate-no-such-command")
	if r.code != exitNotFound || strings.Count(r.stderr, "\n") != 1 || !strings.Contains(r.stderr, "kvgate-no-such-command") {
		t.Errorf("exit %d: %q", r.code, r.stderr)
	}
	if got := f.called(); len(got) != 0 {
		t.Errorf("calls %v, want none", got)
	}
}

func TestExecRunsWithoutACoordinator(t *testing.T) {
	r := kvgate(t, "acquire", "t", "--tokens", "5", "--server", nobody(t), "--exec", "sh", "-c", "echo ran; exit 5")
	if r.code != 5 || r.stdout != "ran\n" || !strings.Contains(r.stderr, "warning: no decision") || !strings.Contains(r.stderr, "bypass degraded") {
		t.Errorf("exit %d, stdout %q: %s", r.code, r.stdout, r.stderr)
	}
	r = kvgate(t, "acquire", "t", "--tokens", "5", "--require-admission", "--server", nobody(t), "--exec", "echo", "ran")
	if r.code != exitUnavailable || r.stdout != "" {
		t.Errorf("with --require-admission: exit %d, stdout %q: %s", r.code, r.stdout, r.stderr)
	}
}

func TestExecFailsOpenOnTheCoordinatorsTroubleOnly(t *testing.T) {
	tests := []struct {
		code connect.Code
		runs bool
	}{
		{connect.CodeUnavailable, true}, {connect.CodeResourceExhausted, true}, {connect.CodeInternal, true},
		{connect.CodeInvalidArgument, false}, {connect.CodeFailedPrecondition, false}, {connect.CodeUnauthenticated, false},
		{connect.CodePermissionDenied, false},
	}
	for _, test := range tests {
		f := &fake{acquire: func(context.Context, *kvgatev1.AcquireRequest) (*kvgatev1.AcquireResponse, error) {
			return nil, connect.NewError(test.code, stringError("no"))
		}}
		r := at(t, f, "acquire", "t", "--tokens", "5", "--exec", "echo", "ran")
		if ran := r.stdout == "ran\n"; ran != test.runs || ran != (r.code == exitOK) {
			t.Errorf("%s: exit %d, stdout %q: %s", test.code, r.code, r.stdout, r.stderr)
		}
	}
}

func TestExecUnderABypass(t *testing.T) {
	f, released := lessor(tenMinutes)
	f.acquire = func(context.Context, *kvgatev1.AcquireRequest) (*kvgatev1.AcquireResponse, error) {
		return &kvgatev1.AcquireResponse{Action: kvgatev1.Action_ACTION_BYPASS, Reason: kvgatev1.Reason_REASON_AGED, TicketId: "t"}, nil
	}
	at(t, f, "acquire", "t", "--tokens", "5", "--exec", "echo", "ran").
		expect(t, result{stdout: "ran", stderr: "kvgate: bypass aged: running without a lease"})
	if got := <-released; got.TicketId != "t" || got.LeaseId != "" {
		t.Errorf("released %v, want the bypassed attempt", got)
	}
	r := at(t, f, "acquire", "t", "--tokens", "5", "--require-admission", "--exec", "echo", "ran")
	if r.code != exitFailed || r.stdout != "" || !strings.Contains(r.stderr, "not admitted: ticket t was bypassed (aged)") {
		t.Errorf("with --require-admission: exit %d, stdout %q: %s", r.code, r.stdout, r.stderr)
	}
}

// A wrapper that is killed must not strand its tokens until the lease expires.
func TestExecIsAHolderOfItsOwn(t *testing.T) {
	for _, test := range []struct {
		args []string
		want string // a pattern
	}{
		{nil, `^exec-.+-[0-9]+-[A-Z2-7]{8}$`},
		{[]string{"--holder", "mine"}, `^mine$`},
		{[]string{"--holder", ""}, `^$`},
	} {
		f, released := lessor(tenMinutes)
		grant := f.acquire
		beats, asked := make(chan string, 64), ""
		f.heartbeat = func(r *kvgatev1.HeartbeatRequest) (*kvgatev1.HeartbeatResponse, error) {
			select {
			case beats <- r.HolderId:
			default:
			}
			return &kvgatev1.HeartbeatResponse{Ttl: durationpb.New(3 * time.Millisecond), Leases: 1}, nil
		}
		script, open := gate(t)
		heard := func() {
			if test.want == "^$" {
				return
			}
			for len(beats) > 0 {
				<-beats
			}
			if got := <-beats; got != asked {
				t.Errorf("%v: heartbeat of %q, the ticket is of %q", test.args, got, asked)
			}
		}
		f.acquire = func(ctx context.Context, r *kvgatev1.AcquireRequest) (*kvgatev1.AcquireResponse, error) {
			asked = r.HolderId
			heard() // while the ticket waits
			return grant(ctx, r)
		}
		running := func(text string) {
			if strings.Contains(text, "admit") {
				go func() { heard(); open() }() // while the command runs
			}
		}
		args := append([]string{"acquire", "t", "--server", f.start(t), "--tokens", "5"}, test.args...)
		kvgateWatched(t, running, append(args, "--exec", "sh", "-c", script)...).expect(t, result{stderr: admitted})
		if got := (<-released).HolderId; got != asked || !regexp.MustCompile(test.want).MatchString(asked) {
			t.Errorf("%v: asked as %q, released as %q, want %s", test.args, asked, got, test.want)
		}
		if test.want == "^$" && len(beats) > 0 {
			t.Errorf("%v: heartbeat of %q", test.args, <-beats)
		}
	}
}

// gate is a child that ends when a line arrives in a pipe: the test decides when.
func gate(t *testing.T) (script string, open func()) {
	t.Helper()
	path := t.TempDir() + "/gate"
	if err := syscall.Mkfifo(path, 0o600); err != nil {
		t.Fatal(err)
	}
	return "read line < " + path, func() {
		pipe, err := os.OpenFile(path, os.O_WRONLY, 0)
		if err != nil {
			t.Error(err)
			return
		}
		defer pipe.Close()
		if _, err := io.WriteString(pipe, "go\n"); err != nil {
			t.Error(err)
		}
	}
}

func TestExecRenewsTheLease(t *testing.T) {
	f, released := lessor(durationpb.New(3 * time.Millisecond))
	script, open := gate(t)
	renewals := 0
	f.renew = func(r *kvgatev1.RenewRequest) (*kvgatev1.RenewResponse, error) {
		want := &kvgatev1.RenewRequest{LeaseIds: []string{"3:t"}, Grants: []uint64{4711}, Ttl: durationpb.New(time.Minute)}
		if !proto.Equal(r, want) {
			t.Errorf("renewed %v, want %v", r, want)
		}
		renewals++
		switch renewals {
		case 1:
			return nil, connect.NewError(connect.CodeUnavailable, stringError("election"))
		case 2:
			return &kvgatev1.RenewResponse{Leases: []*kvgatev1.RenewedLease{{LeaseId: "3:t", Renewed: true, ExpiresIn: durationpb.New(3 * time.Millisecond)}}}, nil
		default:
			return &kvgatev1.RenewResponse{Leases: []*kvgatev1.RenewedLease{{LeaseId: "3:t"}}}, nil
		}
	}
	opened := make(chan struct{})
	watch := func(text string) {
		if strings.Contains(text, "is gone") {
			go func() { defer close(opened); open() }()
		}
	}
	r := kvgateWatched(t, watch, "acquire", "t", "--server", f.start(t), "--tokens", "5", "--ttl", "1m", "--exec", "sh", "-c", script)
	<-opened
	r.expect(t, result{stderr: admitted + `
kvgate: warning: lease 3:t was not renewed (unavailable: ` + serverIn(r.stderr) + `election); trying again
kvgate: warning: lease 3:t is gone; the command runs on without it`})
	<-released
}

// serverIn returns the "http://…: " that an error line names; the port differs from run to run.
func serverIn(s string) string {
	_, rest, found := strings.Cut(s, "(unavailable: ")
	if !found {
		return ""
	}
	at := strings.Index(rest, "election")
	return rest[:max(at, 0)]
}

func TestExecTriesTheReleaseAgain(t *testing.T) {
	f, _ := lessor(tenMinutes)
	tries := 0
	f.release = func(*kvgatev1.ReleaseRequest) (*kvgatev1.ReleaseResponse, error) {
		if tries++; tries == 1 {
			return nil, connect.NewError(connect.CodeUnavailable, stringError("election"))
		}
		return &kvgatev1.ReleaseResponse{Released: true}, nil
	}
	at(t, f, "acquire", "t", "--tokens", "5", "--exec", "true").expect(t, result{stderr: admitted})
	if tries != 2 {
		t.Errorf("%d tries, want 2", tries)
	}
}

func TestExecSaysWhenTheLeaseWasNotReleased(t *testing.T) {
	f, _ := lessor(tenMinutes)
	f.release = func(*kvgatev1.ReleaseRequest) (*kvgatev1.ReleaseResponse, error) {
		return nil, connect.NewError(connect.CodePermissionDenied, stringError("no"))
	}
	at(t, f, "acquire", "t", "--tokens", "5", "--exec", "sh", "-c", "exit 4").expect(t, result{code: 4,
		stderr: admitted + "\nkvgate: warning: lease 3:t was not released (permission_denied: no); it expires by itself"})
	f.release = func(*kvgatev1.ReleaseRequest) (*kvgatev1.ReleaseResponse, error) {
		return &kvgatev1.ReleaseResponse{}, nil
	}
	at(t, f, "acquire", "t", "--tokens", "5", "--exec", "true").expect(t, result{
		stderr: admitted + "\nkvgate: warning: lease 3:t had already ended"})
}

// process runs kvgate as a process of its own, without a terminal.
func process(t *testing.T, args ...string) (cmd *exec.Cmd, stdout *bufio.Reader, stderr *lockedBuffer) {
	t.Helper()
	self, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	cmd = exec.CommandContext(t.Context(), self, args...)
	cmd.Env = append(os.Environ(), roleVariable+"=kvgate")
	cmd.SysProcAttr = &syscall.SysProcAttr{Setsid: true}
	stderr = &lockedBuffer{}
	cmd.Stderr = stderr
	pipe, err := cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	return cmd, bufio.NewReader(pipe), stderr
}

func line(t *testing.T, r *bufio.Reader) string {
	t.Helper()
	s, err := r.ReadString('\n')
	if err != nil {
		t.Fatalf("read %q: %v", s, err)
	}
	return strings.TrimSpace(s)
}

func TestSignalsGoToTheChild(t *testing.T) {
	for _, s := range []syscall.Signal{syscall.SIGTERM, syscall.SIGINT, syscall.SIGUSR1} {
		f, released := lessor(tenMinutes)
		self, _ := os.Executable()
		cmd, stdout, stderr := process(t, "acquire", "t", "--tokens", "5", "--server", f.start(t), "--exec", self, "trap")
		if got := line(t, stdout); got != "ready" {
			t.Fatalf("child said %q: %s", got, stderr)
		}
		if err := cmd.Process.Signal(s); err != nil {
			t.Fatal(err)
		}
		if got := line(t, stdout); got != s.String() {
			t.Errorf("child got %q, want %q", got, s)
		}
		_ = cmd.Wait() // the code is read below
		if got := cmd.ProcessState.ExitCode(); got != 42 {
			t.Errorf("%s: exit %d, want the child's 42: %s", s, got, stderr)
		}
		if got := <-released; got.LeaseId != "3:t" {
			t.Errorf("%s: released %v", s, got)
		}
	}
}

func TestSignalWhileWaitingCancelsTheTicket(t *testing.T) {
	for _, args := range [][]string{{"acquire", "t", "--tokens", "5"}, {"acquire", "t", "--tokens", "5", "--exec", "echo", "ran"}} {
		waiting := make(chan struct{})
		cancelled := make(chan string, 1)
		f := &fake{
			acquire: func(ctx context.Context, _ *kvgatev1.AcquireRequest) (*kvgatev1.AcquireResponse, error) {
				close(waiting)
				<-ctx.Done()
				return nil, ctx.Err()
			},
			cancel: func(r *kvgatev1.CancelRequest) (*kvgatev1.CancelResponse, error) {
				cancelled <- r.TicketId
				return &kvgatev1.CancelResponse{Was: kvgatev1.CancelState_CANCEL_STATE_WAITING}, nil
			},
		}
		cmd, stdout, stderr := process(t, append([]string{"acquire", "--server", f.start(t)}, args[1:]...)...)
		<-waiting
		if err := cmd.Process.Signal(syscall.SIGINT); err != nil {
			t.Fatal(err)
		}
		out, _ := io.ReadAll(stdout)
		_ = cmd.Wait() // the code is read below
		if got := <-cancelled; got != "t" {
			t.Errorf("cancelled %q", got)
		}
		result{cmd.ProcessState.ExitCode(), string(out), stderr.String()}.
			expect(t, result{code: exitFailed, stderr: "kvgate: interrupted: ticket t cancelled (it was waiting)"})
	}
}

func TestInterruptEndsOtherCommands(t *testing.T) {
	waiting, done := make(chan struct{}), make(chan struct{})
	f := &fake{leases: func(*kvgatev1.ListLeasesRequest) (*kvgatev1.ListLeasesResponse, error) {
		close(waiting)
		<-done
		return &kvgatev1.ListLeasesResponse{}, nil
	}}
	cmd, _, stderr := process(t, "leases", "--server", f.start(t))
	<-waiting
	if err := cmd.Process.Signal(syscall.SIGTERM); err != nil {
		t.Fatal(err)
	}
	_ = cmd.Wait() // the code is read below
	close(done)
	result{cmd.ProcessState.ExitCode(), "", stderr.String()}.expect(t, result{code: exitFailed, stderr: "kvgate: interrupted"})
	if got := f.called(); !slices.Equal(got, []string{"ListLeases"}) {
		t.Errorf("calls %v", got)
	}
}
