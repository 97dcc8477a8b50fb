package fsm

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"reflect"
	"slices"
	"testing"
	"time"

	"google.golang.org/protobuf/proto"
	"pgregory.net/rapid"

	"kvgate/fsm/fsmpb"
	"kvgate/ledger"
	"kvgate/sessions"
	"kvgate/store"
)

// rebased returns the archive of a machine, moved to another ledger time; zero leaves it.
func rebased(t failer, m *Machine, by time.Duration) []byte {
	t.Helper()
	var plain, out bytes.Buffer
	header, err := m.save(context.Background(), &plain, store.Header{WallTime: time.Now()})
	check(t, err)
	p := &place{clusterID: "c", index: header.Index, term: 1, now: ledger.Time(header.LedgerTime).Add(by)}
	_, err = rebase(bytes.NewReader(plain.Bytes()), &out, p)
	check(t, err)
	return out.Bytes()
}

// archiveRows returns every row of an archive in words.
func archiveRows(t failer, archive []byte) (out []string) {
	t.Helper()
	r, err := store.NewArchiveReader(bytes.NewReader(archive))
	check(t, err)
	for {
		section, key, value, err := r.Next()
		if errors.Is(err, io.EOF) {
			return out
		}
		check(t, err)
		out = append(out, fmt.Sprintf("%s %x %x", section, key, value))
	}
}

// later returns a batch as it is proposed so much later.
func later(b *fsmpb.Batch, by time.Duration) *fsmpb.Batch {
	b = proto.CloneOf(b)
	b.LedgerTime += int64(by)
	for _, op := range b.Ops {
		if r := op.GetReclaimHolder(); r != nil {
			r.LastActive += int64(by)
		}
	}
	return b
}

// TestRebaseMovesEveryTime: a state that was moved in ledger time goes on as the original does, so much later.
// A time that was not moved shows as a row that is not the same, or as a deadline that is missed.
func TestRebaseMovesEveryTime(t *testing.T) {
	const by = 1000 * time.Hour
	root := t.TempDir()
	rapid.Check(t, func(rt *rapid.T) {
		steady, moved := newRig(rt, root), newRig(rt, root)
		defer steady.close()
		defer moved.close()
		gen := &batches{t: rt, machine: steady.Machine, now: ledger.Time(time.Hour)}
		index := uint64(0)
		for range rapid.IntRange(1, 8).Draw(rt, "entries before") {
			index++
			steady.Apply(entry(rt, index, gen.batch()))
		}
		check(rt, moved.Restore(io.NopCloser(bytes.NewReader(rebased(rt, steady.Machine, by)))))
		for range rapid.IntRange(0, 8).Draw(rt, "entries after") {
			index++
			b := gen.batch()
			steady.Apply(entry(rt, index, b))
			moved.Apply(entry(rt, index, later(b, by)))
		}
		want, got := archiveRows(rt, rebased(rt, steady.Machine, by)), archiveRows(rt, rebased(rt, moved.Machine, 0))
		if !slices.Equal(got, want) {
			rt.Fatalf("rows are\n%q\nwant\n%q", got, want)
		}
	})
}

// fillTimes sets every time in a row, and returns where they are.
func fillTimes(v reflect.Value) (times []reflect.Value) {
	switch v.Kind() {
	case reflect.Pointer:
		if v.IsNil() {
			v.Set(reflect.New(v.Type().Elem()))
		}
		return fillTimes(v.Elem())
	case reflect.Struct:
		for i := range v.NumField() {
			times = append(times, fillTimes(v.Field(i))...)
		}
	case reflect.Int64:
		if v.Type() == reflect.TypeFor[ledger.Time]() || v.Type() == reflect.TypeFor[sessions.Time]() {
			v.SetInt(1000)
			times = append(times, v)
		}
	}
	return times
}

// TestRebaseKnowsEveryTime: no field of a row that is a time is left behind, and every kind of row is known.
func TestRebaseKnowsEveryTime(t *testing.T) {
	const by = 7
	p := &place{}
	found := 0
	look := func(c reflect.Value, change func()) {
		name := c.Type().String()
		times := fillTimes(c)
		change()
		for i, v := range times {
			if found++; v.Int() != 1000+by {
				t.Errorf("time %d of %s is %d, want it moved from 1000 to %d", i, name, v.Int(), 1000+by)
			}
		}
	}
	var c ledger.Change
	for _, row := range []any{&c.Meta, &c.Pool, &c.Capacity, &c.Counters, &c.Lease, &c.Waiter, &c.Mark, &c.Holder} {
		c = ledger.Change{}
		look(reflect.ValueOf(row).Elem(), func() { p.change(&c, by) })
	}
	var s sessions.Change
	for _, row := range []any{&s.Meta, &s.Pool, &s.Session, &s.Ticket, &s.Owed, &s.Pin} {
		s = sessions.Change{}
		look(reflect.ValueOf(row).Elem(), func() { p.sessionChange(&s, by) })
	}
	for _, kind := range []reflect.Type{reflect.TypeFor[ledger.Change](), reflect.TypeFor[sessions.Change]()} {
		rows := 0
		for i := range kind.NumField() {
			if kind.Field(i).Type.Kind() == reflect.Pointer {
				rows++
			}
		}
		if want := map[reflect.Type]int{reflect.TypeFor[ledger.Change](): 8, reflect.TypeFor[sessions.Change](): 6}[kind]; rows != want {
			t.Errorf("%v has %d kinds of rows, this test knows %d: add the new one here and to rebase", kind, rows, want)
		}
	}
	if found < 15 {
		t.Errorf("only %d times were found", found)
	}
}
