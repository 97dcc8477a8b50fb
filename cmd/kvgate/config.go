package main

import (
	"log/slog"
	"net"
	"net/url"
	"os"
	"slices"
	"strconv"
	"strings"
	"time"
	"unicode"

	"github.com/spf13/pflag"

	"kvgate/scrape"
)

const maxIDBytes = 256

// Peer is one voter of a cluster that forms with --bootstrap-expect.
type Peer struct {
	ID string
	// Address is the peer's raft HOST:PORT as the other nodes reach it.
	Address string
}

// ServeConfig is the configuration of one node. Replicated settings are not in it: they belong to
// pools and change with `kvgate settings set`.
type ServeConfig struct {
	// Config is the file the rest may have come from; "" means none.
	Config string

	NodeID  string
	DataDir string
	// Listen is the HOST:PORT of the API, the metrics and the web page.
	Listen string
	// Advertise is the HOST:PORT under which clients reach Listen; "" means it follows from the others.
	Advertise string
	// RaftListen is the HOST:PORT that peers connect to.
	RaftListen string
	// RaftAdvertise is the HOST:PORT under which peers reach RaftListen; never empty after validation.
	RaftAdvertise string

	// Bootstrap forms a cluster of this one node when DataDir holds no history.
	Bootstrap bool
	// BootstrapExpect forms a cluster of Peers, this many, when DataDir holds no history; 0 means no.
	BootstrapExpect int
	// Peers are all voters of the new cluster, this node included, in the order given.
	Peers []Peer
	// Join are raft addresses of a running cluster that this node asks to be added to.
	Join []string

	// Router seeds the default pool's routerUrl while that is unset.
	Router string
	// Engines seed the default pool's engineUrls while those are unset.
	Engines []string
	// RouterKeyFile, EngineKeyFile and EngineAdminKeyFile hold API keys; they are read on this node
	// and never replicated.
	RouterKeyFile      string
	EngineKeyFile      string
	EngineAdminKeyFile string

	// TLSCert and TLSKey secure Listen; both or none. With TLSClientCA callers must show a certificate
	// that it signed.
	TLSCert, TLSKey, TLSClientCA string
	// RaftTLSCert, RaftTLSKey and RaftTLSCA make nodes show each other certificates; all or none.
	RaftTLSCert, RaftTLSKey, RaftTLSCA string
	// Tokens is the file of bearer tokens that callers must show one of; "" means that all may call.
	Tokens string
	// Strict refuses to start where an unsafe configuration would only be warned about.
	Strict bool

	// FailOpenAfter bounds how long a call waits for a leader before it is answered without one.
	FailOpenAfter time.Duration
	// SnapshotThreshold is how many log entries make raft take a new snapshot.
	SnapshotThreshold uint64
	// SnapshotDir is where this node saves snapshots of itself, SnapshotKeep of them, one each
	// SnapshotEvery; "" means that it saves none.
	SnapshotDir   string
	SnapshotEvery time.Duration
	SnapshotKeep  int

	LogLevel  string
	LogFormat string

	peers []string // as written: ID=HOST:PORT
}

