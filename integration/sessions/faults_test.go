package sessions

import (
	"context"
	"fmt"
	"net/http"
	"slices"
	"strings"
	"testing"
	"time"

	"connectrpc.com/connect"
	"google.golang.org/protobuf/types/known/durationpb"

	"kvgate/integration/enginesim"
	"kvgate/integration/procs"
	"kvgate/rpc/client"
	v1 "kvgate/rpc/kvgate/v1"
	"kvgate/rpc/kvgate/v1/kvgatev1connect"
)

const closePath = "/close_session"

// TestLeaderKilledAtEachStepOfAClose: whatever a leader had done of a close when it died, its successor
// finishes it, and every engine hears.
func TestLeaderKilledAtEachStepOfAClose(t *testing.T) {
	f := fleet(t, 2, enginesim.Config{})
	c := start(t, 3, f.RouterURL(), 2, &v1.Settings{})
	for _, step := range []struct {
		name string
		play func(t *testing.T, c *cluster, f *enginesim.Fleet, session string)
	}{
		{"before-the-record", beforeTheRecord},
		{"between-record-and-send", betweenRecordAndSend},
		{"between-send-and-acknowledgement", betweenSendAndAcknowledgement},
		{"during-backoff", duringBackoff},
	} {
		t.Run(step.name, func(t *testing.T) {
			c.t = t
			step.play(t, c, f, step.name)
			s := c.state(step.name, closed)
			for _, e := range f.Engines {
				if heard(e, step.name) < 1 {
					t.Errorf("%s never heard of the close: %v", e.URL(), s)
				}
			}
			if len(s.Owed) != 0 {
				t.Errorf("a closed session owes %v", s.Owed)
			}
		})
	}
}

// The leader stands still, so it cannot record anything, and dies with the close on its way to it.
func beforeTheRecord(t *testing.T, c *cluster, _ *enginesim.Fleet, session string) {
	c.acquire(session, session+":0").Release()
	c.session(session, "without tickets", func(s *v1.Session) bool { return len(s.InFlight) == 0 })
	leader := c.leader(nil)
	if err := leader.Pause(); err != nil {
		t.Fatal(err)
	}
	told := make(chan error, 1)
	go func() { told <- c.CloseSessionWait(context.Background(), "", session, client.Join) }()
	leader.Kill9()
	if err := <-told; err != nil {
		t.Error(err)
	}
	c.back(leader)
}

// A ticket in flight keeps the close, which is recorded, from being sent.
func betweenRecordAndSend(t *testing.T, c *cluster, f *enginesim.Fleet, session string) {
	g := c.acquire(session, session+":0")
	must(c, c.Sessions().CloseSession, &v1.CloseSessionRequest{SessionId: session, Timeout: durationpb.New(time.Hour)})
	killed := c.killLeader()
	c.leader(killed)
	for _, e := range f.Engines {
		if heard(e, session) != 0 {
			t.Errorf("%s heard of the close while a ticket was in flight", e.URL())
		}
	}
	s := c.session(session, "joining", func(s *v1.Session) bool { return s.Phase == v1.ClosePhase_CLOSE_PHASE_JOINING })
	if !slices.Equal(s.InFlight, []string{session + ":0"}) {
		t.Errorf("the new leader joins %v", s.InFlight)
	}
	g.Release()
	c.back(killed)
}

// The engines have the call and do not answer it.
func betweenSendAndAcknowledgement(t *testing.T, c *cluster, f *enginesim.Fleet, session string) {
	whileFaulty(t, c, f, session, enginesim.Fault{Kind: enginesim.FaultHang, Path: closePath}, 1)
}

// The engines refuse, again and again.
func duringBackoff(t *testing.T, c *cluster, f *enginesim.Fleet, session string) {
	whileFaulty(t, c, f, session, enginesim.Fault{Kind: enginesim.FaultStatus, Path: closePath, Status: 503}, 3)
}

