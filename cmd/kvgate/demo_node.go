package main

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"os"
	"slices"
	"syscall"
	"time"

	"connectrpc.com/connect"
	"google.golang.org/protobuf/types/known/durationpb"

	"kvgate/integration/agents"
	"kvgate/ledger"
	rpcclient "kvgate/rpc/client"
	kvgatev1 "kvgate/rpc/kvgate/v1"
)

const (
	// demoReady bounds the wait for the first leader and for a fleet to be scraped.
	demoReady = 30 * time.Second
	// demoLook is how often that is checked.
	demoLook = 25 * time.Millisecond
	// demoCall bounds one call to the demo's own node.
	demoCall = 5 * time.Second
)

// demoNode is the embedded node with its temporary directory, and a client to look at it.
type demoNode struct {
	dir   string
	n     *node
	watch *rpcclient.Client
}

// startDemoNode starts a single-node cluster. It outlives ctx, so that what an interrupted run measured
// can still be read; close ends it.
func startDemoNode(ctx context.Context, m *Main, o demoOptions) (*demoNode, error) {
	dir, err := os.MkdirTemp("", "kvgate-demo-")
	if err != nil {
		return nil, err
	}
	d := &demoNode{dir: dir}
	log := newLogger(m.stderr, "error", "text")
	if d.n, err = startWithFreePort(context.WithoutCancel(ctx), dir, o, log); err != nil {
		return nil, errors.Join(err, d.close())
	}
	if d.watch, err = rpcclient.New([]string{d.url()}, rpcclient.WithoutHolder(), rpcclient.WithLogger(log)); err != nil {
		return nil, errors.Join(err, d.close())
	}
	return d, nil
}

// startWithFreePort takes any free port when the default one is taken.
func startWithFreePort(ctx context.Context, dir string, o demoOptions, log *slog.Logger) (*node, error) {
	n, err := startOn(ctx, dir, o.listen, log)
	if err == nil || o.listenGiven || !errors.Is(err, syscall.EADDRINUSE) {
		return n, err
	}
	host, _, _ := net.SplitHostPort(o.listen)
	return startOn(ctx, dir, net.JoinHostPort(host, "0"), log)
}

func startOn(ctx context.Context, dir, listen string, log *slog.Logger) (*node, error) {
	var cfg ServeConfig
	cfg.flags() // sets the defaults
	cfg.NodeID, cfg.DataDir, cfg.Listen, cfg.RaftListen, cfg.Bootstrap = "demo", dir, listen, "127.0.0.1:0", true
	if err := cfg.Validate(); err != nil {
		return nil, err
	}
	return startNode(ctx, cfg, log)
}

func (d *demoNode) url() string { return d.n.URL() }

func (d *demoNode) close() error {
	var errs []error
	if d.watch != nil {
		ctx, cancel := context.WithTimeout(context.Background(), demoCall)
		defer cancel()
		errs = append(errs, d.watch.Close(ctx))
	}
	if d.n != nil {
		errs = append(errs, d.n.Close())
	}
	return errors.Join(append(errs, os.RemoveAll(d.dir))...)
}

// point makes the default pool use a fleet, with admission and lifecycle as a run wants them, and waits until the node knows
// all of its engines.
func (d *demoNode) point(ctx context.Context, fleet *agents.Fleet, cfg armConfig, speed float64) error {
	ctx, cancel := context.WithTimeout(ctx, demoReady)
	defer cancel()
	routerURL := fleet.RouterURL()
	request := &kvgatev1.UpdateSettingsRequest{Pool: ledger.DefaultPool, Settings: &kvgatev1.Settings{
		Admission: &cfg.admission, Lifecycle: &cfg.lifecycle, RouterUrl: &routerURL,
		MaxWait: durationpb.New(demoMaxWait(speed)), PollInterval: durationpb.New(demoPollInterval(speed)),
	}}
	want := slices.Sorted(slices.Values(fleet.URLs()))
	set := false
	return d.until(ctx, func() (err error) {
		if !set {
			_, err = d.watch.Cluster().UpdateSettings(ctx, connect.NewRequest(request))
			set = err == nil
		}
		if err != nil {
			return err
		}
		return d.knows(ctx, want)
	})
}

// until repeats check until it returns nil or ctx ends.
func (d *demoNode) until(ctx context.Context, check func() error) error {
	ticker := time.NewTicker(demoLook)
	defer ticker.Stop()
	for {
		err := check()
		if err == nil {
			return nil
		}
		select {
		case <-ticker.C:
		case <-ctx.Done():
			return fmt.Errorf("the demo's node did not get ready: %w (last: %w)", ctx.Err(), err)
		}
	}
}

var errEnginesUnknown = errors.New("the engines are not known yet")

// knows reports whether exactly the engines at urls, which are sorted, are known, healthy and in the budget.
func (d *demoNode) knows(ctx context.Context, urls []string) error {
	answer, err := d.watch.Observe().ListEngines(ctx, connect.NewRequest(&kvgatev1.ListEnginesRequest{Pool: ledger.DefaultPool}))
	if err != nil {
		return err
	}
	var healthy []string
	for _, e := range answer.Msg.GetEngines() {
		if e.GetHealthy() {
			healthy = append(healthy, e.GetUrl())
		}
	}
	slices.Sort(healthy)
	budget, err := d.watch.Budget(ctx, ledger.DefaultPool)
	if err != nil {
		return err
	}
	if !slices.Equal(healthy, urls) || budget.GetDegraded() {
		return errEnginesUnknown
	}
	return nil
}

// demoMaxWait is the default max wait in engine time.
func demoMaxWait(speed float64) time.Duration {
	settings := ledger.DefaultSettings()
	return time.Duration(float64(settings.MaxWait) / speed)
}

// demoPollInterval is the default poll interval in engine time, as far as the setting's range goes.
func demoPollInterval(speed float64) time.Duration {
	const shortest, longest = 100 * time.Millisecond, 2 * time.Second
	settings := ledger.DefaultSettings()
	return min(longest, max(shortest, time.Duration(float64(settings.PollInterval)/speed)))
}