// flags returns the flags that fill c, with their defaults.
func (c *ServeConfig) flags() *pflag.FlagSet {
	fs := pflag.NewFlagSet("serve", pflag.ContinueOnError)
	fs.StringVar(&c.NodeID, "node-id", "", "name of this node, unique in the cluster and for good (required)")
	fs.StringVar(&c.DataDir, "data-dir", "", "directory of this node's state; made when missing (required)")
	fs.StringVar(&c.Listen, "listen", "127.0.0.1:7070", "HOST:PORT of the API, /metrics and the web page")
	fs.StringVar(&c.Advertise, "advertise", "", "HOST:PORT under which clients reach --listen (default: the same, or the host of --raft-advertise when --listen has none)")
	fs.StringVar(&c.RaftListen, "raft-listen", "127.0.0.1:7071", "HOST:PORT for the other nodes")
	fs.StringVar(&c.RaftAdvertise, "raft-advertise", "", "HOST:PORT under which the other nodes reach --raft-listen (default: the same)")
	fs.BoolVar(&c.Bootstrap, "bootstrap", false, "form a cluster of this one node")
	fs.IntVar(&c.BootstrapExpect, "bootstrap-expect", 0, "form a cluster of this many nodes, all named by --peers")
	fs.StringSliceVar(&c.peers, "peers", nil, "all nodes of the new cluster as ID=HOST:PORT,…")
	fs.StringSliceVar(&c.Join, "join", nil, "raft HOST:PORT of a running cluster to join; several are tried in order")
	fs.StringVar(&c.Router, "router", "", "URL of the SGLang router of the default pool")
	fs.StringSliceVar(&c.Engines, "engines", nil, "URLs of the engines of the default pool")
	fs.StringVar(&c.Config, "config", "", "YAML file with the same names as these flags")
	fs.StringVar(&c.Tokens, "tokens", "", "file of bearer tokens, one a line: token role [pool,…]")
	fs.StringVar(&c.TLSCert, "tls-cert", "", "PEM certificate of the API, with its intermediates")
	fs.StringVar(&c.TLSKey, "tls-key", "", "PEM key of --tls-cert")
	fs.StringVar(&c.TLSClientCA, "tls-client-ca", "", "PEM authorities; callers must show a certificate that one of them signed")
	fs.StringVar(&c.RaftTLSCert, "raft-tls-cert", "", "PEM certificate that this node shows the other nodes, as server and as client")
	fs.StringVar(&c.RaftTLSKey, "raft-tls-key", "", "PEM key of --raft-tls-cert")
	fs.StringVar(&c.RaftTLSCA, "raft-tls-ca", "", "PEM authorities that signed the certificates of all nodes")
	fs.StringVar(&c.RouterKeyFile, "router-key-file", "", "file that holds the router's API key")
	fs.StringVar(&c.EngineKeyFile, "engine-key-file", "", "file that holds the engines' API key")
	fs.StringVar(&c.EngineAdminKeyFile, "engine-admin-key-file", "", "file that holds the engines' admin API key")
	fs.DurationVar(&c.FailOpenAfter, "fail-open-after", 2*time.Second, "longest wait for a leader before a call is answered without one")
	fs.Uint64Var(&c.SnapshotThreshold, "snapshot-threshold", 8192, "log entries after which a snapshot is taken")
	fs.StringVar(&c.SnapshotDir, "snapshot-dir", "", "directory in which this node saves snapshots that can be restored (default: none are saved)")
	fs.DurationVar(&c.SnapshotEvery, "snapshot-every", time.Hour, "time between two snapshots in --snapshot-dir")
	fs.IntVar(&c.SnapshotKeep, "snapshot-keep", 24, "how many of this node's snapshots stay in --snapshot-dir")
	choiceVar(fs, &c.LogLevel, "log-level", "info", "least severe lines logged", "debug", "info", "warn", "error")
	choiceVar(fs, &c.LogFormat, "log-format", "text", "form of the log", "text", "json")
	fs.BoolVar(&c.Strict, "strict", false, "refuse to start with an unsafe configuration instead of warning")
	allow(fs, "peers", "ID=HOST:PORT pairs separated by commas")
	configurable(fs)
	return fs
}

// Validate checks the configuration and fills what follows from other values. The first mistake is
// returned as an error that names the key, its value and what is allowed.
func (c *ServeConfig) Validate() error {
	for _, check := range []func() error{c.checkNode, c.checkAddresses, c.checkLists, c.checkFormation, c.checkTogether, c.checkFiles, c.checkLimits, c.checkExposure} {
		if err := check(); err != nil {
			return err
		}
	}
	return nil
}

func (c *ServeConfig) checkNode() error {
	const allowed = "1 to 256 printable characters without spaces, commas or ="
	if c.NodeID == "" || len(c.NodeID) > maxIDBytes || strings.ContainsFunc(c.NodeID, notInNodeID) {
		return badValue("node-id", c.NodeID, allowed)
	}
	if c.DataDir == "" {
		return badValue("data-dir", "", "a directory for this node's state")
	}
	if info, err := os.Stat(c.DataDir); err == nil && !info.IsDir() {
		return badValue("data-dir", c.DataDir, "a directory: this is a file")
	}
	return nil
}

func notInNodeID(r rune) bool { return r == ',' || r == '=' || unicode.IsSpace(r) || notPrintable(r) }

