package rpc

import (
	"slices"
	"strings"
	"time"

	"google.golang.org/protobuf/types/known/durationpb"

	"kvgate/ledger"
	kvgatev1 "kvgate/rpc/kvgate/v1"
)

// setting connects one field of the API's Settings with the ledger's.
type setting struct {
	// name is lowerCamel, as in JSON and in ledger.Patch.
	name string
	// read copies the field from the message when it is set there, and says whether it was.
	read func(m *kvgatev1.Settings, s *ledger.Settings) bool
	// write copies the field to the message; a field that means "none" stays unset.
	write func(s *ledger.Settings, m *kvgatev1.Settings)
}

// settingTable has one row per field, in the proto's order.
var settingTable = []setting{
	plain("admission", func(m *kvgatev1.Settings) **bool { return &m.Admission }, func(s *ledger.Settings) *bool { return &s.Admission }),
	plain("lifecycle", func(m *kvgatev1.Settings) **bool { return &m.Lifecycle }, func(s *ledger.Settings) *bool { return &s.Lifecycle }),
	plain("headroom", func(m *kvgatev1.Settings) **float64 { return &m.Headroom }, func(s *ledger.Settings) *float64 { return &s.Headroom }),
	plain("pressureThreshold", func(m *kvgatev1.Settings) **float64 { return &m.PressureThreshold }, func(s *ledger.Settings) *float64 { return &s.PressureThreshold }),
	decodeCap,
	period("maxWait", func(m *kvgatev1.Settings) **durationpb.Duration { return &m.MaxWait }, func(s *ledger.Settings) *time.Duration { return &s.MaxWait }),
	enum("scope", func(m *kvgatev1.Settings) **kvgatev1.Scope { return &m.Scope }, func(s *ledger.Settings) *ledger.Scope { return &s.Scope }),
	period("leaseTtl", func(m *kvgatev1.Settings) **durationpb.Duration { return &m.LeaseTtl }, func(s *ledger.Settings) *time.Duration { return &s.LeaseTTL }),
	period("maxTtl", func(m *kvgatev1.Settings) **durationpb.Duration { return &m.MaxTtl }, func(s *ledger.Settings) *time.Duration { return &s.MaxTTL }),
	period("holderTtl", func(m *kvgatev1.Settings) **durationpb.Duration { return &m.HolderTtl }, func(s *ledger.Settings) *time.Duration { return &s.HolderTTL }),
	period("detachGrace", func(m *kvgatev1.Settings) **durationpb.Duration { return &m.DetachGrace }, func(s *ledger.Settings) *time.Duration { return &s.DetachGrace }),
	period("staleness", func(m *kvgatev1.Settings) **durationpb.Duration { return &m.Staleness }, func(s *ledger.Settings) *time.Duration { return &s.Staleness }),
	enum("oversize", func(m *kvgatev1.Settings) **kvgatev1.Oversize { return &m.Oversize }, func(s *ledger.Settings) *ledger.Oversize { return &s.Oversize }),
	plain("maxWaiters", func(m *kvgatev1.Settings) **int64 { return &m.MaxWaiters }, func(s *ledger.Settings) *int64 { return &s.MaxWaiters }),
	plain("pinRatio", func(m *kvgatev1.Settings) **float64 { return &m.PinRatio }, func(s *ledger.Settings) *float64 { return &s.PinRatio }),
	plain("routerUrl", func(m *kvgatev1.Settings) **string { return &m.RouterUrl }, func(s *ledger.Settings) *string { return &s.RouterURL }),
	engineURLs,
	period("pollInterval", func(m *kvgatev1.Settings) **durationpb.Duration { return &m.PollInterval }, func(s *ledger.Settings) *time.Duration { return &s.PollInterval }),
	period("pollTimeout", func(m *kvgatev1.Settings) **durationpb.Duration { return &m.PollTimeout }, func(s *ledger.Settings) *time.Duration { return &s.PollTimeout }),
	plain("modelId", func(m *kvgatev1.Settings) **string { return &m.ModelId }, func(s *ledger.Settings) *string { return &s.ModelID }),
	enum("capacityRoles", func(m *kvgatev1.Settings) **kvgatev1.CapacityRoles { return &m.CapacityRoles }, func(s *ledger.Settings) *ledger.CapacityRoles { return &s.CapacityRoles }),
	period("joinTimeout", func(m *kvgatev1.Settings) **durationpb.Duration { return &m.JoinTimeout }, func(s *ledger.Settings) *time.Duration { return &s.JoinTimeout }),
	period("abortTimeout", func(m *kvgatev1.Settings) **durationpb.Duration { return &m.AbortTimeout }, func(s *ledger.Settings) *time.Duration { return &s.AbortTimeout }),
	period("closeDeadline", func(m *kvgatev1.Settings) **durationpb.Duration { return &m.CloseDeadline }, func(s *ledger.Settings) *time.Duration { return &s.CloseDeadline }),
	enum("closeScope", func(m *kvgatev1.Settings) **kvgatev1.CloseScope { return &m.CloseScope }, func(s *ledger.Settings) *ledger.CloseScope { return &s.CloseScope }),
	plain("journalMaxEvents", func(m *kvgatev1.Settings) **int64 { return &m.JournalMaxEvents }, func(s *ledger.Settings) *int64 { return &s.JournalMaxEvents }),
	period("journalMaxAge", func(m *kvgatev1.Settings) **durationpb.Duration { return &m.JournalMaxAge }, func(s *ledger.Settings) *time.Duration { return &s.JournalMaxAge }),
	plain("quarantine", func(m *kvgatev1.Settings) **bool { return &m.Quarantine }, func(s *ledger.Settings) *bool { return &s.Quarantine }),
}

