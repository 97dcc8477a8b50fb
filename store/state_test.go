package store

import (
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"maps"
	"math/rand/v2"
	"os"
	"path/filepath"
	"testing"

	"go.etcd.io/bbolt"
	"pgregory.net/rapid"
)

// rows is the naive model of a state: values by bucket and key.
type rows map[string]string

func (r rows) apply(changes []Change) {
	for _, c := range changes {
		k := c.Bucket.String() + "/" + string(c.Key)
		if c.Value == nil {
			delete(r, k)
		} else {
			r[k] = string(c.Value)
		}
	}
}

func rowsOf(s *State) (rows, error) {
	got := rows{}
	for _, b := range Buckets() {
		err := s.ForEach(b, func(k, v []byte) error {
			got[b.String()+"/"+string(k)] = string(v)
			return nil
		})
		if err != nil {
			return nil, err
		}
	}
	return got, nil
}

var anyChange = rapid.Custom(func(t *rapid.T) Change {
	c := Change{Bucket: rapid.SampledFrom(Buckets()).Draw(t, "bucket"), Key: []byte(rapid.StringMatching("[a-d]{1,2}").Draw(t, "key"))}
	if !rapid.Bool().Draw(t, "delete") {
		c.Value = bytes.Repeat([]byte{byte(rapid.IntRange(0, 255).Draw(t, "fill"))}, rapid.IntRange(0, 3000).Draw(t, "length"))
	}
	return c
})

// TestStateAgainstModel applies, restarts, kills, snapshots and restores at random, and compares every row.
func TestStateAgainstModel(t *testing.T) {
	rapid.Check(t, func(rt *rapid.T) {
		path, err := os.MkdirTemp("", "state")
		must(t, err)
		defer os.RemoveAll(path)
		m := &machine{t: t, path: path, want: rows{}, saved: map[uint64]rows{}, archives: map[uint64][]byte{}}
		m.open()
		defer func() { m.s.Close(); m.d.Close() }()
		rt.Repeat(map[string]func(*rapid.T){
			"apply": func(rt *rapid.T) {
				changes := rapid.SliceOfN(anyChange, 0, 20).Draw(rt, "changes")
				m.index += rapid.Uint64Range(1, 3).Draw(rt, "step")
				must(t, m.s.Apply(m.index, 7, changes))
				m.want.apply(changes)
			},
			"restart": func(*rapid.T) {
				must(t, m.s.Close())
				must(t, m.d.Close())
				m.open()
			},
			"kill": func(*rapid.T) { m.kill() },
			"save": func(*rapid.T) {
				m.saved[m.index], m.archives[m.index] = maps.Clone(m.want), archiveOf(t, m.s, Header{})
			},
			"restore": func(rt *rapid.T) {
				for index, archive := range m.archives {
					_, err := m.s.Replace(bytes.NewReader(archive))
					must(t, err)
					m.index, m.want = index, maps.Clone(m.saved[index])
					break
				}
			},
			"": func(rt *rapid.T) { m.check(rt) },
		})
	})
}

type machine struct {
	t        *testing.T
	path     string
	d        *Dir
	s        *State
	index    uint64
	want     rows
	saved    map[uint64]rows
	archives map[uint64][]byte
}

func (m *machine) open() {
	var v Verdict
	var err error
	m.d, err = OpenDir(m.path, "n1")
	must(m.t, err)
	m.s, v, err = OpenState(m.d, StateOptions{BootID: "boot-1", MapBytes: 16 << 20, Log: quiet})
	must(m.t, err)
	if v.Outcome == Rejected {
		m.t.Fatalf("rejected: %s", v.Reason)
	}
}

// kill goes on from a copy of the files as they are, without closing them first.
func (m *machine) kill() {
	copied, err := os.MkdirTemp(filepath.Dir(m.path), "state")
	must(m.t, err)
	must(m.t, os.CopyFS(copied, os.DirFS(m.path)))
	must(m.t, m.s.Close())
	must(m.t, m.d.Close())
	must(m.t, os.RemoveAll(m.path))
	must(m.t, os.Rename(copied, m.path))
	m.open()
}

