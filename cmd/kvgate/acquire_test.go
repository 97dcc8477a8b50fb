package main

import (
	"context"
	"encoding/json"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"connectrpc.com/connect"
	"google.golang.org/protobuf/encoding/protojson"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/durationpb"

	kvgatev1 "kvgate/rpc/kvgate/v1"
)

var tenMinutes = durationpb.New(10 * time.Minute)

func TestAcquirePrintsTheDecision(t *testing.T) {
	f, _ := lessor(tenMinutes)
	at(t, f, "acquire", "req-17:0", "--prompt-tokens", "12_000", "--max-new-tokens", "4096").expect(t, result{stdout: `
action      admit
reason      capacity_available
ticket      req-17:0
tokens      16,096
waited      1.3s
lease       3:req-17:0
expires in  10m00s
grant       4711
`})
}

func TestAcquirePrintsBypassWithoutLease(t *testing.T) {
	f := &fake{acquire: func(context.Context, *kvgatev1.AcquireRequest) (*kvgatev1.AcquireResponse, error) {
		return &kvgatev1.AcquireResponse{
			Action: kvgatev1.Action_ACTION_BYPASS, Reason: kvgatev1.Reason_REASON_AGED, TicketId: "t", ReservationTokens: 5,
			Waited: durationpb.New(30 * time.Second), Warnings: []string{"no\x1b[31mse"}, Binding: &kvgatev1.Binding{EngineUrl: "http://e1", DpRank: 2},
		}, nil
	}}
	at(t, f, "acquire", "t", "--tokens", "5").expect(t, result{stdout: `
action   bypass
reason   aged
ticket   t
tokens   5
waited   30s
binding  http://e1 rank 2
warning  no\x1b[31mse
`})
}

func TestAcquireJSONIsTheAnswer(t *testing.T) {
	f, _ := lessor(tenMinutes)
	r := at(t, f, "acquire", "--ticket", "t", "--tokens", "16096", "--output", "json")
	var got kvgatev1.AcquireResponse
	if err := protojson.Unmarshal([]byte(r.stdout), &got); err != nil || r.code != exitOK {
		t.Fatalf("exit %d, %v: %s", r.code, err, r.stdout)
	}
	want, _ := f.acquire(t.Context(), &kvgatev1.AcquireRequest{TicketId: "t", ReservationTokens: proto.Int64(16096)})
	if !proto.Equal(&got, want) {
		t.Errorf("got %v, want %v", &got, want)
	}
	var members map[string]any
	if err := json.Unmarshal([]byte(r.stdout), &members); err != nil || members["warnings"] == nil || members["leaseId"] != "3:t" {
		t.Errorf("members %v (%v), want zero values and lowerCamel names", members, err)
	}
}

func TestAcquireFlagsReachTheRequest(t *testing.T) {
	tests := []struct {
		args string
		want *kvgatev1.AcquireRequest
	}{
		{"t --reservation-tokens 7", &kvgatev1.AcquireRequest{TicketId: "t", ReservationTokens: proto.Int64(7), Mode: kvgatev1.Mode_MODE_TRAIN}},
		{"--ticket t --tokens=7 --mode EVAL --pool p", &kvgatev1.AcquireRequest{Pool: "p", TicketId: "t", ReservationTokens: proto.Int64(7), Mode: kvgatev1.Mode_MODE_EVAL}},
		{"t --protected", &kvgatev1.AcquireRequest{TicketId: "t", Protected: true, Mode: kvgatev1.Mode_MODE_TRAIN}},
		{"t --prompt-tokens 3 --max-wait 0s --ttl 90s --priority -2 --session s --group g --rid r", &kvgatev1.AcquireRequest{
			TicketId: "t", PromptTokens: 3, MaxWait: durationpb.New(0), Ttl: durationpb.New(90 * time.Second), Priority: -2,
			SessionId: "s", GroupId: "g", Rid: "r", Mode: kvgatev1.Mode_MODE_TRAIN,
		}},
	}
	for _, test := range tests {
		f, _ := lessor(tenMinutes)
		grant := f.acquire
		var got *kvgatev1.AcquireRequest
		f.acquire = func(ctx context.Context, r *kvgatev1.AcquireRequest) (*kvgatev1.AcquireResponse, error) {
			got = r
			return grant(ctx, r)
		}
		if r := at(t, f, append([]string{"acquire"}, strings.Fields(test.args)...)...); r.code != exitOK {
			t.Errorf("%s: exit %d: %s", test.args, r.code, r.stderr)
		}
		if !proto.Equal(got, test.want) {
			t.Errorf("%s: sent %v, want %v", test.args, got, test.want)
		}
	}
}

