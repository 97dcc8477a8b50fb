package rpc

import (
	"context"
	"errors"
	"io"
	"net/http"
	"sync"
	"time"

	"connectrpc.com/connect"
	"google.golang.org/protobuf/proto"

	"kvgate/fsm"
	kvgatev1 "kvgate/rpc/kvgate/v1"
	"kvgate/rpc/kvgate/v1/kvgatev1connect"
	"kvgate/rpc/tokens"
)

// exchange is one Exchange stream. The handler's goroutine reads, another writes; the lane answers in
// between. Lane and writer end before the handler returns.
type exchange struct {
	s      *admissionService
	stream *connect.BidiStream[kvgatev1.ExchangeRequest, kvgatev1.ExchangeResponse]
	// caller ends when the caller is gone, ctx also when the server stops.
	caller, ctx context.Context
	lane        fsm.Lane

	mu sync.Mutex
	// changed wakes whoever waits for one of the fields below.
	changed *sync.Cond
	out     []reply
	// unanswered counts operations whose answer was not written yet, bytes adds up their sizes, both
	// without the waiting ones.
	unanswered, bytes, waiting int
	// together: the caller sends several operations in one message and takes answers likewise.
	together bool
	// broken: nothing more can be written.
	broken bool
	closed bool
}

// Exchange implements the service.
func (s *admissionService) Exchange(ctx context.Context, stream *connect.BidiStream[kvgatev1.ExchangeRequest, kvgatev1.ExchangeResponse]) error {
	if address := s.many.hints.address(); address != "" {
		stream.ResponseHeader().Set(leaderHeader, address)
	}
	s.many.calls.streams.Inc()
	defer s.many.calls.streams.Dec()
	caller := ctx
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	defer context.AfterFunc(s.stopping, func() { cancel(); interrupt(caller) })()
	x := &exchange{s: s, stream: stream, caller: caller, ctx: ctx, lane: s.many.lanes.OpenLane(ctx)}
	x.changed = sync.NewCond(&x.mu)
	defer context.AfterFunc(ctx, x.wake)()
	var writer sync.WaitGroup
	writer.Go(x.write)
	err := x.read()
	if err == nil {
		x.drain()
	}
	cancel()
	x.lane.Close()
	x.close()
	writer.Wait()
	if err == nil && s.stopping.Err() != nil {
		err = fsm.ErrShutdown
	}
	return s.streamError(err)
}

// streamError gives an error of the whole stream its form.
func (s *admissionService) streamError(err error) error {
	if err == nil {
		return nil
	}
	if s.stopping.Err() != nil {
		err = fsm.ErrShutdown
	}
	if done := (*connect.Error)(nil); errors.As(err, &done) {
		return err
	}
	return newError(err, s.status)
}

// read takes operations until the caller sends no more (nil) or the stream breaks.
func (x *exchange) read() error {
	for {
		m, err := x.stream.Receive()
		if errors.Is(err, io.EOF) {
			return nil
		}
		if err != nil {
			return err
		}
		grant, err := accessOf(x.ctx)
		if err != nil {
			return err
		}
		if n := len(m.GetMore()); n >= maxOpsAtOnce {
			return invalid("more", n, "at most 1023 operations")
		} else if n > 0 {
			x.batches()
		}
		if err := x.begin(grant, m, nil); err != nil {
			return err
		}
		for _, op := range m.GetMore() {
			if err := x.begin(grant, op, nested(op)); err != nil {
				return err
			}
		}
	}
}

func (x *exchange) batches() {
	x.mu.Lock()
	defer x.mu.Unlock()
	x.together = true
}

// nested refuses an operation of more that has more of its own, which nobody would answer.
func nested(op *kvgatev1.ExchangeRequest) error {
	if n := len(op.GetMore()); n > 0 {
		return invalid("more", n, "nothing inside of more: put all operations into the outer one")
	}
	return nil
}

// begin starts one operation once there is room for it, or answers why it is refused.
func (x *exchange) begin(grant tokens.Grant, m *kvgatev1.ExchangeRequest, refused error) error {
	size := proto.Size(m)
	for _, op := range m.GetMore() {
		size -= proto.Size(op)
	}
	full, err := x.enter(m.GetAcquire() != nil, size)
	if err != nil {
		return err
	}
	if full && refused == nil {
		refused = ErrTooManyInFlight
	}
	if refused != nil {
		o := &operation{s: x.s, seq: m.GetSeq(), answer: x.answer(size), began: time.Now()}
		o.fail(refused)
		return nil
	}
	x.s.begin(x.caller, x.ctx, x.lane, grant, m, x.answer(size))
	return nil
}

