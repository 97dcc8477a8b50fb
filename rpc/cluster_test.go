package rpc

import (
	"context"
	"reflect"
	"slices"
	"testing"
	"time"

	"kvgate/fsm"
	"kvgate/ledger"
	kvgatev1 "kvgate/rpc/kvgate/v1"
)

func TestGetStatus(t *testing.T) {
	b := &fakeBackend{status: fsm.Status{
		NodeID: "n1", LeaderID: "n2", State: "follower", Term: 3, AppliedIndex: 9, CommitIndex: 10, FailureTolerance: 1, ClusterID: "c", Version: "v",
		Writable: true, Health: "ok", LedgerTime: 77,
		Nodes: []fsm.NodeStatus{{ID: "n1", Address: "a:1", Voter: true, Reachable: true, AppliedIndex: 9, Version: "v", APIAddress: "a:2", Lag: 1}, {ID: "n2", Address: "b:1"}},
	}}
	got := start(t, b).post("ClusterService/GetStatus", `{}`).ok(t)
	want := map[string]any{
		"nodeId": "n1", "leaderId": "n2", "state": "follower", "term": "3", "appliedIndex": "9", "commitIndex": "10", "failureTolerance": 1.0,
		"clusterId": "c", "version": "v", "writable": true, "health": "ok", "ledgerTime": "77",
		"nodes": []any{map[string]any{"id": "n1", "address": "a:1", "voter": true, "reachable": true, "appliedIndex": "9", "version": "v", "apiAddress": "a:2", "lag": "1"},
			map[string]any{"id": "n2", "address": "b:1", "voter": false, "reachable": false, "appliedIndex": "0", "version": "", "apiAddress": ""}},
	}
	if !reflect.DeepEqual(got, want) {
		t.Errorf("got %v", got)
	}
}

func TestGetSettingsShowsAllThatHaveAValue(t *testing.T) {
	r := start(t, &fakeBackend{})
	got := r.post("ClusterService/GetSettings", `{}`).ok(t)
	set := got["settings"].(map[string]any)
	for name, want := range map[string]any{
		"admission": true, "headroom": 0.9, "maxWait": "30s", "scope": "SCOPE_TRAIN", "oversize": "OVERSIZE_BYPASS", "maxWaiters": "100000",
		"pinRatio": 0.0, "routerUrl": "", "capacityRoles": "CAPACITY_ROLES_AUTO", "closeScope": "CLOSE_SCOPE_BROADCAST", "journalMaxAge": "604800s",
	} {
		if set[name] != want {
			t.Errorf("%s is %v, want %v", name, set[name], want)
		}
	}
	if cap, ok := set["expectedDecodeCap"]; ok {
		t.Errorf("expectedDecodeCap is %v although there is no cap", cap)
	}
	if got["pool"] != "default" {
		t.Errorf("pool is %v", got["pool"])
	}
}

func TestUpdateSettingsChangesWhatIsSet(t *testing.T) {
	b := &fakeBackend{ledger: ledger.New()}
	var patch ledger.Patch
	b.updateSettings = func(_ context.Context, pool string, p ledger.Patch) (ledger.Settings, error) {
		patch = p
		return b.ledger.UpdateSettings(pool, p)
	}
	r := start(t, b)
	steps := []struct {
		body   string
		fields []string
		shows  map[string]any
	}{
		{`{"settings":{}}`, nil, map[string]any{"headroom": 0.9}},
		{`{}`, nil, map[string]any{"headroom": 0.9}},
		{`{"settings":{"admission":false}}`, []string{"admission"}, map[string]any{"admission": false, "lifecycle": true}},
		{`{"settings":{"maxWait":"0s","pinRatio":0}}`, []string{"maxWait", "pinRatio"}, map[string]any{"maxWait": "0s"}},
		{`{"settings":{"expectedDecodeCap":512}}`, []string{"expectedDecodeCap"}, map[string]any{"expectedDecodeCap": "512", "admission": false}},
		{`{"clear":["expectedDecodeCap","admission"]}`, nil, map[string]any{"expectedDecodeCap": nil, "admission": true, "maxWait": "0s"}},
		{`{"settings":{"engineUrls":["http://a:1","http://b:1"]}}`, []string{"engineUrls"}, map[string]any{"engineUrls": []any{"http://a:1", "http://b:1"}}},
		{`{"settings":{"engineUrls":[],"scope":"SCOPE_ALL"}}`, []string{"scope"}, map[string]any{"engineUrls": []any{"http://a:1", "http://b:1"}, "scope": "SCOPE_ALL"}},
		{`{"clear":["engineUrls"]}`, nil, map[string]any{"engineUrls": []any{}}},
	}
	for _, step := range steps {
		got := r.post("ClusterService/UpdateSettings", step.body).ok(t)["settings"].(map[string]any)
		if !slices.Equal(patch.Fields, step.fields) {
			t.Errorf("%s: the patch names %v", step.body, patch.Fields)
		}
		for name, want := range step.shows {
			if !reflect.DeepEqual(got[name], want) {
				t.Errorf("%s: %s is %v, want %v", step.body, name, got[name], want)
			}
		}
	}
}