func TestAcquireUsage(t *testing.T) {
	tests := []struct{ args, want string }{
		{"--tokens 5", "ticket: missing: give it as argument or as --ticket"},
		{"a --ticket b --tokens 5", `ticket: "b" is not allowed: use one ticket: the argument says "a"`},
		{"t", "reservation-tokens: missing: use --tokens N, or --prompt-tokens N with --max-new-tokens N"},
		{"t --tokens 5 --prompt-tokens 5", "reservation-tokens: given together with prompt-tokens or max-new-tokens: use one or the other"},
		{"t --tokens 0", `reservation-tokens: "0" is not allowed: use a whole number above 0`},
		{"t --tokens -5", `reservation-tokens: "-5" is not allowed: use a whole number, 0 or above`},
		{"t --prompt-tokens many", `prompt-tokens: "many" is not allowed: use a whole number, 0 or above`},
		{"t --tokens 5 --mode test", `mode: "test" is not allowed: use train or eval`},
		{"t --tokens 5 --max-wait -1s", `max-wait: "-1s" is not allowed: use a duration of 0s or above`},
		{"t --tokens 5 --ttl 0s", `ttl: "0s" is not allowed: use a duration above 0s`},
		{"t --tokens 5 --ttl 5", `ttl: "5" is not allowed: use a duration such as 500ms, 45s or 10m`},
		{"t --tokens 5 extra", `kvgate acquire: unexpected argument "extra": use one TICKET, and --exec before a command`},
		{"t --tokens 5 --exec", "exec: a command is missing: use --exec CMD ARGS…"},
		{"t --tokens 5 --", "exec: a command is missing: use --exec CMD ARGS…"},
		{"t --tokens 5 --exec=true", "exec: a command is missing: use --exec CMD ARGS…"},
		{"t --tokens 5 --exec=ls", `exec: "ls" is not allowed: use --exec CMD ARGS… as the last words`},
		{"t --tokens", "reservation-tokens: a value is missing: use a whole number, 0 or above"},
		{"t --tokens 5 --output yaml", `output: "yaml" is not allowed: use table or json`},
		{"t --tokens 5 --timeout 0s", `timeout: "0s" is not allowed: use a duration above 0 such as 10s`},
		{"t --tokens 5 --server ftp://x", `server: "ftp://x" is not allowed: use http:// or https:// URLs separated by commas`},
		{"t --tokens 5 --token-file /nonexistent/token", "token-file: open /nonexistent/token: no such file or directory"},
		{"t --bogus", "bogus: unknown flag; --help lists the flags"},
	}
	for _, test := range tests {
		r := kvgate(t, append([]string{"acquire"}, strings.Fields(test.args)...)...)
		t.Run(test.args, func(t *testing.T) {
			r.expect(t, result{code: exitUsage, stderr: "kvgate: " + test.want})
		})
	}
}

func TestErrorAnswers(t *testing.T) {
	tests := []struct {
		err  error
		code int
		want string
	}{
		{errorAnswer(connect.CodeInvalidArgument, "ticket_id: too long", &kvgatev1.ErrorInfo{Code: "invalid_argument", Field: "ticketId"}), exitFailed,
			"invalid_argument: ticket_id: too long (field ticketId)"},
		{errorAnswer(connect.CodeFailedPrecondition, "two\nlines", &kvgatev1.ErrorInfo{Code: "ticket_mismatch"}), exitFailed, "ticket_mismatch: two lines"},
		{connect.NewError(connect.CodePermissionDenied, stringError("role observer may not acquire")), exitFailed, "permission_denied: role observer may not acquire"},
		{errorAnswer(connect.CodeUnavailable, "no leader yet", &kvgatev1.ErrorInfo{Code: "no_leader"}), exitUnavailable, "no_leader: no leader yet"},
	}
	for _, test := range tests {
		f := &fake{acquire: func(context.Context, *kvgatev1.AcquireRequest) (*kvgatev1.AcquireResponse, error) {
			return nil, test.err
		}}
		at(t, f, "acquire", "t", "--tokens", "5").expect(t, result{code: test.code, stderr: "kvgate: " + test.want})
	}
}

func TestUnreachableServer(t *testing.T) {
	r := kvgate(t, "acquire", "t", "--tokens", "5", "--server", nobody(t))
	if r.code != exitUnavailable || !strings.HasPrefix(r.stderr, "kvgate: unavailable: http://127.0.0.1:") || strings.Count(r.stderr, "\n") != 1 {
		t.Errorf("exit %d: %q", r.code, r.stderr)
	}
}