func (c *ServeConfig) checkAddresses() error {
	if c.RaftAdvertise == "" {
		c.RaftAdvertise = c.RaftListen
	}
	for _, a := range []struct{ key, value string }{
		{"listen", c.Listen}, {"raft-listen", c.RaftListen}, {"raft-advertise", c.RaftAdvertise},
	} {
		if !validAddress(a.value) {
			return badValue(a.key, a.value, "HOST:PORT with a port from 0 to 65535")
		}
	}
	host, port, _ := net.SplitHostPort(c.RaftAdvertise)
	if ip := net.ParseIP(host); host == "" || ip != nil && ip.IsUnspecified() {
		return badValue("raft-advertise", c.RaftAdvertise, "an address that other nodes can reach (it follows --raft-listen unless given)")
	}
	if _, listens, _ := net.SplitHostPort(c.RaftListen); port == "0" && listens != "0" {
		return badValue("raft-advertise", c.RaftAdvertise, "a port above 0")
	}
	if c.Advertise != "" && !reachable(c.Advertise) {
		return badValue("advertise", c.Advertise, "HOST:PORT that clients can reach")
	}
	if c.Listen == c.RaftListen && !strings.HasSuffix(c.Listen, ":0") {
		return badValue("raft-listen", c.RaftListen, "another port than --listen")
	}
	return nil
}

func validAddress(s string) bool {
	host, port, err := net.SplitHostPort(s)
	if err != nil || strings.ContainsFunc(host, notInNodeID) {
		return false
	}
	n, err := parseCount(port)
	return err == nil && n <= 65535
}

func (c *ServeConfig) checkLists() error {
	var err error
	if c.Peers, err = parsePeers(c.peers); err != nil {
		return err
	}
	for _, address := range c.Join {
		if !reachable(address) {
			return badValue("join", address, "raft HOST:PORT of a running node")
		}
	}
	if c.Router != "" && !httpURL(c.Router) {
		return badValue("router", redactURL(c.Router), "an http:// or https:// URL with a host")
	}
	if holdsUser(c.Router) {
		return badValue("router", redactURL(c.Router), "a URL without user and password; keys belong in --router-key-file")
	}
	for _, engine := range c.Engines {
		if !httpURL(engine) {
			return badValue("engines", redactURL(engine), "http:// or https:// URLs separated by commas")
		}
		if _, err := scrape.EngineURL(engine); err != nil && holdsUser(engine) { // http://host:port@rank is fine
			return badValue("engines", redactURL(engine), "URLs without user and password; keys belong in --engine-key-file")
		}
	}
	return nil
}

// holdsUser reports that a URL has user info. Settings are replicated, shown and kept in the journal, so no
// secret may travel in them.
func holdsUser(s string) bool {
	u, err := url.Parse(s)
	return err == nil && u.User != nil
}

// parsePeers reads ID=HOST:PORT pairs.
func parsePeers(pairs []string) (peers []Peer, err error) {
	for _, written := range pairs {
		id, address, ok := strings.Cut(strings.TrimSpace(written), "=")
		if !ok || id == "" || len(id) > maxIDBytes || strings.ContainsFunc(id, notInNodeID) || !reachable(address) {
			return nil, badValue("peers", written, "ID=HOST:PORT pairs separated by commas")
		}
		if slices.ContainsFunc(peers, func(p Peer) bool { return p.ID == id || p.Address == address }) {
			return nil, badValue("peers", written, "every ID and every address once")
		}
		peers = append(peers, Peer{ID: id, Address: address})
	}
	return peers, nil
}

// reachable reports that s is an address another node may dial.
func reachable(s string) bool {
	host, port, err := net.SplitHostPort(s)
	return err == nil && host != "" && port != "0" && validAddress(s)
}

// checkFormation sees to it that the node knows exactly one way into a cluster.
func (c *ServeConfig) checkFormation() error {
	var ways []string
	if c.Bootstrap {
		ways = append(ways, "--bootstrap")
	}
	if c.BootstrapExpect != 0 || len(c.Peers) > 0 {
		ways = append(ways, "--bootstrap-expect with --peers")
	}
	if len(c.Join) > 0 {
		ways = append(ways, "--join")
	}
	if len(ways) > 1 {
		return usagef("%s: given together: use only one of them", strings.Join(ways, ", "))
	}
	if len(ways) == 0 && emptyDir(c.DataDir) {
		return usagef("data-dir: %q holds no cluster yet: use --bootstrap, --bootstrap-expect with --peers, or --join", c.DataDir)
	}
	return c.checkPeers()
}

