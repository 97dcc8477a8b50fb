package fsm

import (
	"errors"
	"fmt"
	"go/ast"
	"go/parser"
	"go/token"
	"reflect"
	"slices"
	"strings"
	"testing"
	"time"

	"google.golang.org/protobuf/proto"
	"pgregory.net/rapid"

	"kvgate/fsm/fsmpb"
	"kvgate/ledger"
	"kvgate/sessions"
)

// same compares values, taking empty slices and maps for absent ones.
func same(t failer, what string, got, want any) {
	t.Helper()
	if !reflect.DeepEqual(normal(reflect.ValueOf(got)).Interface(), normal(reflect.ValueOf(want)).Interface()) {
		t.Fatalf("%s:\n got %+v\nwant %+v", what, got, want)
	}
}

// normal returns a copy in which empty slices and maps are nil.
func normal(v reflect.Value) reflect.Value {
	out := reflect.New(v.Type()).Elem()
	switch v.Kind() {
	case reflect.Struct:
		for i := range v.NumField() {
			out.Field(i).Set(normal(v.Field(i)))
		}
	case reflect.Pointer:
		if !v.IsNil() {
			out.Set(reflect.New(v.Type().Elem()))
			out.Elem().Set(normal(v.Elem()))
		}
	case reflect.Slice:
		for i := range v.Len() {
			out = reflect.Append(out, normal(v.Index(i)))
		}
	case reflect.Map:
		if v.Len() > 0 {
			out.Set(v)
		}
	default:
		out.Set(v)
	}
	return out
}

// stored sends a message through its encoding.
func stored[M any, P message[M]](t *rapid.T, in P) P {
	data, err := proto.Marshal(in)
	check(t, err)
	out := P(new(M))
	check(t, proto.Unmarshal(data, out))
	return out
}

// asStored makes of a drawn value what the encoding can hold: ranks are 32 bits wide, and a fence that
// is not given has no value.
func asStored(engines []ledger.Engine) {
	for i := range engines {
		engines[i].DPRanks = int(int32(engines[i].DPRanks))
	}
}

func TestOperationsRoundTrip(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		a := rapid.Make[ledger.Acquire]().Draw(t, "acquire")
		a.MaxWait = max(a.MaxWait, -1)
		same(t, "acquire", decodeAcquire(stored(t, acquireOp(a)).GetAcquire()), a)

		r := rapid.Make[ledger.Release]().Draw(t, "release")
		if !r.HasEpoch {
			r.Epoch = 0
		}
		same(t, "release", decodeRelease(stored(t, releaseOp(r)).GetRelease()), r)

		refs := rapid.SliceOf(rapid.Make[ledger.LeaseRef]()).Draw(t, "refs")
		for i := range refs {
			if !refs[i].HasEpoch {
				refs[i].Epoch = 0
			}
		}
		pool, ttl := rapid.String().Draw(t, "pool"), time.Duration(rapid.Int64().Draw(t, "ttl"))
		renew := stored(t, renewOp(pool, refs, ttl)).GetRenew()
		same(t, "renew", decodeRefs(renew), refs)
		if renew.Pool != pool || renew.Ttl != int64(ttl) {
			t.Fatalf("renew of pool %q for %d, want %q for %d", renew.Pool, renew.Ttl, pool, ttl)
		}

		round := rapid.Make[ledger.Round]().Draw(t, "round")
		round.Repeats = min(max(round.Repeats, 0), maxRepeats)
		asStored(round.Engines)
		same(t, "reconcile", decodeRound(stored(t, reconcileOp(pool, round)).GetReconcile()), round)
	})
}

