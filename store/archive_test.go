package store

import (
	"bytes"
	"errors"
	"flag"
	"fmt"
	"io"
	"os"
	"reflect"
	"strings"
	"testing"
	"time"
)

var update = flag.Bool("update", false, "write the golden archive of the current format again")

const golden = "testdata/archive_v1.kvgate"

// goldenArchive writes the archive that golden holds: two buckets, one empty, and the journal.
func goldenArchive(w io.Writer) error {
	aw, err := NewArchiveWriter(w, goldenHeader)
	if err != nil {
		return err
	}
	for _, section := range []string{"leases", "waiters", JournalSection} {
		if err := aw.Section(section); err != nil {
			return err
		}
		if section == "waiters" {
			continue
		}
		for n := range uint64(300) {
			if err := aw.Row(JournalKey(n, 0), fmt.Appendf(nil, "%s row %d", section, n)); err != nil {
				return err
			}
		}
	}
	return aw.Close()
}

var goldenHeader = Header{
	FormatVersion: 1, ClusterID: "c-golden", Index: 42, Term: 7, LedgerTime: 1_000_000_007,
	WallTime: time.Date(2026, 1, 2, 3, 4, 5, 6, time.UTC), NodeVersions: map[string]string{"n1": "v0.1.0"},
}

// TestGoldenArchive reads the archive of each format version ever released. Bytes are compared for the content
// only: compression may change.
func TestGoldenArchive(t *testing.T) {
	var now bytes.Buffer
	must(t, goldenArchive(&now))
	if *update {
		must(t, os.WriteFile(golden, now.Bytes(), 0o644))
	}
	kept, err := os.ReadFile(golden)
	must(t, err)
	h, got, err := readArchive(kept)
	must(t, err)
	_, want, err := readArchive(now.Bytes())
	must(t, err)
	if !reflect.DeepEqual(h, goldenHeader) || !reflect.DeepEqual(got, want) || len(got) != 600 {
		t.Fatalf("golden archive reads differently: header %+v, %d rows", h, len(got))
	}
}

func readArchive(data []byte) (Header, []string, error) {
	ar, err := NewArchiveReader(bytes.NewReader(data))
	if err != nil {
		return Header{}, nil, err
	}
	var rows []string
	for {
		section, k, v, err := ar.Next()
		if errors.Is(err, io.EOF) {
			return ar.Header(), rows, nil
		}
		if err != nil {
			return ar.Header(), rows, err
		}
		rows = append(rows, fmt.Sprintf("%s %x %s", section, k, v))
	}
}

func bigArchive(t testing.TB) []byte {
	s, _ := openState(t, openDir(t), "boot-1")
	fill(t, s, 8000)
	return archiveOf(t, s, goldenHeader)
}

func TestTruncatedArchiveNamesThePlace(t *testing.T) {
	data := bigArchive(t)
	for i := range 64 {
		cut := len(data) * i / 64
		_, _, err := readArchive(data[:cut])
		if !errors.Is(err, ErrTruncated) || !strings.Contains(err.Error(), fmt.Sprintf("offset %d", cut)) {
			t.Fatalf("cut at %d of %d: %v", cut, len(data), err)
		}
	}
	_, _, err := readArchive(data[:len(data)/2])
	if !strings.Contains(err.Error(), "section leases") {
		t.Fatalf("section is not named: %v", err)
	}
	for cut := len(data) - 40; cut < len(data); cut++ {
		if _, _, err := readArchive(data[:cut]); !errors.Is(err, ErrTruncated) {
			t.Fatalf("cut at %d of %d: %v", cut, len(data), err)
		}
	}
}

func TestAlteredArchive(t *testing.T) {
	var buf bytes.Buffer
	must(t, goldenArchive(&buf))
	for off := range buf.Len() {
		data := bytes.Clone(buf.Bytes())
		data[off] ^= 0x10
		if _, _, err := readArchive(data); err == nil {
			t.Fatalf("change at offset %d was not noticed", off)
		}
	}
}

