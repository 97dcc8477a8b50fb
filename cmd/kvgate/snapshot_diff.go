package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"

	"github.com/spf13/cobra"

	kvgatev1 "kvgate/rpc/kvgate/v1"
	"kvgate/store"
)

const diffHelp = `Shows what is different in snapshot B from snapshot A: leases and waiters that came and went, sessions,
pins, engines, settings and budgets. Ages and remaining times, which differ between any two moments, are
left out. When both are of one cluster it also counts the journal's events between them, by kind.`

// diffed says for each section what its items are called by, and which fields change by themselves.
var diffed = map[string]struct {
	list   string // empty: the section is one item, each of its fields a thing of its own
	key    []string
	ignore []string
}{
	"budget":   {ignore: []string{"oldestWait", "pool"}},
	"queue":    {"waiters", []string{"ticketId"}, []string{"waited", "agesIn", "position"}},
	"leases":   {"leases", []string{"ticketId", "grant"}, []string{"held", "expiresIn"}},
	"sessions": {"sessions", []string{"sessionId"}, nil},
	"pins":     {"pins", []string{"pinId"}, []string{"expiresIn"}},
	"engines":  {"engines", []string{"url"}, nil},
	"settings": {list: ""},
}

// difference is one thing that is not the same in both snapshots.
type difference struct {
	Pool    string         `json:"pool"`
	Section string         `json:"section"`
	Item    string         `json:"item"`
	Change  string         `json:"change"` // "added", "removed" or "changed"
	Before  map[string]any `json:"before,omitempty"`
	After   map[string]any `json:"after,omitempty"`
}

// snapshotDiff is the answer of `snapshot diff`.
type snapshotDiff struct {
	A           store.Header     `json:"a"`
	B           store.Header     `json:"b"`
	SameCluster bool             `json:"sameCluster"`
	Differences []difference     `json:"differences"`
	Events      map[string]int64 `json:"events"` // of B's journal after A, by kind; empty for different clusters
}

func newSnapshotDiffCommand(m *Main) *cobra.Command {
	var pool, output string
	cmd := &cobra.Command{
		Use: "diff A B", Short: "Show what changed between two snapshots", Long: diffHelp,
		Example: "  kvgate snapshot diff 03-00.kvgate 03-15.kvgate",
		Args: func(_ *cobra.Command, args []string) error {
			if len(args) != 2 {
				return usagef("snapshot diff: %d files are named: use two, A and B", len(args))
			}
			return nil
		},
	}
	cmd.Flags().StringVar(&pool, "pool", "", "only this pool")
	choiceVar(cmd.Flags(), &output, "output", outputTable, "form of the output", outputTable, outputJSON)
	cmd.RunE = m.run(func(ctx context.Context, args []string) (err error) {
		var sides [2]*client
		for i, path := range args {
			if sides[i], err = newOfflineClient(m, clientOptions{from: path, timeout: defaultTimeout, pool: pool}); err != nil {
				return err
			}
			defer func() { err = errors.Join(err, sides[i].close()) }()
		}
		d, err := diffSnapshots(ctx, sides[0], sides[1])
		if err != nil {
			return err
		}
		if output == outputJSON {
			raw, err := json.Marshal(d)
			return errors.Join(err, writeIndented(m.stdout, raw))
		}
		return writeDiff(m, d)
	})
	return cmd
}

func diffSnapshots(ctx context.Context, a, b *client) (*snapshotDiff, error) {
	d := &snapshotDiff{A: a.offline.Header, B: b.offline.Header, Differences: []difference{}, Events: map[string]int64{}}
	d.SameCluster = d.A.ClusterID == d.B.ClusterID
	before, err := itemsOf(ctx, a)
	if err != nil {
		return nil, err
	}
	after, err := itemsOf(ctx, b)
	if err != nil {
		return nil, err
	}
	d.compare(before, after)
	if d.SameCluster {
		err = countEvents(ctx, b, d.A.Index+1, d.Events)
	}
	return d, err
}

// itemPlace says where an item is.
type itemPlace struct{ pool, section, item string }

// itemsOf reads everything that is compared.
func itemsOf(ctx context.Context, c *client) (map[itemPlace]map[string]any, error) {
	f := &inspectFilter{sections: slices.Collect(maps.Keys(diffed))}
	pools, err := f.readPools(ctx, c)
	if err != nil {
		return nil, err
	}
	items := map[itemPlace]map[string]any{}
	for _, p := range pools {
		for _, v := range p.views {
			raw, err := answerJSON(v.message)
			if err != nil {
				return nil, err
			}
			var answer map[string]any
			if err := json.Unmarshal(raw, &answer); err != nil {
				return nil, err
			}
			addItems(items, p.pool, v.name, answer)
		}
	}
	return items, nil
}

