package rpc

import (
	"context"
	"errors"
	"sync/atomic"
	"time"

	"connectrpc.com/connect"

	"kvgate/fsm"
)

// leaderHeader names the API address of the node that leads, in every answer of a node that knows, so
// that clients can move to it and spare a hop.
const leaderHeader = "Kvgate-Leader"

// leaderAPI returns the API address of the node that leads, "" when it is not known.
func leaderAPI(st fsm.Status) string { return apiOf(st, st.LeaderID) }

func apiOf(st fsm.Status, id string) string {
	for _, n := range st.Nodes {
		if n.ID == id && id != "" {
			return n.APIAddress
		}
	}
	return ""
}

// leaderHint returns where a caller should go after err: the leader's API address, never this node's.
func leaderHint(err error, st fsm.Status) string {
	leader := st.LeaderID
	if elsewhere := (*fsm.LeaderError)(nil); errors.As(err, &elsewhere) {
		leader = elsewhere.ID
	}
	if leader == st.NodeID {
		return ""
	}
	return apiOf(st, leader)
}

// otherVoters reports whether another node could take over what this one leaves.
func otherVoters(st fsm.Status) bool {
	for _, n := range st.Nodes {
		if n.Voter && n.ID != st.NodeID {
			return true
		}
	}
	return false
}

// hintEvery is how often the leader's address is looked up for the header: a status costs more than most
// calls, and the header is a hint.
const hintEvery = 250 * time.Millisecond

// leaderHints sets the header of answers.
type leaderHints struct {
	status func() fsm.Status
	now    func() time.Time
	last   atomic.Pointer[hint]
}

type hint struct {
	at      time.Time
	address string
}

func (l *leaderHints) address() string {
	now := l.now()
	if h := l.last.Load(); h != nil && now.Sub(h.at) < hintEvery {
		return h.address
	}
	h := &hint{now, leaderAPI(l.status())}
	l.last.Store(h)
	return h.address
}

// interceptor sets the header of answers and errors.
func (l *leaderHints) interceptor() connect.UnaryInterceptorFunc {
	return func(next connect.UnaryFunc) connect.UnaryFunc {
		return func(ctx context.Context, req connect.AnyRequest) (connect.AnyResponse, error) {
			res, err := next(ctx, req)
			address := l.address()
			if address == "" {
				return res, err
			}
			if failed := (*connect.Error)(nil); errors.As(err, &failed) {
				failed.Meta().Set(leaderHeader, address)
			} else if err == nil {
				res.Header().Set(leaderHeader, address)
			}
			return res, err
		}
	}
}
