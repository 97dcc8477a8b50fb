package rpc

import "kvgate/fsm"

// The replica is what the server runs over.
var _ Backend = (*fsm.Replica)(nil)

// So is what reads a dead cluster.
var _ Backend = (*fsm.Offline)(nil)
