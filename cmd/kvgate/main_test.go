package main

import (
	"bytes"
	"fmt"
	"os"
	"os/signal"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"go.uber.org/goleak"
)

// roleVariable makes the test binary behave as kvgate, or as a child that kvgate runs.
const roleVariable = "GO_TEST_ROLE"

func TestMain(m *testing.M) {
	switch {
	case os.Getenv(roleVariable) == "":
	case len(os.Args) > 1 && os.Args[1] == "trap":
		os.Exit(trap())
	default:
		main()
	}
	for _, pair := range os.Environ() {
		if name, _, _ := strings.Cut(pair, "="); strings.HasPrefix(name, envPrefix) {
			os.Unsetenv(name)
		}
	}
	goleak.VerifyTestMain(m)
}

// trap is a child that says "ready", waits for one signal, names it and exits with 42.
func trap() int {
	signals := make(chan os.Signal, 4)
	signal.Notify(signals, syscall.SIGINT, syscall.SIGTERM, syscall.SIGUSR1)
	fmt.Println("ready")
	fmt.Println(<-signals)
	return 42
}

// testNow is the clock of commands under test.
var testNow = time.Date(2026, 3, 14, 15, 9, 26, 0, time.UTC)

// result is how a command line ended.
type result struct {
	code           int
	stdout, stderr string
}

// kvgate runs a command line in this process.
func kvgate(t *testing.T, args ...string) result {
	t.Helper()
	return kvgateWatched(t, nil, args...)
}

// kvgateWatched runs a command line and shows every write to stderr to watch.
func kvgateWatched(t *testing.T, watch func(string), args ...string) result {
	t.Helper()
	stdout, stderr := lockedBuffer{}, lockedBuffer{watch: watch}
	m := newMain()
	m.Now = func() time.Time { return testNow }
	m.Location = time.UTC
	code := m.Run(t.Context(), args, strings.NewReader(""), &stdout, &stderr)
	return result{code, stdout.String(), stderr.String()}
}

// at runs a client command against a fake server.
func at(t *testing.T, f *fake, args ...string) result {
	t.Helper()
	t.Setenv("KVGATE_SERVER", f.start(t))
	return kvgate(t, args...)
}

// expect compares the end of a command line, whole streams included.
func (r result) expect(t *testing.T, want result) {
	t.Helper()
	if r.code != want.code {
		t.Errorf("exit code %d, want %d", r.code, want.code)
	}
	if got, want := trimLines(r.stdout), trimLines(want.stdout); got != want {
		t.Errorf("stdout:\n%s\nwant:\n%s", got, want)
	}
	if got, want := trimLines(r.stderr), trimLines(want.stderr); got != want {
		t.Errorf("stderr:\n%s\nwant:\n%s", got, want)
	}
}

func trimLines(s string) string { return strings.Trim(s, "\n") }

// lockedBuffer is a buffer that a child's output and kvgate's notes may reach at the same time.
type lockedBuffer struct {
	mu    sync.Mutex
	b     bytes.Buffer
	watch func(string) // sees what was written; nil for none
}

func (l *lockedBuffer) Write(p []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.watch != nil {
		l.watch(string(p))
	}
	return l.b.Write(p)
}

func (l *lockedBuffer) String() string {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.b.String()
}

// nobody is an address that refuses connections: it was free a moment ago.
func nobody(t *testing.T) string {
	t.Helper()
	f := &fake{}
	url, stop := f.serve()
	stop()
	return url
}
