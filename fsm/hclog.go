package fsm

import (
	"context"
	"io"
	"log/slog"

	"github.com/hashicorp/go-hclog"
)

// hclogTo returns raft's kind of logger, writing to log.
func hclogTo(log *slog.Logger) hclog.Logger {
	l := hclog.NewInterceptLogger(&hclog.LoggerOptions{Output: io.Discard, Level: hclog.Trace})
	l.RegisterSink(sink{log})
	return l
}

type sink struct{ log *slog.Logger }

// Accept implements hclog.SinkAdapter.
func (s sink) Accept(name string, level hclog.Level, msg string, args ...any) {
	s.log.Log(context.Background(), slogLevel(level), "raft: "+msg, args...)
}

// slogLevel maps raft's levels one step down: what raft calls info is detail to an operator.
func slogLevel(l hclog.Level) slog.Level {
	switch l {
	case hclog.Error:
		return slog.LevelWarn
	case hclog.Warn:
		return slog.LevelInfo
	}
	return slog.LevelDebug
}
