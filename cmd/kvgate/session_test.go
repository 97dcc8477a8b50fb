package main

import (
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"connectrpc.com/connect"
	"google.golang.org/protobuf/encoding/protojson"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/durationpb"
	"google.golang.org/protobuf/types/known/timestamppb"

	kvgatev1 "kvgate/rpc/kvgate/v1"
)

func sinceNow(d time.Duration) *timestamppb.Timestamp { return timestamppb.New(testNow.Add(-d)) }

// telling is a session that two engines owe its close, and one that failed for good.
func telling() *kvgatev1.Session {
	return &kvgatev1.Session{
		SessionId: "agent-17", Pool: "default", State: kvgatev1.SessionState_SESSION_STATE_CLOSING, Phase: kvgatev1.ClosePhase_CLOSE_PHASE_TELLING,
		Kind: kvgatev1.SessionKind_SESSION_KIND_RADIX, GroupId: "step-42", Turns: 12, FootprintTokens: 48_000, IdleTimeout: durationpb.New(0),
		OpenedAt: sinceNow(10 * time.Minute), LastTurnAt: sinceNow(30 * time.Second), ClosingSince: sinceNow(25 * time.Second), CloseReason: "asked",
		Acknowledged: 2,
		Owed: []*kvgatev1.OwedClose{
			{EngineUrl: "http://e1:30000", Attempts: 9, LastError: "unreachable: dial tcp: connection refused", NextTry: durationpb.New(4200 * time.Millisecond)},
			{EngineUrl: "http://e2:30000", Attempts: 3, LastError: "key refused: answers 401"},
		},
	}
}

func TestSessionShowTellsWhoOwesAndWhy(t *testing.T) {
	f := &fake{getSession: func(r *kvgatev1.GetSessionRequest) (*kvgatev1.GetSessionResponse, error) {
		if r.SessionId != "agent-17" || !r.Stale {
			t.Errorf("asked for %v", r)
		}
		return &kvgatev1.GetSessionResponse{Session: telling()}, nil
	}}
	at(t, f, "session", "show", "agent-17", "--stale").expect(t, result{stdout: `
session       agent-17
pool          default
state         closing, telling
kind          radix
group         step-42
turns         12
footprint     48,000 tokens
opened        10m00s ago
last turn     30s ago
idle timeout  never
close began   25s ago (somebody closed it)
acknowledged  2

ENGINE THAT OWES THE CLOSE  ATTEMPTS  NEXT TRY  LAST ERROR
http://e1:30000                    9  in 4.2s   unreachable: dial tcp: connection refused
http://e2:30000                    3  now       key refused: answers 401
`})
}

func TestSessionShowTellsWhoRefusesAnAbort(t *testing.T) {
	f := &fake{getSession: func(*kvgatev1.GetSessionRequest) (*kvgatev1.GetSessionResponse, error) {
		s := telling()
		s.Phase, s.Owed, s.Acknowledged, s.InFlight = kvgatev1.ClosePhase_CLOSE_PHASE_ABORTING, nil, 0, []string{"t:0", "t:1"}
		s.Aborts = []*kvgatev1.PendingAbort{
			{TicketId: "t:0", EngineUrl: "http://e1:30000", Attempts: 9, LastError: "key refused: answers 401", NextTry: durationpb.New(4200 * time.Millisecond)},
			{TicketId: "t:1", EngineUrl: "http://e1:30000"},
		}
		return &kvgatev1.GetSessionResponse{Session: s}, nil
	}}
	at(t, f, "session", "show", "agent-17").expect(t, result{stdout: `
session       agent-17
pool          default
state         closing, aborting
kind          radix
group         step-42
in flight     t:0, t:1
turns         12
footprint     48,000 tokens
opened        10m00s ago
last turn     30s ago
idle timeout  never
close began   25s ago (somebody closed it)

TICKET TO ABORT  ENGINE           ATTEMPTS  NEXT TRY  LAST ERROR
t:0              http://e1:30000         9  in 4.2s   key refused: answers 401
t:1              http://e1:30000         0  now
`})
}

