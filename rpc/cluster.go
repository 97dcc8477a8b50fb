package rpc

import (
	"cmp"
	"context"
	"fmt"
	"net"

	"connectrpc.com/connect"
	"google.golang.org/protobuf/types/known/timestamppb"

	"kvgate/fsm"
	"kvgate/ledger"
	kvgatev1 "kvgate/rpc/kvgate/v1"
)

// clusterService serves kvgate.v1.ClusterService.
type clusterService struct {
	backend ClusterBackend
	members MembersBackend
	archive SnapshotBackend
}

// GetStatus implements the service. It answers from the local node and never waits for a leader: it
// is what an operator calls when there is none.
func (s *clusterService) GetStatus(context.Context, *connect.Request[kvgatev1.GetStatusRequest]) (*connect.Response[kvgatev1.GetStatusResponse], error) {
	return connect.NewResponse(statusMessage(s.backend.Status())), nil
}

func statusMessage(st fsm.Status) *kvgatev1.GetStatusResponse {
	m := &kvgatev1.GetStatusResponse{
		NodeId:           st.NodeID,
		LeaderId:         st.LeaderID,
		State:            st.State,
		Term:             st.Term,
		AppliedIndex:     st.AppliedIndex,
		CommitIndex:      st.CommitIndex,
		FailureTolerance: int32(st.FailureTolerance),
		Version:          st.Version,
		ClusterId:        st.ClusterID,
		Writable:         st.Writable,
		Health:           st.Health,
		LedgerTime:       int64(st.LedgerTime),
	}
	if !st.RecordedUntil.IsZero() {
		m.RecordedUntil = timestamppb.New(st.RecordedUntil)
	}
	for _, n := range st.Nodes {
		node := &kvgatev1.Node{
			Id: n.ID, Address: n.Address, Voter: n.Voter, Reachable: n.Reachable,
			AppliedIndex: n.AppliedIndex, Version: n.Version, ApiAddress: n.APIAddress,
		}
		if n.Reachable {
			node.Lag = &n.Lag
		}
		m.Nodes = append(m.Nodes, node)
	}
	return m
}

// GetSettings implements the service.
func (s *clusterService) GetSettings(ctx context.Context, req *connect.Request[kvgatev1.GetSettingsRequest]) (*connect.Response[kvgatev1.GetSettingsResponse], error) {
	set, err := readPool(ctx, s.backend, req.Msg.GetPool(), false, (*ledger.Ledger).Settings)
	if err != nil {
		return nil, err
	}
	return connect.NewResponse(&kvgatev1.GetSettingsResponse{
		Pool: poolName(req.Msg.GetPool()), Settings: settingsMessage(set),
	}), nil
}

// UpdateSettings implements the service.
func (s *clusterService) UpdateSettings(ctx context.Context, req *connect.Request[kvgatev1.UpdateSettingsRequest]) (*connect.Response[kvgatev1.UpdateSettingsResponse], error) {
	patch, err := patchOf(req.Msg)
	if err != nil {
		return nil, err
	}
	patch.By = s.asker(ctx, req.Peer())
	pool := poolName(req.Msg.GetPool())
	set, err := s.backend.UpdateSettings(ctx, pool, patch)
	if err != nil {
		return nil, err
	}
	return connect.NewResponse(&kvgatev1.UpdateSettingsResponse{Pool: pool, Settings: settingsMessage(set)}), nil
}

// asker says for the journal who asks for a change: the role of the token, where there are tokens, the address that
// the call came from, and the node that took it.
func (s *clusterService) asker(ctx context.Context, peer connect.Peer) string {
	host, _, err := net.SplitHostPort(peer.Addr)
	if err != nil {
		host = peer.Addr
	}
	who := cmp.Or(string(roleOf(ctx)), "a caller")
	return fmt.Sprintf("%s at %s through %s", who, host, s.backend.Status().NodeID)
}

// DeletePool implements the service.
func (s *clusterService) DeletePool(ctx context.Context, req *connect.Request[kvgatev1.DeletePoolRequest]) (*connect.Response[kvgatev1.DeletePoolResponse], error) {
	if req.Msg.GetPool() == ledger.DefaultPool {
		return nil, ErrDefaultPool
	}
	deleted, err := s.backend.DeletePool(ctx, req.Msg.GetPool(), s.asker(ctx, req.Peer()))
	if err != nil {
		return nil, err
	}
	return connect.NewResponse(&kvgatev1.DeletePoolResponse{Deleted: deleted}), nil
}
