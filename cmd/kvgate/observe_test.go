package main

import (
	"encoding/csv"
	"encoding/json"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"google.golang.org/protobuf/encoding/protojson"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/durationpb"
	"google.golang.org/protobuf/types/known/timestamppb"

	kvgatev1 "kvgate/rpc/kvgate/v1"
)

// leaseFake lists n leases in pages of at most two.
func leaseFake(n int) *fake {
	return &fake{leases: func(r *kvgatev1.ListLeasesRequest) (*kvgatev1.ListLeasesResponse, error) {
		answer := &kvgatev1.ListLeasesResponse{}
		first := 0
		_, _ = fmt.Sscan(r.PageToken, &first) // an empty token is the first page
		for i := first; i < n; i++ {
			if len(answer.Leases) == min(2, int(r.PageSize)) {
				answer.NextPageToken = fmt.Sprint(i)
				break
			}
			answer.Leases = append(answer.Leases, &kvgatev1.Lease{
				LeaseId: fmt.Sprintf("1:t%d", i), TicketId: fmt.Sprintf("t%d", i), ReservationTokens: int64(1000 * i),
				Held: durationpb.New(time.Duration(i) * time.Minute), ExpiresIn: durationpb.New(90 * time.Second), Grant: uint64(i), HolderId: "w",
			})
		}
		return answer, nil
	}}
}

func TestLeasesReadsEveryPage(t *testing.T) {
	at(t, leaseFake(5), "leases").expect(t, result{stdout: `
LEASE  TICKET  TOKENS   HELD  EXPIRES IN  HOLDER  SESSION  GRANT
1:t0   t0           0     0s       1m30s  w                    0
1:t1   t1       1,000  1m00s       1m30s  w                    1
1:t2   t2       2,000  2m00s       1m30s  w                    2
1:t3   t3       3,000  3m00s       1m30s  w                    3
1:t4   t4       4,000  4m00s       1m30s  w                    4
`})
}

func TestLimitStopsPaging(t *testing.T) {
	for _, test := range []struct {
		limit     string
		rows      int
		calls     int
		nextToken string
	}{{"0", 5, 3, ""}, {"3", 3, 2, "3"}, {"5", 5, 3, ""}, {"1", 1, 1, "1"}} {
		f := leaseFake(5)
		r := at(t, f, "leases", "--limit", test.limit, "--output", "json")
		var got kvgatev1.ListLeasesResponse
		if err := protojson.Unmarshal([]byte(r.stdout), &got); err != nil {
			t.Fatal(err)
		}
		if len(got.Leases) != test.rows || len(f.called()) != test.calls || got.NextPageToken != test.nextToken {
			t.Errorf("--limit %s: %d leases in %d calls, next %q; want %+v", test.limit, len(got.Leases), len(f.called()), got.NextPageToken, test)
		}
	}
}

func TestQueue(t *testing.T) {
	f := &fake{waiters: func(r *kvgatev1.ListWaitersRequest) (*kvgatev1.ListWaitersResponse, error) {
		if r.Pool != "qwen" || !r.Stale {
			t.Errorf("asked for %v", r)
		}
		return &kvgatev1.ListWaitersResponse{Waiters: []*kvgatev1.Waiter{
			{TicketId: "a", Position: 1, ReservationTokens: 96_000, WaitReason: kvgatev1.WaitReason_WAIT_REASON_CAPACITY_EXHAUSTED,
				Waited: durationpb.New(1500 * time.Millisecond), AgesIn: durationpb.New(28 * time.Second), Attached: true, HolderId: "w1"},
			{TicketId: "b", Position: 2, ReservationTokens: 10, WaitReason: kvgatev1.WaitReason_WAIT_REASON_OLDER_WAITER,
				Waited: durationpb.New(20 * time.Millisecond), AgesIn: durationpb.New(30 * time.Second), Priority: -1},
		}}, nil
	}}
	at(t, f, "queue", "--pool", "qwen", "--stale").expect(t, result{stdout: `
POSITION  TICKET  TOKENS  REASON              WAITED  AGES IN  ATTACHED  HOLDER  PRIORITY
       1  a       96,000  capacity_exhausted    1.5s      28s  yes       w1             0
       2  b           10  older_waiter          20ms      30s  no                      -1
`})
	empty := &fake{waiters: func(*kvgatev1.ListWaitersRequest) (*kvgatev1.ListWaitersResponse, error) {
		return &kvgatev1.ListWaitersResponse{}, nil
	}}
	at(t, empty, "queue").expect(t, result{stdout: "nothing waits"})
}

