package fsm

import (
	"strings"

	"github.com/hashicorp/raft"
)

func stateName(s raft.RaftState) string { return strings.ToLower(s.String()) }

// addNodes fills in the members as this node's newest configuration has them.
func (r *Replica) addNodes(s *Status) {
	f := r.raft.GetConfiguration()
	if f.Error() != nil {
		return
	}
	voters := 0
	for _, server := range f.Configuration().Servers {
		n := NodeStatus{ID: string(server.ID), Address: string(server.Address), Voter: server.Suffrage == raft.Voter}
		if n.ID == s.NodeID {
			n.Reachable, n.AppliedIndex, n.Version = true, s.AppliedIndex, s.Version
		}
		if n.Voter {
			voters++
		}
		s.Nodes = append(s.Nodes, n)
	}
	s.FailureTolerance = max(0, (voters-1)/2)
}
