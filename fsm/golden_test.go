package fsm

import (
	"bytes"
	"encoding/json"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"testing"
	"time"

	"google.golang.org/protobuf/encoding/protowire"
	"google.golang.org/protobuf/proto"

	"kvgate/fsm/fsmpb"
	"kvgate/ledger"
	"kvgate/sessions"
	"kvgate/store"
)

// goldenDir holds one encoded batch per file. They are what nodes of this and later releases have in
// their logs: never change or delete one. A new kind of operation or a new version adds files; -update
// writes those that are missing, and the outcomes.
const (
	goldenDir  = "testdata/batch_v1"
	goldenDir2 = "testdata/batch_v2"

	goldenDirSessions = "testdata/batch_v2_sessions"
)

// goldenOp is one file.
type goldenOp struct {
	name string
	op   *fsmpb.Op
}

// golden is the history that made the files, in the order of their names.
var golden = []goldenOp{
	{"01_new_term", &fsmpb.Op{Kind: &fsmpb.Op_NewTerm{NewTerm: &fsmpb.NewTerm{Term: 3, Node: "n1"}}}},
	{"02_set_cluster", &fsmpb.Op{Kind: &fsmpb.Op_SetCluster{SetCluster: &fsmpb.SetCluster{Id: "9d7e"}}}},
	{"03_update_settings", updateOp(ledger.DefaultPool, ledger.Patch{
		Set:    ledger.Settings{Staleness: time.Hour, Headroom: 1, EngineURLs: []string{"http://a:1", "http://b:1"}, Scope: ledger.ScopeAll},
		Fields: []string{"staleness", "headroom", "engineUrls", "scope"}, Clear: []string{"modelId"},
	})},
	{"04_reconcile", reconcileOp(ledger.DefaultPool, ledger.Round{
		Fresh: true, Discovery: "static", Reason: "b is down", Repeats: 2, Engines: []ledger.Engine{
			{URL: "http://a:1", Healthy: true, Capacity: 100, Used: 20, Evictable: 5, Usage: 0.2, Pressure: 0.25, DPRanks: 2, Role: ledger.RoleRegular, Incarnation: "i1", EvictionRate: 1.5, Running: 3, Queued: 1},
			{URL: "http://b:1", Error: "connection refused"},
		},
	})},
	{"05_acquire_admitted", acquireOp(ledger.Acquire{
		Pool: ledger.DefaultPool, Ticket: "req-1:0", PromptTokens: 40, MaxNewTokens: 20, Mode: ledger.ModeTrain,
		Session: "s1", Group: "g1", Holder: "h1", RID: "r1", TTL: time.Minute, MaxWait: -1,
	})},
	{"06_acquire_waits", acquireOp(ledger.Acquire{
		Pool: ledger.DefaultPool, Ticket: "req-2:0", ReservationTokens: 70, Mode: ledger.ModeEval, Priority: 2, Holder: "h2", MaxWait: 20 * time.Second,
	})},
	{"07_detach", &fsmpb.Op{Kind: &fsmpb.Op_Detach{Detach: &fsmpb.Detach{Pool: ledger.DefaultPool, Ticket: "req-2:0", Seq: 2, Attempt: 1}}}},
	{"08_renew", renewOp(ledger.DefaultPool, []ledger.LeaseRef{{Ticket: "req-1:0", Epoch: 1, HasEpoch: true, Grant: 1}, {Ticket: "gone"}}, 2*time.Minute)},
	{"09_cancel", &fsmpb.Op{Kind: &fsmpb.Op_Cancel{Cancel: &fsmpb.Cancel{Pool: ledger.DefaultPool, Ticket: "req-9:0"}}}},
	{"10_release", releaseOp(ledger.Release{
		Pool: ledger.DefaultPool, Ticket: "req-1:0", Epoch: 1, HasEpoch: true, Grant: 1, Holder: "h1",
		Usage: &ledger.Usage{PromptTokens: 40, CompletionTokens: 7, CachedTokens: 30, Engine: "http://a:1", Outcome: "ok"},
	})},
	{"11_drain_step", &fsmpb.Op{Kind: &fsmpb.Op_DrainStep{DrainStep: &fsmpb.DrainStep{Pool: ledger.DefaultPool, Run: "run-1", Step: 4}}}},
	// The grant of 10 claimed nothing new of h2, which was last heard of at 06.
	{"12_reclaim_holder", &fsmpb.Op{Kind: &fsmpb.Op_ReclaimHolder{ReclaimHolder: &fsmpb.ReclaimHolder{
		Pool: ledger.DefaultPool, Holder: "h2", LastActive: int64(6 * time.Second),
	}}}},
	{"13_trim_journal", &fsmpb.Op{Kind: &fsmpb.Op_TrimJournal{TrimJournal: &fsmpb.TrimJournal{FirstIndex: 5}}}},
	{"14_tick", &fsmpb.Op{Kind: &fsmpb.Op_Tick{Tick: &fsmpb.Tick{}}}},
	{"15_update_makes_pool", updateOp("eval", ledger.Patch{Set: ledger.Settings{ModelID: "m"}, Fields: []string{"modelId"}})},
	{"16_delete_pool", &fsmpb.Op{Kind: &fsmpb.Op_DeletePool{DeletePool: &fsmpb.DeletePool{Pool: "eval"}}}},
	{"17_acquire_stays", acquireOp(ledger.Acquire{Pool: ledger.DefaultPool, Ticket: "req-3:0", ReservationTokens: 90, Holder: "h3", MaxWait: -1})},
	{"18_acquire_behind", acquireOp(ledger.Acquire{Pool: ledger.DefaultPool, Ticket: "req-4:0", ReservationTokens: 50, MaxWait: 30 * time.Second})},
}

