package ledger_test

import (
	"errors"
	"math"
	"slices"
	"strings"
	"testing"
	"time"

	"kvgate/ledger"
)

const year = 365 * 24 * time.Hour

// rangeCase is one setting with values that are in and out of its range.
type rangeCase struct {
	field string
	set   func(*ledger.Settings, float64)
	// in and out list values; durations are in seconds.
	in, out []float64
	// allowed is what the message must say.
	allowed string
}

func seconds(v float64) time.Duration { return time.Duration(v * float64(time.Second)) }

var longerThanYear = year.Seconds() + 1

var rangeCases = []rangeCase{
	{"headroom", func(s *ledger.Settings, v float64) { s.Headroom = v },
		[]float64{0.001, 0.9, 1}, []float64{0, -0.1, 1.001, math.NaN(), math.Inf(1)}, "(0, 1]"},
	{"pressureThreshold", func(s *ledger.Settings, v float64) { s.PressureThreshold = v },
		[]float64{0.001, 1}, []float64{0, -1, 1.5, math.NaN()}, "(0, 1]"},
	{"expectedDecodeCap", func(s *ledger.Settings, v float64) { s.ExpectedDecodeCap = ledger.Tokens(v) },
		[]float64{0, 1, 1e12}, []float64{-1, 1e12 + 1}, "(0, 10^12]"},
	{"maxWait", func(s *ledger.Settings, v float64) { s.MaxWait = seconds(v) },
		[]float64{0, 30, year.Seconds()}, []float64{-1, longerThanYear}, "0s or longer, at most 8760h"},
	{"maxWaiters", func(s *ledger.Settings, v float64) { s.MaxWaiters = int64(v) },
		[]float64{1, 1e9}, []float64{0, -1}, "above 0"},
	{"leaseTtl", func(s *ledger.Settings, v float64) { s.LeaseTTL = seconds(v) },
		[]float64{1e-9, 3600}, []float64{0, -1}, "at least 1ns"},
	{"leaseTtl", func(s *ledger.Settings, v float64) { s.LeaseTTL = seconds(v) },
		nil, []float64{3601}, "at most maxTtl (1h0m0s)"},
	{"maxTtl", func(s *ledger.Settings, v float64) { s.MaxTTL = seconds(v) },
		[]float64{600, year.Seconds()}, []float64{0, -1, longerThanYear}, "at most 8760h"},
	{"holderTtl", func(s *ledger.Settings, v float64) { s.HolderTTL = seconds(v) },
		[]float64{1, 15}, []float64{0, 0.999, -1}, "at least 1s"},
	{"detachGrace", func(s *ledger.Settings, v float64) { s.DetachGrace = seconds(v) },
		[]float64{0, 10}, []float64{-1, longerThanYear}, "at least 0s"},
	{"staleness", func(s *ledger.Settings, v float64) { s.Staleness = seconds(v) },
		[]float64{4, 6}, []float64{0, -1}, "at least 1ns"},
	{"staleness", func(s *ledger.Settings, v float64) { s.Staleness = seconds(v) },
		nil, []float64{3.999}, "twice pollInterval (2s)"},
	{"pollInterval", func(s *ledger.Settings, v float64) { s.PollInterval = seconds(v) },
		[]float64{0.1, 3}, []float64{0, 0.099, -1}, "at least 100ms"},
	{"pollTimeout", func(s *ledger.Settings, v float64) { s.PollTimeout = seconds(v) },
		[]float64{0.1, 60}, []float64{0, 0.099}, "at least 100ms"},
	{"pinRatio", func(s *ledger.Settings, v float64) { s.PinRatio = v },
		[]float64{0, 0.5, 0.999}, []float64{-0.1, 1, math.NaN()}, "[0, 1)"},
	{"joinTimeout", func(s *ledger.Settings, v float64) { s.JoinTimeout = seconds(v) },
		[]float64{0, 30}, []float64{-1}, "at least 0s"},
	{"abortTimeout", func(s *ledger.Settings, v float64) { s.AbortTimeout = seconds(v) },
		[]float64{0, 30}, []float64{-1}, "at least 0s"},
	{"closeDeadline", func(s *ledger.Settings, v float64) { s.CloseDeadline = seconds(v) },
		[]float64{1}, []float64{0, -1}, "at least 1ns"},
	{"journalMaxEvents", func(s *ledger.Settings, v float64) { s.JournalMaxEvents = int64(v) },
		[]float64{1}, []float64{0, -1}, "above 0"},
	{"journalMaxAge", func(s *ledger.Settings, v float64) { s.JournalMaxAge = seconds(v) },
		[]float64{1}, []float64{0, 0.5}, "at least 1s"},
	{"scope", func(s *ledger.Settings, v float64) { s.Scope = ledger.Scope(v) },
		[]float64{0, 1, 2}, []float64{3, 255}, "names"},
	{"oversize", func(s *ledger.Settings, v float64) { s.Oversize = ledger.Oversize(v) },
		[]float64{0, 1, 2}, []float64{3}, "names"},
	{"capacityRoles", func(s *ledger.Settings, v float64) { s.CapacityRoles = ledger.CapacityRoles(v) },
		[]float64{0, 1, 2, 3, 4}, []float64{5}, "names"},
	{"closeScope", func(s *ledger.Settings, v float64) { s.CloseScope = ledger.CloseScope(v) },
		[]float64{0, 1, 2}, []float64{3}, "names"},
}