func TestArchiveRefusals(t *testing.T) {
	var buf bytes.Buffer
	must(t, goldenArchive(&buf))
	whole := buf.Bytes()
	newer := bytes.Clone(whole)
	newer[len(archiveMagic)+1] = ArchiveFormat + 1
	bit := bytes.Clone(whole)
	bit[len(bit)/2] ^= 1
	for _, c := range []struct {
		name string
		data []byte
		want error
		says string
	}{
		{"foreign", []byte("SQLite format 3\x00 and so on"), ErrForeign, "SQLite"},
		{"short and foreign", []byte("PK"), ErrForeign, "snapshot save"},
		{"empty", nil, ErrTruncated, "offset 0"},
		{"newer", newer, ErrNewerFormat, "format 2, this release reads up to 1"},
		{"bit", bit, ErrCorrupt, "offset"},
		{"more", append(bytes.Clone(whole), 'x'), ErrCorrupt, "follow the trailer"},
	} {
		_, _, err := readArchive(c.data)
		if !errors.Is(err, c.want) || !strings.Contains(err.Error(), c.says) {
			t.Errorf("%s: got %v, want %v saying %q", c.name, err, c.want, c.says)
		}
	}
}

func TestArchiveHoldsTheLongestRow(t *testing.T) {
	var buf bytes.Buffer
	aw, err := NewArchiveWriter(&buf, Header{})
	must(t, err)
	must(t, aw.Section("pools"))
	must(t, aw.Row([]byte("a"), make([]byte, chunkTarget-20)))
	must(t, aw.Row(make([]byte, MaxKey), make([]byte, MaxValue)))
	if err := aw.Row([]byte("b"), make([]byte, MaxValue+1)); !errors.Is(err, ErrBadChange) {
		t.Fatalf("longer row: %v", err)
	}
	buf.Reset()
	aw, err = NewArchiveWriter(&buf, Header{})
	must(t, err)
	must(t, aw.Section("pools"))
	must(t, aw.Row([]byte("a"), make([]byte, chunkTarget-20)))
	must(t, aw.Row(bytes.Repeat([]byte("k"), MaxKey), make([]byte, MaxValue)))
	must(t, aw.Close())
	s, _ := openState(t, openDir(t), "boot-1")
	_, err = s.Replace(&buf)
	must(t, err)
	if d, _ := s.Digest(); d.Rows != 2 {
		t.Fatalf("%d rows", d.Rows)
	}
}

// TestReplaceRefusesDisorder builds archives whose checksums hold but whose rows no state can have.
func TestReplaceRefusesDisorder(t *testing.T) {
	for name, keys := range map[string][]string{"twice": {"a", "a"}, "backwards": {"b", "a"}, "empty": {""}} {
		var buf bytes.Buffer
		aw, err := NewArchiveWriter(&buf, Header{})
		must(t, err)
		must(t, aw.Section("pools"))
		for _, k := range keys {
			must(t, aw.Row([]byte(k), nil))
		}
		must(t, aw.Close())
		s, _ := openState(t, openDir(t), "boot-1")
		if _, err := s.Replace(&buf); !errors.Is(err, ErrCorrupt) {
			t.Errorf("%s: %v", name, err)
		}
	}
}

// FuzzArchive feeds anything to the reader. It must end, without panic, in whole or with one of the four refusals.
func FuzzArchive(f *testing.F) {
	var buf bytes.Buffer
	must(f, goldenArchive(&buf))
	whole := buf.Bytes()
	f.Add(whole)
	f.Add(whole[:len(whole)/2])
	f.Add([]byte(archiveMagic))
	f.Add([]byte("foreign"))
	for _, off := range []int{9, 13, 40, len(whole) / 3, len(whole) - 5} {
		data := bytes.Clone(whole)
		data[off] ^= 0xff
		f.Add(data)
	}
	f.Fuzz(func(t *testing.T, data []byte) {
		_, _, err := readArchive(data)
		for _, known := range []error{nil, ErrTruncated, ErrCorrupt, ErrForeign, ErrNewerFormat} {
			if errors.Is(err, known) {
				return
			}
		}
		t.Fatalf("unknown refusal: %v", err)
	})
}

// FuzzWalkFile feeds anything to the page walker; what it lets through must open in bbolt without panic.
func FuzzWalkFile(f *testing.F) {
	d := openDir(f)
	s, _ := openState(f, d, "boot-1")
	must(f, s.Apply(1, 1, []Change{{BucketPools, []byte("p"), []byte("v")}}))
	fill(f, s, 200)
	must(f, s.Close())
	data, err := os.ReadFile(s.path())
	must(f, err)
	f.Add(data)
	f.Add(data[:len(data)/2])
	f.Fuzz(func(t *testing.T, data []byte) {
		path := t.TempDir() + "/f.db"
		must(t, os.WriteFile(path, data, 0o600))
		if err := walkFile(path, nil); err != nil {
			return
		}
		db, err := openUnflushed(path, 0)
		if err != nil {
			t.Fatalf("walk found nothing, open says %v", err)
		}
		must(t, db.Close())
	})
}
