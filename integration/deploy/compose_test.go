package deploy

import (
	"errors"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"syscall"
	"testing"

	"kvgate/integration/procs"
)

// project is what the tests look at of a compose file.
type project struct {
	Services map[string]struct {
		Command     []string
		Environment map[string]string
		Hostname    string
		Restart     string
		ReadOnly    bool `json:"read_only"`
		Healthcheck struct{ Test []string }
		Build       struct{ Dockerfile, Target string }
		Volumes     []struct{ Type, Source, Target string }
	}
}

func compose(t *testing.T) project {
	t.Helper()
	var p project
	understand(t, &p, "compose", "compose/compose.yaml")
	return p
}

func exitCode(err error) int {
	var exit *exec.ExitError
	if errors.As(err, &exit) {
		return exit.ExitCode()
	}
	return 0
}

func (p project) plans(t *testing.T) (plans []plan) {
	t.Helper()
	config := read(t, "compose/kvgate.yaml")
	for _, id := range []string{"n1", "n2", "n3"} {
		s := p.Services[id]
		plans = append(plans, plan{id: id, raft: s.Hostname + ":7071", argv: s.Command, env: s.Environment, config: config})
	}
	return plans
}

// startFleet runs the simulated fleet with the arguments of the compose file and returns the URL of its router.
func (p project) startFleet(t *testing.T) string {
	t.Helper()
	router := procs.FreeAddr(t)
	args := []string{}
	for _, arg := range p.Services["fleet"].Command {
		args = append(args, strings.NewReplacer("fleet:31001", "127.0.0.1:0", "fleet:31000", router).Replace(arg))
	}
	binary := filepath.Join(t.TempDir(), "enginesim")
	if out, err := exec.Command("go", "build", "-o", binary, "kvgate/integration/enginesim/cmd/enginesim").CombinedOutput(); err != nil {
		t.Fatalf("go build: %v\n%s", err, out)
	}
	cmd := exec.Command(binary, args...)
	cmd.Stderr = os.Stderr
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		_ = cmd.Process.Signal(syscall.SIGKILL) // gone already, at worst
		_ = cmd.Wait()
	})
	procs.Eventually(t, patience, func() bool {
		status, _, err := procs.Get("http://" + router + "/workers")
		return err == nil && status == 200
	}, func() string { return "the fleet does not answer on " + router })
	return "http://" + router
}

func TestComposeFilesExist(t *testing.T) {
	p := compose(t)
	for name, s := range p.Services {
		for _, v := range s.Volumes {
			if _, err := os.Stat(v.Source); v.Type == "bind" && err != nil {
				t.Errorf("service %s mounts %s on %s: %v", name, v.Source, v.Target, err)
			}
		}
	}
	for _, id := range []string{"n1", "n2", "n3"} {
		if s := p.Services[id]; !s.ReadOnly || s.Restart != "unless-stopped" || s.Build.Target != "kvgate" {
			t.Errorf("service %s is %+v", id, s)
		}
	}
}

func TestDockerfile(t *testing.T) {
	text := read(t, "compose/Dockerfile")
	module, err := os.ReadFile(filepath.Join(root, "go.mod"))
	if err != nil {
		t.Fatal(err)
	}
	version := regexp.MustCompile(`(?m)^go (\S+)$`).FindStringSubmatch(string(module))[1]
	if want := "FROM golang:" + version + "-"; !strings.Contains(text, want) {
		t.Errorf("the Dockerfile builds with another Go than go.mod names: want %s", want)
	}
	for _, target := range []string{"kvgate", "enginesim"} {
		_, stage, found := strings.Cut(text, "FROM scratch AS "+target+"\n")
		stage, _, _ = strings.Cut(stage, "\nFROM ")
		if !found || !strings.Contains(stage, "\nUSER 65532:65532\n") || !strings.Contains(stage, `ENTRYPOINT ["/usr/local/bin/`+target+`"]`) {
			t.Errorf("stage %s does not run the program alone as a user of its own:\n%s", target, stage)
		}
	}
	if last := text[strings.LastIndex(text, "\nFROM "):]; !strings.Contains(last, "AS kvgate") {
		t.Errorf("a build makes %q by default, want kvgate", last)
	}
	for _, path := range regexp.MustCompile(`\./(?:cmd|integration)/\S+`).FindAllString(text, -1) {
		if _, err := os.Stat(filepath.Join(root, path)); err != nil {
			t.Error(err)
		}
	}
}

func TestComposeNodesForm(t *testing.T) {
	p := compose(t)
	c := start(t, p.plans(t), p.startFleet(t), false, func(string) map[string]string { return nil })
	c.ready()
	for i, id := range []string{"n1", "n2", "n3"} {
		check := p.Services[id].Healthcheck.Test
		if check[0] != "CMD" || check[1] != "/usr/local/bin/kvgate" {
			t.Fatalf("the health check of %s is %q", id, check)
		}
		if out, err := kvgate(t, []string{"KVGATE_SERVER=" + c.servers[i]}, check[2:]...); err != nil {
			t.Errorf("%s is unhealthy: %v\n%s", id, err, out)
		}
	}
	checkMetrics(t, c)
	c.loseQuorum()
}
