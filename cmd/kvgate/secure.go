package main

import (
	"context"
	"crypto/tls"
	"fmt"
	"log/slog"
	"net"
	"os"

	"kvgate/rpc/tlsfiles"
	"kvgate/rpc/tokens"
)

// checkTogether refuses half of what belongs together.
func (c *ServeConfig) checkTogether() error {
	type part struct{ flag, value string }
	for _, group := range [][]part{
		{{"tls-cert", c.TLSCert}, {"tls-key", c.TLSKey}},
		{{"raft-tls-cert", c.RaftTLSCert}, {"raft-tls-key", c.RaftTLSKey}, {"raft-tls-ca", c.RaftTLSCA}},
	} {
		for _, has := range group {
			for _, lacks := range group {
				if has.value != "" && lacks.value == "" {
					return badValue(lacks.flag, "", "a file, since --"+has.flag+" is given")
				}
			}
		}
	}
	if c.TLSClientCA != "" && c.TLSCert == "" {
		return badValue("tls-cert", "", "a file, since --tls-client-ca is given")
	}
	return nil
}

func (c *ServeConfig) checkFiles() error {
	for _, f := range []struct{ key, path string }{
		{"tokens", c.Tokens}, {"tls-cert", c.TLSCert}, {"tls-key", c.TLSKey}, {"tls-client-ca", c.TLSClientCA},
		{"raft-tls-cert", c.RaftTLSCert}, {"raft-tls-key", c.RaftTLSKey}, {"raft-tls-ca", c.RaftTLSCA},
		{"router-key-file", c.RouterKeyFile}, {"engine-key-file", c.EngineKeyFile}, {"engine-admin-key-file", c.EngineAdminKeyFile},
	} {
		if f.path == "" {
			continue
		}
		opened, err := os.Open(f.path)
		if err != nil {
			return badValue(f.key, f.path, "a file that can be read")
		}
		_ = opened.Close() // only read
	}
	return nil
}

func (c *ServeConfig) checkExposure() error {
	switch {
	case !c.Strict:
		return nil
	case c.Exposed():
		return badValue("listen", c.Listen, "a loopback address, or --tls-cert and --tls-key with --tokens or --tls-client-ca (--strict is on)")
	case c.RaftExposed():
		return badValue("raft-listen", c.RaftListen, "a loopback address, or --raft-tls-cert, --raft-tls-key and --raft-tls-ca (--strict is on)")
	}
	return nil
}

// Exposed reports that the API is open to other machines although its traffic can be read on the way, or
// although it does not ask who calls.
func (c *ServeConfig) Exposed() bool {
	return !loopback(c.Listen) && (c.TLSCert == "" || c.Tokens == "" && c.TLSClientCA == "")
}

// RaftExposed reports that other machines can pose as nodes.
func (c *ServeConfig) RaftExposed() bool { return !loopback(c.RaftListen) && c.RaftTLSCert == "" }

// warnOfExposure logs what --strict would refuse.
func (c *ServeConfig) warnOfExposure(ctx context.Context, log *slog.Logger) {
	if c.Exposed() {
		log.LogAttrs(ctx, slog.LevelWarn, "the API is open to other machines without TLS and a check of who calls; set --tls-cert, --tls-key and --tokens, or --strict to refuse",
			slog.String("listen", c.Listen))
	}
	if c.RaftExposed() {
		log.LogAttrs(ctx, slog.LevelWarn, "other machines can pose as nodes; set --raft-tls-cert, --raft-tls-key and --raft-tls-ca, or --strict to refuse",
			slog.String("raft_listen", c.RaftListen))
	}
}

func loopback(address string) bool {
	host, _, err := net.SplitHostPort(address)
	if err != nil {
		return false
	}
	ip := net.ParseIP(host)
	return host == "localhost" || ip != nil && ip.IsLoopback()
}

// security is what the files of a configuration say; nil members mean that there is none.
type security struct {
	tokens *tokens.File
	api    *tls.Config
	raft   *tlsfiles.Mutual
}

// loadSecurity reads the tokens and certificates. A file that cannot be used is a usage error that names
// the flag and the line, never a secret.
func loadSecurity(c *ServeConfig, log *slog.Logger) (s security, err error) {
	if c.Tokens != "" {
		if s.tokens, err = tokens.Open(c.Tokens, log); err != nil {
			return s, usagef("tokens: %s", err)
		}
	}
	if c.TLSCert != "" {
		if s.api, err = apiTLS(c, log); err != nil {
			return s, err
		}
	}
	if c.RaftTLSCert != "" {
		if s.raft, err = tlsfiles.LoadMutual(c.RaftTLSCert, c.RaftTLSKey, c.RaftTLSCA, log); err != nil {
			return s, usagef("raft-tls: %s", err)
		}
	}
	return s, nil
}

func apiTLS(c *ServeConfig, log *slog.Logger) (*tls.Config, error) {
	id, err := tlsfiles.LoadIdentity(c.TLSCert, c.TLSKey, log)
	if err != nil {
		return nil, usagef("tls-cert: %s", err)
	}
	var clients *tlsfiles.Authorities
	if c.TLSClientCA != "" {
		if clients, err = tlsfiles.LoadAuthorities(c.TLSClientCA, log); err != nil {
			return nil, usagef("tls-client-ca: %s", err)
		}
	}
	return tlsfiles.Server(id, clients, "h2", "http/1.1"), nil
}

// apiAddress returns the HOST:PORT that other nodes name to clients: as configured, with the port that was
// bound and a host that can be reached.
func (c *ServeConfig) apiAddress(bound net.Addr) string {
	if c.Advertise != "" {
		return c.Advertise
	}
	_, port, _ := net.SplitHostPort(bound.String())
	host, _, _ := net.SplitHostPort(c.Listen)
	if ip := net.ParseIP(host); host == "" || ip != nil && ip.IsUnspecified() {
		host, _, _ = net.SplitHostPort(c.RaftAdvertise)
	}
	return net.JoinHostPort(host, port)
}

// baseURL returns the URL of an address of this node's API.
func (s security) baseURL(address string) string {
	if s.api != nil {
		return "https://" + address
	}
	return fmt.Sprint("http://", address)
}