// enter waits for room among the unanswered operations; full says that an acquire has none among those
// that wait.
func (x *exchange) enter(acquire bool, size int) (full bool, err error) {
	x.mu.Lock()
	defer x.mu.Unlock()
	for (x.unanswered >= maxUnanswered || x.bytes > 0 && x.bytes+size > maxUnansweredBytes) && x.ctx.Err() == nil {
		x.changed.Wait()
	}
	x.unanswered++
	x.bytes += size
	return acquire && x.waiting >= maxWaiting, x.ctx.Err()
}

// answer returns what takes the answers to one operation of that size.
func (x *exchange) answer(size int) func(reply) {
	waited := false
	return func(r reply) {
		x.mu.Lock()
		defer x.mu.Unlock()
		switch {
		case r.waits:
			waited = true
			x.waiting++
			x.unanswered--
			x.bytes -= size
		case x.closed || x.broken:
			x.s.many.unheard(r)
		default:
			if waited {
				x.waiting--
				x.unanswered++
			} else {
				r.bytes = size
			}
			x.out = append(x.out, r)
		}
		x.changed.Broadcast()
	}
}

// write sends answers until the stream is closed and all are sent, or sending fails.
func (x *exchange) write() {
	for {
		batch, together := x.next()
		if len(batch) == 0 {
			return
		}
		err := x.send(batch, together)
		x.mu.Lock()
		x.unanswered -= len(batch)
		for _, r := range batch {
			x.bytes -= r.bytes
		}
		if err != nil {
			x.broken = true
			batch = append(batch, x.out...)
			x.out = nil
		}
		x.changed.Broadcast()
		x.mu.Unlock()
		if err == nil {
			continue
		}
		for _, r := range batch {
			x.s.many.unheard(r)
		}
		return
	}
}

// next waits for answers; none when the stream is closed.
func (x *exchange) next() ([]reply, bool) {
	x.mu.Lock()
	defer x.mu.Unlock()
	for len(x.out) == 0 && !x.closed {
		x.changed.Wait()
	}
	n := min(len(x.out), maxOpsAtOnce)
	batch := x.out[:n:n]
	if x.out = x.out[n:]; len(x.out) == 0 {
		x.out = nil
	}
	return batch, x.together
}

func (x *exchange) send(batch []reply, together bool) error {
	if together {
		first := batch[0].msg
		for _, r := range batch[1:] {
			first.More = append(first.More, r.msg)
		}
		return x.stream.Send(first)
	}
	for _, r := range batch {
		if err := x.stream.Send(r.msg); err != nil {
			return err
		}
	}
	return nil
}

// drain waits until everything is answered and written, or the stream ends otherwise.
func (x *exchange) drain() {
	x.mu.Lock()
	defer x.mu.Unlock()
	for (x.unanswered > 0 || x.waiting > 0) && !x.broken && x.ctx.Err() == nil {
		x.changed.Wait()
	}
}

func (x *exchange) close() {
	x.mu.Lock()
	defer x.mu.Unlock()
	x.closed = true
	x.changed.Broadcast()
}

func (x *exchange) wake() {
	x.mu.Lock()
	defer x.mu.Unlock()
	x.changed.Broadcast()
}

// interrupter makes the Receive of a call fail: a handler that blocks in it hears nothing else. It comes
// with the context, since connect hides the connection.
type interrupter struct {
	mu   sync.Mutex
	call *http.ResponseController // nil once the handler has returned
}

type interruptKey struct{}

// interruptible lets streams be interrupted; other calls end by themselves.
func interruptible(next http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.URL.Path != kvgatev1connect.AdmissionServiceExchangeProcedure {
			next.ServeHTTP(w, r)
			return
		}
		i := &interrupter{call: http.NewResponseController(w)}
		defer i.end()
		next.ServeHTTP(w, r.WithContext(context.WithValue(r.Context(), interruptKey{}, i)))
	})
}

func (i *interrupter) end() {
	i.mu.Lock()
	defer i.mu.Unlock()
	i.call = nil
}

func interrupt(ctx context.Context) {
	i, ok := ctx.Value(interruptKey{}).(*interrupter)
	if !ok {
		return
	}
	i.mu.Lock()
	defer i.mu.Unlock()
	if i.call != nil {
		_ = i.call.SetReadDeadline(time.Unix(1, 0)) // a connection without deadlines ends with the shutdown grace
	}
}
