package main

import (
	"context"
	"fmt"
	"io"
	"os"
	"os/exec"
	"time"

	"connectrpc.com/connect"
	"github.com/spf13/cobra"
	"github.com/spf13/pflag"
	"google.golang.org/protobuf/types/known/durationpb"

	kvgatev1 "kvgate/rpc/kvgate/v1"
)

const acquireHelp = `Asks for a lease, waits for the decision and prints it. The tokens are --reservation-tokens
(or --tokens), or --prompt-tokens with --max-new-tokens. Ctrl-C while the ticket waits takes it out of
the queue.

With --exec the lease is held, and renewed, while CMD runs and released when CMD has ended, however it
ends. Signals go to CMD and its exit code becomes that of kvgate. A bypass runs CMD as well, without a
lease; so does a coordinator that cannot be reached (it fails open), unless --require-admission.
Without --holder the command is a holder of its own (exec-HOST-PID-RANDOM): should it be killed, its
tokens are back after the pool's holder_ttl. --holder "" waits for the lease to expire instead.

Without --max-wait the pool says how long a ticket may wait. --timeout, when given, is added to
--max-wait, or bounds the call where there is none.`

const acquireExample = `  kvgate acquire req-17:0 --prompt-tokens 12000 --max-new-tokens 4096
  kvgate acquire --ticket req-17:0 --tokens 16096 --max-wait 45s --output json
  kvgate acquire eval-3 --tokens 64000 --exec python eval.py --shard 3
  kvgate acquire eval-3 --tokens 64000 --require-admission -- python eval.py --shard 3`

// acquireFlags are the flags of `acquire` as written.
type acquireFlags struct {
	ticket, mode, session, group, holder, rid string
	prompt, maxNew, reservation               int64
	protected                                 bool
	priority                                  int32
	maxWait, ttl                              time.Duration
	exec, requireAdmission                    bool
}

func newAcquireCommand(m *Main) *cobra.Command {
	f := &acquireFlags{}
	cmd := &cobra.Command{
		Use:     "acquire [TICKET] (--tokens N | --prompt-tokens N --max-new-tokens N) [--exec CMD ARGS…]",
		GroupID: groupTickets,
		Short:   "Ask for a lease; with --exec, hold it while a command runs",
		Long:    acquireHelp,
		Example: acquireExample,
		Args:    f.checkArgs,
	}
	f.define(cmd.Flags())
	run := clientBody(m, cmd, []string{outputTable, outputJSON}, func(ctx context.Context, c *client, args []string) error {
		return acquire(ctx, c, f, cmd, args)
	})
	cmd.RunE = func(cmd *cobra.Command, args []string) error { return mark(run(cmd.Context(), args)) }
	return cmd
}

func (f *acquireFlags) define(fs *pflag.FlagSet) {
	fs.StringVar(&f.ticket, "ticket", "", "id of this attempt, e.g. req-17:0; also the first argument")
	countVar(fs, &f.prompt, "prompt-tokens", 0, "length of the prompt in tokens")
	countVar(fs, &f.maxNew, "max-new-tokens", 0, "generation limit in tokens")
	countVar(fs, &f.reservation, "reservation-tokens", 0, "reservation given outright, in tokens; --tokens for short")
	choiceVar(fs, &f.mode, "mode", "train", "what the attempt is for", "train", "eval")
	fs.BoolVar(&f.protected, "protected", false, "protected work: never queued and never charged")
	fs.Int32Var(&f.priority, "priority", 0, "higher goes first")
	fs.StringVar(&f.session, "session", "", "session of the ticket")
	fs.StringVar(&f.group, "group", "", "group of the ticket")
	fs.StringVar(&f.holder, "holder", "", "holder of the ticket; kept alive while this command runs (default with --exec: one of its own)")
	fs.StringVar(&f.rid, "rid", "", "request id the engine sees (default: the ticket)")
	fs.DurationVar(&f.maxWait, "max-wait", 0, "longest time in the queue; 0s does not wait (default: the pool's)")
	fs.DurationVar(&f.ttl, "ttl", 0, "time to live of the lease (default: the pool's)")
	fs.Var((*execMark)(&f.exec), "exec", "command to run under the lease; must come last")
	fs.BoolVar(&f.requireAdmission, "require-admission", false, "run CMD only under a lease")
	allow(fs, "exec", "--exec CMD ARGS… as the last words")
	fs.SetNormalizeFunc(func(_ *pflag.FlagSet, name string) pflag.NormalizedName {
		if name == "tokens" {
			name = "reservation-tokens"
		}
		return pflag.NormalizedName(name)
	})
}