func TestEngines(t *testing.T) {
	f := &fake{engines: func(*kvgatev1.ListEnginesRequest) (*kvgatev1.ListEnginesResponse, error) {
		return &kvgatev1.ListEnginesResponse{Discovery: "router /workers", SnapshotAge: durationpb.New(2 * time.Second), Engines: []*kvgatev1.Engine{
			{Url: "http://e1:3000", Healthy: true, CapacityTokens: 1_200_000, UsedTokens: 600_000, EvictableTokens: 5, Usage: 0.5, Pressure: 0.625,
				DpRanks: 2, Role: kvgatev1.EngineRole_ENGINE_ROLE_DECODE, RunningRequests: 12, QueuedRequests: 3},
			{Url: "http://e2:3000", Error: "connection\nrefused", Role: kvgatev1.EngineRole_ENGINE_ROLE_REGULAR},
		}}, nil
	}}
	at(t, f, "engines").expect(t, result{stdout: `
ENGINE          ROLE      CAPACITY     USED  EVICTABLE  USAGE  PRESSURE  RANKS  RUNNING  QUEUED  HEALTH
http://e1:3000  decode   1,200,000  600,000          5  50.0%     62.5%      2       12       3  healthy
http://e2:3000  regular          0        0          0   0.0%      0.0%      0        0       0  connection\nrefused
found through router /workers, measured 2s ago
`})
}

// cluster is a fake with two pools and three nodes.
func cluster(leader string) *fake {
	return &fake{
		status: func(*kvgatev1.GetStatusRequest) (*kvgatev1.GetStatusResponse, error) {
			return &kvgatev1.GetStatusResponse{
				NodeId: "n1", LeaderId: leader, State: "follower", Term: 7, AppliedIndex: 12_345, CommitIndex: 12_346, FailureTolerance: 1,
				Version: "v1", ClusterId: "c-1", Writable: true, Health: "ok", LedgerTime: 5,
				Nodes: []*kvgatev1.Node{
					{Id: "n1", Address: "a:7071", Voter: true, Reachable: true, AppliedIndex: 12_345, Version: "v1"},
					{Id: "n2", Address: "b:7071", Voter: true, Reachable: true, AppliedIndex: 12_346, Version: "v1"},
					{Id: "n3", Address: "c:7071", Reachable: false},
				},
			}, nil
		},
		pools: func(r *kvgatev1.ListPoolsRequest) (*kvgatev1.ListPoolsResponse, error) {
			if r.Stale != (leader == "") {
				return nil, fmt.Errorf("stale is %t", r.Stale)
			}
			return &kvgatev1.ListPoolsResponse{Pools: []string{"default", "qwen"}}, nil
		},
		budget: func(r *kvgatev1.GetBudgetRequest) (*kvgatev1.GetBudgetResponse, error) {
			b := &kvgatev1.GetBudgetResponse{
				Pool: r.Pool, Ceiling: 1_080_000, Reserved: 80_000, Available: 1_000_000, Epoch: 3, Pressure: 0.5, PressureThreshold: 0.92,
				Waiting: 2, Leases: 5, OldestWait: durationpb.New(4200 * time.Millisecond), Admission: true,
			}
			if r.Pool == "qwen" {
				b = &kvgatev1.GetBudgetResponse{Pool: r.Pool, Degraded: true, DegradedReason: "no snapshot yet", PressureThreshold: 0.92, Admission: true}
			}
			return b, nil
		},
	}
}

const budgetRows = `
POOL       CEILING  RESERVED  AVAILABLE  LEASES  WAITING  OLDEST WAIT        PRESSURE  EPOCH  STATE
default  1,080,000    80,000  1,000,000       5        2         4.2s  50.0% of 92.0%      3  ok
qwen             0         0          0       0        0            -   0.0% of 92.0%      0  degraded: no snapshot yet
`

func statusText(leader, role string) string {
	return `
node            n1
state           follower
leader          ` + leader + `
term            7
applied index   12,345
commit index    12,346
may still fail  1 of 3 nodes
writable        yes
health          ok
cluster         c-1
version         v1

NODE  ADDRESS  ROLE       REACHABLE  APPLIED  VERSION
n1    a:7071   voter      yes         12,345  v1
n2    b:7071   ` + fmt.Sprintf("%-9s", role) + `  yes         12,346  v1
n3    c:7071   non-voter  no               0

` + strings.TrimPrefix(budgetRows, "\n")
}

