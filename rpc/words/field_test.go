package words_test

import (
	"testing"
	"time"

	"google.golang.org/protobuf/types/known/durationpb"

	kvgatev1 "kvgate/rpc/kvgate/v1"
	"kvgate/rpc/words"
)

func TestExactDuration(t *testing.T) {
	for d, want := range map[time.Duration]string{
		0: "0s", 250 * time.Millisecond: "250ms", 1250 * time.Millisecond: "1.25s", 10 * time.Minute: "10m", time.Hour + time.Nanosecond: "1h1ns",
		90 * time.Minute: "1h30m", 7 * 24 * time.Hour: "7d", 36*time.Hour + 5*time.Second: "1d12h5s", -90 * time.Second: "-1m30s",
	} {
		if got := words.ExactDuration(d); got != want {
			t.Errorf("%v is %q, want %q", int64(d), got, want)
		}
	}
}

func TestField(t *testing.T) {
	headroom, waiters, url := 0.0000001, int64(100_000), ""
	scope := kvgatev1.Scope(77)
	m := (&kvgatev1.Settings{
		Headroom: &headroom, MaxWaiters: &waiters, RouterUrl: &url, MaxWait: durationpb.New(30*time.Second + time.Millisecond),
		EngineUrls: []string{"http://a", "http://b"}, Scope: &scope, Oversize: kvgatev1.Oversize_OVERSIZE_WAIT.Enum(),
	}).ProtoReflect()
	for name, want := range map[string]string{
		"headroom": "0.0000001", "max_waiters": "100,000", "router_url": "none", "max_wait": "30.001s", "engine_urls": "http://a,http://b",
		"scope": "77", "oversize": "wait", "model_id": "none",
	} {
		f := m.Descriptor().Fields().ByTextName(name)
		if f == nil {
			t.Fatalf("no field %s", name)
		}
		if got := words.Field(m, f); got != want {
			t.Errorf("%s is %q, want %q", name, got, want)
		}
	}
}
