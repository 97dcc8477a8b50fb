package realrouter

import (
	"bytes"
	"encoding/json"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strings"
	"syscall"
	"testing"
	"time"

	"kvgate/integration/procs"
)

// limit bounds every wait for something that a router or kvgate is to do.
const limit = 30 * time.Second

// brand is a router that people run.
type brand struct {
	name, module string
	// removesRanks: DELETE of a DP-aware worker removes it, see the package comment.
	removesRanks bool
}

var brands = []brand{
	{"sglang-router", "sglang_router.launch_router", false},
	{"smg", "smg.launch_router", true},
}

// router is the process of a real router.
type router struct {
	t      *testing.T
	url    string
	client *http.Client
}

// worker is what the tests read of an entry of /workers.
type worker struct {
	ID, URL string
	Healthy bool `json:"is_healthy"`
}

// start starts a router with workers and waits until it serves.
func (b brand) start(t *testing.T, workers []string, flags ...string) *router {
	t.Helper()
	host, port, _ := net.SplitHostPort(procs.FreeAddr(t))
	_, metrics, _ := net.SplitHostPort(procs.FreeAddr(t))
	args := []string{
		"-m", b.module, "--host", host, "--port", port,
		"--prometheus-host", host, "--prometheus-port", metrics,
	}
	if len(workers) > 0 {
		args = append(append(args, "--worker-urls"), workers...)
	}
	r := &router{
		t: t, url: "http://" + net.JoinHostPort(host, port),
		client: &http.Client{Timeout: limit, Transport: &http.Transport{DisableKeepAlives: true}},
	}
	ended := spawn(t, b.name, python(t), append(args, flags...))
	said := ""
	procs.Eventually(t, limit, func() bool {
		select {
		case <-ended:
			t.Fatalf("%s ended instead of serving", b.name)
		default:
		}
		status, body, err := procs.Get(r.url + "/workers")
		said = fmt.Sprint(status, " ", body, err)
		return err == nil && status == http.StatusOK
	}, func() string { return b.name + " does not list workers: " + said })
	return r
}

// spawn starts a process that ends with the test, and with the test process, and returns a channel that
// is closed when it has ended. Its output is printed when the test fails. The thread that forks must
// live as long as the process does: the kernel sends the parent-death signal when it ends
// [golang/go#27505].
func spawn(t *testing.T, name, path string, args []string) <-chan struct{} {
	t.Helper()
	output, err := os.Create(filepath.Join(t.TempDir(), "output"))
	if err != nil {
		t.Fatal(err)
	}
	cmd := exec.Command(path, args...)
	cmd.Stdout, cmd.Stderr, cmd.Env = output, output, loopbackOnly()
	cmd.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}
	started, ended := make(chan error, 1), make(chan struct{})
	go func() {
		defer close(ended)
		runtime.LockOSThread()
		defer runtime.UnlockOSThread()
		err := cmd.Start()
		started <- err
		if err == nil {
			_ = cmd.Wait() // it is killed
		}
	}()
	if err := <-started; err != nil {
		t.Fatalf("start %s: %v", name, err)
	}
	t.Cleanup(func() {
		_ = cmd.Process.Kill()
		<-ended
		_ = output.Close()
		if said, err := os.ReadFile(output.Name()); t.Failed() && err == nil {
			t.Logf("output of %s:\n%s", name, said[max(0, len(said)-16<<10):])
		}
	})
	return ended
}

// loopbackOnly is the test's environment without proxies, and with a model hub where nothing listens.
func loopbackOnly() (env []string) {
	for _, v := range os.Environ() {
		if name, _, _ := strings.Cut(v, "="); !strings.HasSuffix(strings.ToLower(name), "_proxy") {
			env = append(env, v)
		}
	}
	return append(env, "HF_ENDPOINT=http://127.0.0.1:1", "HF_HUB_OFFLINE=1")
}

// call sends a JSON request, which must be answered with the status, and decodes the answer into out.
func (r *router) call(method, path string, body, out any, status int) {
	r.t.Helper()
	raw, err := json.Marshal(body)
	if err != nil {
		r.t.Fatal(err)
	}
	req, err := http.NewRequestWithContext(r.t.Context(), method, r.url+path, bytes.NewReader(raw))
	if err != nil {
		r.t.Fatal(err)
	}
	req.Header.Set("Content-Type", "application/json")
	resp, err := r.client.Do(req)
	if err != nil {
		r.t.Fatal(err)
	}
	defer resp.Body.Close()
	answer, err := io.ReadAll(resp.Body)
	if err != nil || resp.StatusCode != status {
		r.t.Fatalf("%s %s answers %d %s (%v), want %d", method, path, resp.StatusCode, answer, err, status)
	}
	if out != nil {
		if err := json.Unmarshal(answer, out); err != nil {
			r.t.Fatalf("%s %s answers %s: %v", method, path, answer, err)
		}
	}
}

// workers lists the workers whose URL begins with prefix.
func (r *router) workers(prefix string) (found []worker) {
	r.t.Helper()
	var answer struct{ Workers []worker }
	r.call(http.MethodGet, "/workers", nil, &answer, http.StatusOK)
	for _, w := range answer.Workers {
		if strings.HasPrefix(w.URL, prefix) {
			found = append(found, w)
		}
	}
	return found
}

// add asks the router to take an engine in.
func (r *router) add(url string) {
	r.t.Helper()
	r.call(http.MethodPost, "/workers", map[string]string{"url": url}, nil, http.StatusAccepted)
}

// remove asks the router to let an engine go, all its ranks.
func (r *router) remove(url string) {
	r.t.Helper()
	listed := r.workers(url)
	if len(listed) == 0 {
		r.t.Fatalf("router does not list %s", url)
	}
	for _, w := range listed {
		r.call(http.MethodDelete, "/workers/"+w.ID, nil, nil, http.StatusAccepted)
	}
}

// generate sends one generation through the router and returns how many tokens came back.
func (r *router) generate(tokens int) int {
	r.t.Helper()
	var answer struct {
		Meta struct {
			Completion int `json:"completion_tokens"`
		} `json:"meta_info"`
	}
	r.call(http.MethodPost, "/generate", map[string]any{
		"text": "Say something.", "sampling_params": map[string]any{"max_new_tokens": tokens, "ignore_eos": true},
	}, &answer, http.StatusOK)
	return answer.Meta.Completion
}
