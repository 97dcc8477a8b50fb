package scrape

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"slices"
	"strings"
	"time"

	"kvgate/ledger"
)

// MaxWorkers bounds a router's list.
const MaxWorkers = 4096

// Where a list came from, as [ledger.Round].Discovery says it.
const (
	SourceWorkers     = "router /workers"
	SourceListWorkers = "router /list_workers"
	SourceStatic      = "static"
)

// Listed is one engine of a list.
type Listed struct {
	// URL is the engine's identity, see [EngineURL].
	URL string
	// Role is RoleUnspecified where the list does not tell.
	Role ledger.Role
	// Unhealthy: the router does not send work there. Routers lag: an engine may be down for minutes
	// before they notice.
	Unhealthy bool
}

// Discovery is an answer to "who are the engines". It may be empty: the router has no workers.
type Discovery struct {
	Source string
	// Engines are sorted by URL, one entry per engine.
	Engines []Listed
	// Unsupported names entries that cannot be scraped, grpc:// workers above all.
	Unsupported []string
	// Others counts workers left out because they serve another model.
	Others int
}

// Discoverer asks routers. Its methods may be called from several goroutines.
type Discoverer struct {
	client *http.Client
	key    bearer
}

// NewDiscoverer returns a Discoverer that presents the router key. A nil transport means [NewTransport].
func NewDiscoverer(rt http.RoundTripper, keys Keys) *Discoverer {
	if rt == nil {
		rt = NewTransport()
	}
	return &Discoverer{client: newHTTPClient(rt), key: keys.router()}
}

// Discover tries the router's /workers, its /list_workers and the static list; the first that yields a
// list wins. An empty list of a router is a list.
func (d *Discoverer) Discover(ctx context.Context, s ledger.Settings) (Discovery, error) {
	if s.RouterURL == "" {
		return Static(s.EngineURLs), nil
	}
	found, err := d.Router(ctx, s.RouterURL, s.ModelID)
	if err != nil && len(s.EngineURLs) > 0 {
		return Static(s.EngineURLs), nil
	}
	return found, err
}

// Router asks one router. /workers gets half of the time there is, because the miles router forwards
// that path to an engine, which may hang or refuse the router key; its own list is /list_workers.
// Errors: ErrUnreachable, ErrUnauthorized, ErrNoList, ErrTooManyWorkers, ErrStatus, ErrMalformed, ErrTooLarge.
func (d *Discoverer) Router(ctx context.Context, router, model string) (Discovery, error) {
	half := ctx
	if t, ok := ctx.Deadline(); ok {
		var cancel context.CancelFunc
		half, cancel = context.WithTimeout(ctx, time.Until(t)/2)
		defer cancel()
	}
	var buf bytes.Buffer
	first := get(half, d.client, join(router, "/workers"), d.key, &buf)
	if first == nil {
		var found Discovery
		if found, first = ParseWorkers(buf.Bytes(), model); first == nil || errors.Is(first, ErrTooManyWorkers) {
			return found, first
		}
	}
	buf.Reset()
	second := get(ctx, d.client, join(router, "/list_workers"), d.key, &buf)
	if second == nil {
		var found Discovery
		if found, second = ParseListWorkers(buf.Bytes()); second == nil {
			return found, nil
		}
	}
	return Discovery{}, noList(first, second)
}

// noList picks the error that helps most. A refused key comes first; two plain statuses mean that this
// router has no list to give.
func noList(first, second error) error {
	for _, err := range []error{first, second} {
		if errors.Is(err, ErrUnauthorized) || errors.Is(err, ErrTooManyWorkers) {
			return err
		}
	}
	switch {
	case errors.Is(first, ErrUnreachable) && errors.Is(second, ErrUnreachable):
		return first
	case errors.Is(first, ErrStatus) && errors.Is(second, ErrStatus):
		return fmt.Errorf("%w: %w; %w", ErrNoList, first, second)
	}
	return fmt.Errorf("%w; %w", first, second)
}

// worker is an entry of /workers. Fields it does not name differ from release to release.
type worker struct {
	URL        string            `json:"url"`
	ModelID    *string           `json:"model_id"`
	WorkerType string            `json:"worker_type"`
	Healthy    *bool             `json:"is_healthy"`
	Metadata   map[string]string `json:"metadata"`
	Labels     map[string]string `json:"labels"`
}