func (m *machine) check(rt *rapid.T) {
	got, err := rowsOf(m.s)
	must(m.t, err)
	if !maps.Equal(got, m.want) {
		rt.Fatalf("rows differ: got %d, want %d", len(got), len(m.want))
	}
	if index, _ := m.s.Applied(); index != m.index {
		rt.Fatalf("applied %d, want %d", index, m.index)
	}
	var d digester
	for _, b := range Buckets() {
		must(m.t, m.s.ForEach(b, func(k, v []byte) error { d.add(b.String(), k, v); return nil }))
	}
	if kept, _ := m.s.Digest(); kept != d.Digest {
		rt.Fatalf("digest %+v, want %+v", kept, d.Digest)
	}
}

func key8(n uint64) []byte { return binary.BigEndian.AppendUint64(nil, n) }

// fill applies count leases of about 100 bytes in entries of 500.
func fill(t testing.TB, s *State, count int) {
	t.Helper()
	index, _ := s.Applied()
	rnd := rand.New(rand.NewPCG(1, 2))
	for n := 0; n < count; {
		var changes []Change
		for ; n < count && len(changes) < 500; n++ {
			v := make([]byte, 100)
			for i := range v {
				v[i] = byte(rnd.Uint32())
			}
			changes = append(changes, Change{BucketLeases, key8(uint64(n)), v})
		}
		index++
		must(t, s.Apply(index, 1, changes))
	}
}

func TestApplyRefusals(t *testing.T) {
	s, _ := openState(t, openDir(t), "boot-1")
	must(t, s.Apply(5, 1, nil))
	for name, c := range map[string]struct {
		index  uint64
		change Change
		want   error
	}{
		"same index": {5, Change{BucketMeta, []byte("k"), nil}, ErrStaleIndex},
		"no bucket":  {6, Change{0, []byte("k"), nil}, ErrBadChange},
		"no key":     {6, Change{BucketMeta, nil, []byte("v")}, ErrBadChange},
		"long key":   {6, Change{BucketMeta, make([]byte, MaxKey+1), []byte("v")}, ErrBadChange},
		"long value": {6, Change{BucketMeta, []byte("k"), make([]byte, MaxValue+1)}, ErrBadChange},
	} {
		if err := s.Apply(c.index, 1, []Change{c.change}); !errors.Is(err, c.want) {
			t.Errorf("%s: %v, want %v", name, err, c.want)
		}
	}
	must(t, s.Rebase(3, 2))
	if index, term := s.Applied(); index != 3 || term != 2 {
		t.Fatalf("rebased to %d, %d", index, term)
	}
	must(t, s.Close())
	if err := s.Apply(9, 1, nil); !errors.Is(err, ErrClosed) {
		t.Fatalf("after close: %v", err)
	}
}

func TestVerdicts(t *testing.T) {
	for _, c := range []struct {
		name  string
		close bool
		boot  string
		mark  string // replaces the mark when not empty
		want  Outcome
	}{
		{name: "clean", close: true, boot: "boot-1", want: Trusted},
		{name: "clean, then restarted machine", close: true, boot: "boot-2", want: Trusted},
		{name: "killed", boot: "boot-1", want: Trusted},
		{name: "power lost", boot: "boot-2", want: Rejected},
		{name: "damaged mark", close: true, boot: "boot-1", mark: "{", want: Rejected},
		{name: "mark without boot id", boot: "boot-1", mark: "{}", want: Rejected},
	} {
		t.Run(c.name, func(t *testing.T) {
			d := openDir(t)
			s, v := openState(t, d, "boot-1")
			if v.Outcome != Fresh {
				t.Fatalf("first open: %+v", v)
			}
			must(t, s.Apply(4, 2, []Change{{BucketPools, []byte("p"), []byte("v")}}))
			path := d.Path()
			if c.close {
				must(t, s.Close())
			}
			path = cloneDir(t, path)
			if c.mark != "" {
				must(t, os.WriteFile(filepath.Join(path, stateName+".run"), []byte(c.mark), 0o600))
			}
			s, v = openState(t, openDirAt(t, path), c.boot)
			index, _ := s.Applied()
			if v.Outcome != c.want || (index == 4) != (c.want == Trusted) {
				t.Fatalf("%v (%s) at index %d, want %v", v.Outcome, v.Reason, index, c.want)
			}
			if c.want == Rejected && (!exists(v.Aside) || v.Reason == "") {
				t.Fatalf("rejected without trace: %+v", v)
			}
		})
	}
}

