package ledger

import (
	"fmt"
	"slices"
	"strings"
	"time"
)

// UpdateSettings changes a pool's settings, making the pool when there is none. It returns a
// *FieldError, and changes nothing, when a name is unknown or the result is out of range.
func (l *Ledger) UpdateSettings(pool string, patch Patch) (Settings, error) {
	p, known := l.pools[pool]
	set := DefaultSettings()
	if known {
		set = p.set.clone()
	}
	if err := patch.apply(&set); err != nil {
		return Settings{}, err
	}
	if err := set.Validate(); err != nil {
		return Settings{}, err
	}
	if !known {
		p = l.addPool(pool, set)
	}
	l.setSettings(p, set, patch)
	return set.clone(), nil
}

func (l *Ledger) setSettings(p *pool, set Settings, patch Patch) {
	before, after := p.set.clone(), set.clone()
	p.set = set
	l.touchPool(p, dirtySettings)
	l.emitPool(p, Event{Kind: KindSettings, By: patch.By, Detail: patch.describe(&before, &after), Before: &before, After: &after})
	if p.Snapshot && !p.Degraded {
		l.arm(&p.stale, p.SnapshotAt.Add(set.Staleness))
	}
	l.resize(p)
	if !set.Admission {
		l.flush(p, Disabled)
		return
	}
	if p.Degraded {
		return
	}
	l.dropOversized(p)
	l.advance(p)
}

// setting reads, copies and describes one field.
type setting struct {
	name string
	copy func(dst, src *Settings)
	text func(*Settings) string
}

func field[T any](name string, at func(*Settings) *T) setting {
	return setting{
		name: name,
		copy: func(dst, src *Settings) { *at(dst) = *at(src) },
		text: func(s *Settings) string { return fmt.Sprint(*at(s)) },
	}
}

var settingTable = []setting{
	field("admission", func(s *Settings) *bool { return &s.Admission }),
	field("lifecycle", func(s *Settings) *bool { return &s.Lifecycle }),
	field("headroom", func(s *Settings) *float64 { return &s.Headroom }),
	field("pressureThreshold", func(s *Settings) *float64 { return &s.PressureThreshold }),
	field("expectedDecodeCap", func(s *Settings) *Tokens { return &s.ExpectedDecodeCap }),
	field("maxWait", func(s *Settings) *time.Duration { return &s.MaxWait }),
	field("scope", func(s *Settings) *Scope { return &s.Scope }),
	field("leaseTtl", func(s *Settings) *time.Duration { return &s.LeaseTTL }),
	field("maxTtl", func(s *Settings) *time.Duration { return &s.MaxTTL }),
	field("holderTtl", func(s *Settings) *time.Duration { return &s.HolderTTL }),
	field("detachGrace", func(s *Settings) *time.Duration { return &s.DetachGrace }),
	field("staleness", func(s *Settings) *time.Duration { return &s.Staleness }),
	field("oversize", func(s *Settings) *Oversize { return &s.Oversize }),
	field("maxWaiters", func(s *Settings) *int64 { return &s.MaxWaiters }),
	field("pinRatio", func(s *Settings) *float64 { return &s.PinRatio }),
	field("routerUrl", func(s *Settings) *string { return &s.RouterURL }),
	field("engineUrls", func(s *Settings) *[]string { return &s.EngineURLs }),
	field("pollInterval", func(s *Settings) *time.Duration { return &s.PollInterval }),
	field("pollTimeout", func(s *Settings) *time.Duration { return &s.PollTimeout }),
	field("modelId", func(s *Settings) *string { return &s.ModelID }),
	field("capacityRoles", func(s *Settings) *CapacityRoles { return &s.CapacityRoles }),
	field("joinTimeout", func(s *Settings) *time.Duration { return &s.JoinTimeout }),
	field("abortTimeout", func(s *Settings) *time.Duration { return &s.AbortTimeout }),
	field("closeDeadline", func(s *Settings) *time.Duration { return &s.CloseDeadline }),
	field("closeScope", func(s *Settings) *CloseScope { return &s.CloseScope }),
	field("journalMaxEvents", func(s *Settings) *int64 { return &s.JournalMaxEvents }),
	field("journalMaxAge", func(s *Settings) *time.Duration { return &s.JournalMaxAge }),
	field("quarantine", func(s *Settings) *bool { return &s.Quarantine }),
}

// SettingNames returns the API names of all settings, in the order of the documentation.
func SettingNames() []string {
	names := make([]string, len(settingTable))
	for i, s := range settingTable {
		names[i] = s.name
	}
	return names
}

func findSetting(name string) (setting, error) {
	i := slices.IndexFunc(settingTable, func(s setting) bool { return s.name == name })
	if i < 0 {
		return setting{}, fieldError("settings", name, "one of "+strings.Join(SettingNames(), ", "))
	}
	return settingTable[i], nil
}

func (p *Patch) apply(dst *Settings) error {
	defaults := DefaultSettings()
	for _, part := range []struct {
		names []string
		from  *Settings
	}{{p.Clear, &defaults}, {p.Fields, &p.Set}} {
		for _, name := range part.names {
			s, err := findSetting(name)
			if err != nil {
				return err
			}
			s.copy(dst, part.from)
		}
	}
	dst.EngineURLs = slices.Clone(dst.EngineURLs)
	return nil
}

// describe says what the patch named as "name=value (was value) …", cleared fields first. What it did not
// change has no "was".
func (p *Patch) describe(before, after *Settings) string {
	var parts []string
	for _, name := range slices.Concat(p.Clear, p.Fields) {
		s, err := findSetting(name)
		if err != nil {
			continue
		}
		was, is := s.text(before), s.text(after)
		if was != is {
			is += " (was " + was + ")"
		}
		parts = append(parts, name+"="+is)
	}
	return strings.Join(parts, " ")
}

// Difference is one setting that differs between two sets, its values as text.
type Difference struct{ Name, Before, After string }

// Differences lists the settings that differ, in the order of the documentation.
func Differences(before, after *Settings) []Difference {
	var out []Difference
	for _, s := range settingTable {
		if was, is := s.text(before), s.text(after); was != is {
			out = append(out, Difference{s.name, was, is})
		}
	}
	return out
}

func usageText(u *Usage, held time.Duration) string {
	return fmt.Sprintf("held=%v prompt=%d completion=%d cached=%d engine=%s",
		held, u.PromptTokens, u.CompletionTokens, u.CachedTokens, u.Engine)
}
