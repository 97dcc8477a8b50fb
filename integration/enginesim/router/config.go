package router

import (
	"errors"
	"fmt"
	"net/url"
	"time"
)

var (
	// ErrConfig is a Config field with a value that is not allowed.
	ErrConfig = errors.New("router: bad configuration")
	// ErrWorker is a worker that cannot be added, found or parsed.
	ErrWorker = errors.New("router: bad worker")
)

// Style is the shape in which a router lists its workers. See the table in DESIGN.md one level up.
type Style string

const (
	StyleGateway Style = "gateway" // 0.3.x, smg 1.x: /workers with UUID ids; /list_workers is 404 and empty
	StyleURLIDs  Style = "url_ids" // 0.2.x: /workers whose ids are the URLs; /list_workers too
	StyleBare    Style = "bare"    // early 0.2.0: as url_ids, without id and metadata
	StyleLegacy  Style = "legacy"  // 0.1.9 and before: only /list_workers
	StyleProxy   Style = "proxy"   // miles: /list_workers; /workers is proxied and answers 404 {"detail":"Not Found"}
)

// Config describes one router.
type Config struct {
	Style       Style         // default StyleGateway
	Seed        uint64        // ids and the order of listings depend on it
	APIKey      string        // wanted as a bearer token by every endpoint but /health
	WorkerKey   string        // sent to workers that get a call without a key
	HealthEvery time.Duration // real time between health checks; default 60 s, negative means none
	HealthFails int           // failed checks in a row that make a worker unhealthy; default 3
	// DPAware lists one entry url@rank per DP rank and routes to ranks.
	DPAware bool
}

func (c Config) withDefaults() Config {
	if c.Style == "" {
		c.Style = StyleGateway
	}
	if c.HealthEvery == 0 {
		c.HealthEvery = time.Minute
	}
	if c.HealthFails == 0 {
		c.HealthFails = 3
	}
	return c
}

func (c Config) validate() error {
	switch c.Style {
	case StyleGateway, StyleURLIDs, StyleBare, StyleLegacy, StyleProxy:
	default:
		return fmt.Errorf("%w: Style %q, want gateway, url_ids, bare, legacy or proxy", ErrConfig, c.Style)
	}
	if c.HealthFails < 0 {
		return fmt.Errorf("%w: HealthFails %d, want 1 or more", ErrConfig, c.HealthFails)
	}
	return nil
}

// Worker is one engine behind the router. URL is required.
type Worker struct {
	URL           string
	ModelID       string
	Type          string // regular (default), prefill or decode
	BootstrapPort int    // of a prefill worker; 0 means none
	DPSize        int    // default 1; listed per rank when the router is DP aware
	Labels        map[string]string
}

func (w Worker) withDefaults() (Worker, error) {
	if w.Type == "" {
		w.Type = "regular"
	}
	if w.DPSize == 0 {
		w.DPSize = 1
	}
	u, err := url.Parse(w.URL)
	switch {
	case err != nil:
		return w, fmt.Errorf("%w: url %q: %w", ErrWorker, w.URL, err)
	case u.Host == "" || (u.Scheme != "http" && u.Scheme != "https" && u.Scheme != "grpc"):
		return w, fmt.Errorf("%w: url %q, want http, https or grpc with a host", ErrWorker, w.URL)
	case w.Type != "regular" && w.Type != "prefill" && w.Type != "decode":
		return w, fmt.Errorf("%w: worker_type %q, want regular, prefill or decode", ErrWorker, w.Type)
	case w.DPSize < 1:
		return w, fmt.Errorf("%w: dp_size %d, want 1 or more", ErrWorker, w.DPSize)
	}
	return w, nil
}
