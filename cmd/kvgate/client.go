package main

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/http"
	"net/url"
	"os"
	"strings"
	"time"

	"connectrpc.com/connect"
	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	rpcclient "kvgate/rpc/client"
	kvgatev1 "kvgate/rpc/kvgate/v1"
	"kvgate/rpc/kvgate/v1/kvgatev1connect"
	"kvgate/rpc/tlsfiles"
)

const (
	defaultServer  = "http://127.0.0.1:7070"
	defaultTimeout = 10 * time.Second
	dialTimeout    = 3 * time.Second
)

// clientOptions are the flags of every command that talks to a server.
type clientOptions struct {
	servers   []string
	from      string
	pool      string
	tokenFile string
	tlsCA     string
	tlsCert   string
	tlsKey    string
	timeout   time.Duration
	output    string
}

func (o *clientOptions) flags(outputs ...string) *pflag.FlagSet {
	fs := pflag.NewFlagSet("client", pflag.ContinueOnError)
	fs.StringSliceVar(&o.servers, "server", []string{defaultServer}, "servers, separated by commas and tried in order")
	fs.StringVar(&o.from, "from", "", "read this snapshot file, or data directory of a stopped node, instead of asking a server")
	fs.StringVar(&o.pool, "pool", "", "pool; the unnamed pool is \"default\"")
	fs.StringVar(&o.tokenFile, "token-file", "", "file whose first word is the bearer token")
	fs.StringVar(&o.tlsCA, "tls-ca", "", "PEM authorities that signed the servers' certificates (default: those of the system)")
	fs.StringVar(&o.tlsCert, "tls-cert", "", "PEM certificate to show to servers that ask for one")
	fs.StringVar(&o.tlsKey, "tls-key", "", "PEM key of --tls-cert")
	fs.DurationVar(&o.timeout, "timeout", defaultTimeout, "longest time for one call to one server")
	choiceVar(fs, &o.output, "output", outputTable, "form of the output", outputs...)
	allow(fs, "server", "http:// or https:// URLs separated by commas")
	configurable(fs)
	return fs
}

// client calls the servers in order and stays with the one that answered. One goroutine at a time
// may move it to another server, so concurrent loops use their own copy; see [client.clone].
type client struct {
	clientOptions
	m         *Main
	http      *http.Client
	endpoints []*endpoint
	current   int
	// offline answers instead of servers; nil unless --from is given.
	offline *offlineServer
	// recorded is when the recording ends that servers answer from; nil while that is not known.
	recorded *time.Time
}

// endpoint is one server with all of its services.
type endpoint struct {
	url string
	kvgatev1connect.AdmissionServiceClient
	kvgatev1connect.ObserveServiceClient
	kvgatev1connect.ClusterServiceClient
	kvgatev1connect.SessionServiceClient
}

// clientCommand adds the client flags to cmd and runs fn with a client made from them.
func clientCommand(m *Main, cmd *cobra.Command, fn func(context.Context, *client, []string) error) *cobra.Command {
	return clientCommandWith(m, cmd, []string{outputTable, outputJSON}, fn)
}

func clientCommandWith(m *Main, cmd *cobra.Command, outputs []string, fn func(context.Context, *client, []string) error) *cobra.Command {
	cmd.RunE = m.run(clientBody(m, cmd, outputs, fn))
	return cmd
}

// clientBody adds the client flags to cmd and returns what runs fn with a client made from them.
func clientBody(m *Main, cmd *cobra.Command, outputs []string, fn func(context.Context, *client, []string) error) func(context.Context, []string) error {
	options := &clientOptions{}
	cmd.Flags().AddFlagSet(options.flags(outputs...))
	_ = cmd.RegisterFlagCompletionFunc("output", cobra.FixedCompletions(outputs, cobra.ShellCompDirectiveNoFileComp))
	return func(ctx context.Context, args []string) (err error) {
		c, err := newClient(m, *options)
		if err != nil {
			return err
		}
		defer func() { err = errors.Join(err, c.close()) }()
		return fn(ctx, c, args)
	}
}

func newClient(m *Main, o clientOptions) (*client, error) {
	if o.timeout <= 0 {
		return nil, badValue("timeout", o.timeout.String(), "a duration above 0 such as 10s")
	}
	if o.from != "" {
		return newOfflineClient(m, o)
	}
	token, err := readToken(o.tokenFile)
	if err != nil {
		return nil, err
	}
	h, err := newHTTPClient(o)
	if err != nil {
		return nil, err
	}
	c := &client{clientOptions: o, m: m, http: h}
	for _, server := range o.servers {
		base, err := serverURL(server, o.secure())
		if err != nil {
			return nil, err
		}
		c.endpoints = append(c.endpoints, newEndpoint(c.http, base, token))
	}
	if len(c.endpoints) == 0 {
		return nil, badValue("server", "", "at least one URL such as "+defaultServer)
	}
	return c, nil
}

