package crash

import (
	"net/http"
	"testing"
	"time"

	"connectrpc.com/connect"
	"google.golang.org/protobuf/types/known/durationpb"

	"kvgate/integration/enginesim"
	"kvgate/integration/procs"
	kvgatev1 "kvgate/rpc/kvgate/v1"
	"kvgate/rpc/kvgate/v1/kvgatev1connect"
)

func TestMain(m *testing.M) { procs.Main(m) }

const (
	// patience is far above what anything here takes.
	patience = 30 * time.Second
	// reservation is what each ticket asks for: about 28 fit into the engine.
	reservation = 10_000
)

// site is a node, an engine, and plain clients that never retry.
type site struct {
	*procs.Process
	t         *testing.T
	transport *http.Transport
	admission kvgatev1connect.AdmissionServiceClient
	observe   kvgatev1connect.ObserveServiceClient
	cluster   kvgatev1connect.ClusterServiceClient
}

func startSite(t *testing.T, dir string, args ...string) *site {
	t.Helper()
	fleet, err := enginesim.StartFleet(enginesim.FleetConfig{Count: 1, Engine: enginesim.Config{EnableMetrics: true}})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := fleet.Close(); err != nil {
			t.Error(err)
		}
	})
	args = append([]string{"--bootstrap", "--engines", fleet.URLs()[0]}, args...)
	s := &site{t: t, Process: procs.StartNode(t, procs.Node{ID: "n1", DataDir: dir, Args: args})}
	s.transport = &http.Transport{MaxIdleConnsPerHost: 64}
	t.Cleanup(s.transport.CloseIdleConnections)
	client := &http.Client{Transport: s.transport}
	s.admission = kvgatev1connect.NewAdmissionServiceClient(client, s.URL())
	s.observe = kvgatev1connect.NewObserveServiceClient(client, s.URL())
	s.cluster = kvgatev1connect.NewClusterServiceClient(client, s.URL())
	s.ready()
	return s
}

// ready waits until the node leads and knows its engine.
func (s *site) ready() {
	s.t.Helper()
	procs.WaitReady(s.t, s.URL())
	procs.Eventually(s.t, patience, func() bool {
		b, err := s.budget()
		return err == nil && !b.Degraded
	}, func() string { return "the pool stays degraded" })
}

// restart starts a node again that has ended.
func (s *site) restart() {
	s.t.Helper()
	s.transport.CloseIdleConnections()
	s.Restart()
	s.ready()
}

func (s *site) budget() (*kvgatev1.GetBudgetResponse, error) {
	res, err := s.observe.GetBudget(s.t.Context(), connect.NewRequest(&kvgatev1.GetBudgetRequest{}))
	if err != nil {
		return nil, err
	}
	return res.Msg, nil
}

func (s *site) status() *kvgatev1.GetStatusResponse {
	s.t.Helper()
	res, err := s.cluster.GetStatus(s.t.Context(), connect.NewRequest(&kvgatev1.GetStatusRequest{}))
	if err != nil {
		s.t.Fatal(err)
	}
	return res.Msg
}

// leases returns all leases by ticket.
func (s *site) leases() map[string]*kvgatev1.Lease {
	s.t.Helper()
	out := map[string]*kvgatev1.Lease{}
	req := &kvgatev1.ListLeasesRequest{}
	for {
		res, err := s.observe.ListLeases(s.t.Context(), connect.NewRequest(req))
		if err != nil {
			s.t.Fatal(err)
		}
		for _, l := range res.Msg.Leases {
			if out[l.TicketId] != nil {
				s.t.Fatalf("ticket %s has two leases", l.TicketId)
			}
			out[l.TicketId] = l
		}
		if req.PageToken = res.Msg.NextPageToken; req.PageToken == "" {
			return out
		}
	}
}

func (s *site) ticket(id string) *kvgatev1.GetTicketResponse {
	s.t.Helper()
	res, err := s.observe.GetTicket(s.t.Context(), connect.NewRequest(&kvgatev1.GetTicketRequest{TicketId: id}))
	if err != nil {
		s.t.Fatal(err)
	}
	return res.Msg
}

func acquireRequest(ticket string) *kvgatev1.AcquireRequest {
	tokens := int64(reservation)
	return &kvgatev1.AcquireRequest{TicketId: ticket, ReservationTokens: &tokens, MaxWait: durationpb.New(100 * time.Millisecond)}
}
