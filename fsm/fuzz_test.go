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
		m := &Machine{ledger: ledger.New(), newest: Version}
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
		storable(t, m.ledger)
	})
}

// storable: every row of the ledger has a key that the store takes, and they make the same ledger.
func storable(t *testing.T, l *ledger.Ledger) {
	keys := map[string]bool{}
	loader := ledger.NewLoader()
	for _, c := range exported(l) {
		row, err := encodeRow(c)
		must(t, err)
		key := row.Bucket.String() + "/" + string(row.Key)
		if len(row.Key) == 0 || len(row.Key) > store.MaxKey || keys[key] {
			t.Fatalf("key %q is empty, too long or taken", key)
		}
		keys[key] = true
		back, err := decodeRow(row.Bucket, row.Key, row.Value)
		must(t, err)
		loader.Add(back)
	}
	loaded, err := loader.Finish()
	must(t, err)
	if a, b := exportHash(t, l), exportHash(t, loaded); a != b {
		t.Fatalf("the ledger that was loaded differs:\n%q\n%q", a, b)
	}
}

func exportHash(t *testing.T, l *ledger.Ledger) string {
	var out []byte
	for _, c := range exported(l) {
		row, err := encodeRow(c)
		must(t, err)
		out = append(append(out, row.Key...), row.Value...)
	}
	return string(out)
}

// FuzzRow: no row on disk makes a node panic; it is loaded, or refused as damaged.
func FuzzRow(f *testing.F) {
	l := ledger.New()
	for _, g := range golden {
		_, err := applyBatch(l, &fsmpb.Batch{Version: 1, Ops: []*fsmpb.Op{g.op}}, Version)
		must(f, err)
	}
	for _, c := range exported(l) {
		row, err := encodeRow(c)
		must(f, err)
		f.Add(uint8(row.Bucket), row.Key, row.Value)
	}
	f.Fuzz(func(t *testing.T, bucket uint8, key, value []byte) {
		row, err := decodeRow(store.Bucket(bucket), key, value)
		if err != nil {
			if !errors.Is(err, ErrCorrupt) {
				t.Fatalf("refused as %v", err)
			}
			return
		}
		loader := ledger.NewLoader()
		loader.Add(ledger.Change{Pool: &ledger.PoolRow{Name: ledger.DefaultPool, Settings: ledger.DefaultSettings()}})
		loader.Add(row)
		loaded, err := loader.Finish()
		if err != nil {
			return
		}
		loaded.Advance(loaded.Now()+1, maxDue)
		loaded.Changes(func(c ledger.Change) {
			if _, err := encodeRow(c); err != nil {
				t.Fatal(err)
			}
		})
	})
}