// newOfflineClient returns a client of a server that it starts itself, over what --from names.
func newOfflineClient(m *Main, o clientOptions) (*client, error) {
	offline, err := serveOffline(o.from, newLogger(m.stderr, "warn", "text"))
	if err != nil {
		return nil, err
	}
	c := &client{clientOptions: o, m: m, http: offline.httpClient(), offline: offline}
	c.endpoints = []*endpoint{newEndpoint(c.http, offlineURL, "")}
	return c, nil
}

// close lets connections go, and removes what --from needed on disk.
func (c *client) close() error {
	c.http.CloseIdleConnections()
	if c.offline == nil {
		return nil
	}
	return c.offline.Close()
}

// now is the time that ages count back from: the end of the recording with --from and for a server that serves one.
// When no server says, it is that of the clock.
func (c *client) now(ctx context.Context) time.Time {
	if end, err := c.recordedUntil(ctx); err == nil && !end.IsZero() {
		return end
	}
	return c.m.Now()
}

// recordedUntil returns when the recording ends that is being read; the zero time for a living cluster. It asks the
// servers once.
func (c *client) recordedUntil(ctx context.Context) (time.Time, error) {
	switch {
	case c.offline != nil:
		return c.offline.Header.WallTime, nil
	case c.recorded != nil:
		return *c.recorded, nil
	}
	status, err := call(ctx, c, (*endpoint).GetStatus, &kvgatev1.GetStatusRequest{})
	if connect.CodeOf(err) == connect.CodeUnimplemented {
		return time.Time{}, nil
	}
	if err != nil {
		return time.Time{}, err
	}
	c.recorded = new(recordingEnd(status))
	return *c.recorded, nil
}

// recordingEnd returns when the recording ends that a server answers from; the zero time for a living one.
func recordingEnd(status *kvgatev1.GetStatusResponse) time.Time {
	if end := status.GetRecordedUntil(); end != nil {
		return end.AsTime()
	}
	return time.Time{}
}

// clone returns a client for use by another goroutine.
func (c *client) clone() *client {
	copied := *c
	return &copied
}

// library returns the client that rollout code uses, for the same servers. Whoever asks for it closes it.
func (c *client) library(options ...rpcclient.Option) (*rpcclient.Client, error) {
	token, err := readToken(c.tokenFile)
	if err != nil {
		return nil, err
	}
	secure, err := c.tls()
	if err != nil {
		return nil, err
	}
	servers := make([]string, len(c.endpoints))
	for i, e := range c.endpoints {
		servers[i] = e.url
	}
	common := []rpcclient.Option{
		rpcclient.WithToken(token), rpcclient.WithTLSConfig(secure), rpcclient.WithLogger(newLogger(c.m.stderr, "warn", "text")),
	}
	return rpcclient.New(servers, append(common, options...)...)
}

func newHTTPClient(o clientOptions) (*http.Client, error) {
	secure, err := o.tls()
	if err != nil {
		return nil, err
	}
	dialer := &net.Dialer{Timeout: min(dialTimeout, o.timeout), KeepAlive: 5 * time.Second}
	transport := &http.Transport{DialContext: dialer.DialContext, TLSClientConfig: secure, ForceAttemptHTTP2: true, MaxIdleConnsPerHost: 4}
	return &http.Client{
		Transport: noticeTLS{transport},
		// A redirect would carry the bearer token elsewhere.
		CheckRedirect: func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse },
	}, nil
}

// secure reports that the flags speak of TLS, so that HOST:PORT means https.
func (o *clientOptions) secure() bool { return o.tlsCA != "" || o.tlsCert != "" }

// tls returns how to make secure connections.
func (o *clientOptions) tls() (*tls.Config, error) {
	if (o.tlsCert == "") != (o.tlsKey == "") {
		return nil, usagef("tls-cert, tls-key: give both or none")
	}
	var (
		roots *tlsfiles.Authorities
		id    *tlsfiles.Identity
		err   error
		quiet = slog.New(slog.DiscardHandler)
	)
	if o.tlsCA != "" {
		if roots, err = tlsfiles.LoadAuthorities(o.tlsCA, quiet); err != nil {
			return nil, usagef("tls-ca: %s", err)
		}
	}
	if o.tlsCert != "" {
		if id, err = tlsfiles.LoadIdentity(o.tlsCert, o.tlsKey, quiet); err != nil {
			return nil, usagef("tls-cert: %s", err)
		}
	}
	return tlsfiles.Client(id, roots, ""), nil
}

func newEndpoint(h *http.Client, base, token string) *endpoint {
	var options []connect.ClientOption
	if token != "" {
		options = append(options, connect.WithInterceptors(bearer(token)))
	}
	return &endpoint{
		url:                    base,
		AdmissionServiceClient: kvgatev1connect.NewAdmissionServiceClient(h, base, options...),
		SessionServiceClient:   kvgatev1connect.NewSessionServiceClient(h, base, options...),
		ObserveServiceClient:   kvgatev1connect.NewObserveServiceClient(h, base, options...),
		ClusterServiceClient:   kvgatev1connect.NewClusterServiceClient(h, base, options...),
	}
}

