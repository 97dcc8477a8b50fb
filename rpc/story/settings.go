package story

import (
	"fmt"
	"strings"

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
		if was, is := words.Field(before, f), words.Field(after, f); was != is {
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
