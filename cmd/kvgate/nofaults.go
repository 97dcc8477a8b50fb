//go:build !faults

package main

import "kvgate/fsm"

// injectFaults does nothing: only a build with the tag faults can be told to fail.
func injectFaults(*fsm.Options) {}
