package rpc

import (
	"context"
	"fmt"
	"testing"

	"kvgate/fsm"
)

func TestNodeCalls(t *testing.T) {
	var got string
	b := &fakeBackend{
		addNode:    func(_ context.Context, id, address string) error { got = "add " + id + " " + address; return nil },
		removeNode: func(_ context.Context, id string) error { got = "remove " + id; return nil },
		transfer:   func(_ context.Context, id string) error { got = "transfer " + id; return nil },
		status:     fsm.Status{NodeID: "n1", LeaderID: "n2"},
	}
	r := start(t, b)
	for _, test := range []struct{ method, body, want string }{
		{"AddNode", `{"id":"n4","address":"d:7071"}`, "add n4 d:7071"},
		{"AddNode", `{"id":"n4","address":"[fd00::4]:7071"}`, "add n4 [fd00::4]:7071"},
		{"RemoveNode", `{"id":"n4"}`, "remove n4"},
		{"TransferLeadership", `{}`, "transfer "},
		{"TransferLeadership", `{"nodeId":"n3"}`, "transfer n3"},
	} {
		got = ""
		answered := r.post("ClusterService/"+test.method, test.body).ok(t)
		if got != test.want {
			t.Errorf("%s %s: the backend saw %q", test.method, test.body, got)
		}
		if test.method == "TransferLeadership" && answered["leaderId"] != "n2" {
			t.Errorf("answer %v", answered)
		}
	}
	for _, test := range []struct{ method, body, field string }{
		{"AddNode", `{"address":"d:7071"}`, "id"},
		{"AddNode", `{"id":"a b","address":"d:7071"}`, "id"},
		{"AddNode", `{"id":"a,b","address":"d:7071"}`, "id"},
		{"AddNode", `{"id":"n4"}`, "address"},
		{"AddNode", `{"id":"n4","address":"d"}`, "address"},
		{"AddNode", `{"id":"n4","address":":7071"}`, "address"},
		{"AddNode", `{"id":"n4","address":"0.0.0.0:7071"}`, "address"},
		{"AddNode", `{"id":"n4","address":"d:0"}`, "address"},
		{"AddNode", `{"id":"n4","address":"d:70710"}`, "address"},
		{"RemoveNode", `{}`, "id"},
		{"TransferLeadership", `{"nodeId":"a\n"}`, "nodeId"},
	} {
		if a := r.post("ClusterService/"+test.method, test.body); a.code() != "invalid_argument" || a.info(t).GetField() != test.field {
			t.Errorf("%s %s: %s", test.method, test.body, a.raw)
		}
	}
}

func TestRefusedNodeCallsSayWhy(t *testing.T) {
	b := &fakeBackend{removeNode: func(context.Context, string) error { return fmt.Errorf("%w: node %q", fsm.ErrLastVoter, "n1") }}
	a := start(t, b).post("ClusterService/RemoveNode", `{"id":"n1"}`)
	if a.code() != "failed_precondition" || a.info(t).GetCode() != CodeLastVoter || a.message() != `the last voter cannot be removed: node "n1"` {
		t.Errorf("got %s", a.raw)
	}
}
