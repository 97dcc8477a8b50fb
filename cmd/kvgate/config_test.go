package main

import (
	"bytes"
	"io"
	"net"
	"os"
	"path/filepath"
	"reflect"
	"strings"
	"testing"
	"time"

	"github.com/spf13/cobra"
)

// load reads a configuration the way `serve` does, without running a node.
func load(t *testing.T, args ...string) (*ServeConfig, error) {
	t.Helper()
	root := newRootCommand(newMain())
	cfg := &ServeConfig{}
	cmd := &cobra.Command{Use: "load", RunE: func(*cobra.Command, []string) error { return cfg.Validate() }}
	cmd.Flags().AddFlagSet(cfg.flags())
	root.AddCommand(cmd)
	root.SetArgs(append([]string{"load"}, args...))
	root.SetOut(io.Discard)
	return cfg, root.Execute()
}

func writeFile(t *testing.T, content string) string {
	t.Helper()
	path := filepath.Join(t.TempDir(), "kvgate.yaml")
	if err := os.WriteFile(path, []byte(content), 0o600); err != nil {
		t.Fatal(err)
	}
	return path
}

func TestPrecedence(t *testing.T) {
	tests := []struct {
		name, file, env, flag string
		want                  time.Duration
	}{
		{"default", "", "", "", 2 * time.Second},
		{"file", "3s", "", "", 3 * time.Second},
		{"environment over file", "3s", "4s", "", 4 * time.Second},
		{"flag over environment and file", "3s", "4s", "5s", 5 * time.Second},
		{"flag over file", "3s", "", "5s", 5 * time.Second},
		{"flag with the default's value", "3s", "4s", "2s", 2 * time.Second},
		{"environment with the default's value", "3s", "2s", "", 2 * time.Second},
	}
	for _, test := range tests {
		t.Run(test.name, func(t *testing.T) {
			args := []string{"--node-id", "n1", "--data-dir", t.TempDir(), "--bootstrap"}
			if test.file != "" {
				args = append(args, "--config", writeFile(t, "fail-open-after: "+test.file))
			}
			t.Setenv("KVGATE_FAIL_OPEN_AFTER", test.env)
			if test.flag != "" {
				args = append(args, "--fail-open-after", test.flag)
			}
			cfg, err := load(t, args...)
			if err != nil {
				t.Fatal(err)
			}
			if cfg.FailOpenAfter != test.want {
				t.Errorf("fail-open-after is %s, want %s", cfg.FailOpenAfter, test.want)
			}
		})
	}
}

func TestFileHoldsEveryKey(t *testing.T) {
	secret := writeFile(t, "secret")
	dir := t.TempDir()
	path := writeFile(t, `
node_id: n1            # both spellings are one key
data-dir: `+dir+`
listen: 127.0.0.1:8080
raft-listen: 0.0.0.0:8081
raft-advertise: a:8081
bootstrap-expect: 3
peers: [n1=a:8081, "n2=b:8081", n3=c:8081]
router: http://router:30000/?key=hunter2
engines: http://e1:3000,http://e2:3000
tokens: `+secret+`
advertise: a:8080
tls-cert: `+secret+`
tls-key: `+secret+`
tls-client-ca: `+secret+`
raft-tls-cert: `+secret+`
raft_tls_key: `+secret+`
raft-tls-ca: `+secret+`
router-key-file: `+secret+`
engine-key-file: `+secret+`
engine-admin-key-file: `+secret+`
fail-open-after: 1500ms
snapshot-threshold: 1000
snapshot-dir: `+dir+`
snapshot-every: 30m
snapshot-keep: 7
log-level: debug
log-format: json
strict: true
join:
`)
	t.Setenv("KVGATE_CONFIG", path)
	got, err := load(t)
	if err != nil {
		t.Fatal(err)
	}
	want := &ServeConfig{
		Config: path, NodeID: "n1", DataDir: dir, Listen: "127.0.0.1:8080", RaftListen: "0.0.0.0:8081", RaftAdvertise: "a:8081",
		BootstrapExpect: 3, Peers: []Peer{{"n1", "a:8081"}, {"n2", "b:8081"}, {"n3", "c:8081"}},
		peers: []string{"n1=a:8081", "n2=b:8081", "n3=c:8081"}, Router: "http://router:30000/?key=hunter2",
		Engines: []string{"http://e1:3000", "http://e2:3000"}, Tokens: secret, RouterKeyFile: secret,
		Advertise: "a:8080", TLSCert: secret, TLSKey: secret, TLSClientCA: secret, RaftTLSCert: secret, RaftTLSKey: secret, RaftTLSCA: secret, EngineKeyFile: secret,
		EngineAdminKeyFile: secret, FailOpenAfter: 1500 * time.Millisecond, SnapshotThreshold: 1000,
		SnapshotDir: dir, SnapshotEvery: 30 * time.Minute, SnapshotKeep: 7,
		LogLevel: "debug", LogFormat: "json", Strict: true,
	}
	if got.Join = nil; !reflect.DeepEqual(got, want) {
		t.Errorf("got  %+v\nwant %+v", got, want)
	}
	var b bytes.Buffer
	newLogger(&b, "info", "text").LogAttrs(t.Context(), 0, "configuration", got.Attrs()...)
	if strings.Contains(b.String(), "hunter2") || !strings.Contains(b.String(), "raft_advertise=a:8081") {
		t.Errorf("logged %s", b.String())
	}
}

