package client

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"net/url"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"connectrpc.com/connect"

	"kvgate/rpc/kvgate/v1/kvgatev1connect"
)

// leaderHeader names the node that leads, in every answer of a node that knows.
const leaderHeader = "Kvgate-Leader"

// endpointCooldown is how long an endpoint that failed is not chosen on a leader hint: a leader that
// the followers reach but this process does not must not cost a dial timeout per call.
const endpointCooldown = 10 * time.Second

// errNoStreams: the connection speaks HTTP/1.1, which cannot carry an Exchange.
var errNoStreams = errors.New("streams in both directions need HTTP/2")

// endpoint is one address of the cluster.
type endpoint struct {
	index int
	url   *url.URL
}

// endpoints remembers which endpoint works. Safe for concurrent use.
type endpoints struct {
	all []*endpoint
	// down: the last Acquire that gave up found no endpoint that answers, and none has answered since.
	down atomic.Bool

	mu       sync.Mutex
	current  int
	failedAt []time.Time
}

func newEndpoints(addresses []string) (*endpoints, error) {
	set := &endpoints{}
	seen := map[string]bool{}
	for i, address := range addresses {
		u, err := parseEndpoint(address)
		if err != nil {
			return nil, &Error{
				Code: connect.CodeInvalidArgument, Field: "endpoints",
				Err: fmt.Errorf("%w: endpoint %d is %q: %w", ErrInvalid, i, address, err),
			}
		}
		if seen[u.String()] {
			continue
		}
		seen[u.String()] = true
		set.all = append(set.all, &endpoint{index: len(set.all), url: u})
	}
	if len(set.all) == 0 {
		return nil, &Error{
			Code: connect.CodeInvalidArgument, Field: "endpoints",
			Err: fmt.Errorf("%w: no endpoints, at least one URL is needed", ErrInvalid),
		}
	}
	set.failedAt = make([]time.Time, len(set.all))
	return set, nil
}

func parseEndpoint(address string) (*url.URL, error) {
	u, err := url.Parse(address)
	if err != nil || (u.Scheme != "http" && u.Scheme != "https") || u.Host == "" ||
		u.User != nil || u.RawQuery != "" || u.Fragment != "" {
		return nil, fmt.Errorf("allowed is http://host:port or https://host:port")
	}
	u.Path = strings.TrimRight(u.Path, "/")
	return u, nil
}

// pick returns the endpoint to try now.
func (s *endpoints) pick() *endpoint {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.all[s.current]
}

// worked notes that ep answered.
func (s *endpoints) worked(ep *endpoint) {
	s.down.Store(false)
	s.mu.Lock()
	defer s.mu.Unlock()
	s.failedAt[ep.index] = time.Time{}
}

// failed moves on from ep: to the leader it named, when that is known, else to the next endpoint that
// did not fail lately. When another call has moved on already, its choice stands.
func (s *endpoints) failed(ep *endpoint, leaderHint string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.failedAt[ep.index] = time.Now()
	if s.follow(leaderHint) || s.current != ep.index {
		return
	}
	for step := 1; step < len(s.all); step++ {
		next := (ep.index + step) % len(s.all)
		if !s.coolingDown(next) {
			s.current = next
			return
		}
	}
	s.current = (ep.index + 1) % len(s.all)
}

// hint moves to the endpoint at address when it is known and did not fail lately.
func (s *endpoints) hint(address string) {
	if address == "" {
		return
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	s.follow(address)
}

func (s *endpoints) follow(address string) bool {
	if _, rest, ok := strings.Cut(address, "://"); ok {
		address = strings.TrimRight(rest, "/")
	}
	for _, ep := range s.all {
		if address != "" && ep.url.Host == address && !s.coolingDown(ep.index) {
			s.current = ep.index
			return true
		}
	}
	return false
}

func (s *endpoints) coolingDown(i int) bool {
	at := s.failedAt[i]
	return !at.IsZero() && time.Since(at) < endpointCooldown
}

type endpointKey struct{}

// withEndpoint pins the calls made with the context to ep.
func withEndpoint(ctx context.Context, ep *endpoint) context.Context {
	return context.WithValue(ctx, endpointKey{}, ep)
}

// router sends each request to the endpoint its context names, else to the one that works now. All
// Connect clients share one router, so they all stick to the same endpoint.
type router struct {
	http      connect.HTTPClient
	endpoints *endpoints
	token     string
}

// Do implements connect.HTTPClient.
func (r *router) Do(req *http.Request) (*http.Response, error) {
	ep, ok := req.Context().Value(endpointKey{}).(*endpoint)
	if !ok {
		ep = r.endpoints.pick()
	}
	out := req.WithContext(req.Context())
	u := *ep.url
	u.Path += req.URL.Path
	out.URL, out.Host = &u, u.Host
	out.Header = req.Header.Clone()
	if r.token != "" {
		out.Header.Set("Authorization", "Bearer "+r.token)
	}
	resp, err := r.http.Do(out)
	if errors.Is(err, errNoStreams) {
		return nil, connect.NewError(connect.CodeUnimplemented, errNoStreams)
	}
	if err != nil {
		return nil, err
	}
	r.endpoints.hint(resp.Header.Get(leaderHeader))
	if resp.ProtoMajor < 2 && strings.HasSuffix(u.Path, kvgatev1connect.AdmissionServiceExchangeProcedure) {
		_ = resp.Body.Close()
		return nil, connect.NewError(connect.CodeUnimplemented, errNoStreams)
	}
	return resp, nil
}
