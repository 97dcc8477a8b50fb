package main

import (
	"context"
	"encoding/json"
	"errors"
	"maps"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"google.golang.org/protobuf/types/known/durationpb"

	kvgatev1 "kvgate/rpc/kvgate/v1"
)

func TestTopShowsAView(t *testing.T) {
	f := cluster("n2")
	f.engines = func(r *kvgatev1.ListEnginesRequest) (*kvgatev1.ListEnginesResponse, error) {
		return &kvgatev1.ListEnginesResponse{Engines: []*kvgatev1.Engine{{Url: "http://" + r.Pool + ":3000", Healthy: true, CapacityTokens: 1_000}}}, nil
	}
	f.waiters = func(r *kvgatev1.ListWaitersRequest) (*kvgatev1.ListWaitersResponse, error) {
		if r.PageSize != topQueue {
			t.Errorf("asked for %v", r)
		}
		return &kvgatev1.ListWaitersResponse{Waiters: []*kvgatev1.Waiter{{TicketId: "head-of-" + r.Pool, Position: 1, Waited: durationpb.New(time.Second)}}}, nil
	}
	r := at(t, f, "top", "--views", "2", "--interval", "100ms")
	for _, want := range []string{
		"leader n2, term 7, 1 of 3 nodes may still fail, health ok", "default: engines\n", "http://qwen:3000", "head-of-",
		strings.TrimPrefix(budgetRows, "\n"),
	} {
		if strings.Count(r.stdout, want) < 2 {
			t.Errorf("%q is not in both views:\n%s", want, r.stdout)
		}
	}
	if r.code != exitOK || strings.Contains(r.stdout, "\x1b") {
		t.Errorf("code %d, or escape sequences where there is no terminal", r.code)
	}
}

// TestTopGoesOn: a server that fails is said in the view, and the last view decides the exit code.
func TestTopGoesOn(t *testing.T) {
	f := cluster("n2")
	working, asked := f.status, atomic.Int32{}
	f.status = func(r *kvgatev1.GetStatusRequest) (*kvgatev1.GetStatusResponse, error) {
		if asked.Add(1) == 1 {
			return nil, errors.New("out for lunch")
		}
		return working(r)
	}
	f.engines = func(*kvgatev1.ListEnginesRequest) (*kvgatev1.ListEnginesResponse, error) {
		return &kvgatev1.ListEnginesResponse{}, nil
	}
	f.waiters = func(*kvgatev1.ListWaitersRequest) (*kvgatev1.ListWaitersResponse, error) {
		return &kvgatev1.ListWaitersResponse{}, nil
	}
	r := at(t, f, "top", "--views", "2", "--interval", "100ms")
	if !strings.Contains(r.stdout, "out for lunch") || !strings.Contains(r.stdout, "leader n2") || r.code != exitOK {
		t.Errorf("code %d:\n%s", r.code, r.stdout)
	}
	at(t, f, "top", "--interval", "1ms").expect(t, result{code: exitUsage,
		stderr: `kvgate: interval: "1ms" is not allowed: use a duration of 100ms or more`})
}

// TestBench counts what the server was asked for, and gives everything back.
func TestBench(t *testing.T) {
	var asked, acquired, released atomic.Int64
	f := &fake{
		acquire: func(_ context.Context, r *kvgatev1.AcquireRequest) (*kvgatev1.AcquireResponse, error) {
			if r.GetReservationTokens() != 7 || r.Pool != "qwen" {
				t.Errorf("asked for %v", r)
			}
			if asked.Add(1)%2 == 0 {
				return &kvgatev1.AcquireResponse{Action: kvgatev1.Action_ACTION_BYPASS, Reason: kvgatev1.Reason_REASON_DISABLED, TicketId: r.TicketId}, nil
			}
			acquired.Add(1)
			return &kvgatev1.AcquireResponse{
				Action: kvgatev1.Action_ACTION_ADMIT, Reason: kvgatev1.Reason_REASON_CAPACITY_AVAILABLE, TicketId: r.TicketId,
				LeaseId: "1:" + r.TicketId, Grant: 1, ReservationTokens: 7, ExpiresIn: durationpb.New(time.Minute),
			}, nil
		},
		release: func(*kvgatev1.ReleaseRequest) (*kvgatev1.ReleaseResponse, error) {
			released.Add(1)
			return &kvgatev1.ReleaseResponse{Released: true}, nil
		},
		heartbeat: func(*kvgatev1.HeartbeatRequest) (*kvgatev1.HeartbeatResponse, error) {
			return &kvgatev1.HeartbeatResponse{Ttl: durationpb.New(time.Minute), Leases: 1}, nil
		},
		cancel: func(*kvgatev1.CancelRequest) (*kvgatev1.CancelResponse, error) {
			return &kvgatev1.CancelResponse{}, nil
		},
	}
	r := at(t, f, "bench", "--pool", "qwen", "--tokens", "7", "--callers", "3", "--duration", "300ms", "--multiplex=false", "--output", "json")
	var got benchAnswer
	if err := json.Unmarshal([]byte(r.stdout), &got); err != nil || r.code != exitOK {
		t.Fatalf("%v, code %d: %s%s", err, r.code, r.stdout, r.stderr)
	}
	if got.Pairs == 0 || got.Pairs > released.Load() || got.Pairs > got.Admitted || got.Bypassed["disabled"] == 0 || got.Admitted > acquired.Load() || got.Callers != 3 {
		t.Errorf("got %+v; the server gave %d leases and took %d back", got, acquired.Load(), released.Load())
	}
	for _, times := range []map[string]float64{got.Acquire, got.Release} {
		if times["p50"] <= 0 || times["p50"] > times["max"] || len(times) != 5 {
			t.Errorf("times %v", maps.All(times))
		}
	}
}

func TestBenchUsage(t *testing.T) {
	for flag, allowed := range map[string]string{
		"--callers=0": `callers: "0" is not allowed: use 1 to 100000`, "--duration=0s": `duration: "0s" is not allowed: use a duration above 0 such as 10s`,
		"--hold=-1s": `hold: "-1s" is not allowed: use a duration of 0 or more`, "--tokens=0": `tokens: "0" is not allowed: use 1 or more`,
	} {
		at(t, &fake{}, "bench", flag).expect(t, result{code: exitUsage, stderr: "kvgate: " + allowed})
	}
}
