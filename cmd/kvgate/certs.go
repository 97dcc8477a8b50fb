package main

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"kvgate/rpc/devcerts"
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
	subjects, err := o.subjects(time.Now())
	if err != nil {
		return err
	}
	if err := o.refuseOverwrite(subjects); err != nil {
		return err
	}
	if err := os.MkdirAll(o.dir, 0o755); err != nil {
		return err
	}
	if err := writeCerts(o.dir, subjects); err != nil {
		return err
	}
	fmt.Fprintf(m.stdout, "%s: ca, %s; good until %s\n", clean(o.dir),
		strings.Join(each(subjects, subjectName), ", "), subjects[0].NotAfter.UTC().Format(time.RFC3339))
	return nil
}

func writeCerts(dir string, subjects []devcerts.Subject) error {
	whole := subjects[0]
	ca, err := devcerts.NewAuthority(devcerts.Subject{Name: "kvgate dev authority", NotBefore: whole.NotBefore, NotAfter: whole.NotAfter})
	if err != nil {
		return err
	}
	if err := ca.Write(dir, "ca"); err != nil {
		return err
	}
	for _, s := range subjects {
		pair, err := ca.Issue(s)
		if err != nil {
			return err
		}
		if err := pair.Write(dir, s.Name); err != nil {
			return err
		}
	}
	return nil
}

func subjectName(s devcerts.Subject) string { return s.Name }

// subjects returns who gets a certificate: the nodes, then the client.
func (o *certsOptions) subjects(now time.Time) (out []devcerts.Subject, err error) {
	from, until := now.Add(-backdate), now.Add(o.valid)
	everyone := append([]string{"localhost", "127.0.0.1", "::1"}, o.hosts...)
	for _, written := range o.nodes {
		name, hosts, _ := strings.Cut(written, "=")
		if name == "" || name == "ca" || name == "client" || strings.ContainsFunc(name, notInNodeID) || filepath.Base(name) != name ||
			slices.ContainsFunc(out, func(s devcerts.Subject) bool { return s.Name == name }) {
			return nil, badValue("node", written, "NAME or NAME=HOST,… with names of their own that are no paths, other than ca and client")
		}
		s := devcerts.Subject{Name: name, Hosts: append([]string{name}, everyone...), NotBefore: from, NotAfter: until}
		if hosts != "" {
			s.Hosts = append(s.Hosts, strings.Split(hosts, ",")...)
		}
		out = append(out, s)
	}
	return append(out, devcerts.Subject{Name: "client", NotBefore: from, NotAfter: until}), nil
}

func (o *certsOptions) refuseOverwrite(subjects []devcerts.Subject) error {
	if o.force {
		return nil
	}
	for _, name := range append([]string{"ca"}, each(subjects, subjectName)...) {
		cert, key := devcerts.Paths(o.dir, name)
		for _, path := range []string{cert, key} {
			if _, err := os.Lstat(path); err == nil {
				return fmt.Errorf("%s is there already: give --force to replace it, or another directory", path)
			}
		}
	}
	return nil
}
