package story

import (
	"fmt"
	"strings"
	"time"

	"google.golang.org/protobuf/reflect/protoreflect"
	"google.golang.org/protobuf/types/known/durationpb"

	"kvgate/rpc/words"
)

// Change is one setting with its old and new value as people write them.
type Change struct {
	Name   string `json:"name"`
	Before string `json:"before"`
	After  string `json:"after"`
}

// Changes lists what a settings event changed, in the order of the documentation.
func Changes(e *Event) []Change {
	if e.SettingsBefore == nil || e.SettingsAfter == nil {
		return nil
	}
	var out []Change
	before, after := e.SettingsBefore.ProtoReflect(), e.SettingsAfter.ProtoReflect()
	fields := after.Descriptor().Fields()
	for i := range fields.Len() {
		f := fields.Get(i)
		if was, is := settingText(before, f), settingText(after, f); was != is {
			out = append(out, Change{f.JSONName(), was, is})
		}
	}
	return out
}

func changes(e *Event) string {
	list := Changes(e)
	if len(list) == 0 {
		if e.Detail != "" {
			return e.Detail
		}
		return "nothing has another value"
	}
	parts := make([]string, len(list))
	for i, c := range list {
		parts[i] = fmt.Sprintf("%s %s -> %s", c.Name, c.Before, c.After)
	}
	return strings.Join(parts, ", ")
}

func settingText(m protoreflect.Message, f protoreflect.FieldDescriptor) string {
	if f.IsList() {
		list := m.Get(f).List()
		parts := make([]string, list.Len())
		for i := range parts {
			parts[i] = list.Get(i).String()
		}
		return orNone(strings.Join(parts, ","))
	}
	if !m.Has(f) {
		return "none"
	}
	switch v := m.Get(f); f.Kind() {
	case protoreflect.EnumKind:
		value := f.Enum().Values().ByNumber(v.Enum())
		if value == nil {
			return fmt.Sprint(v.Enum())
		}
		name := string(value.Name())
		prefix := strings.TrimSuffix(string(f.Enum().Values().Get(0).Name()), "UNSPECIFIED")
		return strings.ToLower(strings.TrimPrefix(name, prefix))
	case protoreflect.MessageKind:
		if d, ok := v.Message().Interface().(*durationpb.Duration); ok {
			return shortDuration(d.AsDuration())
		}
		return v.String()
	case protoreflect.Int64Kind:
		return words.Number(v.Int())
	default:
		return orNone(v.String())
	}
}

// shortDuration writes a duration exactly, without the parts that are 0.
func shortDuration(d time.Duration) string {
	s := d.String()
	if strings.HasSuffix(s, "m0s") {
		s = strings.TrimSuffix(s, "0s")
	}
	if strings.HasSuffix(s, "h0m") {
		s = strings.TrimSuffix(s, "0m")
	}
	return s
}

func orNone(s string) string {
	if s == "" {
		return "none"
	}
	return s
}