func TestRaftAdvertiseFollowsRaftListen(t *testing.T) {
	cfg, err := load(t, "--node-id", "n1", "--data-dir", t.TempDir(), "--bootstrap", "--raft-listen", "10.0.0.1:9000")
	if err != nil || cfg.RaftAdvertise != "10.0.0.1:9000" {
		t.Errorf("raft-advertise is %q (%v)", cfg.RaftAdvertise, err)
	}
}

func TestADirectoryWithHistoryNeedsNoFormation(t *testing.T) {
	dir := t.TempDir()
	if _, err := load(t, "--node-id", "n1", "--data-dir", dir); err == nil {
		t.Error("an empty directory was accepted without a way into a cluster")
	}
	if err := os.WriteFile(filepath.Join(dir, "state.db"), nil, 0o600); err != nil {
		t.Fatal(err)
	}
	if _, err := load(t, "--node-id", "n1", "--data-dir", dir); err != nil {
		t.Error(err)
	}
}

func TestBadServeConfiguration(t *testing.T) {
	const node = "--node-id n1 --data-dir DIR --bootstrap "
	tests := []struct{ args, file, want string }{
		{"--data-dir DIR --bootstrap", "", `node-id: "" is not allowed: use 1 to 256 printable characters without spaces, commas or =`},
		{"--node-id a=b --data-dir DIR", "", `node-id: "a=b" is not allowed: use 1 to 256 printable characters without spaces, commas or =`},
		{"--node-id n1 --bootstrap", "", `data-dir: "" is not allowed: use a directory for this node's state`},
		{node + "--listen 7070", "", `listen: "7070" is not allowed: use HOST:PORT with a port from 0 to 65535`},
		{node + "--listen a:70700", "", `listen: "a:70700" is not allowed: use HOST:PORT with a port from 0 to 65535`},
		{node + "--raft-listen 0.0.0.0:7071", "", `raft-advertise: "0.0.0.0:7071" is not allowed: use an address that other nodes can reach (it follows --raft-listen unless given)`},
		{node + "--raft-listen 127.0.0.1:7070", "", `raft-listen: "127.0.0.1:7070" is not allowed: use another port than --listen`},
		{node + "--join a:7071", "", `--bootstrap, --join: given together: use only one of them`},
		{"--node-id n1 --data-dir DIR --join a", "", `join: "a" is not allowed: use raft HOST:PORT of a running node`},
		{"--node-id n1 --data-dir DIR", "", `data-dir: "DIR" holds no cluster yet: use --bootstrap, --bootstrap-expect with --peers, or --join`},
		{"--node-id n1 --data-dir DIR --bootstrap-expect 3 --peers n1=127.0.0.1:7071", "", `bootstrap-expect: 3 is not allowed: use the number of --peers, which name 1`},
		{"--node-id n1 --data-dir DIR --peers n1=127.0.0.1:7071", "", `bootstrap-expect: 0 is not allowed: use the number of --peers, which name 1`},
		{"--node-id n1 --data-dir DIR --bootstrap-expect 1 --peers n2=b:7071", "", `peers: "n2=b:7071" is not allowed: use a list that also names this node, n1`},
		{"--node-id n1 --data-dir DIR --bootstrap-expect 1 --peers n1=b:7071", "", `raft-advertise: "127.0.0.1:7071" is not allowed: use the address that --peers gives this node, b:7071`},
		{"--node-id n1 --data-dir DIR --bootstrap-expect 2 --peers n1=b:1,n1=c:1", "", `peers: "n1=c:1" is not allowed: use every ID and every address once`},
		{"--node-id n1 --data-dir DIR --bootstrap-expect 1 --peers b:7071", "", `peers: "b:7071" is not allowed: use ID=HOST:PORT pairs separated by commas`},
		{node + "--router http://me:hunter2@r:1", "", `router: "http://xxxxx@r:1" is not allowed: use a URL without user and password; keys belong in --router-key-file`},
		{node + "--engines http://e:1,https://hunter2@e:2", "", `engines: "https://xxxxx@e:2" is not allowed: use URLs without user and password; keys belong in --engine-key-file`},
		{node + "--router router:30000", "", `router: "router:30000" is not allowed: use an http:// or https:// URL with a host`},
		{node + "--engines http://e1,ftp://e2", "", `engines: "ftp://e2" is not allowed: use http:// or https:// URLs separated by commas`},
		{node + "--tokens /nonexistent", "", `tokens: "/nonexistent" is not allowed: use a file that can be read`},
		{node + "--fail-open-after 0s", "", `fail-open-after: "0s" is not allowed: use a duration above 0s and at most 1h`},
		{node + "--fail-open-after soon", "", `fail-open-after: "soon" is not allowed: use a duration such as 500ms, 45s or 10m`},
		{node + "--snapshot-threshold 0", "", `snapshot-threshold: "0" is not allowed: use a whole number above 0`},
		{node + "--log-level loud", "", `log-level: "loud" is not allowed: use debug, info, warn or error`},
		{node + "--strict --listen 0.0.0.0:7070", "", `listen: "0.0.0.0:7070" is not allowed: use a loopback address, or --tls-cert and --tls-key with --tokens or --tls-client-ca (--strict is on)`},
		{node + "--strict --listen 0.0.0.0:7070 --tokens FILE", "", `listen: "0.0.0.0:7070" is not allowed: use a loopback address, or --tls-cert and --tls-key with --tokens or --tls-client-ca (--strict is on)`},
		{node + "--strict --listen 0.0.0.0:7070 --tls-cert FILE --tls-key FILE", "", `listen: "0.0.0.0:7070" is not allowed: use a loopback address, or --tls-cert and --tls-key with --tokens or --tls-client-ca (--strict is on)`},
		{node + "--strict --raft-listen 10.0.0.1:7071", "", `raft-listen: "10.0.0.1:7071" is not allowed: use a loopback address, or --raft-tls-cert, --raft-tls-key and --raft-tls-ca (--strict is on)`},
		{node + "--advertise 7070", "", `advertise: "7070" is not allowed: use HOST:PORT that clients can reach`},
		{node + "--tls-cert FILE", "", `tls-key: "" is not allowed: use a file, since --tls-cert is given`},
		{node + "--tls-client-ca FILE", "", `tls-cert: "" is not allowed: use a file, since --tls-client-ca is given`},
		{node + "--raft-tls-cert FILE --raft-tls-key FILE", "", `raft-tls-ca: "" is not allowed: use a file, since --raft-tls-cert is given`},
		{node + "--raft-tls-ca FILE", "", `raft-tls-cert: "" is not allowed: use a file, since --raft-tls-ca is given`},
		{node + "--tls-cert /nonexistent --tls-key FILE", "", `tls-cert: "/nonexistent" is not allowed: use a file that can be read`},
		{node + "--config /nonexistent.yaml", "", `config: "/nonexistent.yaml" is not allowed: use a file that exists`},
		{node + "extra", "", `kvgate serve: unexpected argument "extra": use flags only`},
		{node, "log-format: xml", `log-format: "xml" is not allowed: use text or json (it comes from the configuration file)`},
		{node, "fail-open-after: 2", `fail-open-after: "2" is not allowed: use a duration such as 500ms, 45s or 10m (it comes from the configuration file)`},
		{node, "strict: maybe", `strict: "maybe" is not allowed: use true or false (it comes from the configuration file)`},
		{node, "peers: {n1: a}", `peers: "map[n1:a]" is not allowed: use ID=HOST:PORT pairs separated by commas (in FILE)`},
		{node, "log-level: info\nlog_level: warn", `log-level: written twice in FILE`},
	}
	for _, test := range tests {
		t.Run(test.args+test.file, func(t *testing.T) {
			dir, path := t.TempDir(), ""
			args := strings.Fields(strings.NewReplacer("DIR", dir, "FILE", writeFile(t, "x")).Replace(test.args))
			if test.file != "" {
				path = writeFile(t, test.file)
				args = append(args, "--config", path)
			}
			r := kvgate(t, append([]string{"serve"}, args...)...)
			want := strings.NewReplacer("\"DIR\"", "\""+dir+"\"", "in FILE", "in "+path).Replace(test.want)
			r.expect(t, result{code: exitUsage, stderr: "kvgate: " + want})
		})
	}
}