// whileFaulty kills the leader once each engine was called so often, and then heals the engines.
func whileFaulty(t *testing.T, c *cluster, f *enginesim.Fleet, session string, fault enginesim.Fault, calls int) {
	t.Helper()
	before := make([]int, len(f.Engines))
	for i, e := range f.Engines {
		before[i] = e.Calls(closePath)
		inject(t, e, fault)
	}
	c.acquire(session, session+":0").Release()
	must(c, c.Sessions().CloseSession, &v1.CloseSessionRequest{SessionId: session})
	for i, e := range f.Engines {
		procs.Eventually(t, limit, func() bool { return e.Calls(closePath) >= before[i]+calls },
			func() string { return fmt.Sprintf("%s was called %d times", e.URL(), e.Calls(closePath)-before[i]) })
	}
	killed := c.killLeader()
	c.leader(killed)
	for _, e := range f.Engines {
		if heard(e, session) != 0 {
			t.Errorf("%s acknowledged in spite of its fault", e.URL())
		}
		if err := e.Heal(); err != nil {
			t.Fatal(err)
		}
	}
	c.back(killed)
}

func inject(t *testing.T, e *enginesim.Engine, f enginesim.Fault) {
	t.Helper()
	if err := e.Inject(f); err != nil {
		t.Fatal(err)
	}
}

// TestEnginesThatFail: an engine that fails costs its own closes time and nobody else's; it hears of the
// close when it is back, owes nothing when it is another or gone, and else is reported.
func TestEnginesThatFail(t *testing.T) {
	f := fleet(t, 2, enginesim.Config{})
	c := start(t, 1, f.RouterURL(), 2, &v1.Settings{CloseDeadline: durationpb.New(time.Hour)})
	sound, faulty := f.Engines[0], f.Engines[1]
	for name, fault := range map[string]enginesim.Fault{
		"hanging":  {Kind: enginesim.FaultHang, Path: closePath},
		"refusing": {Kind: enginesim.FaultStatus, Path: closePath, Status: 500},
		"no-key":   {Kind: enginesim.FaultStatus, Path: closePath, Status: 401},
		"gone":     {Kind: enginesim.FaultRefuse},
	} {
		t.Run(name, func(t *testing.T) {
			c.t = t
			inject(t, faulty, fault)
			c.closeWhileOneFails(name, sound, faulty)
			if err := faulty.Heal(); err != nil {
				t.Fatal(err)
			}
			c.state(name, closed)
			if heard(faulty, name) < 1 {
				t.Error("the engine is back and did not hear")
			}
			if kinds := c.engineKinds(name, faulty.URL()); !slices.Contains(kinds, "close_sent") {
				t.Errorf("the journal does not tell when the engine acknowledged: %v", kinds)
			}
		})
	}
	t.Run("restarting", func(t *testing.T) {
		c.t = t
		inject(t, faulty, enginesim.Fault{Kind: enginesim.FaultHang, Path: closePath})
		c.closeWhileOneFails("restarting", sound, faulty)
		inject(t, faulty, enginesim.Fault{Kind: enginesim.FaultRestart})
		s := c.state("restarting", closed)
		if s.Left != 1 || !slices.Contains(c.engineKinds("restarting", faulty.URL()), "close_voided") {
			t.Errorf("a restarted engine has no KV left to free: %v", s)
		}
		if err := faulty.Heal(); err != nil {
			t.Fatal(err)
		}
	})
	t.Run("leaving", func(t *testing.T) {
		c.t = t
		inject(t, faulty, enginesim.Fault{Kind: enginesim.FaultHang, Path: closePath})
		c.closeWhileOneFails("leaving", sound, faulty)
		if err := f.Router.Remove(faulty.URL()); err != nil {
			t.Fatal(err)
		}
		if s := c.state("leaving", closed); s.Left != 1 {
			t.Errorf("an engine that left owes nothing: %v", s)
		}
	})
}