// TestOneFileIsSetAside: only the file of the latest power loss is kept.
func TestOneFileIsSetAside(t *testing.T) {
	path := t.TempDir()
	for n := range 3 {
		d := openDirAt(t, path)
		s, _ := openState(t, d, fmt.Sprint("boot-", n))
		must(t, s.Apply(1, 1, nil))
		path = cloneDir(t, path)
	}
	_, v := openState(t, openDirAt(t, path), "boot-last")
	got := globOne(t, filepath.Join(path, "state.db.damaged-*"))
	if len(got) != 1 || got[0] != v.Aside || filepath.Base(v.Aside) != "state.db.damaged-3" {
		t.Fatalf("set aside %v, verdict %+v", got, v)
	}
}

// TestDamageIsNeverTrusted flips bytes all over a file. Either the flip hit nothing in use, and every row is as
// it was, or the file is rejected. Opening never panics.
func TestDamageIsNeverTrusted(t *testing.T) {
	d := openDir(t)
	s, _ := openState(t, d, "boot-1")
	want := map[uint64]string{}
	note := func() {
		h, index, err := s.Hash()
		must(t, err)
		want[index] = h
	}
	fill(t, s, 3000)
	note()
	must(t, s.Apply(100, 1, []Change{{BucketPools, []byte("small"), []byte("inline")}}))
	note()
	original, err := os.ReadFile(s.path())
	must(t, err)

	path := cloneDir(t, d.Path())
	db := filepath.Join(path, stateName)
	rnd := rand.New(rand.NewPCG(3, 4))
	rejected := 0
	for n := range 400 {
		data := bytes.Clone(original)
		damage(rnd, n, data)
		if n%10 == 9 {
			data = data[:rnd.IntN(len(data))]
		}
		must(t, os.WriteFile(db, data, 0o600))
		if openDamaged(t, path, want) == Rejected {
			rejected++
		}
	}
	if rejected < 100 {
		t.Fatalf("only %d of 400 damaged files were rejected", rejected)
	}
}

// damage flips a bit in the first two pages, in a page header, or anywhere.
func damage(rnd *rand.Rand, n int, data []byte) {
	off := rnd.IntN(len(data))
	switch n % 3 {
	case 0:
		off = rnd.IntN(2 * os.Getpagesize())
	case 1:
		off = off&^(os.Getpagesize()-1) + rnd.IntN(64)
	}
	data[off] ^= 1 << rnd.IntN(8)
}

func openDamaged(t *testing.T, path string, want map[uint64]string) Outcome {
	t.Helper()
	mark := filepath.Join(path, stateName+".run")
	must(t, os.WriteFile(mark, []byte(`{"bootId":"boot-1"}`), 0o600))
	d, err := OpenDir(path, "n1")
	must(t, err)
	defer d.Close()
	s, v, err := OpenState(d, StateOptions{BootID: "boot-1", MapBytes: 16 << 20, Log: quiet})
	must(t, err)
	defer s.Close()
	if v.Outcome == Trusted {
		got, index, err := s.Hash()
		must(t, err)
		// The older meta page of bbolt is a whole state too, one entry back: the log brings the rest.
		if got != want[index] {
			t.Fatalf("damage was trusted at index %d", index)
		}
	}
	return v.Outcome
}

