package cluster

import (
	"testing"

	"kvgate/integration/procs"
)

func TestMain(m *testing.M) {
	sweepNamespaces()
	procs.Main(m)
}
