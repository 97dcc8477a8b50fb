package rpc

import (
	"context"
	"errors"

	"connectrpc.com/connect"

	"kvgate/fsm"
)

// mapErrors returns the interceptor that puts every error of a handler or of an interceptor further in
// through the error table. What is a Connect error already passes as it is.
func mapErrors(status func() fsm.Status) connect.UnaryInterceptorFunc {
	return func(next connect.UnaryFunc) connect.UnaryFunc {
		return func(ctx context.Context, req connect.AnyRequest) (connect.AnyResponse, error) {
			res, err := next(ctx, req)
			if err == nil {
				return res, nil
			}
			if done := (*connect.Error)(nil); errors.As(err, &done) {
				return nil, err
			}
			return nil, newError(err, status)
		}
	}
}
