// Package client is the Go client of kvgate that rollout code uses: ask for a lease, generate,
// release.
//
//	c, err := client.New([]string{"http://10.0.0.1:7070", "http://10.0.0.2:7070", "http://10.0.0.3:7070"})
//	…
//	defer c.Close(ctx)
//	for turn := range turns {
//		grant, err := c.Acquire(ctx, client.Request{
//			Ticket: fmt.Sprintf("%s:%d", id, turn), Session: id,
//			PromptTokens: int64(len(prompt)), MaxNewTokens: 4096,
//		})
//		if err != nil {
//			return err // a programming error, or ctx is done
//		}
//		reply, err := generate(ctx, prompt)
//		grant.Release(client.Usage{PromptTokens: reply.Prompt, CompletionTokens: reply.Completion})
//		…
//	}
//
// All amounts are tokens; all times are time.Duration.
//
// # Errors
//
// A coordinator that is down, slow or talks nonsense never stops a rollout. Acquire then returns a
// grant with action [Bypass], reason [Degraded] and the Cause, counts it and logs one line in ten
// seconds. It gives up at max wait + decision budget ([WithDecisionBudget]) at the latest; when no
// endpoint serves, a ticket that has not waited yet goes ahead after the decision budget alone, and
// while the outage lasts further ones after one round over the endpoints. A refusal for reasons of the
// deployment (queue full, token not accepted, unknown pool) counts as degraded too, at once.
//
// Errors are left for what the caller must change: [ErrInvalid] with the field (checked before
// anything is sent), [ErrTicketMismatch], [ErrSessionClosing], [ErrClosed], and the context's error.
// The other calls (Cancel, Renew, Budget, DrainStep…) retry for up to 10 s and then return an *[Error].
//
// # Max wait
//
// A request without MaxWait leaves it to the pool on its first try. A retry must send what is left of
// it, and the whole must end at some time, so the client has to assume the pool's setting: 30 s, or
// [WithDefaultMaxWait]. It does not ask for it, which would take an administrator's token.
//
// # Nothing stays behind
//
// When Acquire ends without a decision (the context ended, the budget was used up) and some try may
// have been carried out, the ticket is cancelled in the background until that is known, at most until
// whatever was left is over by itself. Releases are repeated the same way until the lease's end. Both
// go on while Close waits for them. A new Acquire of the same ticket first waits until they are known.
//
// A copy of an Acquire may be carried out late: a node still asks for it although the client went on with
// another. So all tries carry one call id, and the cancel, or the release after more than one try, names it:
// the coordinator then gives that call nothing any more, and lets nobody else go. A [Client.Cancel] that finds
// nothing is about the next Acquire of the ticket, whoever makes it, and turns it into a bypass with reason
// [Cancelled].
//
// # Many tickets
//
// Releases, cancels, renewals and Acquires of all goroutines share one stream to the endpoint that works:
// what queues up while a message is sent goes into the next, and a ticket that waits holds up nobody. When
// the stream breaks, what was open is asked for again, at the next endpoint; tickets keep their places in
// the queue. An endpoint that cannot do streams, e.g. because HTTP/1.1 lies in between, gets batches and a
// long poll, which need a holder; one that knows neither gets a call for each operation. A minute later the
// better way is tried again. [WithMultiplex] turns all this off. Acquires that are made one after the other
// enter the queue in that order.
//
// Package reservation computes how many tokens to ask for. DrainStep returns a step's metrics.
//
// # What runs in the background
//
// Heartbeats, a third of the holder TTL apart, while anything is held or waits; renewal of leases at
// half their time, all of a pool in one call; releases and cancels; the reader and writer of a stream, which
// is closed after a minute without use. All of it ends with Close. What
// the package may not do: decide about engines, or interrupt a generate call.
//
// # Sessions
//
// Name the agent program in Request.Session and call [Client.CloseSession] when it ends: the close is sent
// in the background until a coordinator has it, and every engine is told to free the program's KV.
// [Client.OpenSession] is needed only for a group, an idle timeout or another kind.
package client
