package rpc

import (
	"bytes"
	"context"
	"encoding/base64"
	"encoding/json"
	"io"
	"log/slog"
	"net"
	"net/http"
	"testing"
	"time"

	"google.golang.org/protobuf/proto"

	"kvgate/fsm"
	"kvgate/ledger"
	kvgatev1 "kvgate/rpc/kvgate/v1"
	"kvgate/sessions"
	"kvgate/store"
)

// fakeBackend answers with its functions; reads come from ledger. A function that is nil must not be
// called.
type fakeBackend struct {
	acquire        func(context.Context, ledger.Acquire) (ledger.Decision, error)
	release        func(context.Context, ledger.Release) (bool, error)
	renew          func(context.Context, string, []ledger.LeaseRef, time.Duration) ([]ledger.Renewed, error)
	cancel         func(context.Context, ledger.Cancel) (ledger.CancelState, error)
	giveBack       func(ledger.Decision)
	heartbeat      func(context.Context, string) (fsm.HolderStatus, error)
	journal        func(context.Context, bool, store.JournalQuery) (store.JournalPage, error)
	drainStep      func(context.Context, string, string, int64) (map[string]float64, error)
	updateSettings func(context.Context, string, ledger.Patch) (ledger.Settings, error)
	deletePool     func(ctx context.Context, pool, by string) (bool, error)
	addNode        func(ctx context.Context, id, address string) error
	removeNode     func(ctx context.Context, id string) error
	transfer       func(ctx context.Context, id string) error
	view           func(ctx context.Context, stale bool) error
	save           func(ctx context.Context, w io.Writer) (store.Header, error)
	restore        func(ctx context.Context, archive io.Reader, o fsm.RestoreOptions) (fsm.Restored, error)
	ledger         *ledger.Ledger
	status         fsm.Status

	openSession  func(context.Context, sessions.OpenRequest) (sessions.View, error)
	touchSession func(ctx context.Context, pool, id string) (sessions.View, error)
	bindSession  func(context.Context, sessions.BindRequest) (sessions.View, error)
	closeSession func(context.Context, sessions.CloseRequest) (sessions.View, error)
	awaitClosed  func(ctx context.Context, pool, id string, seq uint64) (sessions.View, error)
	closeGroup   func(ctx context.Context, pool, group string, mode sessions.Mode) (int, error)
	pinPrefix    func(context.Context, sessions.PinRequest, []int32) (sessions.PinView, error)
	unpinPrefix  func(ctx context.Context, pool, id string) (bool, error)
	owedStatus   func(ctx context.Context, pool string, ids []string) (map[string][]sessions.OwedStatus, error)
	table        *sessions.Table
}

var _ Backend = (*fakeBackend)(nil)

func (f *fakeBackend) Acquire(ctx context.Context, op ledger.Acquire) (ledger.Decision, error) {
	return f.acquire(ctx, op)
}

func (f *fakeBackend) Release(ctx context.Context, op ledger.Release) (bool, error) {
	return f.release(ctx, op)
}

func (f *fakeBackend) Renew(ctx context.Context, pool string, refs []ledger.LeaseRef, ttl time.Duration) ([]ledger.Renewed, error) {
	return f.renew(ctx, pool, refs, ttl)
}

func (f *fakeBackend) Cancel(ctx context.Context, op ledger.Cancel) (ledger.CancelState, error) {
	return f.cancel(ctx, op)
}

func (f *fakeBackend) OpenLane(ctx context.Context) fsm.Lane { return fsm.LaneOver(ctx, f) }

func (f *fakeBackend) GiveBack(d ledger.Decision) {
	if f.giveBack != nil {
		f.giveBack(d)
	}
}

func (f *fakeBackend) Heartbeat(ctx context.Context, holder string) (fsm.HolderStatus, error) {
	return f.heartbeat(ctx, holder)
}

func (f *fakeBackend) Journal(ctx context.Context, stale bool, q store.JournalQuery) (store.JournalPage, error) {
	return f.journal(ctx, stale, q)
}

func (f *fakeBackend) DrainStep(ctx context.Context, pool, run string, step int64) (map[string]float64, error) {
	return f.drainStep(ctx, pool, run, step)
}

