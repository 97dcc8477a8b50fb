package procs

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"sync"
	"testing"

	"go.uber.org/goleak"
)

// built builds the binary the first time that anybody asks.
var built = sync.OnceValues(func() (string, error) {
	dir, err := os.MkdirTemp("", "kvgate-procs-")
	if err != nil {
		return "", err
	}
	buildDir = dir
	path := filepath.Join(dir, "kvgate")
	out, err := exec.Command("go", "build", "-o", path, "kvgate/cmd/kvgate").CombinedOutput()
	if err != nil {
		return "", fmt.Errorf("go build kvgate/cmd/kvgate: %w\n%s", err, out)
	}
	return path, nil
})

// buildDir is written by built, and read by Main after all tests.
var buildDir string

// Build returns the path of the kvgate binary, which it builds once per test process.
func Build(t testing.TB) string {
	t.Helper()
	path, err := built()
	if err != nil {
		t.Fatal(err)
	}
	return path
}

// Main runs the tests of a package, removes the binary and ends the test process. It fails when a
// goroutine is left.
func Main(m *testing.M, options ...goleak.Option) {
	options = append(options, goleak.Cleanup(func(code int) {
		if buildDir != "" {
			_ = os.RemoveAll(buildDir)
		}
		os.Exit(code)
	}))
	goleak.VerifyTestMain(m, options...)
}
