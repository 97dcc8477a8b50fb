package words

import (
	"fmt"
	"strconv"
	"strings"
	"time"

	"google.golang.org/protobuf/reflect/protoreflect"
	"google.golang.org/protobuf/types/known/durationpb"
)

// Field writes a field of a message exactly, so that two values that differ never look alike; "none" when it has no
// value.
func Field(m protoreflect.Message, f protoreflect.FieldDescriptor) string {
	if !m.Has(f) {
		return "none"
	}
	if f.IsList() {
		list := m.Get(f).List()
		parts := make([]string, list.Len())
		for i := range parts {
			parts[i] = list.Get(i).String()
		}
		return orNone(strings.Join(parts, ","))
	}
	switch v := m.Get(f); f.Kind() {
	case protoreflect.EnumKind:
		return Enum(f.Enum(), v.Enum())
	case protoreflect.MessageKind:
		if d, ok := v.Message().Interface().(*durationpb.Duration); ok {
			return ExactDuration(d.AsDuration())
		}
		return v.String()
	case protoreflect.Int64Kind:
		return Number(v.Int())
	case protoreflect.DoubleKind:
		return Decimal(v.Float())
	default:
		return orNone(v.String())
	}
}

func orNone(s string) string {
	if s == "" {
		return "none"
	}
	return s
}

// Enum writes a value of an enum as people say it: REASON_CAPACITY_AVAILABLE is "capacity_available".
func Enum(e protoreflect.EnumDescriptor, n protoreflect.EnumNumber) string {
	value := e.Values().ByNumber(n)
	if value == nil {
		return strconv.Itoa(int(n))
	}
	prefix := strings.TrimSuffix(string(e.Values().ByNumber(0).Name()), "UNSPECIFIED")
	return strings.ToLower(strings.TrimPrefix(string(value.Name()), prefix))
}

// Decimal writes a number as short as it can be said exactly, never with an exponent.
func Decimal(f float64) string { return strconv.FormatFloat(f, 'f', -1, 64) }

// ExactDuration writes a duration with all its digits and without the parts that are 0: "1.25s", "10m", "1h30m", "7d".
func ExactDuration(d time.Duration) string {
	if d < 0 {
		return "-" + ExactDuration(-d)
	}
	if d < time.Minute {
		return d.String()
	}
	var b strings.Builder
	for _, unit := range []struct {
		of   time.Duration
		name string
	}{{day, "d"}, {time.Hour, "h"}, {time.Minute, "m"}} {
		if n := d / unit.of; n > 0 {
			fmt.Fprintf(&b, "%d%s", n, unit.name)
		}
		d %= unit.of
	}
	if d > 0 {
		b.WriteString(d.String())
	}
	return b.String()
}
