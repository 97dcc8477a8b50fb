package rules

import (
	"math"
	"strings"
	"testing"
	"time"

	"buf.build/go/protovalidate"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/reflect/protoreflect"
	"google.golang.org/protobuf/types/known/durationpb"
	"pgregory.net/rapid"

	v1 "kvgate/rpc/kvgate/v1"
)

// The values are around every bound that a rule has or might have.
var (
	someTexts = []string{
		"", "a", "req-17:0", " ", "~", "\x1f", "\x7f", "\n", "a\x00", "é", "日本", "a\u202e", "\xff", strings.Repeat("x", 64), strings.Repeat("x", 65),
		strings.Repeat("x", 255), strings.Repeat("x", 256), strings.Repeat("x", 257), strings.Repeat("x", 300), strings.Repeat("x", 301), strings.Repeat("é", 128),
	}
	someNumbers = []int64{0, 100, -1, 1, maxTokens - 1, maxTokens, maxTokens + 1, math.MaxInt64, math.MinInt64}
	someSpans   = func() (all []*durationpb.Duration) {
		for _, seconds := range []int64{-1, 0, 1, 86399, 86400, 86401, 31536000, 31536001, math.MaxInt64} {
			for _, nanos := range []int32{-1, 0, 1, 999_999_999, 1_000_000_000} {
				all = append(all, &durationpb.Duration{Seconds: seconds, Nanos: nanos})
			}
		}
		return append(all, nil)
	}()

	texts, numbers, spans = rapid.SampledFrom(someTexts), rapid.SampledFrom(someNumbers), rapid.SampledFrom(someSpans)
)

func acquires(t *rapid.T) proto.Message {
	m := &v1.AcquireRequest{
		Pool: texts.Draw(t, "pool"), TicketId: texts.Draw(t, "ticket"), SessionId: texts.Draw(t, "session"), GroupId: texts.Draw(t, "group"),
		HolderId: texts.Draw(t, "holder"), Rid: texts.Draw(t, "rid"),
		PromptTokens: numbers.Draw(t, "prompt"), MaxNewTokens: numbers.Draw(t, "new"),
		Mode: v1.Mode(rapid.Int32Range(-1, 4).Draw(t, "mode")), Protected: rapid.Bool().Draw(t, "protected"),
		Priority: rapid.Int32().Draw(t, "priority"), MaxWait: spans.Draw(t, "max wait"), Ttl: spans.Draw(t, "ttl"), CallId: rapid.Uint64().Draw(t, "call"),
	}
	if rapid.Bool().Draw(t, "reserves") {
		m.ReservationTokens = proto.Int64(numbers.Draw(t, "reservation"))
	}
	return m
}

func releases(t *rapid.T) proto.Message {
	m := &v1.ReleaseRequest{
		Pool: texts.Draw(t, "pool"), TicketId: texts.Draw(t, "ticket"), LeaseId: texts.Draw(t, "lease"), HolderId: texts.Draw(t, "holder"),
		Grant: rapid.Uint64().Draw(t, "grant"), EndedCallId: rapid.Uint64().Draw(t, "ended"),
	}
	if rapid.Bool().Draw(t, "reports") {
		m.Usage = &v1.Usage{
			PromptTokens: numbers.Draw(t, "prompt"), CompletionTokens: numbers.Draw(t, "completion"), CachedTokens: numbers.Draw(t, "cached"),
			EngineUrl: texts.Draw(t, "engine"), Outcome: texts.Draw(t, "outcome"),
		}
	}
	return m
}

// TestPlainRequestsKeepTheRules: what is taken without asking the validator is what the validator takes.
func TestPlainRequestsKeepTheRules(t *testing.T) {
	v := validator(t)
	seen := map[bool]int{}
	for name, make := range map[string]func(*rapid.T) proto.Message{"acquire": acquires, "release": releases} {
		t.Run(name, func(t *testing.T) {
			rapid.Check(t, func(rt *rapid.T) {
				m := make(rt)
				seen[request(m)]++
				if err := v.Validate(m); err != nil && request(m) {
					rt.Fatalf("%v: %v", m, err)
				}
				if got, want := Validate(v, m), v.Validate(m); (got == nil) != (want == nil) {
					rt.Fatalf("%v: %v, the validator says %v", m, got, want)
				}
			})
		})
	}
	if seen[false] == 0 {
		t.Error("every request was plain")
	}
}

