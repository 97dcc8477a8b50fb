package main

import (
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"os"
	"time"

	"connectrpc.com/connect"
	"github.com/cenkalti/backoff/v5"

	kvgatev1 "kvgate/rpc/kvgate/v1"
)

// longestRetry bounds the pause before a renewal or heartbeat that failed is tried again.
const longestRetry = 5 * time.Second

// hold runs argv under a decision and lets go of the ticket whatever happens. failed is why there is
// no decision; most of these reasons let the child run without one.
func hold(ctx context.Context, c *client, req *kvgatev1.AcquireRequest, require bool, argv []string,
	signals <-chan os.Signal, decision *kvgatev1.AcquireResponse, failed error) error {
	switch {
	case failed != nil && (require || !failsOpen(failed)):
		return failed
	case failed != nil:
		c.note("warning: no decision (%s): running without a lease (bypass degraded)", errorLine(failed))
		return runChild(ctx, c.m, argv, signals)
	}
	defer letGo(ctx, c, req, decision)
	if err := announce(c, decision); err != nil {
		return err
	}
	if decision.Action != kvgatev1.Action_ACTION_ADMIT && require {
		return fmt.Errorf("%w: ticket %s was bypassed (%s) and --require-admission is on", errNotAdmitted, decision.TicketId, word(decision.Reason))
	}
	if decision.LeaseId != "" {
		defer background(ctx, func(ctx context.Context) { keepLease(ctx, c.clone(), req, decision) })()
	}
	return runChild(ctx, c.m, argv, signals)
}

// failsOpen reports that an error is the coordinator's trouble and not the caller's mistake.
func failsOpen(err error) bool {
	if errors.Is(err, errInterrupted) {
		return false
	}
	switch connect.CodeOf(err) {
	case connect.CodeInvalidArgument, connect.CodeFailedPrecondition, connect.CodeNotFound, connect.CodeAlreadyExists,
		connect.CodeUnauthenticated, connect.CodePermissionDenied, connect.CodeOutOfRange, connect.CodeCanceled:
		return false
	default:
		return true
	}
}

// announce tells the decision on stderr: stdout belongs to the child.
func announce(c *client, d *kvgatev1.AcquireResponse) error {
	if c.output == outputJSON {
		return writeJSON(c.m.stderr, d)
	}
	if d.LeaseId == "" {
		c.note("%s %s: running without a lease", word(d.Action), word(d.Reason))
		return nil
	}
	c.note("%s %s: lease %s, %s tokens, waited %s", word(d.Action), word(d.Reason), d.LeaseId, number(d.ReservationTokens), span(d.Waited))
	return nil
}

// letGo releases the lease, or ends the tracking of a bypassed attempt. It keeps trying for the
// client's timeout, and after ctx has ended; a lease that stays behind expires by itself.
func letGo(ctx context.Context, c *client, req *kvgatev1.AcquireRequest, d *kvgatev1.AcquireResponse) {
	ctx = context.WithoutCancel(ctx)
	release := &kvgatev1.ReleaseRequest{Pool: req.Pool, TicketId: req.TicketId, LeaseId: d.LeaseId, Grant: d.Grant, HolderId: req.HolderId}
	try := func() (*kvgatev1.ReleaseResponse, error) {
		answer, err := call(ctx, c, (*endpoint).Release, release)
		if err != nil && !unreachable(err) {
			err = backoff.Permanent(err)
		}
		return answer, err
	}
	answer, err := backoff.Retry(ctx, try, backoff.WithMaxElapsedTime(c.timeout))
	switch {
	case d.LeaseId == "":
	case err != nil:
		c.note("warning: lease %s was not released (%s); it expires by itself", d.LeaseId, errorLine(err))
	case !answer.Released:
		c.note("warning: lease %s had already ended", d.LeaseId)
	}
}

// keepLease renews the lease each third of its time until ctx ends or the lease is gone.
func keepLease(ctx context.Context, c *client, req *kvgatev1.AcquireRequest, d *kvgatev1.AcquireResponse) {
	renew := &kvgatev1.RenewRequest{Pool: req.Pool, LeaseIds: []string{d.LeaseId}, Grants: []uint64{d.Grant}, Ttl: req.Ttl}
	pause := d.ExpiresIn.AsDuration() / 3
	for pause > 0 && rest(ctx, pause) {
		answer, err := call(ctx, c, (*endpoint).Renew, renew)
		switch {
		case ctx.Err() != nil:
			return
		case err != nil:
			c.note("warning: lease %s was not renewed (%s); trying again", d.LeaseId, errorLine(err))
			pause = min(pause, longestRetry)
		case len(answer.Leases) != 1 || !answer.Leases[0].Renewed:
			c.note("warning: lease %s is gone; the command runs on without it", d.LeaseId)
			return
		default:
			pause = answer.Leases[0].ExpiresIn.AsDuration() / 3
		}
	}
}

// maxHostInHolder bounds the host's part of a holder's name, in bytes; ids may not be much longer.
const maxHostInHolder = 64

// ownHolder names this process as a holder, unlike any other: exec-HOST-PID-RANDOM.
func ownHolder() string {
	host, err := os.Hostname()
	if err != nil || host == "" {
		host = "unknown"
	}
	return fmt.Sprintf("exec-%.*s-%d-%s", maxHostInHolder, host, os.Getpid(), rand.Text()[:8])
}

// keepHolder sends heartbeats for a holder until the returned function is called; that one returns
// when the last of them has ended. Without a holder there are none.
func keepHolder(ctx context.Context, c *client, holder string) (stop func()) {
	if holder == "" {
		return func() {}
	}
	c = c.clone()
	return background(ctx, func(ctx context.Context) {
		pause := longestRetry
		for {
			answer, err := call(ctx, c, (*endpoint).Heartbeat, &kvgatev1.HeartbeatRequest{HolderId: holder})
			if err == nil && answer.Ttl.AsDuration() > 0 {
				pause = answer.Ttl.AsDuration() / 3
			}
			if err == nil && answer.Leases+answer.Waiters == 0 {
				// The time of the pool is known only when the ticket is there.
				pause = min(pause, time.Second)
			}
			if !rest(ctx, pause) {
				return
			}
		}
	})
}

// background runs fn in a goroutine; the returned function ends its context and waits for it.
func background(ctx context.Context, fn func(context.Context)) (stop func()) {
	ctx, cancel := context.WithCancel(ctx)
	done := make(chan struct{})
	go func() {
		defer close(done)
		fn(ctx)
	}()
	return func() {
		cancel()
		<-done
	}
}

// rest waits and reports whether it did so to the end.
func rest(ctx context.Context, d time.Duration) bool {
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-timer.C:
		return true
	case <-ctx.Done():
		return false
	}
}
