package main

import (
	"context"
	"io"
	"log/slog"

	"github.com/spf13/cobra"
)

const serveHelp = `Runs one node of the coordinator.

Every flag may also come from the environment (--node-id as KVGATE_NODE_ID) and from the YAML file
that --config names (node-id: n1). A flag wins over the environment, the environment over the file.
Unknown variables and keys are errors.

Certificates, keys and tokens are read again when their files change: certificates at every handshake,
tokens within a second. A changed file that cannot be used is logged and the previous content stays.
The token file has one token a line, "token role [pool,…]": role client may use the admission of its
pools, observer may read, admin may do everything. /healthz and /readyz never need a token.

The heap grows to five times what is alive, and to half of the machine's or the container's memory,
before Go collects garbage in earnest. GOGC and GOMEMLIMIT in the environment change that.`

const serveExample = `  # one node
  kvgate serve --node-id n1 --data-dir /var/lib/kvgate --bootstrap --router http://router:30000

  # three nodes; the same on each but for --node-id, the addresses and the certificates
  kvgate serve --strict --node-id n1 --data-dir /var/lib/kvgate --listen 0.0.0.0:7070 \
      --tls-cert n1.pem --tls-key n1-key.pem --tokens /etc/kvgate/tokens \
      --raft-listen 0.0.0.0:7071 --raft-advertise a:7071 --raft-tls-cert n1.pem --raft-tls-key n1-key.pem \
      --raft-tls-ca ca.pem --bootstrap-expect 3 --peers n1=a:7071,n2=b:7071,n3=c:7071

  # one more node for a running cluster
  kvgate serve --node-id n4 --data-dir /var/lib/kvgate --raft-listen 10.0.0.4:7071 --join a:7071`

func newServeCommand(m *Main) *cobra.Command {
	cfg := &ServeConfig{}
	cmd := &cobra.Command{
		Use:     "serve",
		GroupID: groupServer,
		Short:   "Run one node",
		Long:    serveHelp,
		Example: serveExample,
		Args:    maxArgs(0, "flags only"),
	}
	cmd.Flags().AddFlagSet(cfg.flags())
	cmd.RunE = m.run(func(ctx context.Context, _ []string) error {
		if err := cfg.Validate(); err != nil {
			return err
		}
		log := newLogger(m.stderr, cfg.LogLevel, cfg.LogFormat)
		log.LogAttrs(ctx, slog.LevelInfo, "configuration", cfg.Attrs()...)
		cfg.warnOfExposure(ctx, log)
		tuneMemory(ctx, log)
		return runServe(ctx, *cfg, log)
	})
	return cmd
}

// newLogger returns a logger for a level and format that the flags have checked.
func newLogger(w io.Writer, level, format string) *slog.Logger {
	var least slog.Level
	_ = least.UnmarshalText([]byte(level)) // one of the flag's words
	options := &slog.HandlerOptions{Level: least}
	if format == "json" {
		return slog.New(slog.NewJSONHandler(w, options))
	}
	return slog.New(slog.NewTextHandler(w, options))
}
