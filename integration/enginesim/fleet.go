package enginesim

import (
	"errors"
	"fmt"
	"net"
	"strconv"

	"kvgate/integration/enginesim/router"
)

// FleetConfig describes engines that differ only in name and seed, and a router in front of them.
type FleetConfig struct {
	Count        int    // engines; at least 1
	Listen       string // of the first engine; a fixed port counts up; "" means free ports of 127.0.0.1
	RouterListen string // "" means no router
	Engine       Config
	Router       router.Config
}

// Fleet is running engines and, maybe, a router.
type Fleet struct {
	Engines   []*Engine
	Router    *router.Router // nil without one
	routerURL string
}

// StartFleet starts all of it, or nothing: on an error what was started is closed again.
func StartFleet(cfg FleetConfig) (*Fleet, error) {
	if cfg.Count < 1 {
		return nil, fmt.Errorf("%w: Count %d, want 1 or more", ErrConfig, cfg.Count)
	}
	f := &Fleet{}
	if err := f.start(cfg); err != nil {
		return nil, errors.Join(err, f.Close())
	}
	return f, nil
}

func (f *Fleet) start(cfg FleetConfig) error {
	var workers []router.Worker
	for i := range cfg.Count {
		addr, err := nextAddr(cfg.Listen, i)
		if err != nil {
			return err
		}
		engine := cfg.Engine
		engine.Name, engine.Seed = fmt.Sprintf("engine-%d", i), cfg.Engine.Seed+uint64(i)
		e, err := New(engine)
		if err != nil {
			return err
		}
		f.Engines = append(f.Engines, e)
		url, err := e.Start(addr)
		if err != nil {
			return err
		}
		workers = append(workers, e.worker(url))
	}
	if cfg.RouterListen == "" {
		return nil
	}
	var err error
	if f.Router, err = router.New(cfg.Router, workers...); err != nil {
		return err
	}
	f.routerURL, err = f.Router.Start(cfg.RouterListen)
	return err
}

func (e *Engine) worker(url string) router.Worker {
	w := router.Worker{URL: url, ModelID: e.cfg.ModelName, DPSize: e.cfg.DP}
	if e.cfg.EngineType != "unified" {
		w.Type = e.cfg.EngineType
	}
	return w
}

func nextAddr(listen string, i int) (string, error) {
	if listen == "" {
		return "", nil
	}
	host, port, err := net.SplitHostPort(listen)
	if err != nil {
		return "", fmt.Errorf("%w: Listen %q: %w", ErrConfig, listen, err)
	}
	n, err := strconv.Atoi(port)
	if err != nil {
		return "", fmt.Errorf("%w: Listen %q: port: %w", ErrConfig, listen, err)
	}
	if n != 0 {
		n += i
	}
	return net.JoinHostPort(host, strconv.Itoa(n)), nil
}

// URLs are the base URLs of the engines.
func (f *Fleet) URLs() []string {
	urls := make([]string, len(f.Engines))
	for i, e := range f.Engines {
		urls[i] = e.URL()
	}
	return urls
}

// RouterURL is the router's base URL, or "" without one.
func (f *Fleet) RouterURL() string { return f.routerURL }

// Close closes the router, then the engines.
func (f *Fleet) Close() error {
	var errs []error
	if f.Router != nil {
		errs = append(errs, f.Router.Close())
	}
	for _, e := range f.Engines {
		errs = append(errs, e.Close())
	}
	return errors.Join(errs...)
}
