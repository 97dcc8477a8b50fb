package client

import (
	"context"
	"errors"
	"io"
	"sync"
	"time"

	"connectrpc.com/connect"

	kvgatev1 "kvgate/rpc/kvgate/v1"
)

// streamIdle is how long a stream without operations stays open.
const streamIdle = time.Minute

// stream is one Exchange. A goroutine writes what is queued, all that came since the last message in one
// message, and another reads; both end when the stream does: when it breaks, is idle, or the client has
// flushed.
type stream struct {
	*ops
	line   *line
	conn   *connect.BidiStreamForClient[kvgatev1.ExchangeRequest, kvgatev1.ExchangeResponse]
	ctx    context.Context
	cancel context.CancelFunc
	once   sync.Once
}

// newStream opens a stream. Nothing is dialled before the first operation.
func newStream(l *line) *stream {
	s := &stream{ops: newOps(), line: l}
	s.ctx, s.cancel = l.context()
	s.conn = l.lines.unary.Exchange(s.ctx)
	if !l.lines.running.start(s.write) {
		s.end(&Error{Code: connect.CodeCanceled, Err: ErrClosed})
	}
	return s
}

// do implements carrier.
func (s *stream) do(ctx context.Context, op *kvgatev1.ExchangeRequest) (*kvgatev1.ExchangeResponse, *Error) {
	p, before, err := s.add(&kvgatev1.ExchangeRequest{Op: op.GetOp()})
	if err != nil {
		return nil, err
	}
	return s.await(ctx, p, before, s.deaf)
}

// write sends what is queued until the stream ends.
func (s *stream) write() {
	idle := time.NewTicker(streamIdle)
	defer idle.Stop()
	reading := false
	for {
		select {
		case <-s.ctx.Done():
			s.end(&Error{Code: connect.CodeCanceled, Err: ErrClosed})
			return
		case <-idle.C:
			if why := (&Error{Code: connect.CodeUnavailable, Err: errIdle}); s.idle(why) {
				s.end(why)
				return
			}
			continue
		case <-s.wake:
		}
		if !reading {
			reading = true
			if !s.line.lines.running.start(s.read) {
				s.end(&Error{Code: connect.CodeCanceled, Err: ErrClosed})
				return
			}
		}
		if !s.flush() {
			return // read hears why, and ends the stream
		}
	}
}

// flush sends everything that is queued; false when the stream takes no more.
func (s *stream) flush() bool {
	for {
		batch := s.take(sendTogether)
		if len(batch) == 0 {
			return true
		}
		first := batch[0].msg
		for _, p := range batch[1:] {
			first.More = append(first.More, p.msg)
		}
		if err := s.conn.Send(first); err != nil {
			return false
		}
	}
}

func (s *stream) read() {
	for {
		m, err := s.conn.Receive()
		if err != nil {
			s.end(streamError(err))
			_ = s.conn.CloseResponse()
			return
		}
		s.answer(m.GetSeq(), opAnswer{msg: m})
		for _, x := range m.GetMore() {
			s.answer(x.GetSeq(), opAnswer{msg: x})
		}
	}
}

func streamError(err error) *Error {
	if errors.Is(err, io.EOF) {
		err = io.ErrUnexpectedEOF
	}
	e := asError(err)
	if e.Code == connect.CodeUnknown || e.Code == connect.CodeCanceled {
		e.Code = connect.CodeUnavailable
	}
	return e
}

// end fails what is open and frees the connection. The request's body must be closed, too: the transport
// does not look at the context while it waits for more of it.
func (s *stream) end(err *Error) {
	s.once.Do(func() {
		s.line.drop(s)
		s.cancel()
		s.fail(err)
		if s.conn != nil {
			_ = s.conn.CloseRequest()
		}
	})
}

// deaf ends a stream on which nothing is heard. One on which nothing was ever heard may be held up by
// something in between that passes no streams.
func (s *stream) deaf() {
	s.mu.Lock()
	never := s.heard == 0
	s.mu.Unlock()
	if never {
		s.line.downgrade(byStream)
	}
	s.end(&Error{Code: connect.CodeUnavailable, Err: errNotHeard})
}
