// Package agents is a workload of agentic rollouts for demonstrations and tests: sessions that generate,
// run a tool, generate again with the longer history, and so on, against a fleet of simulated engines.
//
// plan.go draws what every session will do from a seed. run.go runs all sessions until each has made all
// of its turns: the loop is closed, so two runs of one workload do the same work however fast they are.
// session.go is one session, generate.go its calls to the router. With a [Gate] each call first asks for
// a lease and releases it afterwards; gate.go adapts the Go client. fleet.go starts the engines and the
// router. recorder.go counts while the sessions run, result.go sums up.
//
// Durations are engine time unless a name or comment says real time: the simulated engines run Speed
// times as fast as the clock on the wall, and the agents' tools run as fast as the engines.
//
// The package may not decide anything about admission, and nothing in the product's own packages may
// import it; `kvgate demo` does.
package agents