func TestUnknownKeys(t *testing.T) {
	for _, content := range []string{"loglevel: info", "config: x", "server: http://a", "a.b: 1"} {
		key, _, _ := strings.Cut(content, ":")
		r := kvgate(t, "serve", "--config", writeFile(t, content))
		if r.code != exitUsage || strings.Count(r.stderr, "\n") != 1 || !strings.HasPrefix(r.stderr, "kvgate: "+key+": unknown key in ") || !strings.Contains(r.stderr, "log-level") {
			t.Errorf("%s: exit %d: %q", content, r.code, r.stderr)
		}
	}
	for _, content := range []string{"- a", "a: [", "a: 1\na: 2"} {
		r := kvgate(t, "serve", "--config", writeFile(t, content))
		if r.code != exitUsage || strings.Count(r.stderr, "\n") != 1 || !strings.HasPrefix(r.stderr, "kvgate: config: ") {
			t.Errorf("%s: exit %d: %q", content, r.code, r.stderr)
		}
	}
	for _, args := range [][]string{{"serve"}, {"status"}, {"settings", "get"}} {
		t.Run(args[0], func(t *testing.T) {
			t.Setenv("KVGATE_SERVRE", "http://a")
			r := kvgate(t, args...)
			if r.code != exitUsage || strings.Count(r.stderr, "\n") != 1 || !strings.HasPrefix(r.stderr, "kvgate: KVGATE_SERVRE: unknown environment variable; known are ") {
				t.Errorf("exit %d: %q", r.code, r.stderr)
			}
		})
	}
}

