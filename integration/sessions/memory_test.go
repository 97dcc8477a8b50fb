package sessions

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"testing"

	"kvgate/integration/enginesim"
	"kvgate/integration/procs"
	"kvgate/rpc/client"
	v1 "kvgate/rpc/kvgate/v1"
)

const (
	liveSessions = 8
	doneSessions = 24
	promptTokens = 200
)

// lastTokens is how long a last answer gets; so long that a close surely comes before its end.
const lastTokens = 400

// agent makes the generate calls of one session.
type agent struct {
	c      *cluster
	f      *enginesim.Fleet
	id     string
	number int
}

// turn generates through the router under a lease, and returns when the response has ended.
func (a *agent) turn(ctx context.Context, name string, tokens int) error {
	ticket := a.id + ":" + name
	g, err := a.c.Acquire(ctx, client.Request{Ticket: ticket, Session: a.id, PromptTokens: promptTokens, MaxNewTokens: int64(tokens)})
	if err != nil {
		return err
	}
	defer g.Release(client.Usage{PromptTokens: promptTokens, CompletionTokens: int64(tokens)})
	if g.Action != client.Admit {
		return fmt.Errorf("%s went ahead without a lease: %v %w", ticket, g.Reason, g.Cause)
	}
	return a.generate(ctx, ticket, tokens)
}

// prompt is what the session's calls begin with, and no other's.
func (a *agent) prompt() []int32 {
	ids := make([]int32, promptTokens)
	for i := range ids {
		ids[i] = int32(1_000_000*(a.number+1) + i)
	}
	return ids
}

func (a *agent) generate(ctx context.Context, rid string, tokens int) error {
	body, err := json.Marshal(map[string]any{
		"session_id": a.id, "rid": rid, "input_ids": a.prompt(), "sampling_params": map[string]any{"max_new_tokens": tokens, "ignore_eos": true},
	})
	if err != nil {
		return err
	}
	return post(ctx, a.f.RouterURL()+"/generate", body)
}

func post(ctx context.Context, url string, body []byte) error {
	req, err := http.NewRequestWithContext(ctx, http.MethodPost, url, bytes.NewReader(body))
	if err != nil {
		return err
	}
	req.Header.Set("Content-Type", "application/json")
	client := http.Client{Transport: &http.Transport{DisableKeepAlives: true}}
	res, err := client.Do(req)
	if err != nil {
		return err
	}
	defer res.Body.Close()
	answer, err := io.ReadAll(res.Body)
	if err == nil && res.StatusCode != http.StatusOK {
		err = fmt.Errorf("%s answers %d: %.200s", url, res.StatusCode, answer)
	}
	return err
}

func resident(t *testing.T, f *enginesim.Fleet) (tokens int) {
	t.Helper()
	for _, e := range f.Engines {
		if err := e.Sync(t.Context()); err != nil {
			t.Fatal(err)
		}
		tokens += e.Stats().Resident
	}
	return tokens
}

func running(f *enginesim.Fleet) (n int) {
	for _, e := range f.Engines {
		n += e.Stats().Running
	}
	return n
}

// agents makes one turn of each of n sessions.
func agents(t *testing.T, c *cluster, f *enginesim.Fleet, name string, first, n int) []*agent {
	t.Helper()
	out := make([]*agent, n)
	for i := range out {
		out[i] = &agent{c: c, f: f, id: fmt.Sprintf("%s-%02d", name, i), number: first + i}
		if err := out[i].turn(t.Context(), "first", 1); err != nil {
			t.Fatal(err)
		}
	}
	return out
}

// inTheirLastTurn begins the last turn of all agents and returns, once the engines decode all of them, a
// channel with how each ended.
func inTheirLastTurn(t *testing.T, f *enginesim.Fleet, all []*agent) <-chan error {
	t.Helper()
	ended := make(chan error, len(all))
	for _, a := range all {
		go func() { ended <- a.turn(t.Context(), "last", lastTokens) }()
	}
	procs.Eventually(t, limit, func() bool { return running(f) == len(all) },
		func() string { return fmt.Sprintf("%d turns run, want %d", running(f), len(all)) })
	return ended
}

func wait(t *testing.T, ended <-chan error, n int) {
	t.Helper()
	for range n {
		if err := <-ended; err != nil {
			t.Error(err)
		}
	}
}

