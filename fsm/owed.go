package fsm

import (
	"context"

	"connectrpc.com/connect"

	"kvgate/fsm/fsmpb"
)

// Owed implements the peer service. It never forwards: a node that does not lead says so.
func (p *peers) Owed(context.Context, *connect.Request[fsmpb.OwedRequest]) (*connect.Response[fsmpb.OwedResponse], error) {
	return nil, connect.NewError(connect.CodeUnimplemented, errNoSessions)
}
