package client

import (
	"context"
	"fmt"
	"sync"
	"time"

	"connectrpc.com/connect"

	kvgatev1 "kvgate/rpc/kvgate/v1"
	"kvgate/rpc/kvgate/v1/kvgatev1connect"
)

// multiplexed makes the calls about tickets share what they can: one stream to each endpoint (Exchange)
// where that works, else batches and a long poll (Submit, AwaitGrants), else one call each, which every
// server knows. Like the client that it wraps it makes one try, at the endpoint that the context names.
type multiplexed struct {
	kvgatev1connect.AdmissionServiceClient
	lines *lines
}

// lines holds one line for each endpoint. Safe for concurrent use.
type lines struct {
	unary  kvgatev1connect.AdmissionServiceClient
	holder string
	all    []*line
	picks  func() *endpoint
	// base ends when the client has flushed; it ends what the lines have running.
	base context.Context
	// running counts the goroutines of the lines.
	running group
}

// mode is a way to carry operations.
type mode int

const (
	byStream mode = iota
	byBatch
	byCall
)

// downgradeFor is how long a line stays with what it fell back to: servers get upgraded.
const downgradeFor = time.Minute

// carrier takes operations and answers them, in any order.
type carrier interface {
	// do returns the answer to an operation, or an *Error. It does not change op.
	do(ctx context.Context, op *kvgatev1.ExchangeRequest) (*kvgatev1.ExchangeResponse, *Error)
}

// line is the way to one endpoint.
type line struct {
	lines    *lines
	endpoint *endpoint

	mu    sync.Mutex
	mode  mode
	until time.Time // when a better mode is tried again
	// stream and batch are nil until they are needed, and again when they broke.
	stream *stream
	batch  *batch
}

func newLines(c *Client, unary kvgatev1connect.AdmissionServiceClient) *lines {
	l := &lines{unary: unary, holder: c.cfg.holder, base: c.flush, picks: c.endpoints.pick}
	for _, ep := range c.endpoints.all {
		l.all = append(l.all, &line{lines: l, endpoint: ep})
	}
	return l
}

// close waits for the goroutines of the lines, which end with base.
func (l *lines) close() {
	l.running.seal()
	_ = l.running.wait(context.Background())
}

// of returns the line to the endpoint that the context names, else to the one that works now.
func (l *lines) of(ctx context.Context) *line {
	ep, ok := ctx.Value(endpointKey{}).(*endpoint)
	if !ok {
		ep = l.picks()
	}
	return l.all[ep.index]
}

// carrier returns what carries operations now; nil means one call each.
func (l *line) carrier() (carrier, mode) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.mode != byStream && time.Now().After(l.until) {
		l.mode = byStream
	}
	if l.mode == byBatch && l.lines.holder == "" {
		l.mode = byCall // decisions are fetched by holder
	}
	switch l.mode {
	case byStream:
		if l.stream == nil {
			l.stream = newStream(l)
		}
		return l.stream, byStream
	case byBatch:
		if l.batch == nil {
			l.batch = newBatch(l)
		}
		return l.batch, byBatch
	}
	return nil, byCall
}

// downgrade leaves a mode that the endpoint does not have.
func (l *line) downgrade(from mode) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.mode == from && from < byCall {
		l.mode, l.until = from+1, time.Now().Add(downgradeFor)
	}
}

// drop forgets a carrier that broke, so that the next operation makes a new one.
func (l *line) drop(c carrier) {
	l.mu.Lock()
	defer l.mu.Unlock()
	switch {
	case carrier(l.stream) == c:
		l.stream = nil
	case carrier(l.batch) == c:
		l.batch = nil
	}
}

// context names the line's endpoint and ends when the client has flushed.
func (l *line) context() (context.Context, context.CancelFunc) {
	return context.WithCancel(withEndpoint(l.lines.base, l.endpoint))
}

// missing says that a server, or what is before it, does not know a call.
func missing(err *Error) bool {
	return err != nil && err.Code == connect.CodeUnimplemented && err.Name == ""
}

