package rpc

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"slices"
	"strings"

	"connectrpc.com/connect"

	"kvgate/fsm"
	"kvgate/rpc/kvgate/v1/kvgatev1connect"
	"kvgate/rpc/tokens"
)

// Errors of callers.
var (
	// ErrUnauthenticated: the call carries no token, or one that is not known here.
	ErrUnauthenticated = errors.New("a valid bearer token is needed")
	// ErrDenied: the token is known and does not allow the call.
	ErrDenied = errors.New("not allowed")
)

// Authenticator knows tokens. A tokens.File is one.
type Authenticator interface {
	// Find returns what a token allows, and false for one that is not known.
	Find(token string) (tokens.Grant, bool)
}

// observed lists the calls of ClusterService that change nothing and show no secret.
var observed = []string{
	kvgatev1connect.ClusterServiceGetStatusProcedure,
	kvgatev1connect.ClusterServiceGetSettingsProcedure,
}

// sessionReads lists the calls of SessionService that change nothing.
var sessionReads = []string{
	kvgatev1connect.SessionServiceGetSessionProcedure,
	kvgatev1connect.SessionServiceListSessionsProcedure,
	kvgatev1connect.SessionServiceListPinsProcedure,
}

// rolesFor returns who may call a procedure, beside admins.
func rolesFor(procedure string) []tokens.Role {
	service, _, _ := strings.Cut(strings.TrimPrefix(procedure, "/"), "/")
	switch {
	case slices.Contains(sessionReads, procedure):
		return []tokens.Role{tokens.Client, tokens.Observer}
	case service == kvgatev1connect.AdmissionServiceName, service == kvgatev1connect.SessionServiceName:
		return []tokens.Role{tokens.Client}
	case procedure == kvgatev1connect.ObserveServiceGetTicketProcedure:
		return []tokens.Role{tokens.Client, tokens.Observer}
	case procedure == kvgatev1connect.ObserveServiceDrainStepProcedure:
		return nil
	case service == kvgatev1connect.ObserveServiceName, slices.Contains(observed, procedure):
		return []tokens.Role{tokens.Observer}
	default:
		return nil
	}
}

// guard is the interceptor that checks tokens.
type guard struct {
	known  Authenticator
	status func() fsm.Status
}

var _ connect.Interceptor = (*guard)(nil)

// WrapUnary implements connect.Interceptor.
func (g *guard) WrapUnary(next connect.UnaryFunc) connect.UnaryFunc {
	return func(ctx context.Context, req connect.AnyRequest) (connect.AnyResponse, error) {
		grant, err := authorise(g.known, req.Header(), req.Spec().Procedure, rolesFor(req.Spec().Procedure))
		if err == nil {
			err = checkPool(grant, req.Any())
		}
		if err != nil {
			return nil, err
		}
		return next(withAccess(ctx, func() (tokens.Grant, error) { return grant, nil }), req)
	}
}

// WrapStreamingClient implements connect.Interceptor.
func (g *guard) WrapStreamingClient(next connect.StreamingClientFunc) connect.StreamingClientFunc {
	return next
}

// WrapStreamingHandler implements connect.Interceptor. Every message of the stream must name a pool of
// the token.
func (g *guard) WrapStreamingHandler(next connect.StreamingHandlerFunc) connect.StreamingHandlerFunc {
	return func(ctx context.Context, conn connect.StreamingHandlerConn) error {
		procedure := conn.Spec().Procedure
		grant, err := authorise(g.known, conn.RequestHeader(), procedure, rolesFor(procedure))
		if err != nil {
			return newError(err, g.status)
		}
		// A stream may outlive its token, so whoever takes many operations from it asks again.
		ctx = withAccess(ctx, func() (tokens.Grant, error) {
			return authorise(g.known, conn.RequestHeader(), procedure, rolesFor(procedure))
		})
		return next(ctx, &guardedStream{conn, grant, g.status})
	}
}

type accessKey struct{}

func withAccess(ctx context.Context, access func() (tokens.Grant, error)) context.Context {
	return context.WithValue(ctx, accessKey{}, access)
}

// accessOf returns what the caller may do now, for calls that carry several operations. Without tokens
// all may do all.
func accessOf(ctx context.Context) (tokens.Grant, error) {
	if access, ok := ctx.Value(accessKey{}).(func() (tokens.Grant, error)); ok {
		return access()
	}
	return tokens.Grant{Role: tokens.Admin}, nil
}

// roleOf returns the role of the caller's token, empty without tokens.
func roleOf(ctx context.Context) tokens.Role {
	if ctx.Value(accessKey{}) == nil {
		return ""
	}
	grant, _ := accessOf(ctx)
	return grant.Role
}

type guardedStream struct {
	connect.StreamingHandlerConn
	grant  tokens.Grant
	status func() fsm.Status
}

// Receive implements connect.StreamingHandlerConn.
func (s *guardedStream) Receive(m any) error {
	if err := s.StreamingHandlerConn.Receive(m); err != nil {
		return err
	}
	if err := checkPool(s.grant, m); err != nil {
		return newError(err, s.status)
	}
	return nil
}

// authorise returns what the caller's token allows when its role is one of roles, or admin.
func authorise(known Authenticator, header http.Header, what string, roles []tokens.Role) (tokens.Grant, error) {
	scheme, token, _ := strings.Cut(header.Get("Authorization"), " ")
	token = strings.TrimSpace(token)
	if token == "" || !strings.EqualFold(scheme, "Bearer") {
		return tokens.Grant{}, fmt.Errorf("%w: send it as `Authorization: Bearer TOKEN`", ErrUnauthenticated)
	}
	grant, ok := known.Find(token)
	if !ok {
		return grant, fmt.Errorf("%w: this one is not in the token file", ErrUnauthenticated)
	}
	roles = append(slices.Clone(roles), tokens.Admin)
	if !slices.Contains(roles, grant.Role) {
		return grant, fmt.Errorf("%w: the token has role %s, %s needs %s", ErrDenied, grant.Role, what, oneOf(roles))
	}
	return grant, nil
}

func oneOf(roles []tokens.Role) string {
	words := make([]string, len(roles))
	for i, r := range roles {
		words[i] = string(r)
	}
	return strings.Join(words, " or ")
}

// checkPool refuses a request about a pool that the token is not for. Requests without a pool pass: a
// heartbeat is about a holder.
func checkPool(grant tokens.Grant, m any) error {
	about, ok := m.(interface{ GetPool() string })
	if !ok || grant.InPool(poolName(about.GetPool())) {
		return nil
	}
	return fmt.Errorf("%w: the token has role %s for pool %s, the call is about pool %s",
		ErrDenied, grant.Role, strings.Join(grant.Pools, ", "), quote(poolName(about.GetPool())))
}

// guarded protects what is not a call, such as the metrics. Without an Authenticator all may read.
func guarded(known Authenticator, what string, next http.Handler, roles ...tokens.Role) http.Handler {
	if known == nil {
		return next
	}
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		_, err := authorise(known, r.Header, what, roles)
		switch {
		case errors.Is(err, ErrUnauthenticated):
			w.Header().Set("WWW-Authenticate", "Bearer")
			writePlain(w, http.StatusUnauthorized, err.Error()+"\n")
		case err != nil:
			writePlain(w, http.StatusForbidden, err.Error()+"\n")
		default:
			next.ServeHTTP(w, r)
		}
	})
}
