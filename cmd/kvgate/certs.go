package main

import (
	"context"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/pem"
	"fmt"
	"math/big"
	"net"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"github.com/spf13/cobra"
)

func newCertsCommand(m *Main) *cobra.Command {
	return groupCommand("certs", groupOperate, "Make certificates", newCertsDevCommand(m))
}

const certsDevHelp = `Makes an authority and certificates for trying things out: ca.pem and ca-key.pem, one NAME.pem and
NAME-key.pem for each --node, and client.pem and client-key.pem. The nodes' certificates serve the API
and raft, in both directions. Whoever has ca-key.pem can pose as any node: use an authority of your own
where that matters.`

// backdate covers machines whose clocks differ a little.
const backdate = time.Hour

type certsOptions struct {
	dir   string
	nodes []string
	hosts []string
	valid time.Duration
	force bool
}

func newCertsDevCommand(m *Main) *cobra.Command {
	o := &certsOptions{}
	cmd := &cobra.Command{
		Use: "dev DIR", Short: "Make a throw-away authority and certificates", Long: certsDevHelp,
		Example: "  kvgate certs dev ./certs\n  kvgate certs dev ./certs --node n1=a,10.0.0.1 --node n2=b --node n3=c --host kvgate.example",
		Args:    exactArgs("DIR"),
	}
	fs := cmd.Flags()
	fs.StringArrayVar(&o.nodes, "node", []string{"n1", "n2", "n3"}, "node as NAME or NAME=HOST,… with the names and addresses under which it is reached; may be repeated")
	fs.StringSliceVar(&o.hosts, "host", nil, "names and addresses that are good for every node, beside localhost, 127.0.0.1 and ::1")
	fs.DurationVar(&o.valid, "valid", 30*24*time.Hour, "how long the certificates are good")
	fs.BoolVar(&o.force, "force", false, "replace files that are there")
	cmd.RunE = m.run(func(_ context.Context, args []string) error {
		o.dir = args[0]
		return m.certsDev(o)
	})
	return cmd
}

func (m *Main) certsDev(o *certsOptions) error {
	if o.valid <= 0 {
		return badValue("valid", o.valid.String(), "a duration above 0 such as 720h")
	}
	subjects, err := o.subjects()
	if err != nil {
		return err
	}
	if err := o.refuseOverwrite(subjects); err != nil {
		return err
	}
	if err := os.MkdirAll(o.dir, 0o755); err != nil {
		return err
	}
	ca, err := newAuthority(o.valid)
	if err != nil {
		return err
	}
	if err := ca.write(o.dir, "ca"); err != nil {
		return err
	}
	for _, s := range subjects {
		issued, err := ca.issue(s, o.valid)
		if err != nil {
			return err
		}
		if err := issued.write(o.dir, s.name); err != nil {
			return err
		}
	}
	fmt.Fprintf(m.stdout, "%s: ca, %s; good until %s\n", clean(o.dir),
		strings.Join(each(subjects, func(s subject) string { return s.name }), ", "), ca.cert.NotAfter.Format(time.RFC3339))
	return nil
}

// subject is who a certificate is for.
type subject struct {
	name  string
	hosts []string
}

func (o *certsOptions) subjects() (out []subject, err error) {
	everyone := append([]string{"localhost", "127.0.0.1", "::1"}, o.hosts...)
	for _, written := range o.nodes {
		name, hosts, _ := strings.Cut(written, "=")
		if name == "" || name == "ca" || name == "client" || strings.ContainsFunc(name, notInNodeID) || filepath.Base(name) != name ||
			slices.ContainsFunc(out, func(s subject) bool { return s.name == name }) {
			return nil, badValue("node", written, "NAME or NAME=HOST,… with names of their own that are no paths, other than ca and client")
		}
		s := subject{name: name, hosts: append([]string{name}, everyone...)}
		if hosts != "" {
			s.hosts = append(s.hosts, strings.Split(hosts, ",")...)
		}
		out = append(out, s)
	}
	return append(out, subject{name: "client"}), nil
}

