package deploy

import (
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"kvgate/integration/procs"
)

type unit map[string]map[string][]string

func (u unit) one(t *testing.T, section, name string) string {
	t.Helper()
	if values := u[section][name]; len(values) == 1 {
		return values[0]
	}
	t.Fatalf("[%s] %s= is %q, want one value", section, name, u[section][name])
	return ""
}

// settings reads an environment file as systemd does, as far as these use it.
func settings(text string) map[string]string {
	all := map[string]string{}
	for line := range strings.Lines(text) {
		if name, value, ok := strings.Cut(strings.TrimSpace(line), "="); ok && !strings.HasPrefix(name, "#") {
			all[name] = value
		}
	}
	return all
}

func TestSystemdUnit(t *testing.T) {
	var u unit
	understand(t, &u, "systemd", "systemd/kvgate.service")
	wants := map[string]string{
		"Restart": "on-failure", "RestartPreventExitStatus": "2", "User": "kvgate", "NoNewPrivileges": "yes",
		"ProtectSystem": "strict", "CapabilityBoundingSet": "", "EnvironmentFile": "/etc/kvgate/kvgate.env",
	}
	for name, want := range wants {
		if got := u.one(t, "Service", name); got != want {
			t.Errorf("%s=%s, want %s", name, got, want)
		}
	}
	if stop, err := time.ParseDuration(u.one(t, "Service", "TimeoutStopSec")); err != nil || stop <= stopTakes {
		t.Errorf("TimeoutStopSec is %v (%v), want more than the %v that a node may take", stop, err, stopTakes)
	}
	// What the file names must be where the unit lets the node write.
	dirs := strings.Fields(u.one(t, "Service", "StateDirectory"))
	for _, key := range []string{"data-dir: /var/lib/", "snapshot-dir: /var/lib/"} {
		_, rest, found := strings.Cut(read(t, "systemd/kvgate.yaml"), key)
		if dir, _, _ := strings.Cut(rest, "\n"); !found || !slices.Contains(dirs, dir) {
			t.Errorf("%s%s is none of StateDirectory=%v", key, dir, dirs)
		}
	}
}

// stopTakes is the longest that `kvgate serve` takes to end (stopGrace in cmd/kvgate/serve_run.go).
const stopTakes = 20 * time.Second

// A wrong flag, variable or key must end with the code that the unit does not restart on.
func TestSystemdUsageErrorIsNotTriedAgain(t *testing.T) {
	for _, args := range [][]string{{"serve", "--no-such-flag"}, {"serve", "--data-dir", t.TempDir()}} {
		out, err := kvgate(t, nil, args...)
		if code := exitCode(err); code != 2 {
			t.Errorf("kvgate %v ends with %d, want 2\n%s", args, code, out)
		}
	}
}

func TestSystemdNodesForm(t *testing.T) {
	var u unit
	understand(t, &u, "systemd", "systemd/kvgate.service")
	command := strings.Fields(u.one(t, "Service", "ExecStart"))
	if command[0] != "/usr/local/bin/kvgate" {
		t.Fatalf("ExecStart runs %s", command[0])
	}
	config, example := read(t, "systemd/kvgate.yaml"), settings(read(t, "systemd/kvgate.env"))
	ids, hosts := []string{"n1", "n2", "n3"}, []string{"a", "b", "c"}
	var plans []plan
	for i, id := range ids {
		env := map[string]string{}
		for name, value := range example { // as the comment in the file says: this is n1 on a
			env[name] = strings.NewReplacer("n1", id, "a:7071", hosts[i]+":7071").Replace(value)
		}
		plans = append(plans, plan{id: id, raft: hosts[i] + ":7071", argv: command[1:], env: env, config: config})
	}
	dir, roots := certificates(t, ids...)
	c := start(t, plans, "http://127.0.0.1:1", true, func(id string) map[string]string {
		return map[string]string{
			"/etc/kvgate/node.pem": pem(t, dir, id+".pem"), "/etc/kvgate/node-key.pem": pem(t, dir, id+"-key.pem"),
			"/etc/kvgate/ca.pem": pem(t, dir, "ca.pem"), "/etc/kvgate/tokens": "s3cret admin\n",
		}
	})
	c.trust(dir, roots, "s3cret")
	c.ready()
	backUp(t, c)
	for _, n := range c.nodes {
		if err := n.Stop(); err != nil {
			t.Errorf("node %s does not end well: %v", n.Node().ID, err)
		}
	}
}

// backUp runs the command of the backup unit and looks into what it saved.
func backUp(t *testing.T, c *cluster) {
	t.Helper()
	var u unit
	understand(t, &u, "systemd", "systemd/kvgate-backup.service")
	command := strings.NewReplacer("/usr/local/bin/kvgate", procs.Build(t), "%%", "%").Replace(u.one(t, "Service", "ExecStart"))
	shell, script, quoted := strings.Cut(command, " -c '")
	if script = strings.TrimSuffix(script, "'"); shell != "/bin/sh" || !quoted {
		t.Fatalf("ExecStart=%s: want a script of /bin/sh", command)
	}
	dir := t.TempDir()
	cmd := exec.Command(shell, "-c", script)
	cmd.Env = append([]string{"PATH=" + os.Getenv("PATH"), "STATE_DIRECTORY=" + dir}, c.env...)
	if out, err := cmd.CombinedOutput(); err != nil {
		t.Fatalf("%s: %v\n%s", script, err, out)
	}
	saved, err := filepath.Glob(filepath.Join(dir, "[1-7]-[0-2][0-9].kvgate"))
	if err != nil || len(saved) != 1 {
		t.Fatalf("saved %v (%v), want one file of this hour", saved, err)
	}
	if out := c.do("snapshot", "inspect", saved[0]); !strings.Contains(out, "n3") {
		t.Errorf("the backup does not name the nodes:\n%s", out)
	}
}