// carry has an operation answered; with no carrier it makes the call of its own.
func carry[Res any](ctx context.Context, l *lines, op *kvgatev1.ExchangeRequest, take func(*kvgatev1.ExchangeResponse) *Res,
	alone func() (*connect.Response[Res], error),
) (*connect.Response[Res], error) {
	line := l.of(ctx)
	for {
		c, mode := line.carrier()
		if c == nil {
			return alone()
		}
		answer, err := c.do(ctx, op)
		switch {
		case missing(err):
			line.downgrade(mode)
			continue
		case err != nil:
			return nil, err
		case answer.GetError() != nil:
			return nil, opError(answer.GetError())
		}
		res := take(answer)
		if res == nil {
			return nil, nonsense("the answer is of another kind than the operation")
		}
		return connect.NewResponse(res), nil
	}
}

// opError is the error that the unary call would have returned.
func opError(m *kvgatev1.OpError) *Error {
	e := &Error{Name: m.GetInfo().GetCode(), Field: m.GetInfo().GetField()}
	if err := e.Code.UnmarshalText([]byte(m.GetCode())); err != nil {
		e.Code = connect.CodeUnknown
	}
	e.retryAfter, e.leaderHint = m.GetInfo().GetRetryAfter().AsDuration(), m.GetInfo().GetLeaderHint()
	e.Err = fmt.Errorf("%s", m.GetMessage())
	if sentinel := e.sentinel(); sentinel != nil {
		e.Err = fmt.Errorf("%w: %s", sentinel, m.GetMessage())
	}
	return e
}

// Acquire implements the client.
func (m *multiplexed) Acquire(ctx context.Context, req *connect.Request[kvgatev1.AcquireRequest]) (*connect.Response[kvgatev1.AcquireResponse], error) {
	op := &kvgatev1.ExchangeRequest{Op: &kvgatev1.ExchangeRequest_Acquire{Acquire: req.Msg}}
	return carry(ctx, m.lines, op, (*kvgatev1.ExchangeResponse).GetAcquire, func() (*connect.Response[kvgatev1.AcquireResponse], error) {
		return m.AdmissionServiceClient.Acquire(ctx, req)
	})
}

// Release implements the client.
func (m *multiplexed) Release(ctx context.Context, req *connect.Request[kvgatev1.ReleaseRequest]) (*connect.Response[kvgatev1.ReleaseResponse], error) {
	op := &kvgatev1.ExchangeRequest{Op: &kvgatev1.ExchangeRequest_Release{Release: req.Msg}}
	return carry(ctx, m.lines, op, (*kvgatev1.ExchangeResponse).GetRelease, func() (*connect.Response[kvgatev1.ReleaseResponse], error) {
		return m.AdmissionServiceClient.Release(ctx, req)
	})
}

// Cancel implements the client.
func (m *multiplexed) Cancel(ctx context.Context, req *connect.Request[kvgatev1.CancelRequest]) (*connect.Response[kvgatev1.CancelResponse], error) {
	op := &kvgatev1.ExchangeRequest{Op: &kvgatev1.ExchangeRequest_Cancel{Cancel: req.Msg}}
	return carry(ctx, m.lines, op, (*kvgatev1.ExchangeResponse).GetCancel, func() (*connect.Response[kvgatev1.CancelResponse], error) {
		return m.AdmissionServiceClient.Cancel(ctx, req)
	})
}

// Renew implements the client.
func (m *multiplexed) Renew(ctx context.Context, req *connect.Request[kvgatev1.RenewRequest]) (*connect.Response[kvgatev1.RenewResponse], error) {
	op := &kvgatev1.ExchangeRequest{Op: &kvgatev1.ExchangeRequest_Renew{Renew: req.Msg}}
	return carry(ctx, m.lines, op, (*kvgatev1.ExchangeResponse).GetRenew, func() (*connect.Response[kvgatev1.RenewResponse], error) {
		return m.AdmissionServiceClient.Renew(ctx, req)
	})
}
