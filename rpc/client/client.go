package client

import (
	"context"
	"fmt"
	"sync"

	"connectrpc.com/connect"
	"golang.org/x/sync/semaphore"

	kvgatev1 "kvgate/rpc/kvgate/v1"
	"kvgate/rpc/kvgate/v1/kvgatev1connect"
)

// Client asks a kvgate cluster for leases. Make one per process and share it. Safe for concurrent use.
type Client struct {
	cfg       config
	endpoints *endpoints
	// transport and conns are nil when the caller brought the HTTP client.
	transport *transport
	conns     *conns

	// admission and observe make one try; the raw clients try the other endpoints too.
	admission    kvgatev1connect.AdmissionServiceClient
	observe      kvgatev1connect.ObserveServiceClient
	sessions     kvgatev1connect.SessionServiceClient
	rawAdmission kvgatev1connect.AdmissionServiceClient
	rawObserve   kvgatev1connect.ObserveServiceClient
	rawSessions  kvgatev1connect.SessionServiceClient
	rawCluster   kvgatev1connect.ClusterServiceClient

	recorder recorder
	logs     logs
	tickets  *tickets
	lines    *lines
	keeper   *keeper
	slots    *semaphore.Weighted

	// base ends when Close begins: Acquires and loops end with it.
	base context.Context
	stop context.CancelFunc
	// flush ends when Close has waited long enough: background releases and cancels end with it.
	flush     context.Context
	stopFlush context.CancelFunc

	calls       group // what runs in the callers' goroutines
	loops       group // heartbeats and renewal
	settlements group // releases and cancels

	closeOnce sync.Once
	closed    chan struct{}
	closeErr  error
}

// logs are the kinds of trouble that are logged, each at a bounded rate.
type logs struct {
	attempt, degraded, unsettled, heartbeat, renew, lost, usage, closes *rareLog
}

// New returns a client of the cluster at addresses, e.g. "http://127.0.0.1:7070". It makes no
// connection yet. Close it.
func New(addresses []string, opts ...Option) (*Client, error) {
	cfg := defaultConfig()
	for _, opt := range opts {
		opt(&cfg)
	}
	if err := cfg.check(); err != nil {
		return nil, err
	}
	set, err := newEndpoints(addresses)
	if err != nil {
		return nil, err
	}
	c := &Client{
		cfg: cfg, endpoints: set, recorder: recorder{hook: cfg.hook}, tickets: newTickets(),
		slots: semaphore.NewWeighted(cfg.settleSlots()), closed: make(chan struct{}),
	}
	c.keeper = newKeeper(c)
	c.base, c.stop = context.WithCancel(context.Background())
	c.flush, c.stopFlush = context.WithCancel(context.Background())
	c.logs = newLogs(&cfg)
	c.connect()
	return c, nil
}

func newLogs(cfg *config) logs {
	rare := func(message string) *rareLog { return newRareLog(cfg.logger, message) }
	return logs{
		attempt:   rare("kvgate endpoint does not serve, trying the next"),
		degraded:  rare("kvgate cannot decide, attempts go ahead without a lease"),
		unsettled: rare("kvgate release or cancel was given up, its lease ends by itself"),
		heartbeat: rare("kvgate heartbeat was not answered, leases are at risk"),
		renew:     rare("kvgate leases could not be renewed"),
		lost:      rare("kvgate lease is gone while its generate call runs"),
		closes:    rare("kvgate close of a session was given up, its KV goes by eviction or idle timeout"),
		usage:     rare("kvgate usage report is invalid and was left out of the release"),
	}
}

// connect makes the Connect clients. They share one router, which replaces the placeholder address.
func (c *Client) connect() {
	httpClient := c.cfg.httpClient
	if httpClient == nil {
		c.conns = newConns(c.cfg.dial)
		c.transport = newTransport(c.cfg.tlsConfig, c.conns)
		httpClient = newHTTPClient(c.transport)
	}
	const placeholder = "http://kvgate.invalid"
	r := &router{http: httpClient, endpoints: c.endpoints, token: c.cfg.token}
	// Messages are small: compressing them costs more than it saves.
	plain := connect.WithAcceptCompression("gzip", nil, nil)
	raw := connect.WithInterceptors(failover{c})
	c.admission = kvgatev1connect.NewAdmissionServiceClient(r, placeholder, plain)
	c.lines = newLines(c, c.admission)
	if c.cfg.multiplex {
		c.admission = &multiplexed{c.admission, c.lines}
	}
	c.observe = kvgatev1connect.NewObserveServiceClient(r, placeholder, plain)
	c.sessions = kvgatev1connect.NewSessionServiceClient(r, placeholder, plain)
	c.rawSessions = kvgatev1connect.NewSessionServiceClient(r, placeholder, plain, raw)
	c.rawAdmission = kvgatev1connect.NewAdmissionServiceClient(r, placeholder, plain, raw)
	c.rawObserve = kvgatev1connect.NewObserveServiceClient(r, placeholder, plain, raw)
	c.rawCluster = kvgatev1connect.NewClusterServiceClient(r, placeholder, plain, raw)
}

