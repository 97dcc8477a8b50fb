package rpc

import (
	"context"
	"fmt"
	"net/http"

	"connectrpc.com/connect"
	"connectrpc.com/grpchealth"

	"kvgate/fsm"
	"kvgate/rpc/kvgate/v1/kvgatev1connect"
)

// serviceNames lists what health and reflection speak for.
var serviceNames = []string{
	kvgatev1connect.AdmissionServiceName,
	kvgatev1connect.SessionServiceName,
	kvgatev1connect.ObserveServiceName,
	kvgatev1connect.ClusterServiceName,
}

// checker answers gRPC health checks with the node's readiness. Watch is not offered: gRPC clients
// fall back to Check, and a push per leader change would need a subscription to the replica.
type checker struct {
	status func() fsm.Status
	known  map[string]bool
}

func newChecker(status func() fsm.Status) *checker {
	c := &checker{status: status, known: map[string]bool{"": true}}
	for _, name := range serviceNames {
		c.known[name] = true
	}
	return c
}

// Check implements grpchealth.Checker. "" asks for the whole server.
func (c *checker) Check(_ context.Context, req *grpchealth.CheckRequest) (*grpchealth.CheckResponse, error) {
	if !c.known[req.Service] {
		return nil, connect.NewError(connect.CodeNotFound, fmt.Errorf("unknown service %s", quote(req.Service)))
	}
	if !c.status().Ready {
		return &grpchealth.CheckResponse{Status: grpchealth.StatusNotServing}, nil
	}
	return &grpchealth.CheckResponse{Status: grpchealth.StatusServing}, nil
}

// healthz answers while the process runs.
func healthz(w http.ResponseWriter, _ *http.Request) {
	writePlain(w, http.StatusOK, "ok\n")
}

// readyz answers 200 when there is a leader and the node has caught up, else 503 and why. A node whose disk
// takes no writes stays ready, since it still answers and lets tickets go; it says so.
func readyz(status func() fsm.Status) http.HandlerFunc {
	return func(w http.ResponseWriter, _ *http.Request) {
		st := status()
		switch {
		case st.Ready && !st.Writable:
			writePlain(w, http.StatusOK, fmt.Sprintf("ready, but %s\n", st.Health))
		case st.Ready:
			writePlain(w, http.StatusOK, "ready\n")
		case st.LeaderID == "":
			writePlain(w, http.StatusServiceUnavailable, "not ready: no leader is known\n")
		default:
			writePlain(w, http.StatusServiceUnavailable, fmt.Sprintf(
				"not ready: applied index %d of %d, health %s\n", st.AppliedIndex, st.CommitIndex, st.Health))
		}
	}
}

func writePlain(w http.ResponseWriter, code int, text string) {
	w.Header().Set("Content-Type", "text/plain; charset=utf-8")
	w.Header().Set("Cache-Control", "no-store")
	w.WriteHeader(code)
	// A caller that left is no error of ours.
	_, _ = w.Write([]byte(text))
}