// ParseWorkers reads the body of GET /workers and keeps the workers of one model; "" keeps all.
// A worker whose model the router does not tell is kept only if it tells no worker's model: then there is
// nothing to choose by.
func ParseWorkers(body []byte, model string) (Discovery, error) {
	var answer struct {
		Workers *[]json.RawMessage `json:"workers"`
	}
	if err := json.Unmarshal(body, &answer); err != nil || answer.Workers == nil {
		return Discovery{}, fmt.Errorf("%w: /workers holds no \"workers\" array", ErrMalformed)
	}
	if n := len(*answer.Workers); n > MaxWorkers {
		return Discovery{}, fmt.Errorf("%w: /workers lists %d, allowed are %d", ErrTooManyWorkers, n, MaxWorkers)
	}
	found := Discovery{Source: SourceWorkers}
	workers := make([]worker, 0, len(*answer.Workers))
	told := false
	for i, raw := range *answer.Workers {
		w, err := decodeWorker(raw)
		if err != nil {
			found.Unsupported = append(found.Unsupported, fmt.Sprintf("entry %d", i))
			continue
		}
		told = told || w.model() != ""
		workers = append(workers, w)
	}
	for _, w := range workers {
		if model != "" && told && w.model() != model {
			found.Others++
			continue
		}
		found.add(w.URL, roleOf(w.WorkerType), w.Healthy != nil && !*w.Healthy)
	}
	found.sort()
	return found, nil
}

// decodeWorker reads one entry. Metadata that is not all strings is no reason to lose the worker.
func decodeWorker(raw json.RawMessage) (worker, error) {
	var w worker
	err := json.Unmarshal(raw, &w)
	var wrongType *json.UnmarshalTypeError
	if errors.As(err, &wrongType) && w.URL != "" {
		err = nil
	}
	if err == nil && w.URL == "" {
		err = ErrMalformed
	}
	return w, err
}

func (w *worker) model() string {
	if w.ModelID != nil && *w.ModelID != "" && *w.ModelID != "unknown" {
		return *w.ModelID
	}
	for _, m := range []map[string]string{w.Metadata, w.Labels} {
		for _, k := range []string{"model_id", "served_model_name"} {
			if m[k] != "" {
				return m[k]
			}
		}
	}
	return ""
}

// ParseListWorkers reads the body of GET /list_workers. It tells nothing but URLs.
func ParseListWorkers(body []byte) (Discovery, error) {
	var answer struct {
		URLs *[]string `json:"urls"`
	}
	if err := json.Unmarshal(body, &answer); err != nil || answer.URLs == nil {
		return Discovery{}, fmt.Errorf("%w: /list_workers holds no \"urls\" array", ErrMalformed)
	}
	if n := len(*answer.URLs); n > MaxWorkers {
		return Discovery{}, fmt.Errorf("%w: /list_workers lists %d, allowed are %d", ErrTooManyWorkers, n, MaxWorkers)
	}
	return list(SourceListWorkers, *answer.URLs), nil
}

// Static is the operator's own list.
func Static(urls []string) Discovery { return list(SourceStatic, urls) }

func list(source string, urls []string) Discovery {
	found := Discovery{Source: source}
	for _, u := range urls {
		found.add(u, ledger.RoleUnspecified, false)
	}
	found.sort()
	return found
}

func (d *Discovery) add(raw string, role ledger.Role, unhealthy bool) {
	u, err := EngineURL(raw)
	if err != nil {
		d.Unsupported = append(d.Unsupported, clip(raw))
		return
	}
	d.Engines = append(d.Engines, Listed{URL: u, Role: role, Unhealthy: unhealthy})
}

// sort orders by URL, because routers answer in random order, and makes one entry of an engine's ranks.
// An engine with one rank out of service is out of service: its pool cannot be counted on.
func (d *Discovery) sort() {
	slices.SortStableFunc(d.Engines, func(a, b Listed) int { return strings.Compare(a.URL, b.URL) })
	kept := d.Engines[:0]
	for _, e := range d.Engines {
		if n := len(kept); n > 0 && kept[n-1].URL == e.URL {
			kept[n-1].Unhealthy = kept[n-1].Unhealthy || e.Unhealthy
			continue
		}
		kept = append(kept, e)
	}
	d.Engines = kept
	slices.Sort(d.Unsupported)
	d.Unsupported = slices.Compact(d.Unsupported)
}

func roleOf(name string) ledger.Role {
	switch strings.ToLower(name) {
	case "regular", "unified":
		return ledger.RoleRegular
	case "prefill":
		return ledger.RolePrefill
	case "decode":
		return ledger.RoleDecode
	case "encode":
		return ledger.RoleEncode
	}
	return ledger.RoleUnspecified
}