func (o *certsOptions) refuseOverwrite(subjects []subject) error {
	if o.force {
		return nil
	}
	for _, name := range append([]string{"ca"}, each(subjects, func(s subject) string { return s.name })...) {
		for _, path := range pemPaths(o.dir, name) {
			if _, err := os.Lstat(path); err == nil {
				return fmt.Errorf("%s is there already: give --force to replace it, or another directory", path)
			}
		}
	}
	return nil
}

func pemPaths(dir, name string) []string {
	return []string{filepath.Join(dir, name+".pem"), filepath.Join(dir, name+"-key.pem")}
}

// issued is a certificate with its key.
type issued struct {
	cert *x509.Certificate
	key  *ecdsa.PrivateKey
}

func newAuthority(valid time.Duration) (*issued, error) {
	template := newTemplate("kvgate dev authority", valid)
	template.IsCA, template.BasicConstraintsValid = true, true
	template.KeyUsage = x509.KeyUsageCertSign | x509.KeyUsageCRLSign
	return sign(template, nil)
}

// issue makes a certificate that serves and calls when it has hosts, and only calls when it has none.
func (ca *issued) issue(s subject, valid time.Duration) (*issued, error) {
	template := newTemplate(s.name, valid)
	template.KeyUsage = x509.KeyUsageDigitalSignature
	template.ExtKeyUsage = []x509.ExtKeyUsage{x509.ExtKeyUsageClientAuth}
	if len(s.hosts) > 0 {
		template.ExtKeyUsage = append(template.ExtKeyUsage, x509.ExtKeyUsageServerAuth)
	}
	for _, host := range s.hosts {
		if ip := net.ParseIP(host); ip != nil {
			template.IPAddresses = append(template.IPAddresses, ip)
		} else if !slices.Contains(template.DNSNames, host) {
			template.DNSNames = append(template.DNSNames, host)
		}
	}
	return sign(template, ca)
}

func newTemplate(name string, valid time.Duration) *x509.Certificate {
	now := time.Now()
	return &x509.Certificate{
		Subject: pkix.Name{CommonName: name, Organization: []string{"kvgate dev"}},
		// Serial numbers are random: certificates of earlier runs may still be about.
		SerialNumber: randomSerial(), NotBefore: now.Add(-backdate), NotAfter: now.Add(valid),
	}
}

func randomSerial() *big.Int {
	raw := make([]byte, 16)
	_, _ = rand.Read(raw) // never fails
	raw[0] &= 0x7f
	return new(big.Int).SetBytes(raw)
}

// sign makes a key and a certificate for it, signed by ca, or by itself without one.
func sign(template *x509.Certificate, ca *issued) (*issued, error) {
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		return nil, err
	}
	parent, signer := template, key
	if ca != nil {
		parent, signer = ca.cert, ca.key
	}
	raw, err := x509.CreateCertificate(rand.Reader, template, parent, &key.PublicKey, signer)
	if err != nil {
		return nil, err
	}
	cert, err := x509.ParseCertificate(raw)
	return &issued{cert, key}, err
}

// write puts NAME-key.pem and NAME.pem into dir, each whole or not at all; the key is for its owner only.
func (i *issued) write(dir, name string) error {
	der, err := x509.MarshalPKCS8PrivateKey(i.key)
	if err != nil {
		return err
	}
	paths := pemPaths(dir, name)
	if err := writePEM(paths[1], 0o600, "PRIVATE KEY", der); err != nil {
		return err
	}
	return writePEM(paths[0], 0o644, "CERTIFICATE", i.cert.Raw)
}

func writePEM(path string, mode os.FileMode, kind string, der []byte) error {
	fresh := path + ".new"
	if err := os.WriteFile(fresh, pem.EncodeToMemory(&pem.Block{Type: kind, Bytes: der}), mode); err != nil {
		return err
	}
	return os.Rename(fresh, path)
}