// execMark is the value of --exec. childArgs has moved the command itself behind "--".
type execMark bool

func (e *execMark) String() string { return "" }
func (e *execMark) Type() string   { return "CMD ARGS…" }

// Set implements [pflag.Value].
func (e *execMark) Set(s string) error {
	if s != "true" {
		return badValue("exec", s, "--exec CMD ARGS… as the last words")
	}
	*e = true
	return nil
}

func (f *acquireFlags) checkArgs(cmd *cobra.Command, args []string) error {
	own, child := splitChild(cmd, args)
	if (f.exec || cmd.ArgsLenAtDash() >= 0) && len(child) == 0 {
		return usagef("exec: a command is missing: use --exec CMD ARGS…")
	}
	return maxArgs(1, "one TICKET, and --exec before a command")(cmd, own)
}

// splitChild returns the words before "--" and the child's command line after it.
func splitChild(cmd *cobra.Command, args []string) (own, child []string) {
	at := cmd.ArgsLenAtDash()
	if at < 0 {
		return args, nil
	}
	return args[:at], args[at:]
}

// request checks the flags and makes the request from them.
func (f *acquireFlags) request(fs *pflag.FlagSet, args []string, pool string) (*kvgatev1.AcquireRequest, error) {
	ticket, err := idArgument(args, "ticket", f.ticket)
	if err != nil {
		return nil, err
	}
	req := &kvgatev1.AcquireRequest{
		Pool: pool, TicketId: ticket, PromptTokens: f.prompt, MaxNewTokens: f.maxNew, Mode: kvgatev1.Mode_MODE_TRAIN,
		Protected: f.protected, Priority: f.priority, SessionId: f.session, GroupId: f.group, HolderId: f.holder, Rid: f.rid,
	}
	if f.mode == "eval" {
		req.Mode = kvgatev1.Mode_MODE_EVAL
	}
	if fs.Changed("reservation-tokens") {
		req.ReservationTokens = &f.reservation
	}
	if err := f.checkTokens(fs); err != nil {
		return nil, err
	}
	return req, f.setTimes(fs, req)
}

func (f *acquireFlags) checkTokens(fs *pflag.FlagSet) error {
	outright, parts := fs.Changed("reservation-tokens"), f.prompt+f.maxNew > 0
	switch {
	case outright && f.reservation == 0:
		return badValue("reservation-tokens", "0", "a whole number above 0")
	case outright && parts:
		return usagef("reservation-tokens: given together with prompt-tokens or max-new-tokens: use one or the other")
	case !outright && !parts && !f.protected:
		return usagef("reservation-tokens: missing: use --tokens N, or --prompt-tokens N with --max-new-tokens N")
	default:
		return nil
	}
}

func (f *acquireFlags) setTimes(fs *pflag.FlagSet, req *kvgatev1.AcquireRequest) error {
	if fs.Changed("max-wait") {
		if f.maxWait < 0 {
			return badValue("max-wait", f.maxWait.String(), "a duration of 0s or above")
		}
		req.MaxWait = durationpb.New(f.maxWait)
	}
	if fs.Changed("ttl") {
		if f.ttl <= 0 {
			return badValue("ttl", f.ttl.String(), "a duration above 0s")
		}
		req.Ttl = durationpb.New(f.ttl)
	}
	return nil
}

