package fsm

import (
	"errors"
	"os"
	"path/filepath"
	"testing"

	"github.com/hashicorp/raft"
	"google.golang.org/protobuf/proto"

	"kvgate/fsm/fsmpb"
	"kvgate/ledger"
	"kvgate/sessions"
	"kvgate/store"
)

// FuzzBatch: no log entry makes a node panic. It is applied, or the node halts with a reason; and what
// was applied can be stored and loaded again.
func FuzzBatch(f *testing.F) {
	files, err := filepath.Glob(goldenDir + "/*.pb")
	must(f, err)
	var all fsmpb.Batch
	for _, path := range files {
		data, err := os.ReadFile(path)
		must(f, err)
		f.Add(data)
		must(f, proto.UnmarshalOptions{Merge: true}.Unmarshal(data, &all))
	}
	whole, err := proto.Marshal(&all)
	must(f, err)
	f.Add(whole)
	f.Add([]byte{0xff})
	f.Fuzz(func(t *testing.T, data []byte) {
		m := &Machine{core: emptyCore(), newest: Version}
		prepared := &fsmpb.Batch{Version: 1, Ops: []*fsmpb.Op{golden[2].op, golden[3].op, golden[4].op, golden[5].op}}
		if _, _, err := m.applyEntry(entry(t, 1, prepared)); err != nil {
			t.Fatal(err)
		}
		r, _, err := m.applyEntry(&raft.Log{Index: 2, Data: data})
		if err != nil {
			if !errors.Is(err, ErrUnknownVersion) && !errors.Is(err, ErrCorrupt) {
				t.Fatalf("halts for no known reason: %v", err)
			}
			return
		}
		var b fsmpb.Batch
		must(t, proto.Unmarshal(data, &b))
		if b.Version != 1 || len(r.results) != len(b.Ops) {
			t.Fatalf("version %d with %d operations gave %d results", b.Version, len(b.Ops), len(r.results))
		}
		for _, res := range r.results {
			decodeResult(encodeResult(res))
		}
		storable(t, m.core)
	})
}

// storable: every row of the state has a key that the store takes, and they make the same state.
func storable(t *testing.T, c *core) {
	keys := map[string]bool{}
	loader := newCoreLoader()
	for _, row := range exportRows(t, c) {
		key := row.Bucket.String() + "/" + string(row.Key)
		if len(row.Key) == 0 || len(row.Key) > store.MaxKey || keys[key] {
			t.Fatalf("key %q is empty, too long or taken", key)
		}
		keys[key] = true
		must(t, loader.add(row.Bucket, row.Key, row.Value))
	}
	loaded, err := loader.finish()
	must(t, err)
	if a, b := exportHash(t, c), exportHash(t, loaded); a != b {
		t.Fatalf("the state that was loaded differs:\n%q\n%q", a, b)
	}
}

// emptyCore returns a state without a history.
func emptyCore() *core { return newCore(ledger.New(), sessions.NewTable()) }

// exportRows returns all rows of a state.
func exportRows(t failer, c *core) (out []store.Change) {
	add := func(row store.Change, err error) {
		check(t, err)
		out = append(out, row)
	}
	c.ledger.Export(func(x ledger.Change) { add(encodeRow(x)) })
	c.table.Export(func(x sessions.Change) { add(encodeSessionRow(x)) })
	return out
}

func exportHash(t *testing.T, c *core) string {
	var out []byte
	for _, row := range exportRows(t, c) {
		out = append(append(out, row.Key...), row.Value...)
	}
	return string(out)
}

// FuzzRow: no row on disk makes a node panic; it is loaded, or refused as damaged.
func FuzzRow(f *testing.F) {
	c := emptyCore()
	for _, g := range golden {
		_, err := applyBatch(c, &fsmpb.Batch{Version: 1, Ops: []*fsmpb.Op{g.op}}, Version)
		must(f, err)
	}
	for _, row := range exportRows(f, c) {
		f.Add(uint8(row.Bucket), row.Key, row.Value)
	}
	f.Fuzz(func(t *testing.T, bucket uint8, key, value []byte) {
		loader := newCoreLoader()
		loader.ledger.Add(ledger.Change{Pool: &ledger.PoolRow{Name: ledger.DefaultPool, Settings: ledger.DefaultSettings()}})
		loader.table.Add(sessions.Change{Meta: &sessions.MetaRow{Seq: 1 << 62}})
		loader.table.Add(sessions.Change{Pool: &sessions.PoolRow{Pool: ledger.DefaultPool}})
		if err := loader.add(store.Bucket(bucket), key, value); err != nil {
			if !errors.Is(err, ErrCorrupt) {
				t.Fatalf("refused as %v", err)
			}
			return
		}
		loaded, err := loader.finish()
		if err != nil {
			return
		}
		loaded.pass(loaded.ledger.Now()+1, maxDue)
		exportRows(t, loaded)
	})
}
