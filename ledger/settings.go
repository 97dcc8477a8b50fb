package ledger

import (
	"math"
	"net/url"
	"slices"
	"strconv"
	"strings"
	"time"
	"unicode"
)

// Settings are one pool's replicated settings. See DefaultSettings for the defaults and
// Settings.Validate for the ranges.
type Settings struct {
	Admission         bool
	Lifecycle         bool
	Headroom          float64
	PressureThreshold float64
	// ExpectedDecodeCap tightens only the reservation, never the generation limit; 0 means no cap.
	ExpectedDecodeCap Tokens
	MaxWait           time.Duration
	Scope             Scope
	LeaseTTL          time.Duration
	MaxTTL            time.Duration
	HolderTTL         time.Duration
	DetachGrace       time.Duration
	Staleness         time.Duration
	Oversize          Oversize
	MaxWaiters        int64
	PinRatio          float64
	RouterURL         string
	EngineURLs        []string
	PollInterval      time.Duration
	PollTimeout       time.Duration
	ModelID           string
	CapacityRoles     CapacityRoles
	JoinTimeout       time.Duration
	AbortTimeout      time.Duration
	CloseDeadline     time.Duration
	CloseScope        CloseScope
	// JournalMaxEvents and JournalMaxAge are read from the default pool and hold for all pools.
	JournalMaxEvents int64
	JournalMaxAge    time.Duration
	// Quarantine keeps everybody from contacting the pool's engines and router: a restored pool may be the
	// copy of one that lives.
	Quarantine bool `json:",omitzero"`
}

// DefaultSettings returns the settings of a new pool.
func DefaultSettings() Settings {
	return Settings{
		Admission:         true,
		Lifecycle:         true,
		Headroom:          0.90,
		PressureThreshold: 0.92,
		MaxWait:           30 * time.Second,
		Scope:             ScopeTrain,
		LeaseTTL:          600 * time.Second,
		MaxTTL:            3600 * time.Second,
		HolderTTL:         15 * time.Second,
		DetachGrace:       10 * time.Second,
		Staleness:         6 * time.Second,
		Oversize:          OversizeBypass,
		MaxWaiters:        100_000,
		PollInterval:      2 * time.Second,
		PollTimeout:       5 * time.Second,
		CapacityRoles:     RolesAuto,
		JoinTimeout:       30 * time.Second,
		AbortTimeout:      5 * time.Second,
		CloseDeadline:     60 * time.Second,
		CloseScope:        CloseBroadcast,
		JournalMaxEvents:  1_000_000,
		JournalMaxAge:     7 * 24 * time.Hour,
	}
}

const maxDuration = 365 * 24 * time.Hour

// Validate reports the first setting that is out of range as a *FieldError. Numeric constraints of a
// feature are checked only where the feature is on.
func (s *Settings) Validate() error {
	for _, check := range []func() error{s.checkAdmission, s.checkTimes, s.checkCounts, s.checkURLs} {
		if err := check(); err != nil {
			return err
		}
	}
	return nil
}

func (s *Settings) checkAdmission() error {
	if !s.Admission {
		return nil
	}
	if !(s.Headroom > 0 && s.Headroom <= 1) {
		return fieldError("headroom", s.Headroom, "a number in (0, 1]")
	}
	if !(s.PressureThreshold > 0 && s.PressureThreshold <= 1) {
		return fieldError("pressureThreshold", s.PressureThreshold, "a number in (0, 1]")
	}
	if s.ExpectedDecodeCap < 0 || s.ExpectedDecodeCap > MaxTokens {
		return fieldError("expectedDecodeCap", int64(s.ExpectedDecodeCap), "tokens in (0, 10^12], or cleared for no cap")
	}
	if s.MaxWait < 0 || s.MaxWait > maxDuration {
		return fieldError("maxWait", s.MaxWait, "0s or longer, at most 8760h")
	}
	if s.MaxWaiters <= 0 {
		return fieldError("maxWaiters", s.MaxWaiters, "a count above 0")
	}
	return nil
}

