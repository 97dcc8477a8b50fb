package client

import (
	"crypto/tls"
	"fmt"
	"log/slog"
	"net/http"
	"os"
	"strings"
	"time"

	"connectrpc.com/connect"
	"github.com/google/uuid"

	kvgatev1 "kvgate/rpc/kvgate/v1"
)

// Option changes how a Client works.
type Option func(*config)

type config struct {
	pool           string
	holder         string
	httpClient     *http.Client
	dial           dialFunc // nil means TCP
	tlsConfig      *tls.Config
	token          string
	logger         *slog.Logger
	hook           func(Event)
	decisionBudget time.Duration
	defaultMaxWait time.Duration
	defaultTTL     time.Duration
	attemptTimeout time.Duration
	callBudget     time.Duration
	retryMin       time.Duration
	retryMax       time.Duration
	autoRenew      bool
	multiplex      bool
}

func defaultConfig() config {
	return config{
		pool:           defaultPool,
		holder:         newHolderID(),
		logger:         slog.Default(),
		decisionBudget: 3 * time.Second,
		defaultMaxWait: 30 * time.Second,
		defaultTTL:     600 * time.Second,
		attemptTimeout: 3 * time.Second,
		callBudget:     10 * time.Second,
		retryMin:       50 * time.Millisecond,
		retryMax:       time.Second,
		autoRenew:      true,
		multiplex:      true,
	}
}

func newHolderID() string {
	host, err := os.Hostname()
	if err != nil || len(host) > 128 {
		host = "unknown"
	}
	return fmt.Sprintf("%s-%d-%s", host, os.Getpid(), uuid.NewString())
}

// WithPool is the engine fleet of requests and calls that name none. Default "default".
func WithPool(pool string) Option { return func(c *config) { c.pool = pool } }

// WithHolderID names this process. Two live processes must never share a name: each would keep the
// other's leases alive. Default: host, process id and a random part.
func WithHolderID(id string) Option { return func(c *config) { c.holder = id } }

// WithoutHolder sends no holder and no heartbeats: what this process leaves behind when it dies is
// reclaimed only when its leases expire.
func WithoutHolder() Option { return func(c *config) { c.holder = "" } }

// WithHTTPClient replaces the HTTP client. The default detects dead peers with HTTP/2 pings and dials
// for at most one second; a replacement should too, and must not limit a call's duration.
func WithHTTPClient(h *http.Client) Option { return func(c *config) { c.httpClient = h } }

// WithTLSConfig is used for https endpoints. It does not go together with [WithHTTPClient].
func WithTLSConfig(t *tls.Config) Option { return func(c *config) { c.tlsConfig = t } }

// WithToken sends a bearer token with every call. Over http it travels in the clear.
func WithToken(token string) Option { return func(c *config) { c.token = token } }

// WithLogger takes what the client has to say; the default is slog.Default. Failures are logged at
// most once in ten seconds each kind.
func WithLogger(l *slog.Logger) Option { return func(c *config) { c.logger = l } }

// WithOnEvent calls hook for every [Event], from many goroutines at once, synchronously: it must not
// block. [Client.Stats] counts the same events.
func WithOnEvent(hook func(Event)) Option { return func(c *config) { c.hook = hook } }

// WithDecisionBudget is how much longer than its max wait an Acquire may take before the client lets
// the attempt go ahead by itself. It is also how long a new ticket puts up with a coordinator that
// cannot be reached. It should exceed the coordinator's fail_open_after (2 s). Default 3 s.
func WithDecisionBudget(d time.Duration) Option { return func(c *config) { c.decisionBudget = d } }

// WithDefaultMaxWait is what the client takes the pools' max_wait setting to be, for requests that
// name none: it bounds the whole Acquire, and retries send what is left of it. Set it when a pool's
// max_wait is longer than the default of 30 s, or waits are cut short as degraded.
func WithDefaultMaxWait(d time.Duration) Option { return func(c *config) { c.defaultMaxWait = d } }

// WithDefaultTTL is what the client takes the pools' lease_ttl to be. It bounds how long it tries to
// cancel a ticket that it gave up on. Default 600 s.
func WithDefaultTTL(d time.Duration) Option { return func(c *config) { c.defaultTTL = d } }

// WithAttemptTimeout bounds each try of a call that does not wait (release, renew, cancel,
// heartbeat…). Default 3 s.
func WithAttemptTimeout(d time.Duration) Option { return func(c *config) { c.attemptTimeout = d } }

// WithCallBudget bounds a call that does not wait and only asks (DrainStep, Budget…), over all its tries.
// Default 10 s.
func WithCallBudget(d time.Duration) Option { return func(c *config) { c.callBudget = d } }

// WithRetry sets the pause between rounds over the endpoints: it starts at first, doubles up to
// longest, and is drawn at random within half of it. Default 50 ms and 1 s.
func WithRetry(first, longest time.Duration) Option {
	return func(c *config) { c.retryMin, c.retryMax = first, longest }
}

// WithAutoRenew says whether held leases are renewed by themselves at half their time. Default true.
func WithAutoRenew(on bool) Option { return func(c *config) { c.autoRenew = on } }

// WithMultiplex says whether tickets share a stream or batches where the endpoint offers them. Without,
// every operation is a call of its own. Default true.
func WithMultiplex(on bool) Option { return func(c *config) { c.multiplex = on } }

func (c *config) settleSlots() int64 {
	if c.multiplex {
		return settleMultiplexed
	}
	return settleParallel
}

func (c *config) check() error {
	for _, d := range []struct {
		option string
		value  time.Duration
	}{
		{"decisionBudget", c.decisionBudget},
		{"defaultTTL", c.defaultTTL},
		{"attemptTimeout", c.attemptTimeout},
		{"callBudget", c.callBudget},
		{"retryFirst", c.retryMin},
	} {
		if d.value <= 0 {
			return optionError(d.option, d.value, "above 0")
		}
	}
	switch {
	case c.defaultMaxWait < 0:
		return optionError("defaultMaxWait", c.defaultMaxWait, "0 or above")
	case c.retryMax < c.retryMin:
		return optionError("retryLongest", c.retryMax, fmt.Sprintf("at least %v", c.retryMin))
	case c.httpClient != nil && c.tlsConfig != nil:
		return optionError("tlsConfig", "set", "none next to an HTTP client, which brings its own")
	case !validToken(c.token):
		return optionError("token", "not shown", "printable ASCII text without line ends or spaces around it")
	case c.logger == nil:
		return optionError("logger", nil, "a logger; slog.DiscardHandler keeps it silent")
	}
	if c.pool == "" {
		c.pool = defaultPool
	}
	if err := validate(&kvgatev1.GetBudgetRequest{Pool: c.pool}); err != nil {
		return err
	}
	if c.holder == "" {
		return nil
	}
	return validate(&kvgatev1.HeartbeatRequest{HolderId: c.holder})
}

// validToken reports whether a token can go into a header: one that was read from a file as it is ends
// with a line end.
func validToken(token string) bool {
	return token == strings.TrimSpace(token) && !strings.ContainsFunc(token, func(r rune) bool { return r < ' ' || r > '~' })
}

func optionError(option string, value any, allowed string) error {
	return &Error{
		Code: connect.CodeInvalidArgument, Field: option,
		Err: fmt.Errorf("%w: %s is %v, allowed is %s", ErrInvalid, option, value, allowed),
	}
}