func TestBadEnvironmentNamesTheVariable(t *testing.T) {
	t.Setenv("KVGATE_TIMEOUT", "soon")
	kvgate(t, "status").expect(t, result{code: exitUsage,
		stderr: `kvgate: timeout: "soon" is not allowed: use a duration such as 500ms, 45s or 10m (it comes from KVGATE_TIMEOUT)`})
}

func TestServiceLinkVariablesAreNotConfiguration(t *testing.T) {
	for _, name := range []string{
		"KVGATE_SERVICE_HOST", "KVGATE_SERVICE_PORT", "KVGATE_SERVICE_PORT_HTTP", "KVGATE_PORT", "KVGATE_PORT_7070_TCP",
		"KVGATE_PORT_7070_TCP_ADDR", "KVGATE_RAFT_SERVICE_HOST", "KVGATE_RAFT_PORT_7071_TCP_PROTO",
	} {
		t.Setenv(name, "tcp://10.0.0.1:7070")
	}
	t.Setenv("KVGATE_SERVER", nobody(t)) // a client's key is known to serve as well
	if _, err := load(t, "--node-id", "n1", "--data-dir", t.TempDir(), "--bootstrap"); err != nil {
		t.Error(err)
	}
}

func TestClientFlagsComeFromTheEnvironment(t *testing.T) {
	f := &fake{}
	f.leases = leaseFake(0).leases
	t.Setenv("KVGATE_SERVER", nobody(t)+","+f.start(t))
	t.Setenv("KVGATE_OUTPUT", "json")
	t.Setenv("KVGATE_POOL", "")
	if r := kvgate(t, "leases"); r.code != exitOK || !strings.HasPrefix(r.stdout, "{") {
		t.Errorf("exit %d: %s%s", r.code, r.stdout, r.stderr)
	}
	kvgate(t, "leases", "--output", "table").expect(t, result{stdout: "no leases"})
}