// TestEachFieldAlone gives each field of plain requests each of the values, so that no rule hides behind another.
func TestEachFieldAlone(t *testing.T) {
	v := validator(t)
	for _, m := range []proto.Message{
		&v1.AcquireRequest{TicketId: "t", PromptTokens: 1},
		&v1.AcquireRequest{TicketId: "t"},
		&v1.AcquireRequest{TicketId: "t", ReservationTokens: proto.Int64(1)},
		&v1.AcquireRequest{TicketId: "t", ReservationTokens: proto.Int64(0), PromptTokens: 1},
		&v1.ReleaseRequest{TicketId: "t"},
		&v1.ReleaseRequest{LeaseId: "1:t"},
		&v1.ReleaseRequest{TicketId: "t", Usage: &v1.Usage{}},
	} {
		for _, other := range variants(m.ProtoReflect()) {
			if err := v.Validate(other); err != nil && request(other) {
				t.Errorf("%v: %v", other, err)
			}
		}
	}
}

// variants returns copies of a message with one field changed in each.
func variants(m protoreflect.Message) (all []proto.Message) {
	fields := m.Descriptor().Fields()
	for i := range fields.Len() {
		f := fields.Get(i)
		for _, v := range values(m, f) {
			other := proto.Clone(m.Interface())
			other.ProtoReflect().Set(f, v)
			all = append(all, other)
		}
		cleared := proto.Clone(m.Interface())
		cleared.ProtoReflect().Clear(f)
		all = append(all, cleared)
	}
	return all
}

func values(m protoreflect.Message, f protoreflect.FieldDescriptor) (all []protoreflect.Value) {
	switch {
	case f.Kind() == protoreflect.StringKind:
		for _, s := range someTexts {
			all = append(all, protoreflect.ValueOfString(s))
		}
	case f.Kind() == protoreflect.Int64Kind:
		for _, n := range someNumbers {
			all = append(all, protoreflect.ValueOfInt64(n))
		}
	case f.Kind() == protoreflect.EnumKind:
		for n := range protoreflect.EnumNumber(5) {
			all = append(all, protoreflect.ValueOfEnum(n-1))
		}
	case f.Kind() == protoreflect.MessageKind && f.Message().FullName() == "google.protobuf.Duration":
		for _, d := range someSpans {
			if d != nil {
				all = append(all, protoreflect.ValueOfMessage(d.ProtoReflect()))
			}
		}
	case f.Kind() == protoreflect.MessageKind && m.Has(f):
		for _, inner := range variants(m.Get(f).Message()) {
			all = append(all, protoreflect.ValueOfMessage(inner.ProtoReflect()))
		}
	}
	return all
}

// TestUsualRequestsArePlain: else there would be no use.
func TestUsualRequestsArePlain(t *testing.T) {
	for _, m := range []proto.Message{
		&v1.AcquireRequest{TicketId: "rollout-7:3", PromptTokens: 4096, MaxNewTokens: 512, SessionId: "rollout-7", GroupId: "step-12", HolderId: "worker-3"},
		&v1.AcquireRequest{Pool: "p", TicketId: "a", MaxNewTokens: 1, MaxWait: durationpb.New(0), Ttl: durationpb.New(time.Minute), CallId: 7},
		&v1.AcquireRequest{TicketId: "rollout-7:3", ReservationTokens: proto.Int64(4608), HolderId: "worker-3"},
		&v1.ReleaseRequest{TicketId: "rollout-7:3", LeaseId: "1:rollout-7:3", Grant: 4},
		&v1.ReleaseRequest{LeaseId: "1:a", Usage: &v1.Usage{PromptTokens: 4000, CompletionTokens: 90, EngineUrl: "http://10.0.0.1:30000", Outcome: "stop"}},
	} {
		if !request(m) {
			t.Errorf("%v is left to the validator", m)
		}
	}
	for _, m := range []proto.Message{nil, (*v1.AcquireRequest)(nil), &v1.AcquireRequest{}, &v1.CancelRequest{TicketId: "a"}} {
		if request(m) {
			t.Errorf("%v is not", m)
		}
	}
}

func validator(t *testing.T) protovalidate.Validator {
	v, err := protovalidate.New()
	if err != nil {
		t.Fatal(err)
	}
	return v
}
