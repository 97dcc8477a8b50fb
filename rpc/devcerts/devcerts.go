package devcerts

import (
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/pem"
	"math/big"
	"net"
	"os"
	"path/filepath"
	"slices"
	"time"
)

// Pair is a certificate with its key.
type Pair struct {
	Cert *x509.Certificate
	key  *ecdsa.PrivateKey
}

// Subject is who a certificate is for.
type Subject struct {
	Name string
	// Hosts are the names and addresses under which it is reached. Without any it can only call.
	Hosts               []string
	NotBefore, NotAfter time.Time
}

// NewAuthority makes a certificate that signs others.
func NewAuthority(s Subject) (*Pair, error) {
	template := newTemplate(s)
	template.IsCA, template.BasicConstraintsValid = true, true
	template.KeyUsage = x509.KeyUsageCertSign | x509.KeyUsageCRLSign
	return sign(template, nil)
}

// Issue makes a certificate that the authority signs. With hosts it serves and calls.
func (p *Pair) Issue(s Subject) (*Pair, error) {
	template := newTemplate(s)
	template.KeyUsage = x509.KeyUsageDigitalSignature
	template.ExtKeyUsage = []x509.ExtKeyUsage{x509.ExtKeyUsageClientAuth}
	if len(s.Hosts) > 0 {
		template.ExtKeyUsage = append(template.ExtKeyUsage, x509.ExtKeyUsageServerAuth)
	}
	for _, host := range s.Hosts {
		if ip := net.ParseIP(host); ip != nil {
			template.IPAddresses = append(template.IPAddresses, ip)
		} else if !slices.Contains(template.DNSNames, host) {
			template.DNSNames = append(template.DNSNames, host)
		}
	}
	return sign(template, p)
}

func newTemplate(s Subject) *x509.Certificate {
	return &x509.Certificate{
		Subject: pkix.Name{CommonName: s.Name, Organization: []string{"kvgate dev"}},
		// Serial numbers are random: certificates of earlier runs may still be about.
		SerialNumber: randomSerial(), NotBefore: s.NotBefore, NotAfter: s.NotAfter,
	}
}

func randomSerial() *big.Int {
	raw := make([]byte, 16)
	_, _ = rand.Read(raw) // never fails
	raw[0] &= 0x7f
	return new(big.Int).SetBytes(raw)
}

// sign makes a key and a certificate for it, signed by ca, or by itself without one.
func sign(template *x509.Certificate, ca *Pair) (*Pair, error) {
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		return nil, err
	}
	parent, signer := template, key
	if ca != nil {
		parent, signer = ca.Cert, ca.key
	}
	raw, err := x509.CreateCertificate(rand.Reader, template, parent, &key.PublicKey, signer)
	if err != nil {
		return nil, err
	}
	cert, err := x509.ParseCertificate(raw)
	return &Pair{cert, key}, err
}

// Paths returns where Write puts the certificate and the key of a name.
func Paths(dir, name string) (cert, key string) {
	return filepath.Join(dir, name+".pem"), filepath.Join(dir, name+"-key.pem")
}

// Write puts NAME.pem and NAME-key.pem into dir, each whole or not at all; the key is for its owner only.
func (p *Pair) Write(dir, name string) error {
	der, err := x509.MarshalPKCS8PrivateKey(p.key)
	if err != nil {
		return err
	}
	cert, key := Paths(dir, name)
	if err := writePEM(key, 0o600, "PRIVATE KEY", der); err != nil {
		return err
	}
	return writePEM(cert, 0o644, "CERTIFICATE", p.Cert.Raw)
}

func writePEM(path string, mode os.FileMode, kind string, der []byte) error {
	fresh := path + ".new"
	if err := os.WriteFile(fresh, pem.EncodeToMemory(&pem.Block{Type: kind, Bytes: der}), mode); err != nil {
		return err
	}
	return os.Rename(fresh, path)
}