// TestKillInTheMiddle copies the file page by page while rows are written: nothing torn may be trusted.
func TestKillInTheMiddle(t *testing.T) {
	d := openDir(t)
	s, _ := openState(t, d, "boot-1")
	fill(t, s, 2000)
	hashes := map[uint64]string{}
	note := func() {
		h, index, err := s.Hash()
		must(t, err)
		hashes[index] = h
	}
	note()
	for round := range 20 {
		path := cloneDir(t, d.Path()) // mark and names
		tearCopy(t, s, filepath.Join(path, stateName), round, note)
		got, v := openState(t, openDirAt(t, path), "boot-1")
		if v.Outcome == Trusted {
			h, index, err := got.Hash()
			must(t, err)
			if h != hashes[index] {
				t.Fatalf("round %d: a torn file was trusted at index %d", round, index)
			}
		}
	}
}

// tearCopy copies part of the file, applies some entries, and copies the rest.
func tearCopy(t *testing.T, s *State, to string, round int, note func()) {
	t.Helper()
	before, err := os.ReadFile(s.path())
	must(t, err)
	for n := range round%4 + 1 {
		index, _ := s.Applied()
		must(t, s.Apply(index+1, 1, []Change{
			{BucketLeases, key8(uint64(round*37 + n)), []byte("changed")}, {BucketLeases, key8(uint64(round*91 + n)), nil},
		}))
		note()
	}
	after, err := os.ReadFile(s.path())
	must(t, err)
	cut := len(before) * (round + 1) / 22
	must(t, os.WriteFile(to, append(before[:cut:cut], after[cut:]...), 0o600))
}

func TestSnapshotIsOfOneMoment(t *testing.T) {
	s, _ := openState(t, openDir(t), "boot-1")
	fill(t, s, 2000)
	want, at, err := s.Hash()
	must(t, err)
	ss, err := s.Snapshot()
	must(t, err)
	defer ss.Release()

	pr, pw := io.Pipe()
	saved := make(chan error, 1)
	go func() {
		err := ss.Save(pw, Header{ClusterID: "c1"})
		pw.CloseWithError(err)
		saved <- err
	}()
	first := make([]byte, 1)
	_, err = io.ReadFull(pr, first) // the save has begun and waits for its reader
	must(t, err)
	for n := range 50 { // would block here if Apply waited for the save
		must(t, s.Apply(at+1+uint64(n), 1, []Change{{BucketLeases, key8(uint64(n)), nil}, {BucketPools, key8(uint64(n)), []byte("x")}}))
	}
	rest, err := io.ReadAll(pr)
	must(t, err)
	must(t, <-saved)

	other, _ := openState(t, openDir(t), "boot-1")
	h, err := other.Replace(bytes.NewReader(append(first, rest...)))
	must(t, err)
	got, index, err := other.Hash()
	must(t, err)
	if got != want || index != at || h.ClusterID != "c1" || h.Index != at {
		t.Fatalf("snapshot of index %d (header %+v) differs from the state at %d", index, h, at)
	}
}

func TestReplaceKeepsTheOldOnError(t *testing.T) {
	d := openDir(t)
	source, _ := openState(t, openDir(t), "boot-1")
	fill(t, source, 5000)
	archive := archiveOf(t, source, Header{})

	s, _ := openState(t, d, "boot-1")
	must(t, s.Apply(9, 3, []Change{{BucketPools, []byte("old"), []byte("state")}}))
	want, _, err := s.Hash()
	must(t, err)
	broken := errors.New("line is cut")
	refuse := errors.New("wrong cluster")
	for name, try := range map[string]func() error{
		"truncated": func() error { _, err := s.Replace(bytes.NewReader(archive[:len(archive)-1])); return err },
		"read error": func() error {
			_, err := s.Replace(io.MultiReader(bytes.NewReader(archive[:len(archive)/2]), failing{broken}))
			return err
		},
		"refused": func() error {
			_, err := s.Replace(bytes.NewReader(archive), func(*Header) error { return refuse })
			return err
		},
	} {
		if err := try(); err == nil {
			t.Fatalf("%s: accepted", name)
		}
		got, index, err := s.Hash()
		must(t, err)
		if got != want || index != 9 || exists(s.path()+".new") {
			t.Fatalf("%s: the old state did not survive at index %d", name, index)
		}
	}
	must(t, s.Apply(10, 3, nil))
	_, err = s.Replace(bytes.NewReader(archive), func(h *Header) error { h.Index, h.Term = 77, 8; return nil })
	must(t, err)
	if index, term := s.Applied(); index != 77 || term != 8 {
		t.Fatalf("index of the archive was believed: %d, %d", index, term)
	}
}

