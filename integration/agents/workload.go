package agents

import (
	"fmt"
	"time"
)

// Workload describes all sessions of a run. Zero fields take the defaults named in their comments.
type Workload struct {
	Agents int    // sessions, all at work at once; default 200
	Turns  int    // generate calls of each session; default 10
	Seed   uint64 // what the sessions say and how long their tools take depends on it alone

	SystemTokens int           // prompt that all sessions begin with; default 800
	TaskTokens   int           // median of what a session's first prompt adds to it; default 600
	ToolTokens   int           // median of what a tool's answer adds to the history; default 700
	Sigma        float64       // spread of the two: sigma of the logarithm; default 0.6
	ToolPause    time.Duration // median time that a tool takes; default 2 s
	PauseSigma   float64       // its spread; default 0.9
	MaxNewTokens int           // generation limit of each call; engines mostly stop earlier; default 1024
}

func (w Workload) withDefaults() Workload {
	setDefault(&w.Agents, 200)
	setDefault(&w.Turns, 10)
	setDefault(&w.SystemTokens, 800)
	setDefault(&w.TaskTokens, 600)
	setDefault(&w.ToolTokens, 700)
	setDefault(&w.Sigma, 0.6)
	setDefault(&w.ToolPause, 2*time.Second)
	setDefault(&w.PauseSigma, 0.9)
	setDefault(&w.MaxNewTokens, 1024)
	return w
}

func setDefault[T comparable](field *T, value T) {
	var zero T
	if *field == zero {
		*field = value
	}
}

func (w Workload) validate() error {
	for _, f := range []struct {
		name  string
		value float64
		max   float64
	}{
		{"Agents", float64(w.Agents), 100_000},
		{"Turns", float64(w.Turns), 10_000},
		{"SystemTokens", float64(w.SystemTokens), 1 << 20},
		{"TaskTokens", float64(w.TaskTokens), 1 << 20},
		{"ToolTokens", float64(w.ToolTokens), 1 << 20},
		{"Sigma", w.Sigma, 3},
		{"ToolPause", float64(w.ToolPause), float64(time.Hour)},
		{"PauseSigma", w.PauseSigma, 3},
		{"MaxNewTokens", float64(w.MaxNewTokens), 1 << 20},
	} {
		if !(f.value > 0 && f.value <= f.max) {
			return fmt.Errorf("%w: %s %v, want more than 0 and at most %v", ErrConfig, f.name, f.value, f.max)
		}
	}
	return nil
}
