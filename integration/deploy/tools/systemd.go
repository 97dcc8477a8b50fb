package main

import (
	"os"

	"github.com/coreos/go-systemd/v22/unit"
)

// systemd reads a unit file: its options by section and name, in the order of the file.
func systemd(file string) (map[string]map[string][]string, error) {
	opened, err := os.Open(file)
	if err != nil {
		return nil, err
	}
	defer func() { _ = opened.Close() }() // only read
	options, err := unit.DeserializeOptions(opened)
	if err != nil {
		return nil, err
	}
	sections := map[string]map[string][]string{}
	for _, o := range options {
		if sections[o.Section] == nil {
			sections[o.Section] = map[string][]string{}
		}
		sections[o.Section][o.Name] = append(sections[o.Section][o.Name], o.Value)
	}
	return sections, nil
}