// golden2 is a history of its own: what version 2 brought.
var golden2 = []goldenOp{
	{"01_cancel_early", cancelOp(ledger.Cancel{Pool: ledger.DefaultPool, Ticket: "early", Call: 7})},
	{"02_acquire_is_let_go", acquireOp(ledger.Acquire{Pool: ledger.DefaultPool, Ticket: "early", PromptTokens: 4, MaxWait: -1, Call: 8})},
	{"03_acquire_comes_again", acquireOp(ledger.Acquire{Pool: ledger.DefaultPool, Ticket: "early", PromptTokens: 4, MaxWait: -1, Call: 8})},
	{"04_cancel_comes_again", cancelOp(ledger.Cancel{Pool: ledger.DefaultPool, Ticket: "early", Call: 7})},
	{"05_another_acquire", acquireOp(ledger.Acquire{Pool: ledger.DefaultPool, Ticket: "early", PromptTokens: 4, MaxWait: -1, Call: 9})},
}

// goldenSessions is a history of its own, too: sessions, which version 2 brought as well.
var goldenSessions = []goldenOp{
	{"01_update_settings", golden[2].op},
	{"02_reconcile", golden[3].op},
	{"03_acquire_admitted", golden[4].op},
	{"04_acquire_waits", golden[5].op},
	{"05_open_session", openOp(sessions.OpenRequest{Pool: ledger.DefaultPool, ID: "s2", Group: "g2", IdleTimeout: -1})},
	{"06_open_streaming", openOp(sessions.OpenRequest{
		Pool: ledger.DefaultPool, ID: "s3", Kind: sessions.Streaming, IdleTimeout: time.Minute, Engine: "http://a:1",
	})},
	{"07_touch_session", &fsmpb.Op{Kind: &fsmpb.Op_TouchSession{TouchSession: &fsmpb.TouchSession{Pool: ledger.DefaultPool, Id: "s2"}}}},
	{"08_bind_session", bindOp(sessions.BindRequest{Pool: ledger.DefaultPool, ID: "s2", Engine: "http://b:1@3", DPRank: 3, TTL: time.Minute})},
	{"09_pins_allowed", updateOp(ledger.DefaultPool, ledger.Patch{Set: ledger.Settings{PinRatio: 0.5}, Fields: []string{"pinRatio"}})},
	{"10_pin", pinOp(sessions.PinRequest{Pool: ledger.DefaultPool, ID: "p1", Session: "s2", Tokens: 30, TTL: 5 * time.Minute, Engine: "http://a:1"})},
	{"11_report_pin", &fsmpb.Op{Kind: &fsmpb.Op_ReportPin{ReportPin: &fsmpb.ReportPin{Pool: ledger.DefaultPool, Id: "p1", Engine: "http://a:1", LedgerOnly: true}}}},
	{"12_unpin", &fsmpb.Op{Kind: &fsmpb.Op_Unpin{Unpin: &fsmpb.Unpin{Pool: ledger.DefaultPool, Id: "p1"}}}},
	{"13_pin_stays", pinOp(sessions.PinRequest{Pool: ledger.DefaultPool, ID: "p2", Tokens: 10})},
	{"14_acquire_bypassed", acquireOp(ledger.Acquire{
		Pool: ledger.DefaultPool, Ticket: "req-5:0", ReservationTokens: 5, Protected: true, Session: "s2", RID: "r5", MaxWait: -1,
	})},
	{"15_acquire_waits_for_session", acquireOp(ledger.Acquire{
		Pool: ledger.DefaultPool, Ticket: "req-6:0", ReservationTokens: 5, Session: "s2", MaxWait: -1,
	})},
	{"16_close_session", closeOp(sessions.CloseRequest{Pool: ledger.DefaultPool, ID: "s2", Mode: sessions.Abort, Timeout: time.Second})},
	{"17_report_aborts", reportOp([]sessions.Report{{Pool: ledger.DefaultPool, Session: "s2", Seq: 3, Aborted: []string{"req-5:0"}}})},
	{"18_release_bypassed", releaseOp(ledger.Release{Pool: ledger.DefaultPool, Ticket: "req-5:0", Usage: &ledger.Usage{PromptTokens: 5, Engine: "http://a:1"}})},
	{"19_report_closes", reportOp([]sessions.Report{{Pool: ledger.DefaultPool, Session: "s2", Seq: 3, Acked: []string{"http://b:1"}}})},
	{"20_close_group", &fsmpb.Op{Kind: &fsmpb.Op_CloseGroup{CloseGroup: &fsmpb.CloseGroup{Pool: ledger.DefaultPool, Group: "g1", Mode: uint32(sessions.Join)}}}},
	{"21_acquire_opens_session", acquireOp(ledger.Acquire{
		Pool: ledger.DefaultPool, Ticket: "req-7:0", ReservationTokens: 5, Protected: true, Session: "s4", Group: "g4", Holder: "h7", MaxWait: -1,
	})},
}

