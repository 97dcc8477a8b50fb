package main

import (
	"strings"
	"testing"
	"time"

	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/durationpb"

	kvgatev1 "kvgate/rpc/kvgate/v1"
)

func TestSettingsSet(t *testing.T) {
	tests := []struct {
		args  string
		want  *kvgatev1.Settings
		clear []string
	}{
		{"max_wait=45s max-ttl=2h leaseTtl=90s journal_max_age=7d", &kvgatev1.Settings{
			MaxWait: durationpb.New(45 * time.Second), MaxTtl: durationpb.New(2 * time.Hour), LeaseTtl: durationpb.New(90 * time.Second),
			JournalMaxAge: durationpb.New(7 * 24 * time.Hour)}, nil},
		{"headroom=0.85 pin_ratio=0 admission=off lifecycle=true", &kvgatev1.Settings{
			Headroom: proto.Float64(0.85), PinRatio: proto.Float64(0), Admission: proto.Bool(false), Lifecycle: proto.Bool(true)}, nil},
		{"scope=all oversize=OVERSIZE_WAIT capacity-roles=Decode close_scope=served", &kvgatev1.Settings{
			Scope: kvgatev1.Scope_SCOPE_ALL.Enum(), Oversize: kvgatev1.Oversize_OVERSIZE_WAIT.Enum(),
			CapacityRoles: kvgatev1.CapacityRoles_CAPACITY_ROLES_DECODE.Enum(), CloseScope: kvgatev1.CloseScope_CLOSE_SCOPE_SERVED.Enum()}, nil},
		{"engine_urls=http://a,http://b router-url=http://r?x=y expectedDecodeCap=4_096", &kvgatev1.Settings{
			EngineUrls: []string{"http://a", "http://b"}, RouterUrl: proto.String("http://r?x=y"), ExpectedDecodeCap: proto.Int64(4096)}, nil},
		{"expected_decode_cap=none max-wait=default router_url= scope=all", &kvgatev1.Settings{Scope: kvgatev1.Scope_SCOPE_ALL.Enum()},
			[]string{"expectedDecodeCap", "maxWait", "routerUrl"}},
	}
	for _, test := range tests {
		want := &kvgatev1.UpdateSettingsRequest{Pool: "p", Settings: test.want, Clear: test.clear}
		f := &fake{updateSets: func(r *kvgatev1.UpdateSettingsRequest) (*kvgatev1.UpdateSettingsResponse, error) {
			if !proto.Equal(r, want) {
				t.Errorf("%s: sent %v, want %v", test.args, r, want)
			}
			return &kvgatev1.UpdateSettingsResponse{Settings: r.Settings}, nil
		}}
		if r := at(t, f, append([]string{"settings", "set", "--pool", "p"}, strings.Fields(test.args)...)...); r.code != exitOK {
			t.Errorf("%s: exit %d: %s", test.args, r.code, r.stderr)
		}
	}
}

func TestSettingsSetUsage(t *testing.T) {
	tests := []struct{ args, want string }{
		{"", "settings set: a setting is missing: use NAME=VALUE…"},
		{"headroom", `settings: "headroom" is not allowed: use NAME=VALUE`},
		{"headrom=1", `settings: "headrom" is not allowed: use admission, lifecycle, headroom, pressureThreshold, expectedDecodeCap, maxWait, scope, ` +
			`leaseTtl, maxTtl, holderTtl, detachGrace, staleness, oversize, maxWaiters, pinRatio, routerUrl, engineUrls, pollInterval, pollTimeout, ` +
			`modelId, capacityRoles, joinTimeout, abortTimeout, closeDeadline, closeScope, journalMaxEvents, journalMaxAge or quarantine`},
		{"max_wait=1s maxWait=2s", "maxWait: given twice"},
		{"headroom=high", `headroom: "high" is not allowed: use a number`},
		{"max_waiters=1.5", `maxWaiters: "1.5" is not allowed: use a whole number`},
		{"max_wait=45", `maxWait: "45" is not allowed: use a duration such as 500ms, 45s, 10m or 7d`},
		{"admission=maybe", `admission: "maybe" is not allowed: use true or false`},
		{"scope=eval", `scope: "eval" is not allowed: use train or all`},
	}
	for _, test := range tests {
		r := kvgate(t, append([]string{"settings", "set"}, strings.Fields(test.args)...)...)
		t.Run(test.args, func(t *testing.T) { r.expect(t, result{code: exitUsage, stderr: "kvgate: " + test.want}) })
	}
	kvgate(t, "settings").expect(t, result{code: exitUsage, stderr: "kvgate: kvgate settings: a subcommand is missing: use get or set"})
	kvgate(t, "settings", "put").expect(t, result{code: exitUsage, stderr: `kvgate: kvgate settings: "put" is not allowed: use get or set`})
}

func settingsFake() *fake {
	return &fake{settings: func(*kvgatev1.GetSettingsRequest) (*kvgatev1.GetSettingsResponse, error) {
		s := defaultSettings()
		s.Headroom, s.MaxWait, s.EngineUrls = proto.Float64(0.85), durationpb.New(45*time.Second), []string{"http://a", "http://b"}
		return &kvgatev1.GetSettingsResponse{Pool: "default", Settings: s}, nil
	}}
}

func TestSettingsGet(t *testing.T) {
	at(t, settingsFake(), "settings", "get").expect(t, result{stdout: `
SETTING            VALUE              NOTE
admission          true               default
lifecycle          true               default
headroom           0.85               changed; default 0.9
pressureThreshold  0.92               default
expectedDecodeCap  none               default
maxWait            45s                changed; default 30s
scope              train              default
leaseTtl           10m                default
maxTtl             1h                 default
holderTtl          15s                default
detachGrace        10s                default
staleness          6s                 default
oversize           bypass             default
maxWaiters         100,000            default
pinRatio           0                  default
routerUrl          none               default
engineUrls         http://a,http://b  changed; default none
pollInterval       2s                 default
pollTimeout        5s                 default
modelId            none               default
capacityRoles      auto               default
joinTimeout        30s                default
abortTimeout       5s                 default
closeDeadline      1m                 default
closeScope         broadcast          default
journalMaxEvents   1,000,000          default
journalMaxAge      7d                 default
quarantine         false              default
`})
	at(t, settingsFake(), "settings", "get", "max-wait", "scope").expect(t, result{stdout: `
SETTING  VALUE  NOTE
maxWait  45s    changed; default 30s
scope    train  default
`})
}

func TestEverySettingHasADefaultOrNone(t *testing.T) {
	none := map[string]bool{"expectedDecodeCap": true, "routerUrl": true, "engineUrls": true, "modelId": true}
	for _, s := range allSettings() {
		if has := s.text(defaultSettings()) != "none"; has == none[s.name()] {
			t.Errorf("%s: default is %q", s.name(), s.text(defaultSettings()))
		}
	}
}