func TestRowsRoundTrip(t *testing.T) {
	makers := []func(*rapid.T) ledger.Change{
		func(t *rapid.T) ledger.Change { return ledger.Change{Meta: draw[ledger.MetaRow](t)} },
		func(t *rapid.T) ledger.Change {
			p := draw[ledger.PoolRow](t)
			return ledger.Change{Pool: p, Name: p.Name}
		},
		func(t *rapid.T) ledger.Change {
			c := draw[ledger.CapacityRow](t)
			asStored(c.Engines)
			return ledger.Change{Capacity: c, Name: "p"}
		},
		func(t *rapid.T) ledger.Change { return ledger.Change{Counters: draw[ledger.CountersRow](t), Name: "p"} },
		func(t *rapid.T) ledger.Change { return ledger.Change{Lease: draw[ledger.LeaseRow](t)} },
		func(t *rapid.T) ledger.Change { return ledger.Change{Waiter: draw[ledger.WaiterRow](t)} },
		func(t *rapid.T) ledger.Change { return ledger.Change{Mark: draw[ledger.MarkRow](t)} },
		func(t *rapid.T) ledger.Change { return ledger.Change{Holder: draw[ledger.HolderRow](t)} },
	}
	if fields := reflect.TypeFor[ledger.Change]().NumField(); len(makers) != fields-2 {
		t.Fatalf("%d kinds of rows are tested, ledger.Change has %d", len(makers), fields-2)
	}
	rapid.Check(t, func(t *rapid.T) {
		for _, maker := range makers {
			want := maker(t)
			row, err := encodeRow(want)
			check(t, err)
			got, err := decodeRow(row.Bucket, row.Key, row.Value)
			check(t, err)
			if want.Name == "" {
				got.Name = "" // only these rows are known by their key
			}
			same(t, row.Bucket.String(), got, want)

			want.Deleted = true
			gone, err := encodeRow(want)
			check(t, err)
			if gone.Value != nil || gone.Bucket != row.Bucket || !slices.Equal(gone.Key, row.Key) {
				t.Fatalf("deletion of %v %q is %v %q %q", row.Bucket, row.Key, gone.Bucket, gone.Key, gone.Value)
			}
		}
	})
}

func draw[T any](t *rapid.T) *T {
	v := rapid.Make[T]().Draw(t, reflect.TypeFor[T]().Name())
	return &v
}

// TestSettingsAreAllStored: a setting that the table forgets would be lost at the next restart.
func TestSettingsAreAllStored(t *testing.T) {
	var names []string
	for _, f := range settingFields {
		names = append(names, f.name)
	}
	want := slices.Sorted(slices.Values(ledger.SettingNames()))
	if got := slices.Sorted(slices.Values(names)); !slices.Equal(got, want) {
		t.Fatalf("stored are %v, the ledger has %v", got, want)
	}
	if n := reflect.TypeFor[ledger.Settings]().NumField(); n != len(names) {
		t.Errorf("ledger.Settings has %d fields, %d are stored", n, len(names))
	}
	rapid.Check(t, func(t *rapid.T) {
		set := *draw[ledger.Settings](t)
		same(t, "settings", decodeSettings(stored(t, encodeSettings(&set, names))), set)

		patch := ledger.Patch{Set: set, Fields: rapid.SliceOfDistinct(rapid.SampledFrom(names), rapid.ID[string]).Draw(t, "fields")}
		got := stored(t, updateOp("p", patch)).GetUpdateSettings()
		decoded := decodePatch(got)
		slices.Sort(decoded.Fields)
		slices.Sort(patch.Fields)
		same(t, "fields of the patch", decoded.Fields, patch.Fields)
		for _, f := range settingFields {
			if !slices.Contains(patch.Fields, f.name) {
				f.get(&patch.Set, encodeSettings(&ledger.Settings{}, names))
			}
		}
		same(t, "values of the patch", decoded.Set, patch.Set)
	})
}

// TestEventsAreWhole: every field of an event leaves a trace in its record, and comes back from it.
func TestEventsAreWhole(t *testing.T) {
	var empty fsmpb.Event
	encodeEvent(&ledger.Event{}, 0, &empty)
	kind := reflect.TypeFor[ledger.Event]()
	for i := range kind.NumField() {
		var e ledger.Event
		switch f := reflect.ValueOf(&e).Elem().Field(i); f.Kind() {
		case reflect.String:
			f.SetString("x")
		case reflect.Uint64:
			f.SetUint(1)
		case reflect.Struct:
			e.Arrival.Known = true
		case reflect.Pointer:
			f.Set(reflect.New(f.Type().Elem()))
		default:
			f.SetInt(1)
		}
		var m fsmpb.Event
		encodeEvent(&e, 0, &m)
		if proto.Equal(&m, &empty) {
			t.Errorf("field %s of an event is not stored", kind.Field(i).Name)
		}
		data, err := proto.Marshal(&m)
		must(t, err)
		if got, err := DecodeEvent(data); err != nil || !proto.Equal(got, &m) {
			t.Errorf("%v (%v), want %v", got, err, &m)
		}
	}
	if _, err := DecodeEvent([]byte{0xff}); !errors.Is(err, ErrCorrupt) {
		t.Errorf("damaged record: %v", err)
	}
}

