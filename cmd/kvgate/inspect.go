package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"slices"
	"strings"

	"github.com/spf13/cobra"
	"google.golang.org/protobuf/proto"

	kvgatev1 "kvgate/rpc/kvgate/v1"
	"kvgate/store"
)

const inspectHelp = `Shows what a snapshot holds: the cluster, every pool's budget, leases, queue in order with reasons and
ages, sessions, closes that engines still owe, pins, engines and settings, and how far the journal
reaches. Ages and deadlines are those at the moment of the snapshot. FILE may also be the data directory
of a stopped node. The whole file is checked first.`

const inspectExample = `  kvgate snapshot inspect last-night.kvgate
  kvgate snapshot inspect last-night.kvgate --section queue,leases --pool qwen
  kvgate snapshot inspect last-night.kvgate --holder worker-3 --output json`

// inspectFilter says what of a snapshot is of interest.
type inspectFilter struct {
	sections                []string
	holder, session, ticket string
}

// view is one section of a snapshot: what the API answers, and how that looks in a table.
type view struct {
	name    string
	message proto.Message
	table   func(io.Writer) error
}

// poolViews are the sections of one pool.
type poolViews struct {
	pool  string
	views []view
}

func newSnapshotInspectCommand(m *Main) *cobra.Command {
	var (
		f            inspectFilter
		pool, output string
	)
	cmd := &cobra.Command{
		Use: "inspect FILE", Short: "Show what a snapshot holds", Long: inspectHelp, Example: inspectExample, Args: oneFile("inspect"),
	}
	fs := cmd.Flags()
	fs.StringSliceVar(&f.sections, "section", nil, "only these sections: "+strings.Join(sectionNames(), ", "))
	fs.StringVar(&pool, "pool", "", "only this pool")
	fs.StringVar(&f.holder, "holder", "", "only leases and waiters of this holder")
	fs.StringVar(&f.session, "session", "", "only this session, its leases, waiters and pins")
	fs.StringVar(&f.ticket, "ticket", "", "only this ticket")
	choiceVar(fs, &output, "output", outputTable, "form of the output", outputTable, outputJSON)
	cmd.RunE = m.run(func(ctx context.Context, args []string) (err error) {
		if err := f.check(); err != nil {
			return err
		}
		c, err := newOfflineClient(m, clientOptions{from: args[0], pool: pool, timeout: defaultTimeout, output: output})
		if err != nil {
			return err
		}
		defer func() { err = errors.Join(err, c.close()) }()
		return f.show(ctx, c)
	})
	return cmd
}

// sectionNames lists what --section accepts.
func sectionNames() []string {
	names := []string{"cluster", "journal"}
	for _, s := range poolSections {
		names = append(names, s.name)
	}
	return names
}

func (f *inspectFilter) check() error {
	for _, s := range f.sections {
		if !slices.Contains(sectionNames(), s) {
			return badValue("section", s, oneOf(sectionNames()))
		}
	}
	return nil
}

func (f *inspectFilter) wants(section string) bool {
	return len(f.sections) == 0 || slices.Contains(f.sections, section)
}

func (f *inspectFilter) show(ctx context.Context, c *client) error {
	var whole []view
	for _, read := range []func(context.Context, *client) (view, error){readCluster, readJournalRange} {
		v, err := read(ctx, c)
		if err != nil {
			return err
		}
		if f.wants(v.name) {
			whole = append(whole, v)
		}
	}
	pools, err := f.readPools(ctx, c)
	if err != nil {
		return err
	}
	if c.output == outputJSON {
		return writeInspectionJSON(c.m.stdout, c.offline.Header, whole, pools)
	}
	return writeInspection(c, whole, pools)
}

// readPools reads the wanted sections of the wanted pools.
func (f *inspectFilter) readPools(ctx context.Context, c *client) (out []poolViews, err error) {
	names := []string{c.pool}
	if c.pool == "" {
		answer, err := call(ctx, c, (*endpoint).ListPools, &kvgatev1.ListPoolsRequest{})
		if err != nil {
			return nil, err
		}
		names = answer.Pools
	}
	for _, name := range names {
		p := poolViews{pool: name}
		for _, s := range poolSections {
			if !f.wants(s.name) {
				continue
			}
			v, err := s.read(ctx, c, name, f)
			if err != nil {
				return nil, err
			}
			v.name = s.name
			p.views = append(p.views, v)
		}
		out = append(out, p)
	}
	return out, nil
}

// writeInspection writes the sections under headings.
func writeInspection(c *client, whole []view, pools []poolViews) error {
	w, h := c.m.stdout, c.offline.Header
	err := writeDetails(w, [][2]string{
		{"file", c.from},
		{"saved", h.WallTime.In(c.m.Location).Format("2006-01-02 15:04:05 MST")},
		{"cluster", h.ClusterID},
		{"index", fmt.Sprintf("%s of term %d", number(h.Index), h.Term)},
	})
	for _, v := range whole {
		err = errors.Join(err, writeSection(w, v.name, v))
	}
	for _, p := range pools {
		for _, v := range p.views {
			err = errors.Join(err, writeSection(w, v.name+" of pool "+p.pool, v))
		}
	}
	return err
}

func writeSection(w io.Writer, heading string, v view) error {
	if _, err := fmt.Fprintf(w, "\n== %s\n", clean(heading)); err != nil {
		return err
	}
	return v.table(w)
}

// writeInspectionJSON writes one object: the snapshot's header, then every section as the API answers it.
func writeInspectionJSON(w io.Writer, h store.Header, whole []view, pools []poolViews) error {
	out := map[string]any{"snapshot": h}
	for _, v := range whole {
		raw, err := answerJSON(v.message)
		if err != nil {
			return err
		}
		out[v.name] = json.RawMessage(raw)
	}
	list := make([]map[string]any, len(pools))
	for i, p := range pools {
		list[i] = map[string]any{"pool": p.pool}
		for _, v := range p.views {
			raw, err := answerJSON(v.message)
			if err != nil {
				return err
			}
			list[i][v.name] = json.RawMessage(raw)
		}
	}
	out["pools"] = list
	raw, err := json.Marshal(out)
	if err != nil {
		return err
	}
	return writeIndented(w, raw)
}