// Holder is the name this process goes by; empty after WithoutHolder.
func (c *Client) Holder() string { return c.cfg.holder }

// Stats returns the counts so far.
func (c *Client) Stats() Stats { return c.recorder.snapshot() }

func (c *Client) record(e Event) { c.recorder.record(e) }

// Admission, Observe and Cluster are the plain API. Calls go to the endpoint that works, and once to
// each other one when it does not serve; unlike Acquire they return the coordinator's errors.
func (c *Client) Admission() kvgatev1connect.AdmissionServiceClient { return c.rawAdmission }

// Observe is the plain ObserveService; see [Client.Admission].
func (c *Client) Observe() kvgatev1connect.ObserveServiceClient { return c.rawObserve }

// Cluster is the plain ClusterService; see [Client.Admission].
func (c *Client) Cluster() kvgatev1connect.ClusterServiceClient { return c.rawCluster }

// Cancel removes the ticket's waiter or releases its lease, and says which it was. When there was
// neither, the next Acquire of the ticket bypasses as Cancelled. An Acquire that waits for the ticket
// returns a grant with that reason. When the answer to a first try got lost, a further one has no further
// effect and gets the same answer.
func (c *Client) Cancel(ctx context.Context, pool, ticket string) (kvgatev1.CancelState, error) {
	msg := &kvgatev1.CancelRequest{Pool: c.poolName(pool), TicketId: ticket, CallId: newCallID()}
	if err := validate(msg); err != nil {
		return 0, err
	}
	resp, err := call(ctx, c, c.admission.Cancel, msg)
	return resp.GetWas(), err
}

// Release ends the lease of a ticket of whatever grant, and says whether there was one. It is for
// leases that this client has no [Grant] of; Grant.Release is fenced and never fails.
func (c *Client) Release(ctx context.Context, pool, ticket string, usage ...Usage) (bool, error) {
	msg := &kvgatev1.ReleaseRequest{Pool: c.poolName(pool), TicketId: ticket, HolderId: c.cfg.holder}
	if len(usage) > 0 {
		msg.Usage = usage[0].message()
	}
	if err := validate(msg); err != nil {
		return false, err
	}
	resp, err := call(ctx, c, c.admission.Release, msg)
	return resp.GetReleased(), err
}

// DrainStep returns the pool's metrics since the previous drain and starts the next window. The same
// runID and step again return the same, so a call that failed may be repeated.
func (c *Client) DrainStep(ctx context.Context, pool string, step int64, runID string) (map[string]float64, error) {
	msg := &kvgatev1.DrainStepRequest{Pool: c.poolName(pool), Step: step, RunId: runID}
	if err := validate(msg); err != nil {
		return nil, err
	}
	resp, err := call(ctx, c, c.observe.DrainStep, msg)
	return resp.GetMetrics(), err
}

// Budget returns the pool's tokens: ceiling, reserved, available, and how it is doing.
func (c *Client) Budget(ctx context.Context, pool string) (*kvgatev1.GetBudgetResponse, error) {
	msg := &kvgatev1.GetBudgetRequest{Pool: c.poolName(pool)}
	if err := validate(msg); err != nil {
		return nil, err
	}
	return call(ctx, c, c.observe.GetBudget, msg)
}

// Close ends the client; sessions stay open. Acquires in progress return ErrClosed and are cancelled; grants that are
// still held are released, since nobody would keep them alive. Close waits until all releases,
// cancels and closes of sessions are known, at most until ctx is done; it returns an error that names how many were not.
// Further calls wait for the first, and return the same or the error of
// their own ctx.
func (c *Client) Close(ctx context.Context) error {
	c.closeOnce.Do(func() {
		defer close(c.closed)
		c.closeErr = c.shutdown(ctx)
	})
	select {
	case <-c.closed:
		return c.closeErr
	case <-ctx.Done():
		return ctx.Err()
	}
}

// unsettled counts what was given up.
func (c *Client) unsettled() int64 {
	s := c.Stats()
	return s.Unsettled + s.ClosesLost
}

func (c *Client) shutdown(ctx context.Context) error {
	c.calls.seal()
	c.loops.seal()
	c.stop()
	// These end promptly: their contexts did.
	_ = c.calls.wait(context.Background())
	_ = c.loops.wait(context.Background())
	for _, g := range c.keeper.grants() {
		g.Release()
	}
	before := c.unsettled()
	err := c.settlements.wait(ctx)
	c.settlements.seal()
	c.stopFlush()
	_ = c.settlements.wait(context.Background())
	c.lines.close()
	if c.transport != nil {
		c.transport.CloseIdleConnections()
		c.conns.close()
	}
	if err != nil {
		return fmt.Errorf("kvgate: %d releases, cancels or closes of sessions were not answered before close: %w", c.unsettled()-before, err)
	}
	return nil
}
