package main

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net"

	"github.com/spf13/cobra"

	"kvgate/rpc"
)

const snapshotServeHelp = `Serves a snapshot file, or the data directory of a stopped node, read-only: the web page, the metrics
as they were, and every call that only reads, so that dashboards, clients and these commands work on the
dead as on the living. Changes are refused with read_only_snapshot. Nothing in the file is changed.`

func newSnapshotServeCommand(m *Main) *cobra.Command {
	// The other nodes' port does not exist here; a loopback address keeps the checks of exposure quiet about it.
	cfg := &ServeConfig{RaftListen: "127.0.0.1:0"}
	cmd := &cobra.Command{
		Use: "serve FILE", Short: "Serve a snapshot read-only", Long: snapshotServeHelp,
		Example: "  kvgate snapshot serve last-night.kvgate\n  kvgate snapshot serve /var/lib/kvgate --listen 127.0.0.1:7090", Args: oneFile("serve"),
	}
	fs := cmd.Flags()
	fs.StringVar(&cfg.Listen, "listen", "127.0.0.1:7070", "HOST:PORT of the API, /metrics and the web page")
	fs.StringVar(&cfg.Tokens, "tokens", "", "file of bearer tokens that callers must show one of")
	fs.StringVar(&cfg.TLSCert, "tls-cert", "", "PEM certificate for --listen")
	fs.StringVar(&cfg.TLSKey, "tls-key", "", "PEM key of --tls-cert")
	fs.StringVar(&cfg.TLSClientCA, "tls-client-ca", "", "PEM authorities that callers' certificates must be signed by")
	fs.BoolVar(&cfg.Strict, "strict", false, "refuse what would only be warned about")
	choiceVar(fs, &cfg.LogLevel, "log-level", "info", "least level that is logged", "debug", "info", "warn", "error")
	choiceVar(fs, &cfg.LogFormat, "log-format", "text", "form of log lines", "text", "json")
	cmd.RunE = m.run(func(ctx context.Context, args []string) error {
		if !validAddress(cfg.Listen) {
			return badValue("listen", cfg.Listen, "HOST:PORT with a port from 0 to 65535")
		}
		for _, check := range []func() error{cfg.checkTogether, cfg.checkFiles, cfg.checkExposure} {
			if err := check(); err != nil {
				return err
			}
		}
		log := newLogger(m.stderr, cfg.LogLevel, cfg.LogFormat)
		cfg.warnOfExposure(ctx, log)
		return serveSnapshot(ctx, args[0], cfg, log)
	})
	return cmd
}

// serveSnapshot serves until ctx ends.
func serveSnapshot(ctx context.Context, path string, cfg *ServeConfig, log *slog.Logger) (err error) {
	secure, err := loadSecurity(cfg, log)
	if err != nil {
		return err
	}
	source, err := openOffline("FILE", path, log)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, source.Close()) }()
	o := rpc.Options{Backend: source, Log: log, TLS: secure.api, Now: savedAt(source)}
	if secure.tokens != nil {
		o.Tokens = secure.tokens
	}
	server, err := rpc.New(o)
	if err != nil {
		return err
	}
	listener, err := net.Listen("tcp", cfg.Listen)
	if err != nil {
		return fmt.Errorf("listen for the API: %w", err)
	}
	log.Info("serving a snapshot, read-only", "url", secure.baseURL(listener.Addr().String()), "file", path,
		"cluster", source.Header.ClusterID, "index", source.Header.Index, "saved", source.Header.WallTime)
	return server.Serve(ctx, listener)
}
