package enginesim

import (
	"fmt"
	"time"
)

// Version is the SGLang release the engine says it is.
const Version = "0.5.15.post1"

// CloseMode says what POST /close_session does to tagged KV.
type CloseMode string

const (
	// CloseFrees releases the session's unshared, unlocked KV at once (0.5.15.post1) [sglang 27058].
	CloseFrees CloseMode = "frees"
	// CloseForgets only drops the session's references (from 0.5.17 on) [sglang 29173].
	CloseForgets CloseMode = "forgets"
)

// Config describes one engine. Zero fields take the defaults named in their comments; New refuses
// what is out of range. Rates and times are virtual: Speed scales them to the clock on the wall.
type Config struct {
	Name       string // used in ids and logs; default "engine"
	ModelName  string // default "sim/Agent-30B"
	EngineType string // unified (default), prefill or decode: the label of every series
	Seed       uint64 // outputs and their lengths depend on it and on the prompt alone

	PoolTokens     int // KV pool of one DP rank; default 320000
	ContextLen     int // default 262144
	PageSize       int // only 1 (default)
	TP, DP, PP     int // sizes; default 1 each
	DPAttention    bool
	MaxRunning     int // running requests of one DP rank; default 256
	ChunkedPrefill int // tokens of one prefill batch; default 8192
	MaxPrefill     int // prompt tokens that may enter one batch; default 16384

	PrefillRate    float64       // prompt tokens per second of one rank; default 12000
	PrefillCost    time.Duration // fixed cost of one prefill batch; default 15 ms
	DecodeRate     float64       // tokens per second of a sequence that decodes alone; default 80
	DecodeSlowdown float64       // share of the step that each further sequence adds; default 0.02
	Speed          float64       // virtual seconds per real second; default 1

	// Scheduling estimates, as SGLang's defaults: admission expects each running request to write
	// this share of what it may still write. A retraction raises it, decode steps lower it.
	NewTokenRatio    float64 // at start and when idle; default 0.7
	NewTokenRatioMin float64 // default 0.098
	NewTokenDecay    int     // decode steps from the one to the other; default 600

	OutputMin, OutputMax int // completion length when EOS is honoured; default 16 to 512
	StreamInterval       int // tokens per streamed event; default 1

	APIKey   string // wanted as a bearer token by every endpoint but /health and /metrics
	AdminKey string // wanted instead by /abort_request and /flush_cache when set

	SessionRadix      bool      // --enable-session-radix-cache
	StreamingSessions bool      // --enable-streaming-session
	CloseMode         CloseMode // default CloseFrees
	PinPrefix         bool      // serve /hicache/pin_prefix; else 404
	EnableMetrics     bool      // --enable-metrics; else /metrics is 404
	LiveGauges        bool      // refresh gauges after every step; the real engine is slower
	MetricsBytes      int       // pad /metrics with histograms to about this size; 0 means no padding
	RecordBodies      int       // control bodies remembered per path; default 4096
	Clock             Clock     // default: the system's, scaled by Speed
}

func (c Config) withDefaults() Config {
	setDefault(&c.Name, "engine")
	setDefault(&c.ModelName, "sim/Agent-30B")
	setDefault(&c.EngineType, "unified")
	setDefault(&c.PoolTokens, 320_000)
	setDefault(&c.ContextLen, 262_144)
	setDefault(&c.PageSize, 1)
	setDefault(&c.TP, 1)
	setDefault(&c.DP, 1)
	setDefault(&c.PP, 1)
	setDefault(&c.MaxRunning, 256)
	setDefault(&c.ChunkedPrefill, 8192)
	setDefault(&c.MaxPrefill, 16_384)
	setDefault(&c.PrefillRate, 12_000)
	setDefault(&c.PrefillCost, 15*time.Millisecond)
	setDefault(&c.DecodeRate, 80)
	setDefault(&c.DecodeSlowdown, 0.02)
	setDefault(&c.Speed, 1)
	setDefault(&c.NewTokenRatio, 0.7)
	setDefault(&c.NewTokenRatioMin, 0.098)
	setDefault(&c.NewTokenDecay, 600)
	setDefault(&c.OutputMin, 16)
	setDefault(&c.OutputMax, 512)
	setDefault(&c.StreamInterval, 1)
	setDefault(&c.CloseMode, CloseFrees)
	setDefault(&c.RecordBodies, 4096)
	return c
}

func setDefault[T comparable](field *T, value T) {
	var zero T
	if *field == zero {
		*field = value
	}
}

func (c Config) validate() error {
	switch c.EngineType {
	case "unified", "prefill", "decode":
	default:
		return fmt.Errorf("%w: EngineType %q, want unified, prefill or decode", ErrConfig, c.EngineType)
	}
	if c.CloseMode != CloseFrees && c.CloseMode != CloseForgets {
		return fmt.Errorf("%w: CloseMode %q, want %q or %q", ErrConfig, c.CloseMode, CloseFrees, CloseForgets)
	}
	if c.PageSize != 1 {
		return fmt.Errorf("%w: PageSize %d, only 1 is simulated", ErrConfig, c.PageSize)
	}
	if c.DPAttention && c.TP%max(c.DP, 1) != 0 {
		return fmt.Errorf("%w: TP %d, want a multiple of DP %d with DPAttention", ErrConfig, c.TP, c.DP)
	}
	if c.NewTokenRatio > 1 || c.NewTokenRatioMin > c.NewTokenRatio {
		return fmt.Errorf("%w: NewTokenRatio %v and NewTokenRatioMin %v, want min <= ratio <= 1",
			ErrConfig, c.NewTokenRatio, c.NewTokenRatioMin)
	}
	if c.OutputMax < c.OutputMin {
		return fmt.Errorf("%w: OutputMax %d, want at least OutputMin %d", ErrConfig, c.OutputMax, c.OutputMin)
	}
	if c.MetricsBytes < 0 {
		return fmt.Errorf("%w: MetricsBytes %d, want 0 or more", ErrConfig, c.MetricsBytes)
	}
	return c.validatePositive()
}

func (c Config) validatePositive() error {
	for _, f := range []struct {
		name  string
		value float64
	}{
		{"PoolTokens", float64(c.PoolTokens)},
		{"ContextLen", float64(c.ContextLen)},
		{"TP", float64(c.TP)},
		{"DP", float64(c.DP)},
		{"PP", float64(c.PP)},
		{"MaxRunning", float64(c.MaxRunning)},
		{"ChunkedPrefill", float64(c.ChunkedPrefill)},
		{"MaxPrefill", float64(c.MaxPrefill)},
		{"PrefillRate", c.PrefillRate},
		{"PrefillCost", float64(c.PrefillCost)},
		{"DecodeRate", c.DecodeRate},
		{"DecodeSlowdown", c.DecodeSlowdown},
		{"Speed", c.Speed},
		{"NewTokenRatioMin", c.NewTokenRatioMin},
		{"NewTokenDecay", float64(c.NewTokenDecay)},
		{"OutputMin", float64(c.OutputMin)},
		{"StreamInterval", float64(c.StreamInterval)},
		{"RecordBodies", float64(c.RecordBodies)},
	} {
		if !(f.value > 0) {
			return fmt.Errorf("%w: %s %v, want more than 0", ErrConfig, f.name, f.value)
		}
	}
	return nil
}
