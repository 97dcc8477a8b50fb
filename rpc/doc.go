// Package rpc is the network face of kvgate: the Connect services of kvgate.v1 over an in-process
// backend, and what shares their port (gRPC health and reflection, /metrics, /healthz, /readyz, the
// status page).
//
// A request passes through five stages:
//
//   - the codec (codec.go) decodes it; JSON is read strictly, so a misspelt field is an error,
//   - the guard (auth.go), when there are tokens, checks role and pool of the caller's,
//   - the validator (validate.go) checks the rules written in the protos,
//   - a handler (admission.go, session.go, observe.go, cluster.go, members.go, snapshot.go) maps it to a [ledger] operation or view and
//     calls the [Backend],
//   - the error table (errors.go) turns what comes back into a Connect code with an ErrorInfo.
//
// Exchange, Submit and AwaitGrants carry many such operations. Each is checked, answered and counted as its
// own call would be (ops.go), on a lane of the replica that keeps their order. A stream (exchange.go) has a
// reader that stops while too many operations are unanswered and a writer that puts answers together;
// tickets that wait hold up neither. A holder that uses Submit has a desk (desk.go), which keeps its tickets
// attached between calls and its decisions until they are acknowledged.
//
// Every answer names the leader's API address in the header Kvgate-Leader when it is known (leader.go).
// TLS comes from tlsfiles, tokens from tokens; both are read again when their files change, by reload.
//
// No admission logic lives here. Handlers only translate, with one exception that is the point of the
// system: an Acquire that the coordinator cannot decide is answered with bypass "degraded" rather
// than an error, so that generation goes ahead without it.
package rpc
