package main

import (
	"fmt"
	"runtime/debug"
)

// version is set at link time: -ldflags "-X main.version=v1.2.3".
var version string

// buildVersion says which build this is: version, commit and Go release.
func buildVersion() string {
	info, ok := debug.ReadBuildInfo()
	if !ok {
		return orElse(version, "unknown")
	}
	commit, dirty := "", ""
	for _, s := range info.Settings {
		switch s.Key {
		case "vcs.revision":
			commit = s.Value
		case "vcs.modified":
			if s.Value == "true" {
				dirty = ", modified"
			}
		}
	}
	text := orElse(version, orElse(info.Main.Version, "(devel)"))
	if commit == "" {
		return fmt.Sprintf("%s (%s)", text, info.GoVersion)
	}
	return fmt.Sprintf("%s (commit %.12s%s, %s)", text, commit, dirty, info.GoVersion)
}

func orElse(s, other string) string {
	if s == "" {
		return other
	}
	return s
}
