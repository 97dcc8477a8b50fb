package postmortem

import (
	"context"
	"encoding/json"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
	"time"

	"connectrpc.com/connect"
	"google.golang.org/protobuf/types/known/durationpb"

	"kvgate/integration/enginesim"
	"kvgate/integration/procs"
	kvgatev1 "kvgate/rpc/kvgate/v1"
	"kvgate/rpc/kvgate/v1/kvgatev1connect"
)

func TestMain(m *testing.M) { procs.Main(m) }

// patience is far above what anything here takes.
const patience = 60 * time.Second

// night is a running system.
type night struct {
	t     *testing.T
	url   string
	fleet *enginesim.Fleet
	http  *http.Client
}

func begin(t *testing.T) (*night, *procs.Process) {
	t.Helper()
	fleet, err := enginesim.StartFleet(enginesim.FleetConfig{Count: 3, Engine: enginesim.Config{PoolTokens: 10_000, EnableMetrics: true, LiveGauges: true}})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := fleet.Close(); err != nil {
			t.Error(err)
		}
	})
	node := procs.StartNode(t, procs.Node{ID: "n1", DataDir: filepath.Join(t.TempDir(), "n1"), Args: []string{"--bootstrap", "--engines", strings.Join(fleet.URLs(), ",")}})
	procs.WaitReady(t, node.URL())
	n := &night{t: t, url: node.URL(), fleet: fleet, http: &http.Client{Transport: &http.Transport{}}}
	t.Cleanup(n.http.CloseIdleConnections)
	n.run("settings", "set", "headroom=1", "holder_ttl=4s", "poll_interval=200ms", "max_wait=60s")
	n.until("the ceiling is known", func(b *kvgatev1.GetBudgetResponse) bool { return b.Ceiling == 30_000 })
	return n, node
}

// run runs a command against the node and returns what it printed.
func (n *night) run(args ...string) string {
	n.t.Helper()
	return kvgate(n.t, append(args, "--server", n.url)...)
}

func kvgate(t *testing.T, args ...string) string {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), patience)
	defer cancel()
	cmd := exec.CommandContext(ctx, procs.Build(t), args...)
	cmd.Env = append(os.Environ(), "TZ=UTC")
	var errs strings.Builder
	cmd.Stderr = &errs
	out, err := cmd.Output()
	if err != nil {
		t.Fatalf("kvgate %s: %v\n%s%s", strings.Join(args, " "), err, out, errs.String())
	}
	return string(out)
}

func (n *night) until(what string, ok func(*kvgatev1.GetBudgetResponse) bool) {
	n.t.Helper()
	c := kvgatev1connect.NewObserveServiceClient(n.http, n.url)
	var last *kvgatev1.GetBudgetResponse
	procs.Eventually(n.t, patience, func() bool {
		res, err := c.GetBudget(n.t.Context(), connect.NewRequest(&kvgatev1.GetBudgetRequest{}))
		if err != nil {
			return false
		}
		last = res.Msg
		return ok(last)
	}, func() string { return what + ": " + last.String() })
}

// acquire asks for a lease; the answer comes on the channel.
func (n *night) acquire(ticket, holder string, tokens int64) <-chan *kvgatev1.AcquireResponse {
	c := kvgatev1connect.NewAdmissionServiceClient(n.http, n.url)
	out := make(chan *kvgatev1.AcquireResponse, 1)
	go func() {
		defer close(out)
		ctx, cancel := context.WithTimeout(context.Background(), patience)
		defer cancel()
		res, err := c.Acquire(ctx, connect.NewRequest(&kvgatev1.AcquireRequest{
			TicketId: ticket, HolderId: holder, SessionId: "prog-17", ReservationTokens: &tokens, MaxWait: durationpb.New(patience),
		}))
		if err != nil {
			n.t.Errorf("acquire %s: %v", ticket, err)
			return
		}
		out <- res.Msg
	}()
	return out
}

// admitted waits for an answer and fails unless it is a lease.
func (n *night) admitted(answer <-chan *kvgatev1.AcquireResponse) {
	n.t.Helper()
	if res, ok := <-answer; !ok || res.Action != kvgatev1.Action_ACTION_ADMIT {
		n.t.Fatalf("got %v", res)
	}
}