func TestSessionListSumsUpWhatIsOwed(t *testing.T) {
	f := &fake{listSessions: func(r *kvgatev1.ListSessionsRequest) (*kvgatev1.ListSessionsResponse, error) {
		if r.State != kvgatev1.SessionState_SESSION_STATE_CLOSING || r.GroupId != "step-42" {
			t.Errorf("asked for %v", r)
		}
		if r.PageToken == "" {
			return &kvgatev1.ListSessionsResponse{Sessions: []*kvgatev1.Session{telling()}, NextPageToken: "more"}, nil
		}
		older := telling()
		older.SessionId, older.ClosingSince, older.InFlight, older.Owed = "agent-18", sinceNow(50*time.Second), []string{"t"}, older.Owed[:1]
		return &kvgatev1.ListSessionsResponse{Sessions: []*kvgatev1.Session{older}}, nil
	}}
	at(t, f, "session", "list", "--state", "closing", "--group", "step-42").expect(t, result{stdout: `
SESSION   STATE             KIND   GROUP    IN FLIGHT  TURNS  FOOTPRINT      OPENED  CLOSING  OWED BY
agent-17  closing, telling  radix  step-42          0     12     48,000  10m00s ago  25s ago        2
agent-18  closing, telling  radix  step-42          1     12     48,000  10m00s ago  50s ago        1
3 acknowledgements owed by 2 engines (http://e1:30000, http://e2:30000); the oldest close began 50s ago: agent-18
`})
}

func TestSessionListAsJSON(t *testing.T) {
	f := &fake{listSessions: func(*kvgatev1.ListSessionsRequest) (*kvgatev1.ListSessionsResponse, error) {
		return &kvgatev1.ListSessionsResponse{Sessions: []*kvgatev1.Session{telling()}}, nil
	}}
	r := at(t, f, "session", "list", "--output", "json")
	var got kvgatev1.ListSessionsResponse
	if err := protojson.Unmarshal([]byte(r.stdout), &got); err != nil {
		t.Fatal(err)
	}
	if len(got.Sessions) != 1 || !proto.Equal(got.Sessions[0], telling()) {
		t.Errorf("got %v", &got)
	}
}

func TestSessionOpenSendsWhatIsAsked(t *testing.T) {
	var got *kvgatev1.OpenSessionRequest
	f := &fake{openSession: func(r *kvgatev1.OpenSessionRequest) (*kvgatev1.OpenSessionResponse, error) {
		got = r
		return &kvgatev1.OpenSessionResponse{Session: &kvgatev1.Session{SessionId: r.SessionId, State: kvgatev1.SessionState_SESSION_STATE_OPEN}, Warnings: []string{"session_id_reused"}}, nil
	}}
	r := at(t, f, "session", "open", "s", "--kind", "streaming", "--engine", "http://e1:30000", "--idle-timeout", "0s", "--group", "g", "--pool", "p")
	want := &kvgatev1.OpenSessionRequest{
		Pool: "p", SessionId: "s", GroupId: "g", Kind: kvgatev1.SessionKind_SESSION_KIND_STREAMING, EngineUrl: "http://e1:30000", IdleTimeout: durationpb.New(0),
	}
	if !proto.Equal(got, want) {
		t.Errorf("sent %v, want %v", got, want)
	}
	if r.code != 0 || !strings.Contains(r.stderr, "session_id_reused: this id was closed") {
		t.Errorf("ended with %+v", r)
	}
	at(t, f, "session", "open", "s")
	if !proto.Equal(got, &kvgatev1.OpenSessionRequest{SessionId: "s"}) {
		t.Errorf("sent %v, want the defaults left to the server", got)
	}
}

