package peer

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"net"
	"time"
)

// ErrInsecure: the two sides could not agree on a secure connection; the message says why.
var ErrInsecure = errors.New("no secure connection")

// secureServer makes a secure connection of one that came in. It shakes hands at once, so that what is
// wrong is known here and not on some later read.
func (n *Network) secureServer(ctx context.Context, conn net.Conn) (net.Conn, error) {
	if n.opts.ServerTLS == nil {
		return conn, nil
	}
	return shake(ctx, tls.Server(conn, n.opts.ServerTLS))
}

// secureClient makes a secure connection to addr of a plain one.
func (n *Network) secureClient(ctx context.Context, conn net.Conn, addr string) (net.Conn, error) {
	if n.opts.ClientTLS == nil {
		return conn, nil
	}
	host, _, err := net.SplitHostPort(addr)
	if err != nil {
		return conn, err
	}
	return shake(ctx, tls.Client(conn, n.opts.ClientTLS(host)))
}

func shake(ctx context.Context, conn *tls.Conn) (net.Conn, error) {
	ctx, cancel := context.WithTimeout(ctx, handshakeTimeout)
	defer cancel()
	return carrier{conn}, insecure(conn.HandshakeContext(ctx))
}

// carrier hides that a connection is a *tls.Conn. net/http would look for the protocol that ALPN chose on
// one, find none and speak HTTP/1, where both sides here speak HTTP/2 from the first byte.
type carrier struct{ net.Conn }

// insecure explains errors that come from TLS and leaves others alone.
func insecure(err error) error {
	if err == nil {
		return nil
	}
	var (
		plain  tls.RecordHeaderError
		seen   *tls.CertificateVerificationError
		remote *net.OpError
	)
	switch {
	case errors.As(err, &plain):
		return fmt.Errorf("%w: the other side does not speak TLS: give all nodes certificates, or none", ErrInsecure)
	case errors.As(err, &seen):
		return fmt.Errorf("%w: %s: %w", ErrInsecure, untrusted(seen), seen.Err)
	case errors.As(err, &remote) && remote.Op == "remote error":
		return fmt.Errorf("%w: the other side refused this node's certificate: %w", ErrInsecure, remote.Err)
	}
	return err
}

// untrusted words what is wrong with the other side's certificate.
func untrusted(e *tls.CertificateVerificationError) string {
	if len(e.UnverifiedCertificates) == 0 {
		return "the other side showed no certificate"
	}
	leaf := e.UnverifiedCertificates[0]
	var (
		bad     x509.CertificateInvalidError
		foreign x509.UnknownAuthorityError
		name    x509.HostnameError
	)
	who := fmt.Sprintf("the certificate of %q", leaf.Subject.CommonName)
	switch {
	case errors.As(e.Err, &bad) && bad.Reason == x509.Expired:
		return fmt.Sprintf("%s is valid from %s to %s only", who, leaf.NotBefore.UTC().Format(time.RFC3339), leaf.NotAfter.UTC().Format(time.RFC3339))
	case errors.As(e.Err, &foreign):
		return who + " is signed by an authority that this node does not trust"
	case errors.As(e.Err, &name):
		return who + " is for another name"
	default:
		return who + " cannot be used"
	}
}