// incidents plants all three and returns the file that is left.
func incidents(t *testing.T) (file, deadEngine string) {
	t.Helper()
	n, node := begin(t)
	// A worker takes 40 % of the budget and is never heard of again. Another ticket waits for what it holds.
	for _, ticket := range []string{"w:1", "w:2", "w:3"} {
		n.admitted(n.acquire(ticket, "worker-7", 4_000))
	}
	n.admitted(n.acquire("big:0", "", 25_000))
	n.run("release", "big:0")
	// An engine dies.
	deadEngine = n.fleet.URLs()[2]
	if err := n.fleet.Engines[2].Inject(enginesim.Fault{Kind: enginesim.FaultRefuse}); err != nil {
		t.Fatal(err)
	}
	n.until("the engine is missed", func(b *kvgatev1.GetBudgetResponse) bool { return b.Ceiling == 20_000 })
	// Somebody sets a tenth of what was meant.
	n.run("settings", "set", "headroom=0.1")
	n.until("the mistake is felt", func(b *kvgatev1.GetBudgetResponse) bool { return b.Ceiling == 2_000 })
	small := n.acquire("small:0", "", 1_500)
	n.admitted(small)
	file = filepath.Join(t.TempDir(), "night.kvgate")
	n.run("snapshot", "save", file)
	if err := node.Stop(); err != nil {
		t.Fatal(err)
	}
	return file, deadEngine
}

// clock is a wall time as people are shown it.
const clock = `\d{4}-\d{2}-\d{2} \d{2}:\d{2}:\d{2}\.\d{3}`

func expect(t *testing.T, what, text string, patterns ...string) {
	t.Helper()
	for _, p := range patterns {
		if !regexp.MustCompile(p).MatchString(text) {
			t.Errorf("%s does not say %s:\n%.6000s", what, p, text)
		}
	}
}

func TestFromTheFileAlone(t *testing.T) {
	file, engine := incidents(t)
	engine = regexp.QuoteMeta(engine)

	expect(t, "the journal", kvgate(t, "journal", "--from", file, "--kind", "holder_expired,epoch,settings,capacity"),
		clock+` +holder_expired +w:1 +4,000 `, clock+` +holder_expired +w:2 +4,000 `, clock+` +holder_expired +w:3 +4,000 `,
		clock+` +epoch .*-`+engine, clock+` +settings .*headroom=0\.1 \(was 1\) \(by a caller at 127\.0\.0\.1 through n1\)`, clock+` +capacity .*ceiling 20000 -> 2000 tokens`)

	expect(t, "the story of the ticket that waited", kvgate(t, "journal", "explain", "big:0", "--from", file),
		`(?m)^Ticket big:0, pool default$`, clock+`  It had to wait \(capacity_exhausted\), for at most 1m00s: it needed 25,000 tokens and 18,000 of 30,000 were free\.`,
		`12,000 tokens were held by 3 leases: w:1 4,000 of holder worker-7 for .*`,
		`It was admitted after .* in the queue, when holder worker-7 was given up and what it held came back`, `It released 25,000 tokens`)
	expect(t, "the story of a lost ticket", kvgate(t, "journal", "explain", "w:1", "--from", file), `Its holder worker-7 went silent and was given up after .*: 4,000 tokens were taken back\.`)

	html := filepath.Join(t.TempDir(), "report.html")
	kvgate(t, "report", "--from", file, "--out", html)
	page, err := os.ReadFile(html)
	if err != nil {
		t.Fatal(err)
	}
	incident := `(?s)<time [^>]*>` + clock + `</time></div>\s*<div><p class="title">[^\n]* `
	_, told, _ := strings.Cut(string(page), "</style>\n</head>")
	expect(t, "the report", told,
		incident+`Holder worker-7 went silent and was given up</p>\s*<p>3 leases with 12,000 tokens, 40\.0% of the ceiling, came back\.</p>\s*<p class="tickets">Tickets: <code>w:1</code>, <code>w:2</code>, <code>w:3</code>`,
		incident+`Engine `+engine+` lost</p>\s*<p>.*The ceiling went from 30,000 to 20,000 tokens\.</p>`,
		incident+`Settings changed: headroom 1 -&gt; 0\.1</p>\s*<p>Asked for by a caller at 127\.0\.0\.1 through n1\. The ceiling went from 20,000 to 2,000 tokens\.</p>`,
		`<code>big:0</code> waited`)

	var replay struct {
		Recorded, Replayed struct{ Admitted, Queued, Bypassed int }
		Notes              []string
	}
	if err := json.Unmarshal([]byte(kvgate(t, "replay", file, "--output", "json")), &replay); err != nil {
		t.Fatal(err)
	}
	if replay.Recorded.Admitted != 5 || replay.Recorded.Queued != 1 || replay.Replayed != replay.Recorded || len(replay.Notes) < 3 {
		t.Errorf("replay: %+v", replay)
	}
	expect(t, "the replay", kvgate(t, "replay", file, "--set", "headroom=0.8", "--set", "max_wait=60s"), `admitted +5 +\d+`, `oversized +0 +1`, `What a replay cannot know`)
}