// writeGolden writes the batches that are not there yet.
func writeGolden(t *testing.T, dir string, version uint32, list []goldenOp) {
	must(t, os.MkdirAll(dir, 0o755))
	for i, g := range list {
		path := filepath.Join(dir, g.name+".pb")
		if _, err := os.Stat(path); err == nil {
			continue
		}
		data, err := proto.Marshal(&fsmpb.Batch{
			Version: version, LedgerTime: int64(i+1) * int64(time.Second), WallTime: 1_790_000_000e9, Ops: []*fsmpb.Op{g.op},
		})
		must(t, err)
		must(t, os.WriteFile(path, data, 0o644))
	}
}

// outcome is what applying one file does, as people can read it.
type outcome struct {
	File      string
	Results   []any             `json:",omitempty"`
	Decisions []ledger.Decision `json:",omitempty"`
	Events    []ledger.Event    `json:",omitempty"`
	Sessions  []sessions.Event  `json:",omitempty"`
}

// TestGoldenBatches decodes and applies the stored batches and compares what they do, and the state
// that they leave.
func TestGoldenBatches(t *testing.T) {
	if *update {
		writeGolden(t, goldenDir, 1, golden)
		writeGolden(t, goldenDir2, 2, golden2)
		writeGolden(t, goldenDirSessions, 2, goldenSessions)
	}
	c, kinds := applyGolden(t, goldenDir, len(golden))
	// Not rows_v1.json: those were stored before there were sessions.
	compareGolden(t, goldenDir+"/rows.json", marshal(t, exported(c)))
	c, _ = applyGolden(t, goldenDir2, len(golden2))
	compareGolden(t, "testdata/rows_v2.json", marshal(t, exported(c)))
	c, more := applyGolden(t, goldenDirSessions, len(goldenSessions))
	compareGolden(t, "testdata/rows_v2_sessions.json", marshal(t, exported(c)))
	maps.Copy(kinds, more)
	wantAllKinds(t, kinds)
}