func TestSettingsRanges(t *testing.T) {
	for _, c := range rangeCases {
		for _, v := range c.in {
			s := ledger.DefaultSettings()
			if c.set(&s, v); s.Validate() != nil {
				t.Errorf("%s = %v: %v", c.field, v, s.Validate())
			}
		}
		for _, v := range c.out {
			s := ledger.DefaultSettings()
			c.set(&s, v)
			expectFieldError(t, s.Validate(), c.field, c.allowed)
		}
	}
}

// expectFieldError demands an error that names the field, its value and what is allowed.
func expectFieldError(t *testing.T, err error, field, allowed string) {
	t.Helper()
	var e *ledger.FieldError
	if !errors.As(err, &e) || !errors.Is(err, ledger.ErrInvalid) {
		t.Errorf("%s: error %v, want a FieldError", field, err)
		return
	}
	if e.Field != field || !strings.Contains(e.Allowed, allowed) {
		t.Errorf("error %q, want one of %s that allows %q", err, field, allowed)
	}
	for _, part := range []string{field, e.Allowed} {
		if !strings.Contains(err.Error(), part) {
			t.Errorf("message %q lacks %q", err, part)
		}
	}
}

func TestFieldErrorText(t *testing.T) {
	s := ledger.DefaultSettings()
	s.Headroom = 1.5
	if got, want := s.Validate().Error(), "headroom is 1.5, allowed is a number in (0, 1]"; got != want {
		t.Errorf("message %q, want %q", got, want)
	}
}

func TestSettingsURLs(t *testing.T) {
	good := []string{"", "http://r:30000", "https://r"}
	bad := []string{"r:30000", "ftp://r", "http://", "http://%zz", "http://" + strings.Repeat("r", 2048)}
	for _, u := range good {
		s := ledger.DefaultSettings()
		if s.RouterURL = u; s.Validate() != nil {
			t.Errorf("router %q: %v", u, s.Validate())
		}
	}
	for _, u := range bad {
		s := ledger.DefaultSettings()
		s.RouterURL = u
		expectFieldError(t, s.Validate(), "routerUrl", "http")
		s = ledger.DefaultSettings()
		s.EngineURLs = []string{"http://e:1", u}
		expectFieldError(t, s.Validate(), "engineUrls", "http")
	}
	s := ledger.DefaultSettings()
	s.EngineURLs = []string{""}
	expectFieldError(t, s.Validate(), "engineUrls", "http")
	s = ledger.DefaultSettings()
	s.ModelID = strings.Repeat("m", 257)
	expectFieldError(t, s.Validate(), "modelId", "256 bytes")
}

// TestSettingsFeatureOff: the numbers of a feature are checked only where it is on.
func TestSettingsFeatureOff(t *testing.T) {
	s := ledger.DefaultSettings()
	s.Headroom, s.MaxWaiters, s.PressureThreshold = math.NaN(), -1, 9
	expectFieldError(t, s.Validate(), "headroom", "(0, 1]")
	if s.Admission = false; s.Validate() != nil {
		t.Errorf("admission off: %v", s.Validate())
	}
	s = ledger.DefaultSettings()
	s.CloseDeadline = -1
	expectFieldError(t, s.Validate(), "closeDeadline", "at least")
	if s.Lifecycle = false; s.Validate() != nil {
		t.Errorf("lifecycle off: %v", s.Validate())
	}
}

// TestUncheckedHeadroom: a headroom that is not checked while admission is off gives a ceiling all the
// same, and one that every machine computes alike.
func TestUncheckedHeadroom(t *testing.T) {
	for _, h := range []float64{math.NaN(), math.Inf(1), -3, 1e300} {
		l := ledger.New()
		l.Reconcile(ledger.DefaultPool, ledger.Round{Fresh: true, Engines: []ledger.Engine{{URL: "a", Healthy: true, Capacity: 100}}})
		patch := ledger.Patch{Fields: []string{"admission", "headroom"}, Set: ledger.Settings{Headroom: h}}
		if _, err := l.UpdateSettings(ledger.DefaultPool, patch); err != nil {
			t.Fatalf("headroom %v with admission off: %v", h, err)
		}
		if b, _ := l.Budget(ledger.DefaultPool); b.Ceiling < 0 || b.Ceiling > 100 {
			t.Errorf("headroom %v: ceiling %d", h, b.Ceiling)
		}
	}
}

