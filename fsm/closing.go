package fsm

import (
	"context"
	"log/slog"
	"slices"
	"strings"

	"connectrpc.com/connect"

	"kvgate/fsm/fsmpb"
	"kvgate/ledger"
	"kvgate/sessions"
)

// closing connects the closer to this node: it reads what must be told from the machine, and reports through
// the log. Its Run is a Duty, so it works under the context of a term. A node that makes no calls to engines
// has none.
type closing struct{ replica *Replica }

// newCloser returns nil when the node makes no calls to engines.
func (r *Replica) newCloser() *sessions.Closer {
	if r.opts.Engines == nil {
		return nil
	}
	c := closing{r}
	opts := r.opts.Closer
	opts.Observe, opts.Log = r.opts.ObserveClose, r.log.With(slog.String("part", "closer"))
	return sessions.NewCloser(c, c, r.opts.Engines, opts)
}

// close is a Duty.
func (t *term) close(ctx context.Context) {
	if c := t.replica.closer; c != nil {
		c.Run(ctx)
	}
}

// Work implements sessions.Source.
func (c closing) Work(have func(seq, rev uint64) bool) (work []sessions.Work) {
	c.replica.machine.look(func(c *core) {
		strays := strays{ledger: c.ledger}
		work = c.table.Work(sessions.WorkQuery{Have: have, Prefix: strays.prefixes})
		work = slices.DeleteFunc(work, func(w sessions.Work) bool { return c.silent(w.Pool) != "" })
	})
	return work
}

// Wake implements sessions.Source.
func (c closing) Wake() <-chan struct{} { return c.replica.machine.moved }

// Report implements sessions.Reporter.
func (c closing) Report(ctx context.Context, batch []sessions.Report) error {
	_, err := c.replica.doHere(ctx, reportOp(batch))
	return err
}

// strays knows the request ids of leases without a session, by pool. They are collected when they are first
// asked for: that takes an abort, and time in proportion to the leases of the pool.
type strays struct {
	ledger *ledger.Ledger
	sorted map[string][]string
}

// prefixes reports whether any of them begins with rid.
func (s *strays) prefixes(pool, rid string) bool {
	list, known := s.sorted[pool]
	if !known {
		s.ledger.Requests(pool, func(_, session, rid string) {
			if session == "" {
				list = append(list, rid)
			}
		})
		slices.Sort(list)
		if s.sorted == nil {
			s.sorted = map[string][]string{}
		}
		s.sorted[pool] = list
	}
	at, _ := slices.BinarySearch(list, rid)
	return at < len(list) && strings.HasPrefix(list[at], rid)
}

// maxOwed bounds for how many sessions one OwedStatus answers.
const maxOwed = 4096

// OwedStatus answers what the leader knows of closes and aborts that engines owe: attempts and last errors, by session. Sessions
// of which it knows nothing are left out.
func (r *Replica) OwedStatus(ctx context.Context, pool string, ids []string) (out map[string][]sessions.OwedStatus, err error) {
	bounded, cancel := context.WithTimeoutCause(ctx, 2*r.opts.FailOpenAfter, ErrTimeout)
	defer cancel()
	if len(ids) > maxOwed {
		return nil, &sessions.FieldError{Field: "sessionIds", Value: len(ids), Allowed: "up to 4096 sessions"}
	}
	err = r.askLeader(bounded, func() (err error) {
		out, err = r.owedHere(pool, ids)
		return err
	}, func(addr string) error {
		res, err := r.peers.client(addr).Owed(bounded, connect.NewRequest(&fsmpb.OwedRequest{Pool: pool, Sessions: ids}))
		if err == nil {
			out = decodeOwed(ids, res.Msg)
		}
		return err
	})
	return out, err
}

func (r *Replica) owedHere(pool string, ids []string) (map[string][]sessions.OwedStatus, error) {
	if r.leading() == nil {
		return nil, ErrNotLeader
	}
	if out := r.untold(pool, ids); out != nil {
		return out, nil
	}
	out := map[string][]sessions.OwedStatus{}
	for _, id := range ids {
		if r.closer == nil {
			break
		}
		if list := r.closer.Status(pool, id); len(list) > 0 {
			out[id] = list
		}
	}
	return out, nil
}

// untold answers for a pool whose engines are told nothing now why that is; nil for any other.
func (r *Replica) untold(pool string, ids []string) (out map[string][]sessions.OwedStatus) {
	r.machine.look(func(c *core) {
		why := c.silent(pool)
		if why == "" {
			return
		}
		out = map[string][]sessions.OwedStatus{}
		for _, id := range ids {
			v, _ := c.table.Get(pool, id)
			for _, x := range v.Owed {
				out[id] = append(out[id], sessions.OwedStatus{Engine: x.Engine, LastError: why})
			}
			for _, ticket := range v.Aborting() {
				out[id] = append(out[id], sessions.OwedStatus{Ticket: ticket, LastError: why})
			}
		}
	})
	return out
}

// Owed implements the peer service. It never forwards: a node that does not lead says so.
func (p *peers) Owed(_ context.Context, req *connect.Request[fsmpb.OwedRequest]) (*connect.Response[fsmpb.OwedResponse], error) {
	status, err := p.replica.owedHere(req.Msg.Pool, req.Msg.Sessions)
	if err != nil {
		return nil, connect.NewError(connect.CodeUnavailable, err)
	}
	return connect.NewResponse(encodeOwed(req.Msg.Sessions, status)), nil
}
