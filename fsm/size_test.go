package fsm

import (
	"math"
	"strings"
	"testing"

	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/reflect/protoreflect"

	"kvgate/fsm/fsmpb"
)

// TestSizeOfOperations: no operation takes more bytes than is reckoned with, whatever its fields hold, and the two that
// are not measured take little less.
func TestSizeOfOperations(t *testing.T) {
	kinds := (&fsmpb.Op{}).ProtoReflect().Descriptor().Oneofs().Get(0).Fields()
	for i := range kinds.Len() {
		kind := kinds.Get(i)
		for _, n := range []int{0, 1, 100, 256} {
			op := &fsmpb.Op{}
			filled(op.ProtoReflect().Mutable(kind).Message(), n)
			if got, want := sizeOf(op), proto.Size(op); got < want || got > want+numbersSize {
				t.Errorf("%s with texts of %d bytes: %d bytes, %d are reckoned with", kind.Name(), n, want, got)
			}
			empty := &fsmpb.Op{}
			empty.ProtoReflect().Mutable(kind)
			if got, want := sizeOf(empty), proto.Size(empty); got < want {
				t.Errorf("empty %s: %d bytes, %d are reckoned with", kind.Name(), want, got)
			}
		}
	}
}

// filled gives every field the value that takes the most bytes, and texts n bytes.
func filled(m protoreflect.Message, n int) {
	fields := m.Descriptor().Fields()
	for i := range fields.Len() {
		f := fields.Get(i)
		switch {
		case f.IsMap():
		case f.IsList():
		case f.Message() != nil:
			filled(m.Mutable(f).Message(), n)
		case f.Kind() == protoreflect.StringKind:
			m.Set(f, protoreflect.ValueOfString(strings.Repeat("x", n)))
		case f.Kind() == protoreflect.BoolKind:
			m.Set(f, protoreflect.ValueOfBool(true))
		case f.Kind() == protoreflect.Int64Kind:
			m.Set(f, protoreflect.ValueOfInt64(-1))
		case f.Kind() == protoreflect.Int32Kind:
			m.Set(f, protoreflect.ValueOfInt32(-1))
		case f.Kind() == protoreflect.Uint64Kind:
			m.Set(f, protoreflect.ValueOfUint64(math.MaxUint64))
		case f.Kind() == protoreflect.Uint32Kind:
			m.Set(f, protoreflect.ValueOfUint32(math.MaxUint32))
		case f.Kind() == protoreflect.DoubleKind:
			m.Set(f, protoreflect.ValueOfFloat64(math.MaxFloat64))
		}
	}
}