func (f *fakeBackend) UpdateSettings(ctx context.Context, pool string, p ledger.Patch) (ledger.Settings, error) {
	return f.updateSettings(ctx, pool, p)
}

func (f *fakeBackend) DeletePool(ctx context.Context, pool, by string) (bool, error) {
	return f.deletePool(ctx, pool, by)
}

func (f *fakeBackend) AddNode(ctx context.Context, id, address string) error {
	return f.addNode(ctx, id, address)
}

func (f *fakeBackend) RemoveNode(ctx context.Context, id string) error { return f.removeNode(ctx, id) }

func (f *fakeBackend) TransferLeadership(ctx context.Context, id string) error {
	return f.transfer(ctx, id)
}

func (f *fakeBackend) View(ctx context.Context, stale bool, fn func(*ledger.Ledger)) error {
	if f.view != nil {
		if err := f.view(ctx, stale); err != nil {
			return err
		}
	}
	fn(f.ledger)
	return nil
}

func (f *fakeBackend) Status() fsm.Status { return f.status }

func (f *fakeBackend) OpenSession(ctx context.Context, r sessions.OpenRequest) (sessions.View, error) {
	return f.openSession(ctx, r)
}

func (f *fakeBackend) TouchSession(ctx context.Context, pool, id string) (sessions.View, error) {
	return f.touchSession(ctx, pool, id)
}

func (f *fakeBackend) BindSession(ctx context.Context, r sessions.BindRequest) (sessions.View, error) {
	return f.bindSession(ctx, r)
}

func (f *fakeBackend) CloseSession(ctx context.Context, r sessions.CloseRequest) (sessions.View, error) {
	return f.closeSession(ctx, r)
}

func (f *fakeBackend) AwaitClosed(ctx context.Context, pool, id string, seq uint64) (sessions.View, error) {
	return f.awaitClosed(ctx, pool, id, seq)
}

func (f *fakeBackend) CloseGroup(ctx context.Context, pool, group string, mode sessions.Mode) (int, error) {
	return f.closeGroup(ctx, pool, group, mode)
}

func (f *fakeBackend) PinPrefix(ctx context.Context, r sessions.PinRequest, ids []int32) (sessions.PinView, error) {
	return f.pinPrefix(ctx, r, ids)
}

func (f *fakeBackend) UnpinPrefix(ctx context.Context, pool, id string) (bool, error) {
	return f.unpinPrefix(ctx, pool, id)
}

func (f *fakeBackend) Sessions(ctx context.Context, stale bool, fn func(*sessions.Table)) error {
	if f.view != nil {
		if err := f.view(ctx, stale); err != nil {
			return err
		}
	}
	fn(f.table)
	return nil
}

func (f *fakeBackend) OwedStatus(ctx context.Context, pool string, ids []string) (map[string][]sessions.OwedStatus, error) {
	if f.owedStatus == nil {
		return nil, nil
	}
	return f.owedStatus(ctx, pool, ids)
}

// decide makes the fake answer every Acquire from its ledger, without waiting.
func (f *fakeBackend) decide(_ context.Context, op ledger.Acquire) (ledger.Decision, error) {
	return f.ledger.Acquire(op)
}

// running is a server that listens on loopback.
type running struct {
	t      *testing.T
	url    string
	client *http.Client
	// stop ends the server and returns what Serve returned.
	stop func() error
}

// start serves b until the test ends. Its client speaks HTTP/1.1.
func start(t *testing.T, b *fakeBackend) *running {
	t.Helper()
	return startWith(t, b, Options{})
}

// startWith serves b with more options.
func startWith(t *testing.T, b *fakeBackend, o Options) *running {
	t.Helper()
	if b.ledger == nil {
		b.ledger = ledger.New()
	}
	if o.Backend == nil {
		o.Backend = b
	}
	o.Log = slog.New(slog.DiscardHandler)
	if b.table == nil {
		b.table = sessions.NewTable()
	}
	srv, err := New(o)
	if err != nil {
		t.Fatal(err)
	}
	ln, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(context.Background())
	served := make(chan error, 1)
	go func() { served <- srv.Serve(ctx, ln) }()
	client := &http.Client{Transport: &http.Transport{}}
	stop := func() error {
		client.CloseIdleConnections()
		cancel()
		err := <-served
		served <- err
		return err
	}
	t.Cleanup(func() { _ = stop() })
	return &running{t: t, url: "http://" + ln.Addr().String(), client: client, stop: stop}
}