func addItems(items map[itemPlace]map[string]any, pool, section string, answer map[string]any) {
	how := diffed[section]
	if how.list == "" {
		if inner, ok := answer["settings"].(map[string]any); ok {
			answer = inner
		}
		for name, value := range answer {
			if !slices.Contains(how.ignore, name) {
				items[itemPlace{pool, section, name}] = map[string]any{name: value}
			}
		}
		return
	}
	list, _ := answer[how.list].([]any)
	for _, one := range list {
		fields, _ := one.(map[string]any)
		var key []string
		for _, k := range how.key {
			key = append(key, fmt.Sprint(fields[k]))
		}
		for _, name := range how.ignore {
			delete(fields, name)
		}
		items[itemPlace{pool, section, strings.Join(key, " #")}] = fields
	}
}

// compare fills in the differences, sorted by pool, section and item.
func (d *snapshotDiff) compare(before, after map[itemPlace]map[string]any) {
	for at, old := range before {
		now, there := after[at]
		switch {
		case !there:
			d.add(at, "removed", old, nil)
		case !sameFields(old, now):
			d.add(at, "changed", only(old, now), only(now, old))
		}
	}
	for at, now := range after {
		if _, there := before[at]; !there {
			d.add(at, "added", nil, now)
		}
	}
	slices.SortFunc(d.Differences, func(a, b difference) int {
		return strings.Compare(a.Pool+"\x00"+a.Section+"\x00"+a.Item, b.Pool+"\x00"+b.Section+"\x00"+b.Item)
	})
}

func (d *snapshotDiff) add(at itemPlace, change string, before, after map[string]any) {
	d.Differences = append(d.Differences, difference{at.pool, at.section, at.item, change, before, after})
}

func sameFields(a, b map[string]any) bool { return len(only(a, b)) == 0 && len(only(b, a)) == 0 }

// only returns the fields of a that b has not, or has otherwise.
func only(a, b map[string]any) map[string]any {
	out := map[string]any{}
	for name, value := range a {
		if other, there := b[name]; !there || fmt.Sprint(value) != fmt.Sprint(other) && !sameMoment(value, other) {
			out[name] = value
		}
	}
	return out
}

// clockSlack is how far apart two snapshots may show one moment: a file keeps ledger time, and the time of day follows
// from how long after its newest entry it was saved.
const clockSlack = 3 * time.Second

// sameMoment reports that two values are times of day that mean the same moment.
func sameMoment(a, b any) bool {
	one, err := time.Parse(time.RFC3339Nano, fmt.Sprint(a))
	if err != nil {
		return false
	}
	other, err := time.Parse(time.RFC3339Nano, fmt.Sprint(b))
	return err == nil && one.Sub(other).Abs() <= clockSlack
}

// countEvents counts the events from an index on, by kind.
func countEvents(ctx context.Context, c *client, from uint64, into map[string]int64) error {
	req := &kvgatev1.ReadJournalRequest{FromIndex: from, Pool: c.pool, PageSize: largestPage}
	for {
		page, err := call(ctx, c, (*endpoint).ReadJournal, req)
		if err != nil {
			return err
		}
		for _, e := range page.Events {
			into[e.Kind]++
		}
		if req.PageToken = page.NextPageToken; req.PageToken == "" {
			return nil
		}
	}
}

func writeDiff(m *Main, d *snapshotDiff) error {
	side := func(h store.Header) string {
		return fmt.Sprintf("%s, entry %s, cluster %s", h.WallTime.In(m.Location).Format("2006-01-02 15:04:05 MST"), number(h.Index), h.ClusterID)
	}
	var kinds []string
	for _, k := range slices.Sorted(maps.Keys(d.Events)) {
		kinds = append(kinds, fmt.Sprintf("%s %s", number(d.Events[k]), k))
	}
	err := writeDetails(m.stdout, [][2]string{{"A", side(d.A)}, {"B", side(d.B)}, {"events between", strings.Join(kinds, ", ")}})
	if err != nil {
		return err
	}
	fmt.Fprintln(m.stdout)
	rows := make([][]string, len(d.Differences))
	for i, x := range d.Differences {
		rows[i] = []string{x.Pool, x.Section, x.Item, x.Change, x.words()}
	}
	return writeTable(m.stdout, "no differences", []column{left("pool"), left("section"), left("what"), left("change"), left("how")}, rows)
}

// words says how something changed: what it was and is now, or what came or went.
func (x difference) words() string {
	fields := x.After
	if x.Change == "removed" {
		fields = x.Before
	}
	var out []string
	for _, name := range slices.Sorted(maps.Keys(fields)) {
		value := fmt.Sprint(fields[name])
		switch {
		case x.Change == "changed" && name == x.Item:
			out = append(out, fmt.Sprintf("%v → %s", x.Before[name], value))
		case x.Change == "changed":
			out = append(out, fmt.Sprintf("%s %v → %s", name, x.Before[name], value))
		case value != "" && value != "0" && value != "false" && value != "<nil>" && value != "[]":
			out = append(out, name+"="+value)
		}
	}
	return strings.Join(out, ", ")
}