func TestWhatIsExposed(t *testing.T) {
	tests := []struct {
		cfg       ServeConfig
		api, raft bool
	}{
		{ServeConfig{Listen: "127.0.0.1:1", RaftListen: "localhost:2"}, false, false},
		{ServeConfig{Listen: "[::1]:1", RaftListen: "[::1]:2"}, false, false},
		{ServeConfig{Listen: ":1", RaftListen: ":2"}, true, true},
		{ServeConfig{Listen: "10.0.0.1:1", RaftListen: "a:2", Tokens: "t"}, true, true},
		{ServeConfig{Listen: "10.0.0.1:1", RaftListen: "a:2", TLSCert: "c", RaftTLSCert: "c"}, true, false},
		{ServeConfig{Listen: "10.0.0.1:1", RaftListen: "a:2", TLSCert: "c", Tokens: "t"}, false, true},
		{ServeConfig{Listen: "10.0.0.1:1", RaftListen: "a:2", TLSCert: "c", TLSClientCA: "ca", RaftTLSCert: "c"}, false, false},
	}
	for _, test := range tests {
		if got := test.cfg.Exposed(); got != test.api {
			t.Errorf("%+v: API exposed is %t", test.cfg, got)
		}
		if got := test.cfg.RaftExposed(); got != test.raft {
			t.Errorf("%+v: raft exposed is %t", test.cfg, got)
		}
		var log bytes.Buffer
		test.cfg.warnOfExposure(t.Context(), newLogger(&log, "info", "text"))
		if got, want := strings.Count(log.String(), "level=WARN"), count01(test.api)+count01(test.raft); got != want {
			t.Errorf("%+v: %d warnings, want %d: %s", test.cfg, got, want, log.String())
		}
	}
}

func count01(b bool) int {
	if b {
		return 1
	}
	return 0
}

func TestAPIAddress(t *testing.T) {
	bound := &net.TCPAddr{IP: net.IPv4(127, 0, 0, 1), Port: 4711}
	for _, test := range []struct {
		cfg  ServeConfig
		want string
	}{
		{ServeConfig{Listen: "127.0.0.1:0", RaftAdvertise: "a:1"}, "127.0.0.1:4711"},
		{ServeConfig{Listen: "node-a:7070", RaftAdvertise: "a:1"}, "node-a:4711"},
		{ServeConfig{Listen: "0.0.0.0:7070", RaftAdvertise: "a:1"}, "a:4711"},
		{ServeConfig{Listen: "[::]:7070", RaftAdvertise: "[fd00::1]:1"}, "[fd00::1]:4711"},
		{ServeConfig{Listen: ":7070", RaftAdvertise: "a:1", Advertise: "gate.example:80"}, "gate.example:80"},
	} {
		if got := test.cfg.apiAddress(bound); got != test.want {
			t.Errorf("%+v: %s, want %s", test.cfg, got, test.want)
		}
	}
}