func TestStatus(t *testing.T) {
	at(t, cluster("n2"), "status").expect(t, result{stdout: statusText("n2", "leader")})
	at(t, cluster(""), "status").expect(t, result{code: exitUnavailable, stdout: statusText("none", "voter"),
		stderr: "kvgate: no_leader: the cluster has no leader and decides nothing until it has one"})
}

func TestStatusJSONAddsTheBudgets(t *testing.T) {
	r := at(t, cluster("n2"), "status", "--output", "json", "--pool", "qwen")
	var got struct {
		NodeID  string           `json:"nodeId"`
		Nodes   []map[string]any `json:"nodes"`
		Budgets []map[string]any `json:"budgets"`
	}
	if err := json.Unmarshal([]byte(r.stdout), &got); err != nil {
		t.Fatalf("%v: %s", err, r.stdout)
	}
	if got.NodeID != "n1" || len(got.Nodes) != 3 || len(got.Budgets) != 1 || got.Budgets[0]["degradedReason"] != "no snapshot yet" {
		t.Errorf("got %+v", got)
	}
}

func TestPools(t *testing.T) {
	at(t, cluster("n2"), "pools").expect(t, result{stdout: budgetRows})
}

func journalFake(t *testing.T, want *kvgatev1.ReadJournalRequest, next string) *fake {
	return &fake{journal: func(r *kvgatev1.ReadJournalRequest) (*kvgatev1.ReadJournalResponse, error) {
		if !proto.Equal(r, want) {
			t.Errorf("asked for %v, want %v", r, want)
		}
		wall := timestamppb.New(testNow.Add(-time.Minute))
		return &kvgatev1.ReadJournalResponse{FirstKeptIndex: 2, LastIndex: 99, NextPageToken: next, Events: []*kvgatev1.JournalEvent{
			{Index: 10, WallTime: wall, Pool: "default", Kind: "waiting", TicketId: "t", Tokens: 96_000, Reason: "capacity_exhausted", ReservedAfter: 1_000_000, CeilingAfter: 1_080_000},
			{Index: 11, N: 1, WallTime: wall, Pool: "default", Kind: "admitted", TicketId: "t", Tokens: 96_000, Reason: "capacity_available",
				Wait: durationpb.New(1500 * time.Millisecond), ReservedAfter: 96_000, CeilingAfter: 1_080_000, LeaseId: "3:t", Grant: 10},
			{Index: 12, Kind: "settings", Detail: "headroom=0.85, \"x\""},
		}}, nil
	}}
}

func TestJournalTable(t *testing.T) {
	want := &kvgatev1.ReadJournalRequest{
		PageSize: 1000, TicketId: "t", SessionId: "s", HolderId: "h", GroupId: "g", Kinds: []string{"waiting", "admitted"}, Pool: "default", FromIndex: 3,
		Since: timestamppb.New(testNow.Add(-10 * time.Minute)), Until: timestamppb.New(time.Date(2026, 3, 14, 15, 9, 0, 0, time.UTC)),
	}
	at(t, journalFake(t, want, ""), "journal", "--ticket", "t", "--session", "s", "--holder", "h", "--group", "g", "--kind", "waiting,admitted",
		"--pool", "default", "--since", "-10m", "--until", "15:09", "--from-index", "3").expect(t, result{stderr: "kvgate: the journal is kept from index 2 on", stdout: `
TIME                     KIND      TICKET  TOKENS  REASON              WAIT     RESERVED/CEILING
2026-03-14 15:08:26.000  waiting   t       96,000  capacity_exhausted        1,000,000/1,080,000
2026-03-14 15:08:26.000  admitted  t       96,000  capacity_available  1.5s     96,000/1,080,000
-                        settings                  headroom=0.85, "x"
`})
}

func TestJournalOfSeveralPoolsNamesThem(t *testing.T) {
	f := &fake{journal: func(*kvgatev1.ReadJournalRequest) (*kvgatev1.ReadJournalResponse, error) {
		return &kvgatev1.ReadJournalResponse{Events: []*kvgatev1.JournalEvent{
			{Kind: "leader", Detail: "n1"}, {Kind: "released", Pool: "a", TicketId: "t"}, {Kind: "released", Pool: "b", TicketId: "t"},
		}}, nil
	}}
	at(t, f, "journal").expect(t, result{stdout: `
TIME  KIND        TICKET  TOKENS  REASON  WAIT  RESERVED/CEILING
-     leader                      n1
-     a/released  t
-     b/released  t
`})
}

