package agents

import (
	"testing"

	"kvgate/integration/procs"
)

func TestMain(m *testing.M) { procs.Main(m) }
