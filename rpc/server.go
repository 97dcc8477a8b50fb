package rpc

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"net/http"
	"slices"
	"time"

	"buf.build/go/protovalidate"
	"connectrpc.com/connect"
	"connectrpc.com/grpchealth"
	"connectrpc.com/grpcreflect"
	"github.com/prometheus/client_golang/prometheus"
	"golang.org/x/time/rate"

	"kvgate/rpc/kvgate/v1/kvgatev1connect"
	"kvgate/rpc/tokens"
)

const (
	// maxBodyBytes bounds a request after decompression.
	maxBodyBytes = 1 << 20
	// maxPrefixBytes bounds a PinPrefix, which may carry a whole context as token ids.
	maxPrefixBytes = 64 << 20
	// maxHeaderBytes bounds a request's header.
	maxHeaderBytes = 64 << 10
	// compressMinBytes keeps small answers, which is nearly all of them, uncompressed.
	compressMinBytes = 4 << 10
	// maxConcurrentStreams per HTTP/2 connection. Every blocked Acquire holds a stream, and a client
	// sends its Releases over the same connection: at Go's default of 250 a full queue would keep
	// the very Releases waiting that could shorten it.
	maxConcurrentStreams = 250_000
	readHeaderTimeout    = 10 * time.Second
	idleTimeout          = 5 * time.Minute
	defaultShutdownGrace = 5 * time.Second
)

// Options make a Server.
type Options struct {
	// Backend decides and answers. Required.
	Backend Backend
	// Log receives one line per failed call worth a look; nil means slog.Default().
	Log *slog.Logger
	// Registry collects what /metrics serves; nil means a new one. The server registers its own
	// collectors in it.
	Registry *prometheus.Registry
	// Closes exports what this node's closer did; nil means nothing.
	Closes *CloseMetrics
	// Interceptors run before validation, outermost first; authentication belongs here. Errors that
	// they return go through the error table unless they are Connect errors already.
	Interceptors []connect.Interceptor
	// Tokens are what callers must show one of; nil means that all may call.
	Tokens Authenticator
	// TLS secures the port; nil means plain HTTP. It must offer h2 and http/1.1 by ALPN.
	TLS *tls.Config
	// Now is the wall time that the ages of sessions count back from; nil means that of the clock. For the
	// state of a file it is when the file was made.
	Now func() time.Time
	// ShutdownGrace is how long Serve waits for calls in flight when it is told to stop; 0 means 5 s.
	ShutdownGrace time.Duration
}

// Server serves the API. Make it with New.
type Server struct {
	options  Options
	log      *slog.Logger
	handler  http.Handler
	hints    *leaderHints
	stopping context.Context
	stop     context.CancelFunc
}

// New returns a server over o.Backend. It starts nothing: mount Handler or call Serve.
func New(o Options) (*Server, error) {
	if o.Backend == nil {
		return nil, errors.New("rpc: Options.Backend is required")
	}
	s := &Server{options: o, log: o.Log}
	if s.log == nil {
		s.log = slog.Default()
	}
	if s.options.Now == nil {
		s.options.Now = time.Now
	}
	s.stopping, s.stop = context.WithCancel(context.Background())
	registry := o.Registry
	if registry == nil {
		registry = prometheus.NewRegistry()
	}
	calls, err := register(registry, o.Backend, o.Closes)
	if err != nil {
		return nil, err
	}
	validator, err := newValidator()
	if err != nil {
		return nil, err
	}
	s.hints = &leaderHints{status: o.Backend.Status, now: time.Now}
	s.handler = s.routes(s.handlerOptions(calls, validator), calls, registry, validator)
	return s, nil
}

// handlerOptions puts the stages of a call in order: measured, errors mapped, refused when unreadable, the
// caller's own interceptors, validated.
func (s *Server) handlerOptions(calls *callMetrics, validator protovalidate.Validator) []connect.HandlerOption {
	status := s.options.Backend.Status
	chain := []connect.Interceptor{calls.interceptor(), s.hints.interceptor(), mapErrors(status), readable{status}}
	if s.options.Tokens != nil {
		chain = append(chain, &guard{s.options.Tokens, status})
	}
	chain = append(chain, s.options.Interceptors...)
	chain = append(chain, validation(validator))
	options := []connect.HandlerOption{
		connect.WithInterceptors(chain...),
		connect.WithReadMaxBytes(maxBodyBytes),
		connect.WithCompressMinBytes(compressMinBytes),
		connect.WithRecover(s.recovered),
	}
	for _, codec := range jsonCodecs() {
		options = append(options, connect.WithCodec(codec))
	}
	return options
}

// recovered keeps a bug in one call from ending more than that call.
func (s *Server) recovered(ctx context.Context, spec connect.Spec, _ http.Header, cause any) error {
	s.log.ErrorContext(ctx, "call panicked", slog.String("procedure", spec.Procedure), slog.Any("cause", cause))
	return newError(fmt.Errorf("%s failed on this node, its log says why", spec.Procedure), s.options.Backend.Status)
}