func TestUpdateSettingsOfAnotherPool(t *testing.T) {
	b := &fakeBackend{updateSettings: func(_ context.Context, pool string, _ ledger.Patch) (ledger.Settings, error) {
		if pool != "second" {
			t.Errorf("backend got pool %q", pool)
		}
		return ledger.DefaultSettings(), nil
	}}
	if got := start(t, b).post("ClusterService/UpdateSettings", `{"pool":"second"}`).ok(t); got["pool"] != "second" {
		t.Errorf("got %v", got)
	}
}

// Every field of the proto has a row, and a value survives the way to the ledger and back.
func TestSettingTableIsComplete(t *testing.T) {
	fields := (&kvgatev1.Settings{}).ProtoReflect().Descriptor().Fields()
	if len(settingTable) != fields.Len() {
		t.Fatalf("%d rows for %d fields", len(settingTable), fields.Len())
	}
	for i, row := range settingTable {
		if want := fields.Get(i).JSONName(); row.name != want {
			t.Errorf("row %d is %s, want %s", i, row.name, want)
		}
	}
	in := distinctSettings()
	m := settingsMessage(in)
	var out ledger.Settings
	for _, row := range settingTable {
		if !row.read(m, &out) {
			t.Errorf("%s is not set in the message", row.name)
		}
	}
	if !reflect.DeepEqual(in, out) {
		t.Errorf("%+v became %+v", in, out)
	}
}

// distinctSettings has another value in every field, none of them zero.
func distinctSettings() ledger.Settings {
	s := ledger.Settings{
		Admission: true, Lifecycle: true, Scope: ledger.ScopeAll, Oversize: ledger.OversizeWait,
		CapacityRoles: ledger.RolesPrefill, CloseScope: ledger.CloseServed, EngineURLs: []string{"http://e"},
	}
	v := reflect.ValueOf(&s).Elem()
	for i := range v.NumField() {
		switch f := v.Field(i); f.Kind() {
		case reflect.Int64:
			f.SetInt(int64(i+1) * int64(time.Second))
		case reflect.Float64:
			f.SetFloat(float64(i+1) / 100)
		case reflect.String:
			f.SetString(v.Type().Field(i).Name)
		}
	}
	return s
}

func TestDeletePool(t *testing.T) {
	b := &fakeBackend{deletePool: func(_ context.Context, pool, by string) (bool, error) {
		if by != "a caller at 127.0.0.1 through n1" {
			t.Errorf("by is %q", by)
		}
		if pool == ledger.DefaultPool {
			t.Error("the default pool reached the backend")
		}
		return pool == "p", nil
	}, status: fsm.Status{NodeID: "n1"}}
	r := start(t, b)
	for pool, want := range map[string]bool{"p": true, "q": false} {
		if got := r.post("ClusterService/DeletePool", `{"pool":"`+pool+`"}`).ok(t); got["deleted"] != want {
			t.Errorf("%s: %v", pool, got)
		}
	}
	if a := r.post("ClusterService/DeletePool", `{"pool":"default"}`); a.code() != "failed_precondition" || a.info(t).GetCode() != CodeDefaultPool {
		t.Errorf("got %s", a.raw)
	}
}
