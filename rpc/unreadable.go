package rpc

import (
	"context"
	"regexp"
	"strings"

	"connectrpc.com/connect"
	"google.golang.org/protobuf/encoding/protowire"
	"google.golang.org/protobuf/proto"

	"kvgate/fsm"
	"kvgate/ledger"
)

// Connect decodes a request before any interceptor runs, and wraps what the codec says in an error of its
// own, which has no room for an ErrorInfo. So the JSON codec leaves what it could not read as a note in the
// message, and the interceptor of this file refuses the message because of it.

// noteField is the field that holds a note: the largest number there is, which no message of the API has.
const noteField = protowire.Number(1<<29 - 1)

// noteUnreadable empties a message and leaves in it why it cannot be read. A client that sends such a
// field itself is refused likewise.
func noteUnreadable(m proto.Message, err error) {
	proto.Reset(m)
	raw := protowire.AppendTag(nil, noteField, protowire.BytesType)
	raw = protowire.AppendString(raw, err.Error())
	m.ProtoReflect().SetUnknown(raw)
}

// unreadable returns why a message could not be read; nil for one that could.
func unreadable(message any) error {
	m, ok := message.(proto.Message)
	if !ok {
		return nil
	}
	for raw := m.ProtoReflect().GetUnknown(); len(raw) > 0; {
		number, kind, n := protowire.ConsumeTag(raw)
		if n < 0 {
			return nil // what the decoder kept is well formed
		}
		raw = raw[n:]
		if number == noteField && kind == protowire.BytesType {
			note, _ := protowire.ConsumeString(raw)
			return newUnreadableError(note)
		}
		if n = protowire.ConsumeFieldValue(number, kind, raw); n < 0 {
			return nil
		}
		raw = raw[n:]
	}
	return nil
}

// fieldAtFault finds the field in protojson's messages.
var fieldAtFault = regexp.MustCompile(`(?:unknown|duplicate) field "(\w+)"|invalid value for \w+ field (\w+):`)

// unreadableError is a request that is no JSON of its message.
type unreadableError struct {
	ledger.FieldError
	text string
}

func newUnreadableError(text string) error {
	e := &unreadableError{text: strings.ToValidUTF8(text, "\ufffd")}
	if match := fieldAtFault.FindStringSubmatch(text); match != nil {
		e.Field = match[1] + match[2]
	}
	return e
}

func (e *unreadableError) Error() string { return e.text }

// Unwrap gives the error table what it looks for.
func (e *unreadableError) Unwrap() error { return &e.FieldError }

// readable refuses requests that could not be read.
type readable struct{ status func() fsm.Status }

// WrapUnary implements connect.Interceptor.
func (r readable) WrapUnary(next connect.UnaryFunc) connect.UnaryFunc {
	return func(ctx context.Context, req connect.AnyRequest) (connect.AnyResponse, error) {
		if err := unreadable(req.Any()); err != nil {
			return nil, err
		}
		return next(ctx, req)
	}
}

// WrapStreamingHandler implements connect.Interceptor.
func (r readable) WrapStreamingHandler(next connect.StreamingHandlerFunc) connect.StreamingHandlerFunc {
	return func(ctx context.Context, conn connect.StreamingHandlerConn) error {
		return next(ctx, &readableConn{conn, r.status})
	}
}

// WrapStreamingClient implements connect.Interceptor.
func (r readable) WrapStreamingClient(next connect.StreamingClientFunc) connect.StreamingClientFunc {
	return next
}

// readableConn ends with an error at a message that could not be read.
type readableConn struct {
	connect.StreamingHandlerConn
	status func() fsm.Status
}

// Receive implements connect.StreamingHandlerConn.
func (c *readableConn) Receive(message any) error {
	if err := c.StreamingHandlerConn.Receive(message); err != nil {
		return err
	}
	if err := unreadable(message); err != nil {
		return newError(err, c.status)
	}
	return nil
}