func TestUpdateSettingsUnknownName(t *testing.T) {
	l := ledger.New()
	before, _ := l.Settings(ledger.DefaultPool)
	for _, p := range []ledger.Patch{{Fields: []string{"headrom"}}, {Clear: []string{"headrom"}}} {
		_, err := l.UpdateSettings(ledger.DefaultPool, p)
		expectFieldError(t, err, "settings", "headroom")
	}
	if _, err := l.UpdateSettings("new", ledger.Patch{Fields: []string{"headroom"}}); err == nil {
		t.Error("headroom 0 was taken")
	}
	after, _ := l.Settings(ledger.DefaultPool)
	same(t, "settings after refusals", after, before)
	same(t, "pools after refusals", l.Pools(), []string{ledger.DefaultPool})
}

// TestSettingNames: every name can be cleared, which gives the default back.
func TestSettingNames(t *testing.T) {
	l := ledger.New()
	set, err := l.UpdateSettings(ledger.DefaultPool, ledger.Patch{Clear: ledger.SettingNames()})
	if err != nil {
		t.Fatal(err)
	}
	same(t, "cleared settings", set, ledger.DefaultSettings())
	names := ledger.SettingNames()
	if slices.Sort(names); len(slices.Compact(names)) != len(ledger.SettingNames()) {
		t.Errorf("a setting is listed twice in %v", names)
	}
}

func TestReservation(t *testing.T) {
	cases := []struct {
		name                        string
		cap                         ledger.Tokens
		prompt, maxNew, given, want ledger.Tokens
	}{
		{"prompt and new tokens", 0, 100, 50, 0, 150},
		{"capped", 20, 100, 50, 0, 120},
		{"below the cap", 20, 100, 5, 0, 105},
		{"at the cap", 20, 100, 20, 0, 120},
		{"given outright, cap or not", 20, 100, 50, 7, 7},
		{"nothing", 0, 0, 0, 0, 0},
		{"the largest", 0, ledger.MaxTokens, ledger.MaxTokens, 0, 2 * ledger.MaxTokens},
	}
	for _, c := range cases {
		s := ledger.DefaultSettings()
		s.ExpectedDecodeCap = c.cap
		if got := s.Reservation(c.prompt, c.maxNew, c.given); got != c.want {
			t.Errorf("%s: %d tokens, want %d", c.name, got, c.want)
		}
	}
}

func TestAcquireRefusesTokens(t *testing.T) {
	for _, n := range []ledger.Tokens{-1, ledger.MaxTokens + 1, math.MaxInt64, math.MinInt64} {
		for field, op := range map[string]ledger.Acquire{
			"promptTokens":      {PromptTokens: n},
			"maxNewTokens":      {MaxNewTokens: n},
			"reservationTokens": {ReservationTokens: n},
		} {
			l := ledger.New()
			l.Reset()
			op.Pool, op.Ticket = ledger.DefaultPool, "t"
			_, err := l.Acquire(op)
			expectFieldError(t, err, field, "0 to 1000000000000 tokens")
			if rows := changed(l); rows != 0 || len(l.Events()) != 0 {
				t.Errorf("%s = %d changed %d rows", field, n, rows)
			}
		}
	}
	_, err := ledger.New().Acquire(ledger.Acquire{Pool: ledger.DefaultPool})
	expectFieldError(t, err, "ticketId", "bytes")
}

func changed(l *ledger.Ledger) (n int) {
	l.Changes(func(ledger.Change) { n++ })
	return n
}

// TestLargestReservations: sums of the largest reservations stay in range.
func TestLargestReservations(t *testing.T) {
	l := ledger.New()
	l.Reconcile(ledger.DefaultPool, ledger.Round{Fresh: true, Engines: []ledger.Engine{
		{URL: "a", Healthy: true, Capacity: math.MaxInt64}, {URL: "b", Healthy: true, Capacity: math.MaxInt64},
	}})
	for i, want := range []ledger.Action{ledger.ActionAdmit, ledger.ActionWait, ledger.ActionBypass} {
		tokens := []ledger.Tokens{ledger.MaxTokens, ledger.MaxTokens, 0}[i]
		op := ledger.Acquire{Pool: ledger.DefaultPool, Ticket: string(rune('a' + i)), ReservationTokens: tokens, MaxWait: -1}
		if tokens == 0 {
			op.PromptTokens, op.MaxNewTokens = ledger.MaxTokens, ledger.MaxTokens
		}
		if d, err := l.Acquire(op); err != nil || d.Action != want {
			t.Errorf("acquire %d: %+v, %v, want action %d", i, d, err, want)
		}
	}
	checkInvariants(t, l)
}

func TestLeaseID(t *testing.T) {
	for want, got := range map[string]string{
		"0:t":                      ledger.LeaseID(0, "t"),
		"7:req-17:0":               ledger.LeaseID(7, "req-17:0"),
		"18446744073709551615:x:y": ledger.LeaseID(math.MaxUint64, "x:y"),
	} {
		if got != want {
			t.Errorf("lease id %q, want %q", got, want)
		}
	}
}

func TestNames(t *testing.T) {
	if got := ledger.Aged.String() + " " + ledger.Reason(99).String(); got != "aged unknown_99" {
		t.Error(got)
	}
	if got := ledger.OlderWaiter.String() + " " + ledger.WaitReason(9).String(); got != "older_waiter unknown_9" {
		t.Error(got)
	}
}
