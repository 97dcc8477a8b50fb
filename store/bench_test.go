package store

import (
	"encoding/binary"
	"testing"
)

// loaded opens state and journal with 100,000 leases of 150 bytes.
func loaded(b *testing.B) (*State, *Journal) {
	d := openDir(b)
	s, _, err := OpenState(d, StateOptions{Log: quiet})
	must(b, err)
	j, err := OpenJournal(d, JournalOptions{Log: quiet})
	must(b, err)
	b.Cleanup(func() { s.Close(); j.Close() })
	var changes []Change
	for n := range uint64(100_000) {
		changes = append(changes, Change{BucketLeases, key8(n), make([]byte, 150)})
	}
	must(b, s.Apply(1, 1, changes))
	return s, j
}

// entry is what one log entry of 256 operations writes: half grants, half releases of the oldest, and two rows
// that change every time.
func entry(index uint64, changes []Change, events [][]byte) ([]Change, [][]byte) {
	changes, events = changes[:0], events[:0]
	value := binary.BigEndian.AppendUint64(make([]byte, 142), index)
	for n := range uint64(127) {
		at := index*127 + n
		changes = append(changes, Change{BucketLeases, key8(100_000 + at), value}, Change{BucketLeases, key8(at), nil})
	}
	changes = append(changes, Change{BucketMeta, []byte("meta"), value}, Change{BucketCounters, []byte("default"), value})
	for range changes {
		events = append(events, value)
	}
	return changes, events
}

func BenchmarkApply(b *testing.B) {
	s, _ := loaded(b)
	benchmarkEntries(b, func(index uint64, c []Change, _ [][]byte) error { return s.Apply(index, 1, c) })
}

func BenchmarkAppend(b *testing.B) {
	_, j := loaded(b)
	benchmarkEntries(b, func(index uint64, _ []Change, e [][]byte) error { return j.Append(JournalEntry{index, e}) })
}

func BenchmarkApplyAndAppend(b *testing.B) {
	s, j := loaded(b)
	benchmarkEntries(b, func(index uint64, c []Change, e [][]byte) error {
		if err := j.Append(JournalEntry{index, e}); err != nil {
			return err
		}
		return s.Apply(index, 1, c)
	})
}

func benchmarkEntries(b *testing.B, write func(uint64, []Change, [][]byte) error) {
	var changes []Change
	var events [][]byte
	b.ReportAllocs()
	for index := uint64(2); b.Loop(); index++ {
		changes, events = entry(index, changes, events)
		must(b, write(index, changes, events))
	}
	b.ReportMetric(float64(len(changes)*b.N)/b.Elapsed().Seconds(), "changes/s")
}

func BenchmarkOpenTrusted(b *testing.B) {
	d := openDir(b)
	s, _ := openState(b, d, "boot-1")
	fill(b, s, 100_000)
	must(b, s.Close())
	for b.Loop() {
		s, v, err := OpenState(d, StateOptions{BootID: "boot-1", Log: quiet})
		must(b, err)
		if !v.Trusted() {
			b.Fatal(v.Reason)
		}
		b.StopTimer()
		must(b, s.Close())
		b.StartTimer()
	}
}
