package deploy

import (
	"crypto/tls"
	"crypto/x509"
	"fmt"
	"io"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"kvgate/integration/procs"
)

const patience = 60 * time.Second

// A plan is how one of the files in deploy/ starts a node, before its names are replaced by what this machine has.
type plan struct {
	id string
	// raft is the address under which the files let the other nodes reach it.
	raft string
	argv []string
	env  map[string]string
	// config is the text of /etc/kvgate/kvgate.yaml.
	config string
}

// A cluster is three nodes started by their plans on this machine.
type cluster struct {
	t     *testing.T
	nodes []*procs.Process
	http  http.Client
	// servers are the base URLs, env what client commands need to reach them.
	servers []string
	env     []string
}

// files are written for each node before it starts: the path as the plans name it, and the text.
type files func(id string) map[string]string

// start replaces addresses and paths in the plans, and nothing else, and starts the nodes.
func start(t *testing.T, plans []plan, router string, secure bool, more files) *cluster {
	t.Helper()
	c := &cluster{t: t, http: http.Client{Timeout: 5 * time.Second, Transport: &http.Transport{DisableKeepAlives: true}}}
	scheme := "http"
	if secure {
		scheme = "https"
	}
	var addresses []string
	for _, p := range plans {
		addresses = append(addresses, p.raft, procs.FreeAddr(t))
	}
	for _, p := range plans {
		c.launch(p, addresses, router, more)
	}
	for _, n := range c.nodes {
		c.servers = append(c.servers, scheme+"://"+n.Node().Listen)
	}
	c.env = append(c.env, "KVGATE_SERVER="+strings.Join(c.servers, ","))
	return c
}

func (c *cluster) launch(p plan, addresses []string, router string, more files) {
	dir := filepath.Join(c.t.TempDir(), p.id)
	listen := procs.FreeAddr(c.t)
	own := ""
	for i := 0; i < len(addresses); i += 2 {
		if addresses[i] == p.raft {
			own = addresses[i+1]
		}
	}
	here := strings.NewReplacer(append(addresses, "0.0.0.0:7070", listen, "0.0.0.0:7071", own,
		"/var/lib/kvgate", dir+"/lib", "/etc/kvgate", dir+"/etc", routerIn(p), router)...)
	for name, text := range more(p.id) {
		write(c.t, here.Replace(name), text)
	}
	write(c.t, dir+"/etc/kvgate.yaml", here.Replace(p.config))
	n := procs.Node{ID: p.id, Listen: listen}
	for _, arg := range p.argv {
		n.Argv = append(n.Argv, here.Replace(arg))
	}
	for name, value := range p.env {
		n.Env = append(n.Env, name+"="+here.Replace(value))
	}
	c.nodes = append(c.nodes, procs.Launch(c.t, n))
}

// routerIn returns the router that a plan names, in its file or in its environment.
func routerIn(p plan) string {
	if url, ok := p.env["KVGATE_ROUTER"]; ok {
		return url
	}
	_, rest, _ := strings.Cut(p.config, "\nrouter: ")
	url, _, _ := strings.Cut(rest, "\n")
	return url
}

func write(t *testing.T, path, text string) {
	t.Helper()
	if err := os.MkdirAll(filepath.Dir(path), 0o700); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
}

// get asks node i for a path.
func (c *cluster) get(i int, path string) (int, string) {
	res, err := c.http.Get(c.servers[i] + path)
	if err != nil {
		return 0, err.Error()
	}
	defer res.Body.Close()
	body, err := io.ReadAll(res.Body)
	if err != nil {
		return 0, err.Error()
	}
	return res.StatusCode, string(body)
}

// await waits until node i answers a path with a status.
func (c *cluster) await(i int, path string, want int) {
	c.t.Helper()
	status, body := 0, ""
	procs.Eventually(c.t, patience, func() bool {
		select {
		case <-c.nodes[i].Done():
			c.t.Fatalf("node %d ended; its log:\n%s", i, c.nodes[i].Logs())
		default:
		}
		status, body = c.get(i, path)
		return status == want
	}, func() string {
		return fmt.Sprintf("%s%s answers %d %s, want %d", c.servers[i], path, status, body, want)
	})
}

// ready waits until all nodes are, and checks that all vote.
func (c *cluster) ready() {
	c.t.Helper()
	for i := range c.nodes {
		c.await(i, "/readyz", http.StatusOK)
	}
	out, said := "", ""
	procs.Eventually(c.t, patience, func() bool {
		var err error
		out, err = kvgate(c.t, c.env, "node", "status")
		said = fmt.Sprint(err)
		return strings.Contains(out, "3 of 3 voters can be reached; 1 more may fail.")
	}, func() string { return "kvgate node status: " + said + "\n" + out })
}

// do runs a client command that must succeed.
func (c *cluster) do(args ...string) string {
	c.t.Helper()
	out, err := kvgate(c.t, c.env, args...)
	if err != nil {
		c.t.Fatalf("kvgate %s: %v\n%s", strings.Join(args, " "), err, out)
	}
	return out
}

// loseQuorum kills two nodes and checks what probes see of the third: the process is healthy, the node is not ready.
func (c *cluster) loseQuorum() {
	c.t.Helper()
	c.nodes[0].Kill9()
	c.nodes[1].Kill9()
	c.await(2, "/readyz", http.StatusServiceUnavailable)
	c.await(2, "/healthz", http.StatusOK)
	if err := c.nodes[2].Stop(); err != nil {
		c.t.Errorf("a node without a quorum does not end well: %v", err)
	}
}

// certificates makes throw-away ones for the nodes and trusts them.
func certificates(t *testing.T, ids ...string) (dir string, roots *x509.CertPool) {
	t.Helper()
	dir = t.TempDir()
	args := []string{"certs", "dev", dir}
	for _, id := range ids {
		args = append(args, "--node", id+"=127.0.0.1")
	}
	if out, err := kvgate(t, nil, args...); err != nil {
		t.Fatalf("kvgate certs dev: %v\n%s", err, out)
	}
	ca, err := os.ReadFile(filepath.Join(dir, "ca.pem"))
	if err != nil {
		t.Fatal(err)
	}
	roots = x509.NewCertPool()
	if !roots.AppendCertsFromPEM(ca) {
		t.Fatal("ca.pem holds no certificate")
	}
	return dir, roots
}

// trust makes the client commands and get use certificates and a token.
func (c *cluster) trust(dir string, roots *x509.CertPool, token string) {
	write(c.t, filepath.Join(dir, "token"), token)
	c.env = append(c.env, "KVGATE_TLS_CA="+filepath.Join(dir, "ca.pem"), "KVGATE_TOKEN_FILE="+filepath.Join(dir, "token"))
	c.http.Transport.(*http.Transport).TLSClientConfig = &tls.Config{RootCAs: roots, MinVersion: tls.VersionTLS12}
}

func pem(t *testing.T, dir, name string) string {
	t.Helper()
	data, err := os.ReadFile(filepath.Join(dir, name))
	if err != nil {
		t.Fatal(err)
	}
	return string(data)
}