// acquire asks, and then prints the decision or runs the child under it.
func acquire(ctx context.Context, c *client, f *acquireFlags, cmd *cobra.Command, args []string) error {
	own, argv := splitChild(cmd, args)
	req, err := f.request(cmd.Flags(), own, c.pool)
	if err != nil {
		return err
	}
	if len(argv) > 0 {
		if _, err := exec.LookPath(argv[0]); err != nil {
			return cannotRun(argv[0], err)
		}
	}
	if len(argv) > 0 && !cmd.Flags().Changed("holder") {
		req.HolderId = ownHolder()
	}
	signals, stop := catchSignals()
	defer stop()
	defer keepHolder(ctx, c, req.HolderId)()

	decision, err := decide(ctx, c, req, callTimeout(cmd.Flags(), c, req), signals)
	if len(argv) > 0 {
		return hold(ctx, c, req, f.requireAdmission, argv, signals, decision, err)
	}
	if err != nil {
		return err
	}
	return c.print(
		func(w io.Writer) error { return writeJSON(w, decision) },
		func(w io.Writer) error { return writeDetails(w, decisionDetails(decision)) },
	)
}

// callTimeout bounds the Acquire call; 0 means that only the server bounds the wait.
func callTimeout(fs *pflag.FlagSet, c *client, req *kvgatev1.AcquireRequest) time.Duration {
	switch {
	case req.MaxWait != nil:
		return req.MaxWait.AsDuration() + c.timeout
	case fs.Changed("timeout"):
		return c.timeout
	default:
		return 0
	}
}

// decide blocks until the ticket is decided. A signal, or a call that ends without an answer, takes
// the ticket out of the queue again, so that no waiter or lease stays behind.
func decide(ctx context.Context, c *client, req *kvgatev1.AcquireRequest, timeout time.Duration, signals <-chan os.Signal) (*kvgatev1.AcquireResponse, error) {
	waiting, settle := untilSignal(ctx, signals)
	decision, err := callEach(waiting, c, (*endpoint).Acquire, remaining(req, c.m.Now), timeout)
	if settle() || ctx.Err() != nil {
		return nil, fmt.Errorf("%w: %s", errInterrupted, withdraw(ctx, c, req))
	}
	if err != nil && connect.CodeOf(err) == connect.CodeDeadlineExceeded {
		c.note("no decision in time: %s", withdraw(ctx, c, req))
	}
	return decision, err
}

// remaining builds the request anew for each server: what was already waited counts.
func remaining(req *kvgatev1.AcquireRequest, now func() time.Time) func() *kvgatev1.AcquireRequest {
	if req.MaxWait == nil {
		return func() *kvgatev1.AcquireRequest { return req }
	}
	deadline := now().Add(req.MaxWait.AsDuration())
	first := true
	return func() *kvgatev1.AcquireRequest {
		if !first {
			req.MaxWait = durationpb.New(max(0, deadline.Sub(now())))
		}
		first = false
		return req
	}
}

// withdraw cancels the ticket and says in words what became of it. It works on after ctx has ended.
func withdraw(ctx context.Context, c *client, req *kvgatev1.AcquireRequest) string {
	ctx = context.WithoutCancel(ctx)
	answer, err := call(ctx, c, (*endpoint).Cancel, &kvgatev1.CancelRequest{Pool: req.Pool, TicketId: req.TicketId})
	if err != nil {
		return fmt.Sprintf("ticket %s could not be cancelled: %s", req.TicketId, errorLine(err))
	}
	return fmt.Sprintf("ticket %s cancelled (it was %s)", req.TicketId, word(answer.Was))
}

func decisionDetails(d *kvgatev1.AcquireResponse) [][2]string {
	details := [][2]string{
		{"action", word(d.Action)},
		{"reason", word(d.Reason)},
		{"ticket", d.TicketId},
		{"tokens", number(d.ReservationTokens)},
		{"waited", span(d.Waited)},
	}
	if d.LeaseId != "" {
		details = append(details, [][2]string{
			{"lease", d.LeaseId}, {"expires in", span(d.ExpiresIn)}, {"grant", fmt.Sprint(d.Grant)},
		}...)
	}
	if b := d.Binding; b != nil {
		details = append(details, [2]string{"binding", fmt.Sprintf("%s rank %d", b.EngineUrl, b.DpRank)})
	}
	for _, warning := range d.Warnings {
		details = append(details, [2]string{"warning", warning})
	}
	return details
}
