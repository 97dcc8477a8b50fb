package rpc

import (
	"context"
	"fmt"
	"strings"
	"testing"
	"time"

	"connectrpc.com/connect"
	"google.golang.org/protobuf/types/known/durationpb"

	"kvgate/fsm"
	"kvgate/ledger"
	kvgatev1 "kvgate/rpc/kvgate/v1"
)

func (n *node) submit(t *testing.T, ops ...*kvgatev1.ExchangeRequest) []*kvgatev1.ExchangeResponse {
	t.Helper()
	res, err := n.api.Submit(t.Context(), connect.NewRequest(&kvgatev1.SubmitRequest{HolderId: "h", Ops: ops}))
	if err != nil {
		t.Fatal(err)
	}
	if len(res.Msg.GetResults()) != len(ops) {
		t.Fatalf("%d results for %d operations", len(res.Msg.GetResults()), len(ops))
	}
	return res.Msg.GetResults()
}

func (n *node) awaitGrants(t *testing.T, cursor string, timeout time.Duration) *kvgatev1.AwaitGrantsResponse {
	t.Helper()
	res, err := n.api.AwaitGrants(t.Context(), connect.NewRequest(&kvgatev1.AwaitGrantsRequest{
		HolderId: "h", Cursor: cursor, Timeout: durationpb.New(timeout),
	}))
	if err != nil {
		t.Fatal(err)
	}
	return res.Msg
}

// grantsFor reads decisions on from a cursor until there are n, and returns their tickets in order.
func (n *node) grantsFor(t *testing.T, cursor string, count int) (tickets []string, next string) {
	t.Helper()
	for len(tickets) < count {
		m := n.awaitGrants(t, cursor, patience)
		if len(m.GetDecisions()) == 0 {
			t.Fatalf("no decision within %v after %v", patience, tickets)
		}
		for _, d := range m.GetDecisions() {
			tickets = append(tickets, fmt.Sprint(d.GetTicketId(), ":", d.GetSeq(), ":", d.GetAcquire().GetAction()))
		}
		cursor = m.GetCursor()
	}
	return tickets, cursor
}

func actionOf(r *kvgatev1.ExchangeResponse) kvgatev1.Action { return r.GetAcquire().GetAction() }

// TestSubmitAnswersAtOnce: one result per operation in their order, a bad one alone, and those who wait
// hear through AwaitGrants, until they acknowledge.
func TestSubmitAnswersAtOnce(t *testing.T) {
	n := startNode(t, Options{})
	other := releaseReq(5, "a")
	other.GetRelease().HolderId = "another"
	nested := releaseReq(6, "a")
	nested.More = []*kvgatev1.ExchangeRequest{releaseReq(7, "a")}
	got := n.submit(t, acquireReq(1, "a", 100), acquireReq(2, "b", 100), acquireReq(3, "", 1), releaseReq(4, "none"), other, nested)
	if actionOf(got[0]) != kvgatev1.Action_ACTION_ADMIT || actionOf(got[1]) != kvgatev1.Action_ACTION_WAIT || got[3].GetRelease().GetReleased() {
		t.Errorf("answered %v", got)
	}
	for i, field := range map[int]string{2: "ticketId", 4: "holderId", 5: "more"} {
		if info := got[i].GetError().GetInfo(); info.GetField() != field || got[i].GetSeq() != uint64(i+1) {
			t.Errorf("result %d is %v, want an error of %s", i, got[i], field)
		}
	}
	empty := n.awaitGrants(t, "", 0)
	if len(empty.GetDecisions()) != 0 || empty.GetReset_() || empty.GetWaiting() != 1 || empty.GetCursor() == "" {
		t.Errorf("nothing is decided yet: %v", empty)
	}
	n.submit(t, releaseReq(8, "a"))
	tickets, cursor := n.grantsFor(t, empty.GetCursor(), 1)
	if want := []string{"b:2:ACTION_ADMIT"}; fmt.Sprint(tickets) != fmt.Sprint(want) {
		t.Errorf("decided %v, want %v", tickets, want)
	}
	if again, _ := n.grantsFor(t, empty.GetCursor(), 1); fmt.Sprint(again) != fmt.Sprint(tickets) {
		t.Errorf("the same cursor answered %v after %v", again, tickets)
	}
	if m := n.awaitGrants(t, cursor, 0); len(m.GetDecisions()) != 0 || m.GetReset_() {
		t.Errorf("after it was acknowledged: %v", m)
	}
}