// TestClosedSessionsAreFreed closes sessions while their last responses still come: kvgate joins them,
// and then the engines hold what the live sessions hold, and nothing else.
func TestClosedSessionsAreFreed(t *testing.T) {
	f := fleet(t, 3, enginesim.Config{PoolTokens: 100_000})
	c := start(t, 1, f.RouterURL(), 3, &v1.Settings{})
	agents(t, c, f, "live", 0, liveSessions)
	live := resident(t, f)
	done := agents(t, c, f, "done", liveSessions, doneSessions)
	ended := inTheirLastTurn(t, f, done)
	for _, a := range done {
		c.CloseSession("", a.id, client.Join)
	}
	for _, a := range done {
		s := c.session(a.id, "closing", func(s *v1.Session) bool { return s.State != v1.SessionState_SESSION_STATE_OPEN })
		if s.State == v1.SessionState_SESSION_STATE_CLOSING && s.Phase == v1.ClosePhase_CLOSE_PHASE_JOINING && len(s.InFlight) == 0 {
			t.Errorf("%s joins nothing: %v", a.id, s)
		}
	}
	if running(f) == 0 {
		t.Fatal("the last responses ended before the closes were asked for: nothing was joined")
	}
	wait(t, ended, len(done))
	for _, a := range done {
		if s := c.state(a.id, closed); s.Acknowledged != 3 || s.Turns != 2 {
			t.Errorf("%s: %v", a.id, s)
		}
	}
	if got := resident(t, f); got != live {
		t.Errorf("%d tokens are resident, want the %d of the live sessions", got, live)
	}
	for i := range liveSessions {
		if n := heard(f.Engines[0], fmt.Sprintf("live-%02d", i)); n != 0 {
			t.Errorf("live session %d was closed %d times", i, n)
		}
	}
}

// TestClosesThatComeTooEarlyFreeNothing is the same work with a double of the protocol that tells the
// engines at once, as a rollout might by itself: the sessions' KV stays, and closing again does not help.
func TestClosesThatComeTooEarlyFreeNothing(t *testing.T) {
	f := fleet(t, 3, enginesim.Config{PoolTokens: 100_000})
	lifecycle := false
	c := start(t, 1, f.RouterURL(), 3, &v1.Settings{Lifecycle: &lifecycle})
	agents(t, c, f, "live", 0, liveSessions)
	live := resident(t, f)
	done := agents(t, c, f, "done", liveSessions, doneSessions)
	ended := inTheirLastTurn(t, f, done)
	tellAll(t, f, done)
	if running(f) != len(done) {
		t.Fatal("a response ended before the closes were sent: they were not early")
	}
	wait(t, ended, len(done))
	tellAll(t, f, done)
	want := live + doneSessions*(promptTokens+lastTokens-1)
	if got := resident(t, f); got != want {
		t.Errorf("%d tokens are resident, want the %d of all sessions: nothing was freed", got, want)
	}
}

func tellAll(t *testing.T, f *enginesim.Fleet, done []*agent) {
	t.Helper()
	for _, a := range done {
		for _, e := range f.Engines {
			if err := post(t.Context(), e.URL()+"/close_session", fmt.Appendf(nil, `{"session_id":%q}`, a.id)); err != nil {
				t.Fatal(err)
			}
		}
	}
}

// TestWithoutLifecycleNobodyIsTold: the switch is off, a close is over at once, and engines hear nothing.
func TestWithoutLifecycleNobodyIsTold(t *testing.T) {
	f := fleet(t, 2, enginesim.Config{PoolTokens: 100_000})
	lifecycle := false
	c := start(t, 1, f.RouterURL(), 2, &v1.Settings{Lifecycle: &lifecycle})
	agents(t, c, f, "s", 0, 1)
	before := resident(t, f)
	if err := c.CloseSessionWait(t.Context(), "", "s-00", client.Join); err != nil {
		t.Fatal(err)
	}
	c.state("s-00", closed)
	for _, e := range f.Engines {
		if n := e.Calls("/close_session") + e.Calls("/abort_request"); n != 0 {
			t.Errorf("%s was called %d times", e.URL(), n)
		}
	}
	if got := resident(t, f); got != before {
		t.Errorf("%d tokens are resident, want %d as before", got, before)
	}
	metrics, err := c.DrainStep(t.Context(), "", 1, "run")
	if err != nil {
		t.Fatal(err)
	}
	if _, there := metrics["agentic_kv/session/lifecycle_enabled"]; there || metrics["agentic_kv/session/close_failure"] != 0 {
		t.Errorf("step says %v", metrics)
	}
}