func (s *Settings) checkTimes() error {
	positive := []struct {
		name string
		d    time.Duration
		min  time.Duration
	}{
		{"leaseTtl", s.LeaseTTL, 1},
		{"maxTtl", s.MaxTTL, 1},
		{"holderTtl", s.HolderTTL, time.Second},
		{"detachGrace", s.DetachGrace, 0},
		{"staleness", s.Staleness, 1},
		{"pollInterval", s.PollInterval, 100 * time.Millisecond},
		{"pollTimeout", s.PollTimeout, 100 * time.Millisecond},
		{"journalMaxAge", s.JournalMaxAge, time.Second},
	}
	if s.Lifecycle {
		positive = append(positive, []struct {
			name string
			d    time.Duration
			min  time.Duration
		}{{"joinTimeout", s.JoinTimeout, 0}, {"abortTimeout", s.AbortTimeout, 0}, {"closeDeadline", s.CloseDeadline, 1}}...)
	}
	for _, p := range positive {
		if p.d < p.min || p.d > maxDuration {
			return fieldError(p.name, p.d, "at least "+p.min.String()+", at most 8760h")
		}
	}
	if s.LeaseTTL > s.MaxTTL {
		return fieldError("leaseTtl", s.LeaseTTL, "at most maxTtl ("+s.MaxTTL.String()+")")
	}
	if s.Staleness < 2*s.PollInterval {
		return fieldError("staleness", s.Staleness, "at least twice pollInterval ("+s.PollInterval.String()+")")
	}
	return nil
}

func (s *Settings) checkCounts() error {
	if !(s.PinRatio >= 0 && s.PinRatio < 1) || math.IsNaN(s.PinRatio) {
		return fieldError("pinRatio", s.PinRatio, "a number in [0, 1)")
	}
	if s.JournalMaxEvents <= 0 {
		return fieldError("journalMaxEvents", s.JournalMaxEvents, "a count above 0")
	}
	enums := []struct {
		name    string
		v, last uint8
	}{
		{"scope", uint8(s.Scope), uint8(ScopeAll)},
		{"oversize", uint8(s.Oversize), uint8(OversizeWait)},
		{"capacityRoles", uint8(s.CapacityRoles), uint8(RolesPrefill)},
		{"closeScope", uint8(s.CloseScope), uint8(CloseServed)},
	}
	for _, e := range enums {
		if e.v > e.last {
			return fieldError(e.name, e.v, "one of the names the API lists")
		}
	}
	return nil
}

func (s *Settings) checkURLs() error {
	if s.RouterURL != "" && !httpURL(s.RouterURL) {
		return fieldError("routerUrl", s.RouterURL, "an http:// or https:// URL with a host and without a password: keys belong in the nodes' key files")
	}
	for _, u := range s.EngineURLs {
		if !httpURL(u) {
			return fieldError("engineUrls", u, "http:// or https:// URLs with a host and without a password: keys belong in the nodes' key files")
		}
	}
	if len(s.ModelID) > 256 || strings.ContainsFunc(s.ModelID, unicode.IsControl) {
		return fieldError("modelId", strconv.Quote(s.ModelID), "at most 256 bytes without control characters")
	}
	return nil
}

func httpURL(s string) bool {
	u, err := url.Parse(s)
	return err == nil && (u.Scheme == "http" || u.Scheme == "https") && u.Host != "" && u.User == nil && len(s) <= 2048
}

func (s *Settings) clone() Settings {
	c := *s
	c.EngineURLs = slices.Clone(s.EngineURLs)
	return c
}

// ttl returns the lease time for a request that asks for d; 0 asks for the pool's default.
func (s *Settings) ttl(d time.Duration) time.Duration {
	if d <= 0 {
		d = s.LeaseTTL
	}
	return min(d, s.MaxTTL)
}

// Reservation returns the tokens charged for an attempt. A reservation given outright wins; the
// expected decode cap tightens only the reservation.
func (s *Settings) Reservation(prompt, maxNew, outright Tokens) Tokens {
	if outright > 0 {
		return outright
	}
	if s.ExpectedDecodeCap > 0 {
		maxNew = min(maxNew, s.ExpectedDecodeCap)
	}
	return prompt + maxNew
}
