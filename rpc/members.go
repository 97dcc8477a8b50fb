package rpc

import (
	"context"
	"net"
	"strconv"

	"connectrpc.com/connect"

	kvgatev1 "kvgate/rpc/kvgate/v1"
)

// AddNode implements the service.
func (s *clusterService) AddNode(ctx context.Context, req *connect.Request[kvgatev1.AddNodeRequest]) (*connect.Response[kvgatev1.AddNodeResponse], error) {
	if err := checkAddress(req.Msg.GetAddress()); err != nil {
		return nil, err
	}
	if err := s.members.AddNode(ctx, req.Msg.GetId(), req.Msg.GetAddress()); err != nil {
		return nil, err
	}
	return connect.NewResponse(&kvgatev1.AddNodeResponse{}), nil
}

// checkAddress refuses what no node can dial: a wrong address in the membership would stay there.
func checkAddress(address string) error {
	host, port, err := net.SplitHostPort(address)
	n, bad := strconv.ParseUint(port, 10, 16)
	if ip := net.ParseIP(host); err != nil || bad != nil || n == 0 || host == "" || ip != nil && ip.IsUnspecified() {
		return invalid("address", quote(address), "HOST:PORT that the other nodes can reach, with a port from 1 to 65535")
	}
	return nil
}

// RemoveNode implements the service.
func (s *clusterService) RemoveNode(ctx context.Context, req *connect.Request[kvgatev1.RemoveNodeRequest]) (*connect.Response[kvgatev1.RemoveNodeResponse], error) {
	if err := s.members.RemoveNode(ctx, req.Msg.GetId()); err != nil {
		return nil, err
	}
	return connect.NewResponse(&kvgatev1.RemoveNodeResponse{}), nil
}

// TransferLeadership implements the service.
func (s *clusterService) TransferLeadership(ctx context.Context, req *connect.Request[kvgatev1.TransferLeadershipRequest]) (*connect.Response[kvgatev1.TransferLeadershipResponse], error) {
	if err := s.members.TransferLeadership(ctx, req.Msg.GetNodeId()); err != nil {
		return nil, err
	}
	return connect.NewResponse(&kvgatev1.TransferLeadershipResponse{LeaderId: s.backend.Status().LeaderID}), nil
}
