package store

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"

	"pgregory.net/rapid"
)

func events(index uint64, count int) [][]byte {
	out := make([][]byte, count)
	for n := range out {
		out[n] = fmt.Appendf(nil, "event %d of %d", n, index)
	}
	return out
}

func appendRange(t testing.TB, j *Journal, from, to uint64, each int) {
	t.Helper()
	for i := from; i <= to; i++ {
		must(t, j.Append(JournalEntry{i, events(i, each)}))
	}
}

// readAll reads from a position and returns "index.n" of each event, after checking its data.
func readAll(j *Journal, from uint64, fromN uint32, limit int) ([]string, error) {
	var got []string
	err := j.Read(from, fromN, limit, func(index uint64, n uint32, data []byte) (bool, error) {
		if want := fmt.Sprintf("event %d of %d", n, index); string(data) != want {
			return false, fmt.Errorf("data %q, want %q", data, want)
		}
		got = append(got, fmt.Sprintf("%d.%d", index, n))
		return true, nil
	})
	return got, err
}

func wantRead(t testing.TB, j *Journal, from uint64, fromN uint32, limit int, want ...string) {
	t.Helper()
	got, err := readAll(j, from, fromN, limit)
	must(t, err)
	if !slices.Equal(got, want) {
		t.Fatalf("read from %d.%d: %v, want %v", from, fromN, got, want)
	}
}

func TestJournalReadsAcrossSegments(t *testing.T) {
	d := openDir(t)
	j := openJournal(t, d, JournalOptions{})
	wantRead(t, j, 0, 0, 0)
	appendRange(t, j, 1, 2, 2)
	must(t, j.Seal())
	must(t, j.Seal()) // nothing to seal
	must(t, j.Append(JournalEntry{3, nil}))
	appendRange(t, j, 5, 5, 1)
	wantRead(t, j, 0, 0, 0, "1.0", "1.1", "2.0", "2.1", "5.0")
	wantRead(t, j, 2, 1, 0, "2.1", "5.0")
	wantRead(t, j, 3, 0, 0, "5.0")
	wantRead(t, j, 1, 1, 2, "1.1", "2.0")
	wantRead(t, j, 6, 0, 0)
	if j.First() != 1 || j.Last() != 5 || j.Count() != 5 || len(j.Segments()) != 2 {
		t.Fatalf("first %d, last %d, count %d, segments %+v", j.First(), j.Last(), j.Count(), j.Segments())
	}
	must(t, j.Close())
	j = openJournal(t, d, JournalOptions{})
	if _, replay := j.NeedsReplay(); replay {
		t.Fatal("replay after a clean close")
	}
	appendRange(t, j, 6, 6, 1)
	wantRead(t, j, 2, 1, 0, "2.1", "5.0", "6.0")
}

func TestJournalReplayChangesNothing(t *testing.T) {
	j := openJournal(t, openDir(t), JournalOptions{})
	appendRange(t, j, 1, 3, 2)
	must(t, j.Seal())
	appendRange(t, j, 4, 5, 2)
	appendRange(t, j, 1, 6, 2)
	want, err := readAll(j, 0, 0, 0)
	must(t, err)
	if len(want) != 12 || j.Count() != 12 {
		t.Fatalf("%d events after replay: %v", j.Count(), want)
	}
}

func TestJournalAfterPowerLoss(t *testing.T) {
	for _, boot := range []string{"boot-1", "boot-2"} {
		t.Run(boot, func(t *testing.T) {
			d := openDir(t)
			j := openJournal(t, d, JournalOptions{})
			appendRange(t, j, 1, 3, 1)
			must(t, j.Seal())
			appendRange(t, j, 4, 5, 1)
			path := cloneDir(t, d.Path())
			j = openJournal(t, openDirAt(t, path), JournalOptions{BootID: boot})
			after, replay := j.NeedsReplay()
			if boot == "boot-1" {
				if replay || j.Last() != 5 {
					t.Fatalf("killed only: replay %v, last %d", replay, j.Last())
				}
				return
			}
			if !replay || after != 3 || j.Last() != 3 {
				t.Fatalf("replay %v after %d, last %d", replay, after, j.Last())
			}
			if len(globOne(t, filepath.Join(path, journalName, "*.damaged-1"))) != 1 {
				t.Fatal("nothing set aside")
			}
			appendRange(t, j, 2, 5, 1)
			wantRead(t, j, 0, 0, 0, "1.0", "2.0", "3.0", "4.0", "5.0")
		})
	}
}

