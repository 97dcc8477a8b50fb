package agents

import "errors"

var (
	// ErrConfig is a field of a Workload, FleetConfig or Config with a value that is not allowed.
	ErrConfig = errors.New("agents: bad configuration")
	// ErrGenerate is a generate call that did not give a complete answer: no answer, a status other than
	// 200, or an answer that the engine cut short.
	ErrGenerate = errors.New("agents: generate call failed")
)