func TestSessionCloseReportsEnginesThatNeverHeard(t *testing.T) {
	f := &fake{closeSession: func(r *kvgatev1.CloseSessionRequest) (*kvgatev1.CloseSessionResponse, error) {
		if !r.Wait || r.Mode != kvgatev1.CloseMode_CLOSE_MODE_ABORT || r.Timeout.AsDuration() != 5*time.Second {
			t.Errorf("sent %v", r)
		}
		s := &kvgatev1.Session{SessionId: "s", State: kvgatev1.SessionState_SESSION_STATE_CLOSED_WITH_FAILURES}
		s.Owed = []*kvgatev1.OwedClose{{EngineUrl: "http://e1:30000", Failed: true, LastError: "no acknowledgement"}}
		return &kvgatev1.CloseSessionResponse{Session: s}, nil
	}}
	r := at(t, f, "session", "close", "s", "--wait", "--mode", "abort", "--join-timeout", "5s")
	if r.code != exitFailed || !strings.Contains(r.stderr, "http://e1:30000") || !strings.Contains(r.stdout, "given up") {
		t.Errorf("ended with %+v", r)
	}
}

func TestSessionBindTouchAndGroup(t *testing.T) {
	var bind *kvgatev1.BindSessionRequest
	f := &fake{
		bindSession: func(r *kvgatev1.BindSessionRequest) (*kvgatev1.BindSessionResponse, error) {
			bind = r
			return &kvgatev1.BindSessionResponse{Session: &kvgatev1.Session{SessionId: "s", Binding: &kvgatev1.Binding{EngineUrl: r.EngineUrl, DpRank: r.DpRank}}}, nil
		},
		touchSession: func(r *kvgatev1.TouchSessionRequest) (*kvgatev1.TouchSessionResponse, error) {
			return &kvgatev1.TouchSessionResponse{Session: &kvgatev1.Session{SessionId: r.SessionId}}, nil
		},
		closeGroup: func(r *kvgatev1.CloseGroupRequest) (*kvgatev1.CloseGroupResponse, error) {
			return &kvgatev1.CloseGroupResponse{Closing: 1000}, nil
		},
	}
	r := at(t, f, "session", "bind", "s", "--engine", "http://e1:30000", "--rank", "3", "--ttl", "10m")
	want := &kvgatev1.BindSessionRequest{SessionId: "s", EngineUrl: "http://e1:30000", DpRank: 3, Ttl: durationpb.New(10 * time.Minute)}
	if !proto.Equal(bind, want) || !strings.Contains(r.stdout, "http://e1:30000 rank 3") {
		t.Errorf("sent %v, printed %s", bind, r.stdout)
	}
	if r := at(t, f, "session", "touch", "s"); r.code != 0 || !strings.Contains(r.stdout, "session") {
		t.Errorf("touch: %+v", r)
	}
	at(t, f, "session", "close-group", "step-42").expect(t, result{stdout: "group    step-42\nclosing  1,000 sessions"})
}

func TestSessionPins(t *testing.T) {
	var got *kvgatev1.PinPrefixRequest
	pin := &kvgatev1.Pin{PinId: "p", Tokens: 3, ExpiresIn: durationpb.New(5 * time.Minute), LedgerOnly: true, SessionId: "s"}
	f := &fake{
		pinPrefix: func(r *kvgatev1.PinPrefixRequest) (*kvgatev1.PinPrefixResponse, error) {
			got = r
			return &kvgatev1.PinPrefixResponse{Pin: pin}, nil
		},
		unpinPrefix: func(*kvgatev1.UnpinPrefixRequest) (*kvgatev1.UnpinPrefixResponse, error) {
			return &kvgatev1.UnpinPrefixResponse{Unpinned: true}, nil
		},
		listPins: func(*kvgatev1.ListPinsRequest) (*kvgatev1.ListPinsResponse, error) {
			return &kvgatev1.ListPinsResponse{Pins: []*kvgatev1.Pin{pin}}, nil
		},
	}
	file := filepath.Join(t.TempDir(), "ids.json")
	if err := os.WriteFile(file, []byte("[5, 6, 7]"), 0o600); err != nil {
		t.Fatal(err)
	}
	table := result{stdout: `
PIN  TOKENS  EXPIRES IN  HELD BY                SESSION  ENGINE
p         3       5m00s  none: the ledger only  s
`}
	at(t, f, "session", "pin", "p", "--token-ids", file, "--session", "s", "--ttl", "10m").expect(t, table)
	if want := (&kvgatev1.PinPrefixRequest{PinId: "p", TokenIds: []int32{5, 6, 7}, SessionId: "s", Ttl: "10m"}); !proto.Equal(got, want) {
		t.Errorf("sent %v, want %v", got, want)
	}
	at(t, f, "session", "pins").expect(t, table)
	at(t, f, "session", "unpin", "p").expect(t, result{stdout: "pin       p\nunpinned  yes"})
}

