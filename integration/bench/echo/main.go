// Command echo answers acquires and releases as kvgate would, without deciding or writing anything. It
// is the bound that benchmarks compare kvgate with.
//
// It takes the HOST:PORT to listen on as its only argument.
package main

import (
	"context"
	"log"
	"net/http"
	"os"
	"sync/atomic"
	"time"

	"connectrpc.com/connect"
	"google.golang.org/protobuf/types/known/durationpb"

	v1 "kvgate/rpc/kvgate/v1"
	"kvgate/rpc/kvgate/v1/kvgatev1connect"
)

func main() {
	if len(os.Args) != 2 {
		log.Fatal("usage: echo HOST:PORT")
	}
	mux := http.NewServeMux()
	mux.Handle(kvgatev1connect.NewAdmissionServiceHandler(&echo{}, connect.WithCompression("gzip", nil, nil)))
	protocols := new(http.Protocols)
	protocols.SetUnencryptedHTTP2(true)
	server := &http.Server{
		Addr: os.Args[1], Handler: mux, Protocols: protocols, ReadHeaderTimeout: 10 * time.Second,
		HTTP2: &http.HTTP2Config{MaxConcurrentStreams: 10_000},
	}
	log.Fatal(server.ListenAndServe())
}

// echo serves what the benchmark calls, and nothing else of the service.
type echo struct {
	kvgatev1connect.UnimplementedAdmissionServiceHandler
	grants atomic.Uint64
}

// Acquire answers as for an admitted ticket.
func (e *echo) Acquire(_ context.Context, req *connect.Request[v1.AcquireRequest]) (*connect.Response[v1.AcquireResponse], error) {
	return connect.NewResponse(&v1.AcquireResponse{
		Action: v1.Action_ACTION_ADMIT, Reason: v1.Reason_REASON_CAPACITY_AVAILABLE, TicketId: req.Msg.TicketId,
		ReservationTokens: req.Msg.PromptTokens + req.Msg.MaxNewTokens, LeaseId: "1:" + req.Msg.TicketId, OwnerEpoch: 1,
		Waited: durationpb.New(0), ExpiresIn: durationpb.New(time.Hour), Grant: e.grants.Add(1),
	}), nil
}

// Release answers as for a lease that was held.
func (e *echo) Release(context.Context, *connect.Request[v1.ReleaseRequest]) (*connect.Response[v1.ReleaseResponse], error) {
	return connect.NewResponse(&v1.ReleaseResponse{Released: true}), nil
}
