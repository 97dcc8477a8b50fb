package realrouter

import (
	"bytes"
	"context"
	"crypto/sha256"
	_ "embed"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"
)

//go:embed requirements.txt
var requirements []byte

// installTimeout bounds the installation; it takes about 11 s on a fast connection.
const installTimeout = 10 * time.Minute

// installed makes the environment the first time that anybody asks.
var installed = sync.OnceValues(func() (string, error) {
	ctx, cancel := context.WithTimeout(context.Background(), installTimeout)
	defer cancel()
	return environment(ctx)
})

// python returns the interpreter of the environment in which both routers are installed.
func python(t *testing.T) string {
	t.Helper()
	dir, err := installed()
	if err != nil {
		t.Fatal(err)
	}
	return filepath.Join(dir, "bin", "python")
}

// environment returns the directory of the virtual environment, which it makes when there is none for
// these requirements and this Python. It is renamed into place when it is complete, so whatever has
// the name can be used.
func environment(ctx context.Context) (string, error) {
	base, version, err := findPython(ctx)
	if err != nil {
		return "", err
	}
	cache, err := os.UserCacheDir()
	if err != nil {
		return "", fmt.Errorf("no cache directory for the routers' environment: set HOME or XDG_CACHE_HOME: %w", err)
	}
	key := sha256.Sum256(append([]byte(version+"\n"), requirements...))
	dir := filepath.Join(cache, "kvgate", fmt.Sprintf("realrouter-%x", key[:6]))
	if _, err := os.Stat(dir); err == nil {
		return dir, nil
	}
	if err := os.MkdirAll(filepath.Dir(dir), 0o755); err != nil {
		return "", err
	}
	return dir, create(ctx, base, dir)
}

// findPython returns the interpreter and its version.
func findPython(ctx context.Context) (path, version string, err error) {
	path, err = exec.LookPath("python3")
	if err != nil {
		return "", "", fmt.Errorf("python3 is not on the PATH: install Python 3.11 or newer to test against real routers: %w", err)
	}
	out, err := run(ctx, path, "-c", "import sys; print('%d.%d.%d' % sys.version_info[:3]); sys.exit(sys.version_info < (3, 11))")
	version = strings.TrimSpace(out)
	if err != nil {
		return "", "", fmt.Errorf("%s is Python %s, and the pinned routers want 3.11 or newer: install it as python3: %w", path, version, err)
	}
	return path, version, nil
}

// create installs the requirements into an environment beside dir and gives it that name.
func create(ctx context.Context, base, dir string) (err error) {
	making, err := os.MkdirTemp(filepath.Dir(dir), filepath.Base(dir)+".making-")
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, os.RemoveAll(making)) }()
	if out, err := run(ctx, base, "-m", "venv", making); err != nil {
		return fmt.Errorf("%s cannot make a virtual environment: install its venv module (python3-venv on Debian and Ubuntu): %w\n%s", base, err, out)
	}
	pins := filepath.Join(making, "requirements.txt")
	if err := os.WriteFile(pins, requirements, 0o644); err != nil {
		return err
	}
	out, err := run(ctx, filepath.Join(making, "bin", "python"),
		"-m", "pip", "install", "--disable-pip-version-check", "--no-input", "--quiet", "-r", pins)
	if err != nil {
		return fmt.Errorf("pip cannot install the routers: it needs the Python package index, over the network or as pip's index-url names it; "+
			"run the test again when it is in reach: %w\n%s", err, out)
	}
	if err := os.Rename(making, dir); err != nil && !exists(dir) {
		return fmt.Errorf("put the routers' environment into place: %w", err)
	}
	return nil
}

func exists(path string) bool {
	_, err := os.Stat(path)
	return err == nil
}

// run runs a command in a process group of its own, which goes as a whole when ctx ends.
func run(ctx context.Context, name string, args ...string) (string, error) {
	var out bytes.Buffer
	cmd := exec.CommandContext(ctx, name, args...)
	cmd.Stdout, cmd.Stderr = &out, &out
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	cmd.Cancel = func() error { return syscall.Kill(-cmd.Process.Pid, syscall.SIGKILL) }
	cmd.WaitDelay = 5 * time.Second
	err := cmd.Run()
	return out.String(), err
}