// TestJournalDamage flips bytes of each segment in turn: never a panic, never other events than were appended.
func TestJournalDamage(t *testing.T) {
	d := openDir(t)
	j := openJournal(t, d, JournalOptions{})
	appendRange(t, j, 1, 60, 20)
	must(t, j.Seal())
	appendRange(t, j, 61, 120, 20)
	rejected := 0
	for n := range 120 {
		path := cloneDir(t, d.Path())
		file := j.segs[1].path
		st, err := os.Stat(file)
		must(t, err)
		flip(t, filepath.Join(path, journalName, filepath.Base(file)), st.Size()*int64(n)/120)
		damaged, err := OpenJournal(openDirAt(t, path), JournalOptions{BootID: "boot-1", Log: quiet})
		must(t, err)
		got, err := readAll(damaged, 0, 0, 0)
		must(t, err)
		after, replay := damaged.NeedsReplay()
		if replay {
			rejected++
		}
		if replay && (len(got) != 1200 || after != 60) || !replay && len(got) < 2380 {
			t.Fatalf("flip %d: replay %v after %d, %d events", n, replay, after, len(got))
		}
		must(t, damaged.Close())
	}
	if rejected < 60 {
		t.Fatalf("only %d of 120 damaged segments were rejected", rejected)
	}
}

func TestDamagedSealedSegmentIsNamed(t *testing.T) {
	d := openDir(t)
	j := openJournal(t, d, JournalOptions{})
	appendRange(t, j, 1, 200, 20)
	must(t, j.Seal())
	path := j.segs[0].path
	data, err := os.ReadFile(path)
	must(t, err)
	for off := 2 * os.Getpagesize(); off < len(data); off += os.Getpagesize() {
		data[off+8] = 0xff // type of every page
	}
	must(t, os.WriteFile(path, data, 0o600))
	if _, err := readAll(j, 0, 0, 0); !errors.Is(err, ErrDamaged) || !strings.Contains(err.Error(), path) {
		t.Fatalf("read of a damaged segment: %v", err)
	}
	must(t, j.Close())
	j = openJournal(t, d, JournalOptions{})
	if _, replay := j.NeedsReplay(); replay || len(j.Segments()) != 0 {
		t.Fatalf("a sealed segment is lost, the log cannot bring it back: replay %v, segments %+v", replay, j.Segments())
	}
}

func TestJournalTrim(t *testing.T) {
	d := openDir(t)
	j := openJournal(t, d, JournalOptions{})
	for seg := range uint64(3) {
		appendRange(t, j, seg*3+1, seg*3+3, 1)
		must(t, j.Seal())
	}
	must(t, j.TrimBefore(5))
	must(t, j.TrimBefore(2)) // never back
	wantRead(t, j, 0, 0, 2, "5.0", "6.0")
	if j.First() != 5 || len(j.Segments()) != 2 {
		t.Fatalf("first %d, segments %+v", j.First(), j.Segments())
	}
	must(t, j.Close())
	j = openJournal(t, d, JournalOptions{})
	wantRead(t, j, 0, 0, 2, "5.0", "6.0")
	must(t, j.TrimBefore(100))
	wantRead(t, j, 0, 0, 0)
	if files := globOne(t, filepath.Join(d.Path(), journalName, "*.db*")); len(files) != 0 || j.First() != 100 {
		t.Fatalf("first %d, files %v", j.First(), files)
	}
}

func TestJournalByteBound(t *testing.T) {
	j := openJournal(t, openDir(t), JournalOptions{MaxBytes: 1 << 20})
	big := [][]byte{make([]byte, 64<<10)}
	for i := range uint64(100) {
		must(t, j.Append(JournalEntry{i + 1, big}))
		if i%4 == 3 {
			must(t, j.Seal())
		}
	}
	var total int64
	for _, s := range j.Segments() {
		total += s.Bytes
	}
	if total > 1<<20 || j.First() < 50 || j.Last() != 100 {
		t.Fatalf("%d bytes, first %d, last %d", total, j.First(), j.Last())
	}
	n := 0
	must(t, j.Read(0, 0, 0, func(index uint64, _ uint32, _ []byte) (bool, error) {
		if n == 0 && index != j.First() {
			return false, fmt.Errorf("begins at %d, not %d", index, j.First())
		}
		n++
		return true, nil
	}))
	if uint64(n) != j.Last()-j.First()+1 {
		t.Fatalf("%d events from %d to %d", n, j.First(), j.Last())
	}
}

func TestJournalReadStops(t *testing.T) {
	j := openJournal(t, openDir(t), JournalOptions{})
	appendRange(t, j, 1, 3, 1)
	stop := errors.New("enough")
	calls := 0
	err := j.Read(0, 0, 0, func(uint64, uint32, []byte) (bool, error) { calls++; return true, stop })
	if !errors.Is(err, stop) || calls != 1 {
		t.Fatalf("%v after %d calls", err, calls)
	}
	must(t, j.Read(0, 0, 0, func(uint64, uint32, []byte) (bool, error) { calls++; return false, nil }))
	if calls != 2 {
		t.Fatalf("%d calls", calls)
	}
	must(t, j.Close())
	if err := j.Append(JournalEntry{4, events(4, 1)}); !errors.Is(err, ErrClosed) {
		t.Fatalf("append after close: %v", err)
	}
	if _, err := readAll(j, 0, 0, 0); !errors.Is(err, ErrClosed) {
		t.Fatalf("read after close: %v", err)
	}
}

