package cluster

import (
	"bytes"
	"crypto/tls"
	"crypto/x509"
	"encoding/pem"
	"os"
	"path/filepath"
	"testing"
	"time"

	"kvgate/rpc/devcerts"
)

// certificates are the files that the nodes of a cluster show and trust.
type certificates struct {
	t   testing.TB
	dir string
	// known are all authorities there were, for clients of the test.
	known *x509.CertPool
}

func newCertificates(t testing.TB) *certificates {
	return &certificates{t: t, dir: t.TempDir(), known: x509.NewCertPool()}
}

func (c *certificates) must(err error) {
	c.t.Helper()
	if err != nil {
		c.t.Fatal(err)
	}
}

// authority makes an authority; its name is for people.
func (c *certificates) authority(name string) *devcerts.Pair {
	c.t.Helper()
	now := time.Now()
	ca, err := devcerts.NewAuthority(devcerts.Subject{Name: name, NotBefore: now.Add(-time.Hour), NotAfter: now.Add(time.Hour)})
	c.must(err)
	c.known.AddCert(ca.Cert)
	return ca
}

// trust makes the nodes trust what these authorities sign, and nothing else.
func (c *certificates) trust(authorities ...*devcerts.Pair) {
	c.t.Helper()
	var bundle bytes.Buffer
	for _, ca := range authorities {
		c.must(pem.Encode(&bundle, &pem.Block{Type: "CERTIFICATE", Bytes: ca.Cert.Raw}))
	}
	path := filepath.Join(c.dir, "ca.pem")
	c.must(os.WriteFile(path+".new", bundle.Bytes(), 0o600))
	c.must(os.Rename(path+".new", path))
}

// issue gives nodes on the loopback interface new certificates.
func (c *certificates) issue(ca *devcerts.Pair, ids ...string) {
	c.t.Helper()
	now := time.Now()
	for _, id := range ids {
		pair, err := ca.Issue(devcerts.Subject{
			Name: id, Hosts: []string{"127.0.0.1"}, NotBefore: now.Add(-time.Hour), NotAfter: now.Add(time.Hour),
		})
		c.must(err)
		c.must(pair.Write(c.dir, id))
	}
}

// flags are those of a node.
func (c *certificates) flags(id string) []string {
	cert, key := devcerts.Paths(c.dir, id)
	ca := filepath.Join(c.dir, "ca.pem")
	return []string{"--tls-cert", cert, "--tls-key", key, "--raft-tls-cert", cert, "--raft-tls-key", key, "--raft-tls-ca", ca}
}

// client is for clients of the API, which trust all authorities there were so far.
func (c *certificates) client() *tls.Config {
	return &tls.Config{MinVersion: tls.VersionTLS12, RootCAs: c.known}
}

// handshake connects to a port of a node as node id does, and trusts one authority.
func (c *certificates) handshake(addr, id string, ca *devcerts.Pair) error {
	cert, key := devcerts.Paths(c.dir, id)
	pair, err := tls.LoadX509KeyPair(cert, key)
	if err != nil {
		return err
	}
	roots := x509.NewCertPool()
	roots.AddCert(ca.Cert)
	conn, err := tls.Dial("tcp", addr, &tls.Config{MinVersion: tls.VersionTLS12, RootCAs: roots, Certificates: []tls.Certificate{pair}})
	if err != nil {
		return err
	}
	return conn.Close()
}
