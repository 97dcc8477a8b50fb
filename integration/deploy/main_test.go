package deploy

import (
	"bytes"
	"encoding/json"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"testing"

	"kvgate/integration/procs"
)

func TestMain(m *testing.M) { procs.Main(m) }

// root is the root of the repository; tests run in the directory of their package.
const root = "../.."

// read returns a file of deploy/.
func read(t testing.TB, name string) string {
	t.Helper()
	data, err := os.ReadFile(filepath.Join(root, "deploy", name))
	if err != nil {
		t.Fatal(err)
	}
	return string(data)
}

// making lets one test at a time call make.
var making sync.Mutex

// tool returns the path of a program below bin/, which make builds when it is not current.
func tool(t testing.TB, name string) string {
	t.Helper()
	dir, err := filepath.Abs(root)
	if err != nil {
		t.Fatal(err)
	}
	path := filepath.Join(dir, "bin", name)
	making.Lock()
	defer making.Unlock()
	cmd := exec.Command("make", "-s", "-C", dir, path)
	for _, v := range os.Environ() {
		if !strings.HasPrefix(v, "MAKE") { // this is no part of the make that runs the tests
			cmd.Env = append(cmd.Env, v)
		}
	}
	if out, err := cmd.CombinedOutput(); err != nil {
		t.Fatalf("make %s: %v\n%s", path, err, out)
	}
	return path
}

// understand has a library read a file of deploy/ and fills out with what it means.
func understand(t testing.TB, out any, kind, name string) {
	t.Helper()
	answer(t, out, nil, kind, filepath.Join(root, "deploy", name))
}

func answer(t testing.TB, out, in any, args ...string) {
	t.Helper()
	cmd := exec.Command(tool(t, "deploytools"), args...)
	if in != nil {
		text, err := json.Marshal(in)
		if err != nil {
			t.Fatal(err)
		}
		cmd.Stdin = bytes.NewReader(text)
	}
	var said bytes.Buffer
	cmd.Stderr = &said
	text, err := cmd.Output()
	if err != nil {
		t.Fatalf("%s: %v\n%s", strings.Join(args, " "), err, said.String())
	}
	if err := json.Unmarshal(text, out); err != nil {
		t.Fatalf("%s: %v", strings.Join(args, " "), err)
	}
}

// kvgate runs a command of the binary and returns what it prints.
func kvgate(t testing.TB, env []string, args ...string) (string, error) {
	t.Helper()
	cmd := exec.Command(procs.Build(t), args...)
	cmd.Env = append([]string{"PATH=" + os.Getenv("PATH"), "HOME=" + t.TempDir()}, env...)
	out, err := cmd.CombinedOutput()
	return string(out), err
}
