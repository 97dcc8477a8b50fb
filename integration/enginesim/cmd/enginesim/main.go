// Command enginesim runs simulated engines, and a simulated router in front of them, until it is
// interrupted. With --print-json it prints one JSON object with their URLs once all of them listen.
package main

import (
	"context"
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"io"
	"os"
	"os/signal"
	"syscall"

	"kvgate/integration/enginesim"
	"kvgate/integration/enginesim/router"
)

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	if code := exitCode(run(ctx, os.Args[1:]), os.Stderr); code != 0 {
		stop()
		os.Exit(code)
	}
}

// exitCode says on stderr what went wrong. A call for help is no failure; the flag set has answered it.
func exitCode(err error, stderr io.Writer) int {
	if err == nil || errors.Is(err, flag.ErrHelp) {
		return 0
	}
	fmt.Fprintln(stderr, "enginesim:", err)
	return 1
}

func run(ctx context.Context, args []string) error {
	fleet, asJSON, err := parse(args)
	if err != nil {
		return err
	}
	f, err := enginesim.StartFleet(fleet)
	if err != nil {
		return err
	}
	var urls struct {
		Engines []string `json:"engines"`
		Router  string   `json:"router,omitempty"`
	}
	urls.Engines, urls.Router = f.URLs(), f.RouterURL()
	if asJSON {
		err = json.NewEncoder(os.Stdout).Encode(urls)
	} else {
		_, err = fmt.Fprintf(os.Stdout, "engines %v router %s\n", urls.Engines, urls.Router)
	}
	if err == nil {
		<-ctx.Done()
	}
	return f.Close()
}

func parse(args []string) (enginesim.FleetConfig, bool, error) {
	var c enginesim.FleetConfig
	var style string
	fs := flag.NewFlagSet("enginesim", flag.ContinueOnError)
	fs.StringVar(&c.Listen, "listen", "127.0.0.1:0", "address of the first engine; with a fixed port the others take the ones after it")
	fs.IntVar(&c.Count, "count", 1, "number of engines")
	fs.StringVar(&c.RouterListen, "router-listen", "", "address of the router; empty means no router")
	fs.StringVar(&style, "router-style", string(router.StyleGateway), "gateway, url_ids, bare, legacy or proxy")
	fs.BoolVar(&c.Router.DPAware, "router-dp-aware", false, "list url@rank per DP rank")
	fs.DurationVar(&c.Router.HealthEvery, "router-health-every", 0, "real time between health checks; 0 means 60s")
	fs.IntVar(&c.Engine.PoolTokens, "pool-tokens", 320_000, "KV pool of one DP rank, in tokens")
	fs.IntVar(&c.Engine.TP, "tp", 1, "tensor parallel size")
	fs.IntVar(&c.Engine.DP, "dp", 1, "data parallel size")
	fs.IntVar(&c.Engine.PP, "pp", 1, "pipeline parallel size")
	fs.Float64Var(&c.Engine.Speed, "speed", 1, "virtual seconds per real second")
	fs.Uint64Var(&c.Engine.Seed, "seed", 1, "outputs depend on it")
	fs.StringVar(&c.Engine.ModelName, "model", "", "model name")
	fs.StringVar(&c.Engine.APIKey, "api-key", "", "bearer token the engines want")
	fs.StringVar(&c.Engine.AdminKey, "admin-api-key", "", "bearer token abort_request and flush_cache want")
	fs.BoolVar(&c.Engine.SessionRadix, "enable-session-radix-cache", true, "tag KV by session and free it on close")
	fs.BoolVar(&c.Engine.StreamingSessions, "enable-streaming-session", false, "allow streaming sessions")
	fs.BoolVar(&c.Engine.EnableMetrics, "enable-metrics", true, "serve /metrics")
	fs.BoolVar(&c.Engine.LiveGauges, "live-gauges", false, "refresh gauges after every step")
	fs.IntVar(&c.Engine.MetricsBytes, "metrics-bytes", 120_000, "size /metrics is padded to; 0 means no padding")
	asJSON := fs.Bool("print-json", false, "print the URLs as JSON")
	err := fs.Parse(args)
	c.Router.Style = router.Style(style)
	return c, *asJSON, err
}
