package scrape

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"strconv"
	"sync"

	"kvgate/ledger"
)

// Engines reads engines. Its methods may be called from several goroutines.
type Engines struct {
	client *http.Client
	key    bearer
}

// NewEngines returns a reader that presents the engine key. A nil transport means [NewTransport].
func NewEngines(rt http.RoundTripper, keys Keys) *Engines {
	if rt == nil {
		rt = NewTransport()
	}
	return &Engines{client: newHTTPClient(rt), key: keys.engine()}
}

var buffers = sync.Pool{New: func() any { return new(bytes.Buffer) }}

func keep(buf *bytes.Buffer) {
	if buf.Cap() <= keepBuffer {
		buf.Reset()
		buffers.Put(buf)
	}
}

// Scrape reads one engine's /metrics. Where the page does not tell the capacity and ask is true, it asks
// the info endpoints too; otherwise info, from an earlier Sample, stands in. The error may wrap any of
// the package's errors.
func (e *Engines) Scrape(ctx context.Context, url string, info Info, ask bool) (Sample, error) {
	buf := buffers.Get().(*bytes.Buffer)
	defer keep(buf)
	if err := get(ctx, e.client, join(url, "/metrics"), e.key, buf); err != nil {
		return Sample{}, hint(err)
	}
	p, err := parse(buf.Bytes())
	if err != nil {
		return Sample{}, err
	}
	s, err := p.sample(url, info)
	if !errors.Is(err, ErrNoCapacity) || !ask {
		return s, err
	}
	if info, infoErr := e.Info(ctx, url); infoErr != nil {
		return s, fmt.Errorf("%w; %w", err, infoErr)
	} else {
		return p.sample(url, info)
	}
}

// hint says what a 404 usually means.
func hint(err error) error {
	if errors.Is(err, errNotFound) {
		return fmt.Errorf("%w; is it an engine started with --enable-metrics?", err)
	}
	return err
}

// Info asks an engine for its capacity. Releases differ: /v1/loads tells it per DP rank, /server_info and
// the older /get_server_info tell one rank's and the number of ranks. The answers may hold keys, so
// nothing of them is quoted in errors.
func (e *Engines) Info(ctx context.Context, url string) (Info, error) {
	var errs []error
	for _, endpoint := range []string{"/server_info", "/v1/loads?include=core", "/get_server_info"} {
		var buf bytes.Buffer
		err := get(ctx, e.client, join(url, endpoint), e.key, &buf)
		if err == nil {
			var info Info
			if info, err = ParseInfo(buf.Bytes()); err == nil {
				return info, nil
			}
			err = fmt.Errorf("GET %s: %w", endpoint, err)
		}
		if errors.Is(err, ErrUnauthorized) || errors.Is(err, ErrUnreachable) {
			return Info{}, err
		}
		errs = append(errs, err)
	}
	return Info{}, errors.Join(errs[0], errs[1])
}

// ParseInfo reads the body of /server_info, /get_server_info or /v1/loads.
func ParseInfo(body []byte) (Info, error) {
	var answer struct {
		Capacity float64 `json:"max_total_num_tokens"`
		DPSize   int     `json:"dp_size"`
		Loads    []struct {
			DPRank   int     `json:"dp_rank"`
			Capacity float64 `json:"max_total_num_tokens"`
		} `json:"loads"`
	}
	if err := json.Unmarshal(body, &answer); err != nil {
		return Info{}, fmt.Errorf("%w: not the JSON object expected", ErrMalformed)
	}
	info := Info{PerRank: tokens(answer.Capacity), DPSize: min(max(answer.DPSize, 0), MaxWorkers)}
	for _, l := range answer.Loads {
		if c := tokens(l.Capacity); c > 0 {
			if info.Ranks == nil {
				info.Ranks = map[string]ledger.Tokens{}
			}
			info.Ranks[strconv.Itoa(l.DPRank)] = c
		}
	}
	if info.PerRank == 0 && len(info.Ranks) == 0 {
		return Info{}, fmt.Errorf("%w: no max_total_num_tokens", ErrMalformed)
	}
	return info, nil
}