func TestJournalLimitSaysThatThereIsMore(t *testing.T) {
	r := at(t, journalFake(t, &kvgatev1.ReadJournalRequest{PageSize: 3}, "12"), "journal", "--limit", "3")
	if r.code != exitOK || r.stderr != "kvgate: the journal is kept from index 2 on\nkvgate: more events match than --limit 3 shows; raise it or narrow the filters\n" {
		t.Errorf("exit %d: %q", r.code, r.stderr)
	}
}

func TestJournalForms(t *testing.T) {
	all := &kvgatev1.ReadJournalRequest{PageSize: 1000}
	r := at(t, journalFake(t, all, ""), "journal", "--output", "json")
	var page kvgatev1.ReadJournalResponse
	if err := protojson.Unmarshal([]byte(r.stdout), &page); err != nil || len(page.Events) != 3 || page.LastIndex != 99 || page.FirstKeptIndex != 2 {
		t.Errorf("json: %v: %s", err, r.stdout)
	}
	r = at(t, journalFake(t, all, ""), "journal", "--output", "jsonl")
	lines := strings.Split(strings.TrimSpace(r.stdout), "\n")
	for i, text := range lines {
		var event kvgatev1.JournalEvent
		if err := protojson.Unmarshal([]byte(text), &event); err != nil || !proto.Equal(&event, page.Events[i]) {
			t.Errorf("jsonl line %d: %v: %s", i, err, text)
		}
	}
	if len(lines) != 3 {
		t.Errorf("jsonl has %d lines", len(lines))
	}
	r = at(t, journalFake(t, all, ""), "journal", "--output", "csv")
	rows, err := csv.NewReader(strings.NewReader(r.stdout)).ReadAll()
	if err != nil || len(rows) != 4 {
		t.Fatalf("csv: %v: %s", err, r.stdout)
	}
	got := map[string]string{}
	for i, name := range rows[0] {
		got[name] = rows[2][i]
	}
	for name, want := range map[string]string{"index": "11", "n": "1", "wall_time": "2026-03-14T15:08:26Z", "kind": "admitted", "ticket_id": "t",
		"tokens": "96000", "wait_seconds": "1.5", "reserved_after": "96000", "ceiling_after": "1080000", "grant": "10", "lease_id": "3:t"} {
		if got[name] != want {
			t.Errorf("csv %s is %q, want %q", name, got[name], want)
		}
	}
	if rows[3][slices.Index(rows[0], "detail")] != "headroom=0.85, \"x\"" {
		t.Errorf("csv detail is %q", rows[3])
	}
}

func TestJournalUsage(t *testing.T) {
	kvgate(t, "journal", "--since", "last week").expect(t, result{code: exitUsage, stderr: `kvgate: since: "last week" is not allowed: use ` + allowedTimes})
	kvgate(t, "journal", "--since", "-1m", "--until", "-2m").expect(t, result{code: exitUsage, stderr: `kvgate: until: "-2m" is not allowed: use a time after --since`})
	kvgate(t, "journal", "--limit", "x").expect(t, result{code: exitUsage, stderr: `kvgate: limit: "x" is not allowed: use a whole number, 0 or above`})
}

func TestStepDrain(t *testing.T) {
	f := &fake{drain: func(r *kvgatev1.DrainStepRequest) (*kvgatev1.DrainStepResponse, error) {
		if r.Step != 42 || r.RunId != "run-7" || r.Pool != "p" {
			t.Errorf("drained %v", r)
		}
		return &kvgatev1.DrainStepResponse{Step: 42, Metrics: map[string]float64{"agentic_kv/budget/reserved": 1_200_000, "agentic_kv/admission/defer_rate": 0.25}}, nil
	}}
	url := f.start(t)
	kvgate(t, "step", "drain", "42", "--run-id", "run-7", "--pool", "p", "--server", url).expect(t, result{stdout: `
METRIC                               VALUE
agentic_kv/admission/defer_rate       0.25
agentic_kv/budget/reserved       1,200,000
`})
	kvgate(t, "step", "drain", "-1", "--server", url).expect(t, result{code: exitUsage, stderr: "kvgate: 1: unknown flag; --help lists the flags"})
	kvgate(t, "step", "drain", "x").expect(t, result{code: exitUsage, stderr: `kvgate: step: "x" is not allowed: use a whole number, 0 or above`})
	kvgate(t, "step", "drain").expect(t, result{code: exitUsage, stderr: "kvgate: step: missing: use kvgate step drain STEP"})
	kvgate(t, "step").expect(t, result{code: exitUsage, stderr: "kvgate: kvgate step: a subcommand is missing: use drain"})
}
