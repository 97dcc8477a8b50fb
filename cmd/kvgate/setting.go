package main

import (
	"strconv"
	"strings"

	"google.golang.org/protobuf/reflect/protoreflect"
	"google.golang.org/protobuf/types/known/durationpb"

	"kvgate/ledger"
	kvgatev1 "kvgate/rpc/kvgate/v1"
	"kvgate/rpc/words"
)

// setting is one field of the API's Settings. Names, kinds and enum words come from the proto, so a
// setting that is added there needs nothing here but its default.
type setting struct{ field protoreflect.FieldDescriptor }

// name returns the API's name of the setting, e.g. "maxWait".
func (s setting) name() string { return s.field.JSONName() }

func allSettings() []setting {
	fields := (*kvgatev1.Settings)(nil).ProtoReflect().Descriptor().Fields()
	all := make([]setting, fields.Len())
	for i := range all {
		all[i] = setting{fields.Get(i)}
	}
	return all
}

// settingNamed finds a setting by its name in snake_case, kebab-case or lowerCamel.
func settingNamed(name string) (setting, error) {
	for _, s := range allSettings() {
		if plainName(s.name()) == plainName(name) {
			return s, nil
		}
	}
	return setting{}, badValue("settings", name, oneOf(each(allSettings(), setting.name)))
}

func plainName(name string) string {
	return strings.ToLower(strings.NewReplacer("_", "", "-", "").Replace(strings.TrimSpace(name)))
}

// text returns the value in words; "none" when there is none.
func (s setting) text(settings *kvgatev1.Settings) string {
	return words.Field(settings.ProtoReflect(), s.field)
}

// set reads a value into settings. Ranges are the server's to check.
func (s setting) set(settings *kvgatev1.Settings, text string) error {
	value, allowed := s.parse(text)
	if allowed != "" {
		return badValue(s.name(), text, allowed)
	}
	m := settings.ProtoReflect()
	if !s.field.IsList() {
		m.Set(s.field, value)
		return nil
	}
	list := m.Mutable(s.field).List()
	for word := range strings.SplitSeq(text, ",") {
		list.Append(protoreflect.ValueOfString(strings.TrimSpace(word)))
	}
	return nil
}

// parse reads one value; allowed is not empty when text cannot be one.
func (s setting) parse(text string) (value protoreflect.Value, allowed string) {
	switch s.field.Kind() {
	case protoreflect.BoolKind:
		b, err := strconv.ParseBool(strings.NewReplacer("on", "true", "off", "false").Replace(text))
		return protoreflect.ValueOfBool(b), unless(err, "true or false")
	case protoreflect.DoubleKind:
		f, err := strconv.ParseFloat(text, 64)
		return protoreflect.ValueOfFloat64(f), unless(err, "a number")
	case protoreflect.Int64Kind:
		n, err := strconv.ParseInt(strings.NewReplacer("_", "", ",", "").Replace(text), 10, 64)
		return protoreflect.ValueOfInt64(n), unless(err, "a whole number")
	case protoreflect.MessageKind:
		d, err := parseDuration(text)
		return protoreflect.ValueOfMessage(durationpb.New(d).ProtoReflect()), unless(err, "a duration such as 500ms, 45s, 10m or 7d")
	case protoreflect.EnumKind:
		return s.parseEnum(text)
	default:
		return protoreflect.ValueOfString(text), ""
	}
}

func unless(err error, allowed string) string {
	if err == nil {
		return ""
	}
	return allowed
}

func (s setting) parseEnum(text string) (protoreflect.Value, string) {
	values := s.field.Enum().Values()
	var allowed []string
	for i := 1; i < values.Len(); i++ {
		known := values.Get(i)
		if strings.EqualFold(text, words.Enum(s.field.Enum(), known.Number())) || strings.EqualFold(text, string(known.Name())) {
			return protoreflect.ValueOfEnum(known.Number()), ""
		}
		allowed = append(allowed, words.Enum(s.field.Enum(), known.Number()))
	}
	return protoreflect.Value{}, oneOf(allowed)
}

// defaultSettings returns the settings of a new pool in the API's terms.
func defaultSettings() *kvgatev1.Settings {
	d := ledger.DefaultSettings()
	settings := &kvgatev1.Settings{
		Admission: &d.Admission, Lifecycle: &d.Lifecycle, Headroom: &d.Headroom, PressureThreshold: &d.PressureThreshold,
		MaxWait: durationpb.New(d.MaxWait), LeaseTtl: durationpb.New(d.LeaseTTL), MaxTtl: durationpb.New(d.MaxTTL),
		HolderTtl: durationpb.New(d.HolderTTL), DetachGrace: durationpb.New(d.DetachGrace), Staleness: durationpb.New(d.Staleness),
		PollInterval: durationpb.New(d.PollInterval), PollTimeout: durationpb.New(d.PollTimeout),
		JoinTimeout: durationpb.New(d.JoinTimeout), AbortTimeout: durationpb.New(d.AbortTimeout),
		CloseDeadline: durationpb.New(d.CloseDeadline), JournalMaxAge: durationpb.New(d.JournalMaxAge),
		MaxWaiters: &d.MaxWaiters, PinRatio: &d.PinRatio, JournalMaxEvents: &d.JournalMaxEvents, EngineUrls: d.EngineURLs, Quarantine: &d.Quarantine,
		Scope: kvgatev1.Scope(d.Scope).Enum(), Oversize: kvgatev1.Oversize(d.Oversize).Enum(),
		CapacityRoles: kvgatev1.CapacityRoles(d.CapacityRoles).Enum(), CloseScope: kvgatev1.CloseScope(d.CloseScope).Enum(),
	}
	if limit := int64(d.ExpectedDecodeCap); limit > 0 {
		settings.ExpectedDecodeCap = &limit
	}
	return settings
}