func TestSessionUsageErrors(t *testing.T) {
	for _, c := range []struct{ line, want string }{
		{"session", "a subcommand is missing"},
		{"session open", "a session is missing"},
		{"session open a b", "unexpected argument"},
		{"session open a --kind radish", "radix, streaming or bind"},
		{"session open a --idle-timeout -1s", "0s or above"},
		{"session bind a", "engine: missing"},
		{"session bind a --engine http://e1 --ttl -1s", "0s or above"},
		{"session close a --mode gently", "join or abort"},
		{"session close a --join-timeout 0s", "above 0s"},
		{"session close-group", "a group is missing"},
		{"session list --state nearly", "open, closing, closed or closed_with_failures"},
		{"session pin", "a pin is missing"},
		{"session pin p", "give one of them"},
		{"session pin p --tokens -3", "0 or above"},
		{"session pin p --token-ids /does/not/exist", "no such file"},
		{"session unpin", "a pin is missing"},
	} {
		r := at(t, &fake{}, strings.Fields(c.line)...)
		if r.code != exitUsage || !strings.Contains(r.stderr, c.want) {
			t.Errorf("%s: exit %d, %s; want %q", c.line, r.code, r.stderr, c.want)
		}
	}
}

func TestSessionAnswersThatAreErrors(t *testing.T) {
	f := &fake{getSession: func(*kvgatev1.GetSessionRequest) (*kvgatev1.GetSessionResponse, error) {
		return nil, errorAnswer(connect.CodeNotFound, `unknown session "x"`, &kvgatev1.ErrorInfo{Code: "not_found"})
	}}
	at(t, f, "session", "show", "x").expect(t, result{code: exitFailed, stderr: `kvgate: not_found: unknown session "x"`})
}

// TestSessionCloseSaysThatNobodyKnowsIt: a misspelt id must not look like a close that worked.
func TestSessionCloseSaysThatNobodyKnowsIt(t *testing.T) {
	f := &fake{closeSession: func(r *kvgatev1.CloseSessionRequest) (*kvgatev1.CloseSessionResponse, error) {
		return &kvgatev1.CloseSessionResponse{Session: &kvgatev1.Session{
			SessionId: r.SessionId, Pool: "default", State: kvgatev1.SessionState_SESSION_STATE_CLOSED, Kind: kvgatev1.SessionKind_SESSION_KIND_RADIX,
		}}, nil
	}}
	at(t, f, "session", "close", "agnet-17").expect(t, result{
		stdout: "\nsession       agnet-17\npool          default\nstate         closed\nkind          radix\nturns         0\nidle timeout  never\n",
		stderr: `kvgate: session "agnet-17" is not known in pool "default": nothing was closed, and no engine is told`,
	})
}

// TestDebtsOfEnginesThatAreNotFound have no URL to show.
func TestDebtsOfEnginesThatAreNotFound(t *testing.T) {
	s := telling()
	s.Owed = []*kvgatev1.OwedClose{{LastError: "the pool's engines are not found yet"}}
	f := &fake{listSessions: func(*kvgatev1.ListSessionsRequest) (*kvgatev1.ListSessionsResponse, error) {
		return &kvgatev1.ListSessionsResponse{Sessions: []*kvgatev1.Session{s}}, nil
	}}
	got := at(t, f, "session", "list")
	if want := "1 acknowledgement owed by 1 engine (engines not found)"; !strings.Contains(got.stdout, want) {
		t.Errorf("printed %s, want %q in it", got.stdout, want)
	}
}