func (s *Server) routes(options []connect.HandlerOption, calls *callMetrics, registry *prometheus.Registry, validator protovalidate.Validator) http.Handler {
	b := s.options.Backend
	mux := http.NewServeMux()
	many := newManyOps(s, calls, validator)
	path, admission := kvgatev1connect.NewAdmissionServiceHandler(&admissionService{
		many: many, tickets: b, status: b.Status, holders: b, stopping: s.stopping, log: s.log,
		untracked: calls.untracked, warn: rate.Sometimes{Interval: time.Second},
	}, options...)
	mux.Handle(path, interruptible(admission))
	mux.Handle(kvgatev1connect.NewObserveServiceHandler(&observeService{backend: b, status: b.Status, stopping: s.stopping}, options...))
	mux.Handle(kvgatev1connect.NewSessionServiceHandler(&sessionService{
		sessions: b, pins: b, reader: b, pools: b, now: s.options.Now, stopping: s.stopping,
	}, slices.Concat(options, []connect.HandlerOption{largePrefixes()})...))
	mux.Handle(kvgatev1connect.NewClusterServiceHandler(&clusterService{backend: b, members: b, archive: b}, options...))
	limit := connect.WithReadMaxBytes(maxBodyBytes)
	mux.Handle(grpchealth.NewHandler(newChecker(b.Status), limit))
	reflector := grpcreflect.NewStaticReflector(append([]string{grpchealth.HealthV1ServiceName}, serviceNames...)...)
	mux.Handle(grpcreflect.NewHandlerV1(reflector, limit))
	mux.Handle(grpcreflect.NewHandlerV1Alpha(reflector, limit))
	mux.Handle("GET /metrics", guarded(s.options.Tokens, "/metrics", metricsHandler(registry), tokens.Observer))
	mux.HandleFunc("GET /healthz", healthz)
	mux.HandleFunc("GET /readyz", readyz(b.Status))
	mux.HandleFunc("GET /{$}", statusPage)
	return roomy(mux)
}

// largePrefixes lets PinPrefix, and no other call, carry more than maxBodyBytes.
func largePrefixes() connect.HandlerOption {
	return connect.WithConditionalHandlerOptions(func(spec connect.Spec) []connect.HandlerOption {
		if spec.Procedure != kvgatev1connect.SessionServicePinPrefixProcedure {
			return nil
		}
		return []connect.HandlerOption{connect.WithReadMaxBytes(maxPrefixBytes)}
	})
}

// Handler returns everything that the port serves.
func (s *Server) Handler() http.Handler { return s.handler }

// HTTPServer returns an http.Server with the limits and protocols that blocking calls need: HTTP/1.1
// and HTTP/2 without TLS on one port, and no write timeout, since an Acquire may block for as long as
// its max_wait. With Options.TLS, serve it with ServeTLS.
func (s *Server) HTTPServer() *http.Server {
	protocols := new(http.Protocols)
	protocols.SetHTTP1(true)
	protocols.SetHTTP2(true)
	protocols.SetUnencryptedHTTP2(s.options.TLS == nil)
	return &http.Server{
		TLSConfig:         s.options.TLS,
		Handler:           s.handler,
		Protocols:         protocols,
		HTTP2:             &http.HTTP2Config{MaxConcurrentStreams: maxConcurrentStreams},
		ReadHeaderTimeout: readHeaderTimeout,
		IdleTimeout:       idleTimeout,
		MaxHeaderBytes:    maxHeaderBytes,
		ErrorLog:          slog.NewLogLogger(s.log.Handler(), slog.LevelWarn),
	}
}

// Serve answers on ln until ctx ends, then stops taking calls, lets blocked Acquires go and waits for
// the rest at most ShutdownGrace. It closes ln. A server serves once.
func (s *Server) Serve(ctx context.Context, ln net.Listener) error {
	srv := s.HTTPServer()
	failed := make(chan error, 1)
	go func() {
		if s.options.TLS != nil {
			failed <- srv.ServeTLS(ln, "", "")
			return
		}
		failed <- srv.Serve(bufferedListener{ln})
	}()
	select {
	case err := <-failed:
		s.stop()
		return fmt.Errorf("serve %s: %w", ln.Addr(), err)
	case <-ctx.Done():
	}
	s.stop()
	err := s.shutdown(srv)
	if served := <-failed; !errors.Is(served, http.ErrServerClosed) {
		err = errors.Join(err, served)
	}
	return err
}

// shutdown waits for calls in flight, then cuts off what is left.
func (s *Server) shutdown(srv *http.Server) error {
	grace := s.options.ShutdownGrace
	if grace == 0 {
		grace = defaultShutdownGrace
	}
	ctx, cancel := context.WithTimeout(context.Background(), grace)
	defer cancel()
	err := srv.Shutdown(ctx)
	if errors.Is(err, context.DeadlineExceeded) {
		s.log.Warn("calls in flight were cut off", slog.Duration("grace", grace))
		err = srv.Close()
	}
	return err
}