func TestResultsRoundTrip(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		set := *draw[ledger.Settings](t)
		for _, want := range []any{
			*draw[ledger.Decision](t), rapid.Bool().Draw(t, "flag"), rapid.SliceOf(rapid.Make[ledger.Renewed]()).Draw(t, "renewed"),
			ledger.CancelState(rapid.Uint8().Draw(t, "cancel")), set, rapid.Make[map[string]float64]().Draw(t, "metrics"),
			rapid.String().Draw(t, "text"),
		} {
			got := decodeResult(stored(t, encodeResult(Result{Value: want})))
			if got.Err != nil {
				t.Fatalf("error %v from %T", got.Err, want)
			}
			same(t, fmt.Sprintf("%T", want), got.Value, want)
		}
	})
}

// TestFailuresTravel: every error of the ledger and of a node that cannot decide is the same error on
// the node that forwarded the call, with its words.
func TestFailuresTravel(t *testing.T) {
	known := map[string]error{
		"ErrTicketMismatch": ledger.ErrTicketMismatch, "ErrTooManyWaiters": ledger.ErrTooManyWaiters,
		"ErrUnknownPool": ledger.ErrUnknownPool, "ErrStepDrained": ledger.ErrStepDrained,
		"ErrInvalid":  &ledger.FieldError{Field: "headroom", Value: "2", Allowed: "(0, 1]"},
		"ErrNoLeader": ErrNoLeader, "ErrNotLeader": &LeaderError{"n2", "b:1"}, "ErrLeadershipLost": ErrLeadershipLost,
		"ErrClosing": sessions.ErrClosing, "ErrUnknown": sessions.ErrUnknown, "ErrUnknownPin": sessions.ErrUnknownPin,
		"ErrKind": sessions.ErrKind, "ErrUnknownEngine": sessions.ErrUnknownEngine,
		"ErrPinsDisabled": sessions.ErrPinsDisabled, "ErrPinBudget": sessions.ErrPinBudget,
		"ErrTimeout": ErrTimeout, "ErrReadOnly": ErrReadOnly, "ErrShutdown": ErrShutdown, "ErrUnknownVersion": ErrUnknownVersion,
	}
	names := append(sentinels(t, "../ledger/errors.go"), sentinels(t, "errors.go")...)
	names = append(names, sentinels(t, "../sessions/errors.go")...)
	for _, name := range names {
		switch name {
		case "ErrCorrupt":
			continue // stops the node, so it answers nobody
		case "ErrUnauthorized", "ErrUnreachable", "ErrStatus", "ErrStreamingOff", "ErrRefused":
			continue // of calls to engines, which the node that has the caller makes
		}
		err, ok := known[name]
		if !ok {
			t.Errorf("%s is not known to this test: say how it travels", name)
			continue
		}
		sent := fmt.Errorf("%w: and why", err)
		got := decodeFailure(encodeFailure(sent))
		sentinel := err
		for errors.Unwrap(sentinel) != nil {
			sentinel = errors.Unwrap(sentinel)
		}
		if !errors.Is(got, sentinel) {
			t.Errorf("%s arrives as %v", name, got)
		}
		var field *ledger.FieldError
		if !errors.As(err, &field) && got.Error() != sent.Error() {
			t.Errorf("%s arrives with the words %q, want %q", name, got, sent)
		}
	}
	var field *ledger.FieldError
	if !errors.As(decodeFailure(encodeFailure(known["ErrInvalid"])), &field) || field.Field != "headroom" || field.Value != "2" || field.Allowed != "(0, 1]" {
		t.Errorf("field error arrives as %+v", field)
	}
	if err := decodeFailure(encodeFailure(errors.New("odd"))); err == nil || err.Error() != "odd" {
		t.Errorf("an unnamed error arrives as %v", err)
	}
	if err := decodeFailure(encodeFailure(nil)); err != nil {
		t.Errorf("no error arrives as %v", err)
	}
}

// sentinels returns the names of a file's Err… variables.
func sentinels(t *testing.T, path string) (names []string) {
	t.Helper()
	file, err := parser.ParseFile(token.NewFileSet(), path, nil, 0)
	must(t, err)
	ast.Inspect(file, func(n ast.Node) bool {
		if spec, ok := n.(*ast.ValueSpec); ok {
			for _, name := range spec.Names {
				if strings.HasPrefix(name.Name, "Err") {
					names = append(names, name.Name)
				}
			}
		}
		return true
	})
	if len(names) == 0 {
		t.Fatalf("no errors found in %s", path)
	}
	return names
}