// applyGolden applies the batches of a directory and compares what they do.
func applyGolden(t *testing.T, dir string, atLeast int) (*core, map[string]bool) {
	files, err := filepath.Glob(dir + "/*.pb")
	must(t, err)
	if len(files) < atLeast {
		t.Fatalf("%s: %d golden batches, want at least %d: one of them is missing", dir, len(files), atLeast)
	}
	c := emptyCore()
	c.forget()
	var outcomes []outcome
	kinds := map[string]bool{}
	for _, path := range files {
		data, err := os.ReadFile(path)
		must(t, err)
		var b fsmpb.Batch
		must(t, proto.Unmarshal(data, &b))
		for _, op := range b.Ops {
			m := op.ProtoReflect()
			kinds[string(m.WhichOneof(m.Descriptor().Oneofs().Get(0)).Name())] = true
		}
		res, err := applyBatch(c, &b, Version)
		must(t, err)
		o := outcome{File: filepath.Base(path), Events: slices.Clone(c.ledger.Events()), Decisions: res.decisions, Sessions: slices.Clone(c.table.Events())}
		for _, r := range res.results {
			must(t, r.Err)
			o.Results = append(o.Results, r.Value)
		}
		outcomes = append(outcomes, o)
		c.forget()
	}
	compareGolden(t, dir+"/outcomes.json", marshal(t, outcomes))
	return c, kinds
}

// wantAllKinds: a new kind of operation needs a golden batch.
func wantAllKinds(t *testing.T, seen map[string]bool) {
	fields := (&fsmpb.Op{}).ProtoReflect().Descriptor().Oneofs().Get(0).Fields()
	for i := range fields.Len() {
		if name := string(fields.Get(i).Name()); !seen[name] {
			t.Errorf("no golden batch has an operation of kind %s", name)
		}
	}
}

func exported(c *core) (rows []any) {
	c.ledger.Export(func(x ledger.Change) { rows = append(rows, x) })
	c.table.Export(func(x sessions.Change) { rows = append(rows, x) })
	return rows
}

func marshal(t *testing.T, v any) []byte {
	data, err := json.MarshalIndent(v, "", " ")
	must(t, err)
	return append(data, '\n')
}

func compareGolden(t *testing.T, path string, got []byte) {
	t.Helper()
	if *update {
		must(t, os.WriteFile(path, got, 0o644))
	}
	want, err := os.ReadFile(path)
	must(t, err)
	if !bytes.Equal(got, want) {
		at := 0
		for at < min(len(got), len(want)) && got[at] == want[at] {
			at++
		}
		t.Errorf("%s differs at byte %d:\n got …%.200s\nwant …%.200s", path, at, got[max(0, at-80):], want[max(0, at-80):])
	}
}

// TestGoldenRows loads the rows that were stored before there were sessions, and since. A file holds
// bucket, key and value of each, length-delimited; it is written when it is missing and never again.
func TestGoldenRows(t *testing.T) {
	t.Run("v1", func(t *testing.T) { testGoldenRows(t, "testdata/rows_v1", 1, golden) })
	t.Run("sessions", func(t *testing.T) { testGoldenRows(t, "testdata/rows_v2_sessions", 2, goldenSessions) })
}

func testGoldenRows(t *testing.T, name string, version uint32, list []goldenOp) {
	path := name + ".pb"
	if _, err := os.Stat(path); err != nil && *update {
		must(t, os.WriteFile(path, encodeGoldenRows(t, version, list), 0o644))
	}
	data, err := os.ReadFile(path)
	must(t, err)
	loader := newCoreLoader()
	for len(data) > 0 {
		var parts [3][]byte
		for i := range parts {
			part, n := protowire.ConsumeBytes(data)
			if n < 0 {
				t.Fatalf("%s: %v", path, protowire.ParseError(n))
			}
			parts[i], data = part, data[n:]
		}
		bucket, ok := store.ParseBucket(string(parts[0]))
		if !ok {
			t.Fatalf("no bucket %q", parts[0])
		}
		must(t, loader.add(bucket, parts[1], parts[2]))
	}
	c, err := loader.finish()
	must(t, err)
	compareGolden(t, name+".json", marshal(t, exported(c)))
}

// encodeGoldenRows encodes the state that the golden batches leave.
func encodeGoldenRows(t *testing.T, version uint32, list []goldenOp) (out []byte) {
	c := emptyCore()
	for i, g := range list {
		_, err := applyBatch(c, &fsmpb.Batch{Version: version, LedgerTime: int64(i+1) * int64(time.Second), Ops: []*fsmpb.Op{g.op}}, Version)
		must(t, err)
	}
	for _, row := range exportRows(t, c) {
		for _, part := range [][]byte{[]byte(row.Bucket.String()), row.Key, row.Value} {
			out = protowire.AppendBytes(out, part)
		}
	}
	return out
}