// plain is a setting whose type is the same on both sides.
func plain[T any](name string, api func(*kvgatev1.Settings) **T, own func(*ledger.Settings) *T) setting {
	return setting{
		name: name,
		read: func(m *kvgatev1.Settings, s *ledger.Settings) bool {
			v := *api(m)
			if v != nil {
				*own(s) = *v
			}
			return v != nil
		},
		write: func(s *ledger.Settings, m *kvgatev1.Settings) { v := *own(s); *api(m) = &v },
	}
}

func period(name string, api func(*kvgatev1.Settings) **durationpb.Duration, own func(*ledger.Settings) *time.Duration) setting {
	return setting{
		name: name,
		read: func(m *kvgatev1.Settings, s *ledger.Settings) bool {
			v := *api(m)
			if v != nil {
				*own(s) = v.AsDuration()
			}
			return v != nil
		},
		write: func(s *ledger.Settings, m *kvgatev1.Settings) { *api(m) = durationpb.New(*own(s)) },
	}
}

// enum is a setting whose numbers are the same on both sides. Unspecified means the default, and the
// default's name is what people are shown. Numbers that do not fit are left for the ledger to refuse.
func enum[A ~int32, L ~uint8](name string, api func(*kvgatev1.Settings) **A, own func(*ledger.Settings) *L) setting {
	return setting{
		name: name,
		read: func(m *kvgatev1.Settings, s *ledger.Settings) bool {
			v := *api(m)
			if v != nil {
				*own(s) = L(min(uint32(*v), 255))
			}
			return v != nil
		},
		write: func(s *ledger.Settings, m *kvgatev1.Settings) { v := max(A(*own(s)), 1); *api(m) = &v },
	}
}

// decodeCap stays unset in answers when there is no cap; in the ledger that is 0, which a caller may
// not send: it would read as "reserve nothing for the completion".
var decodeCap = setting{
	name: "expectedDecodeCap",
	read: func(m *kvgatev1.Settings, s *ledger.Settings) bool {
		if m.ExpectedDecodeCap == nil {
			return false
		}
		s.ExpectedDecodeCap = ledger.Tokens(*m.ExpectedDecodeCap)
		return true
	},
	write: func(s *ledger.Settings, m *kvgatev1.Settings) {
		if s.ExpectedDecodeCap > 0 {
			v := int64(s.ExpectedDecodeCap)
			m.ExpectedDecodeCap = &v
		}
	},
}

// engineURLs replaces the whole list; an empty one is no change, since a list has no presence.
var engineURLs = setting{
	name: "engineUrls",
	read: func(m *kvgatev1.Settings, s *ledger.Settings) bool {
		s.EngineURLs = slices.Clone(m.GetEngineUrls())
		return len(m.GetEngineUrls()) > 0
	},
	write: func(s *ledger.Settings, m *kvgatev1.Settings) { m.EngineUrls = s.EngineURLs },
}

// settingsMessage returns all settings that have a value.
func settingsMessage(s ledger.Settings) *kvgatev1.Settings {
	m := &kvgatev1.Settings{}
	for _, row := range settingTable {
		row.write(&s, m)
	}
	return m
}

// patchOf turns the request into a patch. Ranges are the ledger's business; names are checked here,
// so that a typing error does not become a log entry.
func patchOf(m *kvgatev1.UpdateSettingsRequest) (ledger.Patch, error) {
	var p ledger.Patch
	if m.GetSettings() != nil {
		for _, row := range settingTable {
			if row.read(m.GetSettings(), &p.Set) {
				p.Fields = append(p.Fields, row.name)
			}
		}
	}
	if slices.Contains(p.Fields, decodeCap.name) && p.Set.ExpectedDecodeCap <= 0 {
		return p, invalid(decodeCap.name, int64(p.Set.ExpectedDecodeCap), `tokens above 0; name it in "clear" for no cap`)
	}
	for _, name := range m.GetClear() {
		if !slices.ContainsFunc(settingTable, func(row setting) bool { return row.name == name }) {
			return p, invalid("clear", quote(name), "any of "+settingNames())
		}
		if slices.Contains(p.Fields, name) {
			return p, invalid("clear", quote(name), "a setting that settings does not set as well")
		}
		p.Clear = append(p.Clear, name)
	}
	return p, nil
}

func settingNames() string {
	names := make([]string, len(settingTable))
	for i, row := range settingTable {
		names[i] = row.name
	}
	return strings.Join(names, ", ")
}

// LedgerSettings returns settings of the API as the ledger has them; what is not set has its default.
func LedgerSettings(m *kvgatev1.Settings) ledger.Settings {
	s := ledger.DefaultSettings()
	ApplySettings(m, &s)
	return s
}

// ApplySettings copies to s what is set in m.
func ApplySettings(m *kvgatev1.Settings, s *ledger.Settings) {
	for _, row := range settingTable {
		row.read(m, s)
	}
}