func (c *ServeConfig) checkPeers() error {
	if c.BootstrapExpect == 0 && len(c.Peers) == 0 {
		return nil
	}
	if c.BootstrapExpect < 1 || c.BootstrapExpect != len(c.Peers) {
		return usagef("bootstrap-expect: %d is not allowed: use the number of --peers, which name %d", c.BootstrapExpect, len(c.Peers))
	}
	at := slices.IndexFunc(c.Peers, func(p Peer) bool { return p.ID == c.NodeID })
	if at < 0 {
		return badValue("peers", strings.Join(c.peers, ","), "a list that also names this node, "+c.NodeID)
	}
	if own := c.Peers[at].Address; own != c.RaftAdvertise {
		return badValue("raft-advertise", c.RaftAdvertise, "the address that --peers gives this node, "+own)
	}
	return nil
}

func emptyDir(path string) bool {
	entries, err := os.ReadDir(path)
	return err != nil || len(entries) == 0
}

func (c *ServeConfig) checkLimits() error {
	if c.FailOpenAfter <= 0 || c.FailOpenAfter > time.Hour {
		return badValue("fail-open-after", c.FailOpenAfter.String(), "a duration above 0s and at most 1h")
	}
	if c.SnapshotEvery < time.Second {
		return badValue("snapshot-every", c.SnapshotEvery.String(), "a duration of 1s or more")
	}
	if c.SnapshotKeep < 1 {
		return badValue("snapshot-keep", strconv.Itoa(c.SnapshotKeep), "a whole number above 0")
	}
	if c.SnapshotThreshold == 0 {
		return badValue("snapshot-threshold", "0", "a whole number above 0")
	}
	return nil
}

// Attrs returns the effective configuration for the log. Key files are named, never read; passwords
// in URLs are masked.
func (c *ServeConfig) Attrs() []slog.Attr {
	return []slog.Attr{
		slog.String("config", c.Config),
		slog.String("node_id", c.NodeID),
		slog.String("data_dir", c.DataDir),
		slog.String("listen", c.Listen),
		slog.String("advertise", c.Advertise),
		slog.String("raft_listen", c.RaftListen),
		slog.String("raft_advertise", c.RaftAdvertise),
		slog.Bool("bootstrap", c.Bootstrap),
		slog.Int("bootstrap_expect", c.BootstrapExpect),
		slog.String("peers", strings.Join(c.peers, ",")),
		slog.String("join", strings.Join(c.Join, ",")),
		slog.String("router", redactURL(c.Router)),
		slog.String("engines", strings.Join(each(c.Engines, redactURL), ",")),
		slog.String("router_key_file", c.RouterKeyFile),
		slog.String("engine_key_file", c.EngineKeyFile),
		slog.String("engine_admin_key_file", c.EngineAdminKeyFile),
		slog.String("tokens", c.Tokens),
		slog.String("tls_cert", c.TLSCert),
		slog.String("tls_key", c.TLSKey),
		slog.String("tls_client_ca", c.TLSClientCA),
		slog.String("raft_tls_cert", c.RaftTLSCert),
		slog.String("raft_tls_key", c.RaftTLSKey),
		slog.String("raft_tls_ca", c.RaftTLSCA),
		slog.Bool("strict", c.Strict),
		slog.Duration("fail_open_after", c.FailOpenAfter),
		slog.Uint64("snapshot_threshold", c.SnapshotThreshold),
		slog.String("snapshot_dir", c.SnapshotDir),
		slog.Duration("snapshot_every", c.SnapshotEvery),
		slog.Int("snapshot_keep", c.SnapshotKeep),
		slog.String("log_level", c.LogLevel),
		slog.String("log_format", c.LogFormat),
	}
}

// redactURL masks user, password and query of a URL; what does not parse is masked whole.
func redactURL(s string) string {
	u, err := url.Parse(s)
	if err != nil {
		return "(unreadable URL)"
	}
	if u.RawQuery != "" {
		u.RawQuery = "xxxxx"
	}
	if u.User != nil {
		u.User = url.User("xxxxx") // a key may stand in place of the user
	}
	return u.String()
}