type failing struct{ err error }

func (f failing) Read([]byte) (int, error) { return 0, f.err }

// TestReplaceDoesNotWaitForSnapshots restores while a snapshot of the old state is open, and reads it afterwards.
func TestReplaceDoesNotWaitForSnapshots(t *testing.T) {
	source, _ := openState(t, openDir(t), "boot-1")
	archive := archiveOf(t, source, Header{})
	s, _ := openState(t, openDir(t), "boot-1")
	fill(t, s, 100)
	want := archiveOf(t, s, Header{})
	ss, err := s.Snapshot()
	must(t, err)
	_, err = s.Replace(bytes.NewReader(archive))
	must(t, err)
	var got bytes.Buffer
	must(t, ss.Save(&got, Header{}))
	ss.Release()
	ss.Release()
	if !bytes.Equal(got.Bytes(), want) {
		t.Fatal("snapshot changed with the restore")
	}
}

func TestDiscard(t *testing.T) {
	d := openDir(t)
	s, _ := openState(t, d, "boot-1")
	fill(t, s, 100)
	v, err := s.Discard("journal was rejected")
	must(t, err)
	if index, _ := s.Applied(); index != 0 || !exists(v.Aside) {
		t.Fatalf("index %d, %+v", index, v)
	}
	fill(t, s, 10)
	must(t, s.Close())
	if _, v := openState(t, d, "boot-1"); v.Outcome != Trusted {
		t.Fatalf("after discard: %+v", v)
	}
}

func TestHashIgnoresHistory(t *testing.T) {
	a, _ := openState(t, openDir(t), "boot-1")
	b, _ := openState(t, openDir(t), "boot-2")
	fill(t, a, 600)
	fill(t, b, 700)
	var gone []Change
	for n := 600; n < 700; n++ {
		gone = append(gone, Change{BucketLeases, key8(uint64(n)), nil})
	}
	must(t, b.Apply(99, 5, gone))
	ha, _, err := a.Hash()
	must(t, err)
	hb, _, err := b.Hash()
	must(t, err)
	da, _ := a.Digest()
	db, _ := b.Digest()
	if ha != hb || da != db {
		t.Fatalf("equal rows have hashes %s and %s, digests %v and %v", ha, hb, da, db)
	}
	must(t, b.Apply(100, 5, []Change{{BucketPools, []byte("a"), []byte{}}}))
	if hc, _, _ := b.Hash(); hc == hb {
		t.Fatal("hash misses an empty row")
	}
}

// TestOlderFilesGetTheNewBuckets: a file that was written before a bucket existed opens, keeps its rows, and
// takes new ones.
func TestOlderFilesGetTheNewBuckets(t *testing.T) {
	d := openDir(t)
	s, _ := openState(t, d, "boot-1")
	must(t, s.Apply(1, 1, []Change{{BucketLeases, []byte("a"), []byte("1")}}))
	must(t, s.h.db.Update(func(tx *bbolt.Tx) error { return tx.DeleteBucket([]byte(BucketSessionTickets.String())) }))
	must(t, s.Close())
	s, v := openState(t, d, "boot-1")
	if v.Outcome != Trusted {
		t.Fatalf("verdict %+v", v)
	}
	must(t, s.Apply(2, 1, []Change{{BucketSessionTickets, []byte("b"), []byte("2")}}))
	for b, want := range map[Bucket]string{BucketLeases: "[a=1]", BucketSessionTickets: "[b=2]"} {
		var got []string
		must(t, s.ForEach(b, func(k, v []byte) error { got = append(got, string(k)+"="+string(v)); return nil }))
		if fmt.Sprint(got) != want {
			t.Errorf("%v holds %v, want %s", b, got, want)
		}
	}
}