// TestSubmitRefusedKeepsTicket: when a ticket that waits, or is granted and not acknowledged, is submitted
// again and refused, its decision is told all the same.
func TestSubmitRefusedKeepsTicket(t *testing.T) {
	refused := map[string]*kvgatev1.ExchangeRequest{
		"mismatch": acquireReq(3, "b", 90), // only while b waits
		"invalid":  acquireReq(3, "b", -1),
	}
	for name, bad := range refused {
		t.Run(name, func(t *testing.T) {
			n := startNode(t, Options{})
			n.submit(t, acquireReq(1, "a", 100), acquireReq(2, "b", 100))
			if got := n.submit(t, bad); got[0].GetError() == nil {
				t.Fatalf("answered %v", got)
			}
			empty := n.awaitGrants(t, "", 0)
			if empty.GetWaiting() != 1 {
				t.Errorf("%d wait, want b", empty.GetWaiting())
			}
			n.submit(t, releaseReq(4, "a"))
			if tickets, _ := n.grantsFor(t, empty.GetCursor(), 1); tickets[0] != "b:2:ACTION_ADMIT" {
				t.Errorf("granted %v", tickets)
			}
			n.submit(t, acquireReq(5, "b", -1))
			if tickets, _ := n.grantsFor(t, empty.GetCursor(), 1); tickets[0] != "b:2:ACTION_ADMIT" {
				t.Errorf("granted %v after one more was refused", tickets)
			}
		})
	}
}

// TestSubmitKeepsOrder over one batch: the grants come in the order of the operations.
func TestSubmitKeepsOrder(t *testing.T) {
	n := startNode(t, Options{})
	var ops []*kvgatev1.ExchangeRequest
	for i := range maxOpsAtOnce {
		ops = append(ops, acquireReq(uint64(i), fmt.Sprint("t", i), 100))
	}
	n.submit(t, ops...)
	cursor := ""
	for i := range 50 {
		n.submit(t, releaseReq(0, fmt.Sprint("t", i)))
		var tickets []string
		tickets, cursor = n.grantsFor(t, cursor, 1)
		if want := fmt.Sprintf("t%d:%d:ACTION_ADMIT", i+1, i+1); len(tickets) != 1 || tickets[0] != want {
			t.Fatalf("granted %v, want %s", tickets, want)
		}
	}
}

// TestHolderThatStopsCalling loses its waiters and unacknowledged grants as if the callers had left; its
// cursor is unknown then, and submitting again joins what is left.
func TestHolderThatStopsCalling(t *testing.T) {
	n := startNode(t, Options{})
	patch := ledger.Patch{Set: ledger.Settings{DetachGrace: 2 * time.Second}, Fields: []string{"detachGrace"}}
	if _, err := n.replica.UpdateSettings(t.Context(), ledger.DefaultPool, patch); err != nil {
		t.Fatal(err)
	}
	n.submit(t, acquireReq(1, "a", 100), acquireReq(2, "b", 100), acquireReq(3, "c", 100))
	cursor := n.awaitGrants(t, "", 0).GetCursor()
	n.submit(t, releaseReq(4, "a")) // b is granted, and nobody asks for it
	eventually(t, "c is detached", func() bool { return n.detached("c") })
	if m := n.awaitGrants(t, cursor, patience); !m.GetReset_() || m.GetWaiting() != 0 {
		t.Errorf("the old cursor: %v", m)
	}
	if got := n.submit(t, acquireReq(5, "c", 100)); actionOf(got[0]) != kvgatev1.Action_ACTION_WAIT {
		t.Errorf("c again: %v", got)
	}
	// The grant that nobody heard of is given back, and c, which is listened for again, gets the tokens.
	if tickets, _ := n.grantsFor(t, "", 1); tickets[0] != "c:5:ACTION_ADMIT" {
		t.Errorf("granted %v", tickets)
	}
}