// answer is what came back from a call over HTTP with JSON.
type answer struct {
	status int
	raw    string
	body   map[string]any
}

// post calls a method such as "AdmissionService/Acquire" with a JSON body.
func (r *running) post(method, body string) answer {
	r.t.Helper()
	return r.postAs(method, "application/json", []byte(body))
}

func (r *running) postAs(method, contentType string, body []byte) answer {
	r.t.Helper()
	res, err := r.client.Post(r.url+"/kvgate.v1."+method, contentType, bytes.NewReader(body))
	if err != nil {
		r.t.Fatal(err)
	}
	defer res.Body.Close()
	raw, err := io.ReadAll(res.Body)
	if err != nil {
		r.t.Fatal(err)
	}
	a := answer{status: res.StatusCode, raw: string(raw)}
	if err := json.Unmarshal(raw, &a.body); err != nil {
		r.t.Fatalf("%s answered %d %q: %v", method, a.status, raw, err)
	}
	return a
}

// ok fails the test unless the call succeeded.
func (a answer) ok(t *testing.T) map[string]any {
	t.Helper()
	if a.status != http.StatusOK {
		t.Fatalf("status %d: %s", a.status, a.raw)
	}
	return a.body
}

// code returns the Connect code of an error answer, "" for a success.
func (a answer) code() string {
	code, _ := a.body["code"].(string)
	return code
}

func (a answer) message() string {
	text, _ := a.body["message"].(string)
	return text
}

// info decodes the ErrorInfo of an error answer.
func (a answer) info(t *testing.T) *kvgatev1.ErrorInfo {
	t.Helper()
	details, _ := a.body["details"].([]any)
	for _, d := range details {
		detail := d.(map[string]any)
		if detail["type"] != "kvgate.v1.ErrorInfo" {
			continue
		}
		raw, err := base64.RawStdEncoding.DecodeString(detail["value"].(string))
		if err != nil {
			t.Fatal(err)
		}
		var info kvgatev1.ErrorInfo
		if err := proto.Unmarshal(raw, &info); err != nil {
			t.Fatal(err)
		}
		return &info
	}
	t.Fatalf("no ErrorInfo in %s", a.raw)
	return nil
}

// fleet returns a ledger whose default pool has one engine and a ceiling of 1000 tokens.
func fleet(t *testing.T) *ledger.Ledger {
	t.Helper()
	l := ledger.New()
	headroom := ledger.Patch{Set: ledger.Settings{Headroom: 1}, Fields: []string{"headroom"}}
	if _, err := l.UpdateSettings(ledger.DefaultPool, headroom); err != nil {
		t.Fatal(err)
	}
	reconcile(l, 0.25)
	return l
}

func reconcile(l *ledger.Ledger, pressure float64) {
	l.Reconcile(ledger.DefaultPool, ledger.Round{Fresh: true, Discovery: "static", Engines: []ledger.Engine{{
		URL: "http://e1:30000", Healthy: true, Capacity: 1000, Used: 250, Usage: 0.25, Pressure: pressure, DPRanks: 2, Role: ledger.RoleDecode,
	}}})
}

// ask acquires on the ledger itself.
func ask(t *testing.T, l *ledger.Ledger, ticket string, tokens ledger.Tokens) ledger.Decision {
	t.Helper()
	d, err := l.Acquire(ledger.Acquire{Pool: ledger.DefaultPool, Ticket: ticket, ReservationTokens: tokens, MaxWait: -1, Holder: "h1", Session: "s1"})
	if err != nil {
		t.Fatal(err)
	}
	return d
}

func (f *fakeBackend) Save(ctx context.Context, w io.Writer) (store.Header, error) {
	return f.save(ctx, w)
}

func (f *fakeBackend) Restore(ctx context.Context, archive io.Reader, o fsm.RestoreOptions) (fsm.Restored, error) {
	return f.restore(ctx, archive, o)
}