// bearer shows a token with every call.
type bearer string

var _ connect.Interceptor = bearer("")

// WrapUnary implements connect.Interceptor.
func (b bearer) WrapUnary(next connect.UnaryFunc) connect.UnaryFunc {
	return func(ctx context.Context, req connect.AnyRequest) (connect.AnyResponse, error) {
		req.Header().Set("Authorization", "Bearer "+string(b))
		return next(ctx, req)
	}
}

// WrapStreamingClient implements connect.Interceptor.
func (b bearer) WrapStreamingClient(next connect.StreamingClientFunc) connect.StreamingClientFunc {
	return func(ctx context.Context, spec connect.Spec) connect.StreamingClientConn {
		conn := next(ctx, spec)
		conn.RequestHeader().Set("Authorization", "Bearer "+string(b))
		return conn
	}
}

// WrapStreamingHandler implements connect.Interceptor.
func (b bearer) WrapStreamingHandler(next connect.StreamingHandlerFunc) connect.StreamingHandlerFunc {
	return next
}

// serverURL completes HOST:PORT to a URL and refuses what no server can have. With TLS in the flags
// HOST:PORT means https, and so does the default.
func serverURL(s string, secure bool) (string, error) {
	base := strings.TrimSpace(s)
	if secure && base == defaultServer {
		base = strings.TrimPrefix(base, "http://")
	}
	switch {
	case strings.Contains(base, "://"):
	case secure:
		base = "https://" + base
	default:
		base = "http://" + base
	}
	if !httpURL(base) {
		return "", badValue("server", s, "http:// or https:// URLs separated by commas")
	}
	return base, nil
}

func httpURL(s string) bool {
	u, err := url.Parse(s)
	return err == nil && (u.Scheme == "http" || u.Scheme == "https") && u.Hostname() != ""
}

// readToken returns the first word of a file; "" without a file.
func readToken(path string) (string, error) {
	if path == "" {
		return "", nil
	}
	raw, err := os.ReadFile(path)
	if err != nil {
		return "", usagef("token-file: %s", err)
	}
	words := strings.Fields(string(raw))
	if len(words) == 0 {
		return "", badValue("token-file", path, "a file that holds a token: it is empty")
	}
	return words[0], nil
}

// method is one call of one service, such as (*endpoint).GetBudget.
type method[Req, Res any] func(*endpoint, context.Context, *connect.Request[Req]) (*connect.Response[Res], error)

// call sends one request to the servers in order, at most the client's timeout to each.
func call[Req, Res any](ctx context.Context, c *client, fn method[Req, Res], req *Req) (*Res, error) {
	return callEach(ctx, c, fn, func() *Req { return req }, c.timeout)
}

// callEach sends what build returns to the servers in order until one answers, and stays with that
// one. A timeout of 0 leaves the time to ctx. Of several failures the one that a server worded wins.
func callEach[Req, Res any](ctx context.Context, c *client, fn method[Req, Res], build func() *Req, timeout time.Duration) (*Res, error) {
	var failed error
	for range c.endpoints {
		e := c.endpoints[c.current]
		res, err := callOne(ctx, e, fn, build(), timeout)
		if err == nil {
			return res, nil
		}
		err = withServer(err, e.url)
		if ctx.Err() != nil || !unreachable(err) {
			return nil, err
		}
		if failed == nil || errorInfo(failed) == nil {
			failed = err
		}
		c.current = (c.current + 1) % len(c.endpoints)
	}
	return nil, failed
}

func callOne[Req, Res any](ctx context.Context, e *endpoint, fn method[Req, Res], req *Req, timeout time.Duration) (*Res, error) {
	if timeout > 0 {
		var cancel context.CancelFunc
		ctx, cancel = context.WithTimeout(ctx, timeout)
		defer cancel()
	}
	res, err := fn(e, ctx, connect.NewRequest(req))
	if err == nil {
		return res.Msg, nil
	}
	if connect.CodeOf(err) == connect.CodeCanceled && ctx.Err() == nil && errorInfo(err) == nil {
		// A connection that the server cut: nobody here has cancelled anything.
		err = connect.NewError(connect.CodeUnavailable, errors.Unwrap(err))
	}
	return nil, err
}

// withServer adds the server to the message of an error that did not come from it.
func withServer(err error, server string) error {
	var failure *connect.Error
	if !errors.As(err, &failure) || !unreachable(err) || errorInfo(failure) != nil {
		return err
	}
	return connect.NewError(failure.Code(), errors.New(server+": "+failure.Message()))
}

// print writes an answer in the form that was asked for.
func (c *client) print(asJSON, asTable func(io.Writer) error) error {
	if c.output == outputJSON {
		return asJSON(c.m.stdout)
	}
	return asTable(c.m.stdout)
}

// note writes a line for people beside the output.
func (c *client) note(format string, args ...any) {
	fmt.Fprintln(c.m.stderr, "kvgate: "+oneLine(fmt.Sprintf(format, args...)))
}