// TestJournalReadersBesideWriter reads while events are appended, sealed and trimmed: whatever is read is in
// order and without holes up to the end that was there when reading began.
func TestJournalReadersBesideWriter(t *testing.T) {
	j := openJournal(t, openDir(t), JournalOptions{})
	appendRange(t, j, 1, 1, 2)
	done := make(chan struct{})
	var readers sync.WaitGroup
	for range 3 {
		readers.Go(func() {
			for {
				if err := readInOrder(j); err != nil {
					t.Error(err)
					return
				}
				select {
				case <-done:
					return
				default:
				}
			}
		})
	}
	for i := uint64(2); i <= 400; i++ {
		must(t, j.Append(JournalEntry{i, events(i, 2)}))
		if i%20 == 0 {
			must(t, j.Seal())
		}
		if i%50 == 0 {
			must(t, j.TrimBefore(i-30))
		}
	}
	close(done)
	readers.Wait()
}

func readInOrder(j *Journal) error {
	last, end := uint64(0), j.Last()
	err := j.Read(0, 0, 0, func(index uint64, n uint32, _ []byte) (bool, error) {
		if n == 0 && last != 0 && index != last+1 && index > j.First() {
			return false, fmt.Errorf("index %d after %d", index, last)
		}
		last = index
		return true, nil
	})
	if err == nil && last < end && end >= j.First() {
		return fmt.Errorf("ended at %d, not %d", last, end)
	}
	return err
}

// TestJournalAgainstModel compares with a plain slice under appends, seals, trims, restarts and random reads.
func TestJournalAgainstModel(t *testing.T) {
	rapid.Check(t, func(rt *rapid.T) {
		path, err := os.MkdirTemp("", "journal")
		must(t, err)
		defer os.RemoveAll(path)
		d, err := OpenDir(path, "n1")
		must(t, err)
		defer d.Close()
		open := func() *Journal {
			j, err := OpenJournal(d, JournalOptions{BootID: "boot-1", Log: quiet})
			must(t, err)
			return j
		}
		j := open()
		defer func() { j.Close() }()
		var want []string
		var index, first uint64
		rt.Repeat(map[string]func(*rapid.T){
			"append": func(rt *rapid.T) {
				index += rapid.Uint64Range(1, 3).Draw(rt, "step")
				count := rapid.IntRange(0, 5).Draw(rt, "count")
				must(t, j.Append(JournalEntry{index, events(index, count)}))
				for n := range count {
					if index >= first {
						want = append(want, fmt.Sprintf("%d.%d", index, n))
					}
				}
			},
			"seal": func(*rapid.T) { must(t, j.Seal()) },
			"trim": func(rt *rapid.T) {
				first = max(first, rapid.Uint64Range(0, index).Draw(rt, "before"))
				must(t, j.TrimBefore(first))
				want = slices.DeleteFunc(want, func(s string) bool { i, _ := position(s); return i < first })
			},
			"restart": func(*rapid.T) { must(t, j.Close()); j = open() },
			"": func(rt *rapid.T) {
				from, fromN := rapid.Uint64Range(0, index+1).Draw(rt, "from"), rapid.Uint32Range(0, 5).Draw(rt, "fromN")
				limit := rapid.IntRange(1, 10).Draw(rt, "limit")
				got, err := readAll(j, from, fromN, limit)
				must(t, err)
				expect := slices.DeleteFunc(slices.Clone(want), func(s string) bool {
					i, n := position(s)
					return i < from || i == from && n < fromN
				})
				if expect = expect[:min(limit, len(expect))]; !slices.Equal(got, expect) {
					rt.Fatalf("from %d.%d limit %d: %v, want %v", from, fromN, limit, got, expect)
				}
			},
		})
	})
}

func position(s string) (index uint64, n uint32) {
	fmt.Sscanf(s, "%d.%d", &index, &n)
	return index, n
}

// TestJournalMissesItsOpenSegment: a segment that somebody deleted, although only the log can bring its
// events back, is noticed also after a clean stop; one that was sealed or trimmed since is not missed.
func TestJournalMissesItsOpenSegment(t *testing.T) {
	d := openDir(t)
	j := openJournal(t, d, JournalOptions{})
	appendRange(t, j, 1, 3, 1)
	must(t, j.Seal())
	appendRange(t, j, 4, 6, 1)
	must(t, j.Close())
	must(t, os.Remove(d.file(journalName, segmentName(4, activeSuffix))))
	j = openJournal(t, d, JournalOptions{})
	if after, needed := j.NeedsReplay(); !needed || after != 3 {
		t.Fatalf("replay needed %t after %d, want it after 3", needed, after)
	}
	appendRange(t, j, 4, 6, 1) // as the log brings them back
	must(t, j.Seal())
	must(t, j.TrimBefore(7))
	must(t, j.Close())
	j = openJournal(t, d, JournalOptions{})
	if _, needed := j.NeedsReplay(); needed {
		t.Error("a segment that was sealed and trimmed is missed")
	}
	must(t, j.Close())
}
