package tlsfiles

import (
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"log/slog"
	"time"

	"kvgate/rpc/reload"
)

// ErrNoCertificate: a file of authorities holds no certificate.
var ErrNoCertificate = errors.New("no certificate in PEM form")

// soon is how long before its end a certificate is warned about.
const soon = 7 * 24 * time.Hour

// Identity is a certificate with its key.
type Identity struct {
	files *reload.Files[*tls.Certificate]
}

// LoadIdentity reads a certificate, with its intermediates if any, and its key.
func LoadIdentity(certFile, keyFile string, log *slog.Logger) (*Identity, error) {
	parse := func(contents [][]byte) (*tls.Certificate, error) {
		c, err := tls.X509KeyPair(contents[0], contents[1])
		if err != nil {
			return nil, err
		}
		warnOfEnd(log, certFile, c.Leaf)
		return &c, nil
	}
	files, err := reload.Open(parse, reload.Options{Log: log}, certFile, keyFile)
	if err != nil {
		return nil, err
	}
	return &Identity{files}, nil
}

func warnOfEnd(log *slog.Logger, path string, leaf *x509.Certificate) {
	switch left := time.Until(leaf.NotAfter); {
	case left <= 0:
		log.Error("certificate has expired, other sides will refuse it: replace the file", "path", path, "not_after", leaf.NotAfter)
	case left < soon:
		log.Warn("certificate expires soon: replace the file", "path", path, "not_after", leaf.NotAfter)
	}
}

// Authorities are the certificates that sign the other side's.
type Authorities struct{ files *reload.Files[*x509.CertPool] }

// LoadAuthorities reads one or more certificates in PEM form.
func LoadAuthorities(file string, log *slog.Logger) (*Authorities, error) {
	parse := func(contents [][]byte) (*x509.CertPool, error) {
		pool := x509.NewCertPool()
		if !pool.AppendCertsFromPEM(contents[0]) {
			return nil, ErrNoCertificate
		}
		return pool, nil
	}
	files, err := reload.Open(parse, reload.Options{Log: log}, file)
	if err != nil {
		return nil, err
	}
	return &Authorities{files}, nil
}

// Server returns the configuration of a listener. With clients, every client must show a certificate that
// they signed. protocols are those of ALPN, best first.
func Server(id *Identity, clients *Authorities, protocols ...string) *tls.Config {
	return &tls.Config{
		MinVersion: tls.VersionTLS12, NextProtos: protocols,
		GetConfigForClient: func(*tls.ClientHelloInfo) (*tls.Config, error) {
			c := &tls.Config{
				MinVersion: tls.VersionTLS12, NextProtos: protocols, Certificates: []tls.Certificate{*id.files.Get()},
				// A ticket would carry a client past a certificate that is no longer trusted.
				SessionTicketsDisabled: clients != nil,
			}
			if clients != nil {
				c.ClientAuth, c.ClientCAs = tls.RequireAndVerifyClientCert, clients.files.Get()
			}
			return c, nil
		},
	}
}

// Client returns the configuration of one connection to serverName, a host name or an IP address. id and
// roots may be nil: no certificate of its own, the authorities of the system.
func Client(id *Identity, roots *Authorities, serverName string) *tls.Config {
	c := &tls.Config{MinVersion: tls.VersionTLS12, ServerName: serverName}
	if roots != nil {
		c.RootCAs = roots.files.Get()
	}
	if id != nil {
		// Not Certificates: Go would leave a certificate out that the server's authorities did not sign,
		// and the server could not say what is wrong with it.
		c.GetClientCertificate = func(*tls.CertificateRequestInfo) (*tls.Certificate, error) {
			return id.files.Get(), nil
		}
	}
	return c
}

// Mutual is what nodes of one cluster show each other and check.
type Mutual struct {
	id *Identity
	ca *Authorities
}

// LoadMutual reads the three files of mutual TLS.
func LoadMutual(certFile, keyFile, caFile string, log *slog.Logger) (*Mutual, error) {
	id, err := LoadIdentity(certFile, keyFile, log)
	if err != nil {
		return nil, fmt.Errorf("certificate and key: %w", err)
	}
	ca, err := LoadAuthorities(caFile, log)
	if err != nil {
		return nil, fmt.Errorf("authorities: %w", err)
	}
	return &Mutual{id, ca}, nil
}

// Server returns the configuration of the listener.
func (m *Mutual) Server() *tls.Config { return Server(m.id, m.ca) }

// Client returns the configuration of a connection to serverName.
func (m *Mutual) Client(serverName string) *tls.Config { return Client(m.id, m.ca, serverName) }