func TestServersAreTriedInOrder(t *testing.T) {
	leaderless := &fake{acquire: func(context.Context, *kvgatev1.AcquireRequest) (*kvgatev1.AcquireResponse, error) {
		return nil, errorAnswer(connect.CodeUnavailable, "no leader", &kvgatev1.ErrorInfo{Code: "no_leader"})
	}}
	good, _ := lessor(tenMinutes)
	grant := good.acquire
	var sent *kvgatev1.AcquireRequest
	good.acquire = func(ctx context.Context, r *kvgatev1.AcquireRequest) (*kvgatev1.AcquireResponse, error) {
		sent = r
		return grant(ctx, r)
	}
	servers := strings.Join([]string{nobody(t), leaderless.start(t), good.start(t)}, ",")

	now := testNow
	m := newMain()
	m.Now = func() time.Time { now = now.Add(10 * time.Second); return now }
	var out, errs lockedBuffer
	code := m.Run(t.Context(), []string{"acquire", "t", "--tokens", "5", "--max-wait", "45s", "--server", servers}, nil, &out, &errs)
	if code != exitOK {
		t.Fatalf("exit %d: %s", code, errs.String())
	}
	if got := sent.MaxWait.AsDuration(); got != 25*time.Second {
		t.Errorf("third server was sent max_wait %s, want the 25s that remain", got)
	}
	if got := leaderless.called(); !slices.Equal(got, []string{"Acquire"}) {
		t.Errorf("second server saw %v", got)
	}
}

func TestTheErrorAServerWordedWins(t *testing.T) {
	leaderless := &fake{acquire: func(context.Context, *kvgatev1.AcquireRequest) (*kvgatev1.AcquireResponse, error) {
		return nil, errorAnswer(connect.CodeUnavailable, "no leader", &kvgatev1.ErrorInfo{Code: "no_leader"})
	}}
	servers := strings.Join([]string{nobody(t), leaderless.start(t), nobody(t)}, ",")
	kvgate(t, "acquire", "t", "--tokens", "5", "--server", servers).
		expect(t, result{code: exitUnavailable, stderr: "kvgate: no_leader: no leader"})
}

func TestAcquireThatGetsNoAnswerIsCancelled(t *testing.T) {
	f := &fake{
		acquire: func(ctx context.Context, _ *kvgatev1.AcquireRequest) (*kvgatev1.AcquireResponse, error) {
			<-ctx.Done()
			return nil, ctx.Err()
		},
		cancel: func(r *kvgatev1.CancelRequest) (*kvgatev1.CancelResponse, error) {
			return &kvgatev1.CancelResponse{Was: kvgatev1.CancelState_CANCEL_STATE_WAITING}, nil
		},
	}
	r := at(t, f, "acquire", "t", "--tokens", "5", "--max-wait", "0s", "--timeout", "100ms")
	if r.code != exitUnavailable || !strings.Contains(r.stderr, "no decision in time: ticket t cancelled (it was waiting)") {
		t.Errorf("exit %d: %s", r.code, r.stderr)
	}
	if got := f.called(); !slices.Equal(got, []string{"Acquire", "Cancel"}) {
		t.Errorf("calls %v", got)
	}
}

func TestHolderIsKeptAliveWhileTheTicketWaits(t *testing.T) {
	beats := make(chan string, 1)
	f, _ := lessor(tenMinutes)
	grant := f.acquire
	f.heartbeat = func(r *kvgatev1.HeartbeatRequest) (*kvgatev1.HeartbeatResponse, error) {
		select {
		case beats <- r.HolderId:
		default:
		}
		return &kvgatev1.HeartbeatResponse{Ttl: durationpb.New(3 * time.Millisecond)}, nil
	}
	f.acquire = func(ctx context.Context, r *kvgatev1.AcquireRequest) (*kvgatev1.AcquireResponse, error) {
		for range 3 {
			if got := <-beats; got != "worker-3" {
				t.Errorf("heartbeat of %q", got)
			}
		}
		return grant(ctx, r)
	}
	if r := at(t, f, "acquire", "t", "--tokens", "5", "--holder", "worker-3"); r.code != exitOK {
		t.Errorf("exit %d: %s", r.code, r.stderr)
	}
}

func TestTokenFile(t *testing.T) {
	path := filepath.Join(t.TempDir(), "token")
	if err := os.WriteFile(path, []byte("\n s3cr3t client default\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	f, _ := lessor(tenMinutes)
	r := at(t, f, "acquire", "t", "--tokens", "5", "--token-file", path)
	if r.code != exitOK || !slices.Equal(f.tokens, []string{"Bearer s3cr3t"}) {
		t.Errorf("exit %d, sent %q: %s", r.code, f.tokens, r.stderr)
	}
	if strings.Contains(r.stdout+r.stderr, "s3cr3t") {
		t.Errorf("the token was printed: %s%s", r.stdout, r.stderr)
	}
}