// TestPollingKeepsTickets attached for longer than the gap, and a second poll ends the first.
func TestPollingKeepsTickets(t *testing.T) {
	n := startNode(t, Options{})
	n.submit(t, acquireReq(1, "a", 100), acquireReq(2, "b", 100))
	cursor := n.awaitGrants(t, "", 0).GetCursor()
	if m := n.awaitGrants(t, cursor, 2*minGap); len(m.GetDecisions()) != 0 || m.GetWaiting() != 1 {
		t.Errorf("nothing was decided: %v", m)
	}
	if !n.waits("b") {
		t.Error("b is not listened for any more")
	}
	polls := make(chan *kvgatev1.AwaitGrantsResponse, 2)
	for range 2 {
		go func() {
			res, err := n.api.AwaitGrants(context.WithoutCancel(t.Context()), connect.NewRequest(&kvgatev1.AwaitGrantsRequest{HolderId: "h", Cursor: cursor}))
			if err != nil {
				t.Error(err)
				res = connect.NewResponse(&kvgatev1.AwaitGrantsResponse{})
			}
			polls <- res.Msg
		}()
	}
	if m := <-polls; m.GetCursor() != cursor || len(m.GetDecisions()) != 0 {
		t.Errorf("the first of two polls answered %v", m)
	}
	n.submit(t, releaseReq(3, "a"))
	if m := <-polls; len(m.GetDecisions()) != 1 || m.GetDecisions()[0].GetTicketId() != "b" {
		t.Errorf("the second poll answered %v", m)
	}
}

// TestSubmitOfAServerThatStops: open polls end and send their callers elsewhere.
func TestSubmitOfAServerThatStops(t *testing.T) {
	n := startNode(t, Options{ShutdownGrace: patience})
	n.submit(t, acquireReq(1, "a", 100), acquireReq(2, "b", 100))
	failed := make(chan error, 1)
	go func() {
		_, err := n.api.AwaitGrants(context.WithoutCancel(t.Context()), connect.NewRequest(&kvgatev1.AwaitGrantsRequest{HolderId: "h"}))
		failed <- err
	}()
	eventually(t, "its desk is there", func() bool {
		_, metrics := n.get("/metrics")
		return strings.Contains(metrics, `agentic_kv_submit_holders 1`)
	})
	if err := n.stop(); err != nil {
		t.Error(err)
	}
	// The poll may have been cut off before the server had it, else it was told.
	if err := <-failed; connect.CodeOf(err) != connect.CodeUnavailable {
		t.Errorf("the poll ended with %v", err)
	}
}

// TestSubmitLimits name the field.
func TestSubmitLimits(t *testing.T) {
	r := start(t, &fakeBackend{heartbeat: func(context.Context, string) (fsm.HolderStatus, error) { return fsm.HolderStatus{}, nil }})
	many := strings.Repeat(`{},`, maxOpsAtOnce) + `{}`
	for body, field := range map[string]string{
		`{"ops":[{}]}`:                          "holderId",
		`{"holderId":"h"}`:                      "ops",
		`{"holderId":"h","ops":[` + many + `]}`: "ops",
	} {
		if got := r.post("AdmissionService/Submit", body); got.code() != "invalid_argument" || got.info(t).GetField() != field {
			t.Errorf("%.60s: %s", body, got.raw)
		}
	}
	for body, field := range map[string]string{
		`{}`: "holderId", `{"holderId":"h","timeout":"61s"}`: "timeout", `{"holderId":"h","cursor":"` + strings.Repeat("x", 65) + `"}`: "cursor",
	} {
		if got := r.post("AdmissionService/AwaitGrants", body); got.code() != "invalid_argument" || got.info(t).GetField() != field {
			t.Errorf("%.60s: %s", body, got.raw)
		}
	}
	got := r.post("AdmissionService/AwaitGrants", `{"holderId":"h","timeout":"30s","cursor":"gone.1"}`).ok(t)
	if got["reset"] != true || got["cursor"] == "gone.1" {
		t.Errorf("an unknown cursor: %v", got)
	}
}
