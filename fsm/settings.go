package fsm

import (
	"slices"
	"time"

	"kvgate/fsm/fsmpb"
	"kvgate/ledger"
)

// settingField ties one setting's name to its place in the stored message.
type settingField struct {
	name string
	put  func(*fsmpb.Settings, *ledger.Settings)
	// get copies the stored value and reports whether there was one.
	get func(*ledger.Settings, *fsmpb.Settings) bool
}

func number[T ~int64 | ~uint8, P int64 | uint32](name string, in func(*ledger.Settings) *T, at func(*fsmpb.Settings) **P) settingField {
	return settingField{
		name: name,
		put:  func(m *fsmpb.Settings, s *ledger.Settings) { *at(m) = ptr(P(*in(s))) },
		get: func(s *ledger.Settings, m *fsmpb.Settings) bool {
			v := *at(m)
			if v != nil {
				*in(s) = T(*v)
			}
			return v != nil
		},
	}
}

func plain[T any](name string, in func(*ledger.Settings) *T, at func(*fsmpb.Settings) **T) settingField {
	return settingField{
		name: name,
		put:  func(m *fsmpb.Settings, s *ledger.Settings) { *at(m) = ptr(*in(s)) },
		get: func(s *ledger.Settings, m *fsmpb.Settings) bool {
			v := *at(m)
			if v != nil {
				*in(s) = *v
			}
			return v != nil
		},
	}
}

var engineURLs = settingField{
	name: "engineUrls",
	put: func(m *fsmpb.Settings, s *ledger.Settings) {
		m.EngineUrls = &fsmpb.StringList{Values: slices.Clone(s.EngineURLs)}
	},
	get: func(s *ledger.Settings, m *fsmpb.Settings) bool {
		if m.EngineUrls != nil {
			s.EngineURLs = slices.Clone(m.EngineUrls.Values)
		}
		return m.EngineUrls != nil
	},
}

var settingFields = []settingField{
	plain("admission", func(s *ledger.Settings) *bool { return &s.Admission }, func(m *fsmpb.Settings) **bool { return &m.Admission }),
	plain("lifecycle", func(s *ledger.Settings) *bool { return &s.Lifecycle }, func(m *fsmpb.Settings) **bool { return &m.Lifecycle }),
	plain("headroom", func(s *ledger.Settings) *float64 { return &s.Headroom }, func(m *fsmpb.Settings) **float64 { return &m.Headroom }),
	plain("pressureThreshold", func(s *ledger.Settings) *float64 { return &s.PressureThreshold }, func(m *fsmpb.Settings) **float64 { return &m.PressureThreshold }),
	number("expectedDecodeCap", func(s *ledger.Settings) *ledger.Tokens { return &s.ExpectedDecodeCap }, func(m *fsmpb.Settings) **int64 { return &m.ExpectedDecodeCap }),
	number("maxWait", func(s *ledger.Settings) *time.Duration { return &s.MaxWait }, func(m *fsmpb.Settings) **int64 { return &m.MaxWait }),
	number("scope", func(s *ledger.Settings) *ledger.Scope { return &s.Scope }, func(m *fsmpb.Settings) **uint32 { return &m.Scope }),
	number("leaseTtl", func(s *ledger.Settings) *time.Duration { return &s.LeaseTTL }, func(m *fsmpb.Settings) **int64 { return &m.LeaseTtl }),
	number("maxTtl", func(s *ledger.Settings) *time.Duration { return &s.MaxTTL }, func(m *fsmpb.Settings) **int64 { return &m.MaxTtl }),
	number("holderTtl", func(s *ledger.Settings) *time.Duration { return &s.HolderTTL }, func(m *fsmpb.Settings) **int64 { return &m.HolderTtl }),
	number("detachGrace", func(s *ledger.Settings) *time.Duration { return &s.DetachGrace }, func(m *fsmpb.Settings) **int64 { return &m.DetachGrace }),
	number("staleness", func(s *ledger.Settings) *time.Duration { return &s.Staleness }, func(m *fsmpb.Settings) **int64 { return &m.Staleness }),
	number("oversize", func(s *ledger.Settings) *ledger.Oversize { return &s.Oversize }, func(m *fsmpb.Settings) **uint32 { return &m.Oversize }),
	number("maxWaiters", func(s *ledger.Settings) *int64 { return &s.MaxWaiters }, func(m *fsmpb.Settings) **int64 { return &m.MaxWaiters }),
	plain("pinRatio", func(s *ledger.Settings) *float64 { return &s.PinRatio }, func(m *fsmpb.Settings) **float64 { return &m.PinRatio }),
	plain("routerUrl", func(s *ledger.Settings) *string { return &s.RouterURL }, func(m *fsmpb.Settings) **string { return &m.RouterUrl }),
	engineURLs,
	number("pollInterval", func(s *ledger.Settings) *time.Duration { return &s.PollInterval }, func(m *fsmpb.Settings) **int64 { return &m.PollInterval }),
	number("pollTimeout", func(s *ledger.Settings) *time.Duration { return &s.PollTimeout }, func(m *fsmpb.Settings) **int64 { return &m.PollTimeout }),
	plain("modelId", func(s *ledger.Settings) *string { return &s.ModelID }, func(m *fsmpb.Settings) **string { return &m.ModelId }),
	number("capacityRoles", func(s *ledger.Settings) *ledger.CapacityRoles { return &s.CapacityRoles }, func(m *fsmpb.Settings) **uint32 { return &m.CapacityRoles }),
	number("joinTimeout", func(s *ledger.Settings) *time.Duration { return &s.JoinTimeout }, func(m *fsmpb.Settings) **int64 { return &m.JoinTimeout }),
	number("abortTimeout", func(s *ledger.Settings) *time.Duration { return &s.AbortTimeout }, func(m *fsmpb.Settings) **int64 { return &m.AbortTimeout }),
	number("closeDeadline", func(s *ledger.Settings) *time.Duration { return &s.CloseDeadline }, func(m *fsmpb.Settings) **int64 { return &m.CloseDeadline }),
	number("closeScope", func(s *ledger.Settings) *ledger.CloseScope { return &s.CloseScope }, func(m *fsmpb.Settings) **uint32 { return &m.CloseScope }),
	number("journalMaxEvents", func(s *ledger.Settings) *int64 { return &s.JournalMaxEvents }, func(m *fsmpb.Settings) **int64 { return &m.JournalMaxEvents }),
	number("journalMaxAge", func(s *ledger.Settings) *time.Duration { return &s.JournalMaxAge }, func(m *fsmpb.Settings) **int64 { return &m.JournalMaxAge }),
	plain("quarantine", func(s *ledger.Settings) *bool { return &s.Quarantine }, func(m *fsmpb.Settings) **bool { return &m.Quarantine }),
}

// encodeSettings stores the named fields; names that are not settings are skipped.
func encodeSettings(s *ledger.Settings, names []string) *fsmpb.Settings {
	m := &fsmpb.Settings{}
	for _, f := range settingFields {
		if slices.Contains(names, f.name) {
			f.put(m, s)
		}
	}
	return m
}

// decodePatch reads the fields that are set.
func decodePatch(u *fsmpb.UpdateSettings) ledger.Patch {
	m, p := u.Patch, ledger.Patch{Clear: u.Clear, By: u.By}
	if m == nil {
		return p
	}
	for _, f := range settingFields {
		if f.get(&p.Set, m) {
			p.Fields = append(p.Fields, f.name)
		}
	}
	return p
}