// closeWhileOneFails closes a session and waits until the sound engine has heard, and until the answer
// says of the faulty one how often it was tried and why that failed.
func (c *cluster) closeWhileOneFails(session string, sound, faulty *enginesim.Engine) {
	c.t.Helper()
	c.acquire(session, session+":0").Release()
	must(c, c.Sessions().CloseSession, &v1.CloseSessionRequest{SessionId: session})
	s := c.session(session, "owed by one engine, which was tried", func(s *v1.Session) bool {
		return len(s.Owed) == 1 && s.Owed[0].EngineUrl == faulty.URL() && s.Owed[0].Attempts > 0 && s.Owed[0].LastError != ""
	})
	c.t.Logf("%s: %v", session, s.Owed)
	if heard(sound, session) != 1 || s.State != v1.SessionState_SESSION_STATE_CLOSING {
		c.t.Errorf("the sound engine heard %d times, session is %v", heard(sound, session), s)
	}
}

// TestEveryNodeTellsWhoOwes: only the leader talks to engines, but any node answers what it tried, and blocks
// until a close is over.
func TestEveryNodeTellsWhoOwes(t *testing.T) {
	f := fleet(t, 1, enginesim.Config{})
	c := start(t, 3, f.RouterURL(), 1, &v1.Settings{})
	inject(t, f.Engines[0], enginesim.Fault{Kind: enginesim.FaultStatus, Path: closePath, Status: 401})
	c.acquire("s", "s:0").Release()
	must(c, c.Sessions().CloseSession, &v1.CloseSessionRequest{SessionId: "s"})
	web := &http.Client{Transport: &http.Transport{}}
	t.Cleanup(web.CloseIdleConnections)
	over := make(chan error, len(c.nodes))
	for _, p := range c.nodes {
		api := kvgatev1connect.NewSessionServiceClient(web, p.URL())
		s := eventually(c, p.Node().ID+" to tell of attempts", api.GetSession, &v1.GetSessionRequest{SessionId: "s"}, func(r *v1.GetSessionResponse) bool {
			return len(r.Session.Owed) == 1 && r.Session.Owed[0].Attempts > 0
		}).Session
		if o := s.Owed[0]; o.EngineUrl != f.Engines[0].URL() || !strings.Contains(o.LastError, "key refused") {
			t.Errorf("%s says %v", p.Node().ID, o)
		}
		go func() {
			res, err := api.CloseSession(t.Context(), connect.NewRequest(&v1.CloseSessionRequest{SessionId: "s", Wait: true}))
			if err == nil && res.Msg.Session.State != closed {
				err = fmt.Errorf("%s says %v", p.Node().ID, res.Msg.Session)
			}
			over <- err
		}()
	}
	if err := f.Engines[0].Heal(); err != nil {
		t.Fatal(err)
	}
	for range c.nodes {
		if err := <-over; err != nil {
			t.Error(err)
		}
	}
}

// TestAnEngineThatNeverHearsIsReported, after the close deadline.
func TestAnEngineThatNeverHearsIsReported(t *testing.T) {
	f := fleet(t, 2, enginesim.Config{})
	c := start(t, 1, f.RouterURL(), 2, &v1.Settings{CloseDeadline: durationpb.New(2 * time.Second)})
	inject(t, f.Engines[1], enginesim.Fault{Kind: enginesim.FaultStatus, Path: closePath, Status: 500})
	c.acquire("s", "s:0").Release()
	res := must(c, c.Sessions().CloseSession, &v1.CloseSessionRequest{SessionId: "s", Wait: true})
	if res.Session.State != failures || len(res.Session.Owed) != 1 || !res.Session.Owed[0].Failed || res.Session.Owed[0].EngineUrl != f.Engines[1].URL() {
		t.Errorf("session is %v", res.Session)
	}
	if kinds := c.engineKinds("s", f.Engines[1].URL()); !slices.Contains(kinds, "close_failed") {
		t.Errorf("the journal does not tell which engine failed: %v", kinds)
	}
	metrics, err := c.DrainStep(t.Context(), "", 1, "run")
	if err != nil || metrics["agentic_kv/session/close"] != 1 || metrics["agentic_kv/session/close_failure"] != 1 {
		t.Errorf("step says %v, %v", metrics, err)
	}
}
