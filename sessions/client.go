package sessions

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/url"
	"strings"
	"time"
)

const (
	// openSlack is added to a session's idle timeout for the engine, so that the table expires it first.
	openSlack = 30 * time.Second
	// streamCapacity is what open_session is told of the conversation's length in characters. The engine
	// wants a number and does not hold anybody to it.
	streamCapacity = 1_000_000
	// maxAnswer is how much of an engine's answer is read, in bytes.
	maxAnswer = 64 << 10
	// maxText bounds the engine's words in an error, in bytes.
	maxText = 200
)

// Keys are the bearer keys this node presents to engines. Empty means none is sent. They come from files
// of the node and are never replicated or logged.
type Keys struct {
	Engine string
	// Admin is for abort_request: an engine with an admin key wants that one and refuses the other.
	Admin string
}

func (k Keys) engine() bearer { return bearer{"engine key", k.Engine} }

func (k Keys) admin() bearer {
	if k.Admin == "" {
		return k.engine()
	}
	return bearer{"engine admin key", k.Admin}
}

// bearer is a key and what people call it.
type bearer struct{ name, value string }

// Client makes the calls to engines that sessions need. It is safe for concurrent use. All its errors
// wrap one of ErrUnauthorized, ErrUnreachable, ErrStatus, ErrRefused and ErrStreamingOff.
type Client struct {
	http *http.Client
	keys Keys
}

// NewClient returns a client. A nil transport means one of its own: keep-alive, and no proxy whatever
// HTTP_PROXY says.
func NewClient(rt http.RoundTripper, keys Keys) *Client {
	if rt == nil {
		rt = &http.Transport{
			DialContext:         (&net.Dialer{Timeout: 5 * time.Second, KeepAlive: 15 * time.Second}).DialContext,
			TLSHandshakeTimeout: 5 * time.Second,
			DisableCompression:  true,
			MaxIdleConnsPerHost: defaultPerEngine,
			IdleConnTimeout:     90 * time.Second,
		}
	}
	// A redirect is no acknowledgement, and a key must not travel elsewhere.
	stay := func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse }
	return &Client{http: &http.Client{Transport: rt, CheckRedirect: stay}, keys: keys}
}

// CloseIdleConnections closes connections that no call uses.
func (c *Client) CloseIdleConnections() { c.http.CloseIdleConnections() }

// CloseSession tells an engine that a session is over. A nil error means that the engine heard it; it
// answers 200 for ids it never saw, too, and says nothing of what it freed [sglang 27058].
func (c *Client) CloseSession(ctx context.Context, engine, session string) error {
	_, err := c.post(ctx, engine, "/close_session", c.keys.engine(), map[string]any{"session_id": session})
	return err
}

// Abort ends the requests whose id begins with rid. It refuses the empty one, which would end all.
func (c *Client) Abort(ctx context.Context, engine, rid string) error {
	if rid == "" {
		return fmt.Errorf("%w: %w", ErrRefused, fieldError("rid", `""`, "a request id: the empty one aborts every request"))
	}
	_, err := c.post(ctx, engine, "/abort_request", c.keys.admin(), map[string]any{"rid": rid})
	return err
}

// OpenSession opens a streaming session on an engine. One that is open there already counts as opened.
// idle is the session's idle timeout; 0 means that the engine never drops it by itself. An engine that
// has streaming sessions switched off answers ErrStreamingOff.
func (c *Client) OpenSession(ctx context.Context, engine, session string, idle time.Duration) error {
	body := map[string]any{"session_id": session, "streaming": true, "capacity_of_str_len": streamCapacity}
	if idle > 0 {
		body["timeout"] = (idle + openSlack).Seconds()
	}
	answer, err := c.post(ctx, engine, "/open_session", c.keys.engine(), body)
	if !errors.Is(err, ErrRefused) {
		return err
	}
	text := strings.ToLower(string(answer))
	switch {
	case containsAny(text, "streaming-session", "are disabled", "not enabled"):
		return fmt.Errorf("%w: %w", ErrStreamingOff, err)
	case containsAny(text, "same id", "already exist", "still open"):
		return nil
	}
	return err
}

func containsAny(s string, parts ...string) bool {
	for _, p := range parts {
		if strings.Contains(s, p) {
			return true
		}
	}
	return false
}

// PinPrefix asks an engine to keep a prefix. ledgerOnly says that the engine knows no pins (404): it had
// them on its main branch for one month only.
func (c *Client) PinPrefix(ctx context.Context, engine string, tokens []int32, ttl time.Duration) (ledgerOnly bool, err error) {
	body := map[string]any{"token_ids": tokens, "ttl_seconds": int64(ttl.Seconds())}
	answer, err := c.post(ctx, engine, "/hicache/pin_prefix", c.keys.engine(), body)
	var status *statusError
	if errors.As(err, &status) && status.code == http.StatusNotFound {
		return true, nil
	}
	if err != nil {
		return false, err
	}
	said := struct{ Success *bool }{}
	if json.Unmarshal(answer, &said) == nil && said.Success != nil && !*said.Success {
		return false, fmt.Errorf("%w: POST /hicache/pin_prefix pinned nothing", ErrRefused)
	}
	return false, nil
}

// post returns what the engine said, also with an error.
func (c *Client) post(ctx context.Context, engine, path string, key bearer, body any) ([]byte, error) {
	raw, err := json.Marshal(body)
	if err != nil {
		return nil, fmt.Errorf("%w: POST %s: %w", ErrRefused, path, err)
	}
	req, err := http.NewRequestWithContext(ctx, http.MethodPost, strings.TrimRight(engine, "/")+path, bytes.NewReader(raw))
	if err != nil {
		return nil, fmt.Errorf("%w: engine %q is no URL", ErrUnreachable, engine)
	}
	req.Header.Set("Content-Type", "application/json")
	req.Header.Set("User-Agent", "kvgate")
	if key.value != "" {
		req.Header.Set("Authorization", "Bearer "+key.value)
	}
	resp, err := c.http.Do(req)
	if err != nil {
		return nil, unreachable(path, err)
	}
	defer resp.Body.Close()
	answer, err := io.ReadAll(io.LimitReader(resp.Body, maxAnswer))
	if err != nil {
		return nil, unreachable(path, err)
	}
	return answer, judge(resp.StatusCode, path, key, answer)
}

// statusError keeps the status of an answer that was not 200.
type statusError struct {
	code int
	kind error
	text string
}

func (e *statusError) Error() string { return e.kind.Error() + ": " + e.text }

func (e *statusError) Unwrap() error { return e.kind }

func judge(code int, path string, key bearer, answer []byte) error {
	e := &statusError{code: code, kind: ErrStatus, text: fmt.Sprintf("POST %s answers %d", path, code)}
	switch {
	case code == http.StatusOK:
		return nil
	case code == http.StatusUnauthorized || code == http.StatusForbidden:
		e.kind = ErrUnauthorized
		e.text += " to this node's " + key.name
		if key.value == "" {
			e.text = fmt.Sprintf("POST %s answers %d, and this node has no %s", path, code, key.name)
		}
		return e
	case code >= 400 && code < 500 && code != http.StatusRequestTimeout && code != http.StatusTooManyRequests:
		e.kind = ErrRefused
	}
	if len(answer) > 0 {
		e.text += ": " + clip(strings.Join(strings.Fields(string(answer)), " "))
	}
	return e
}

func clip(s string) string {
	if len(s) > maxText {
		s = s[:maxText] + "…"
	}
	return strings.ToValidUTF8(s, "")
}

// unreachable turns a transport error into one whose text has no URL, which may hold secrets, and no
// port that changes from try to try.
func unreachable(path string, err error) error {
	var ue *url.Error
	if errors.As(err, &ue) {
		err = ue.Err
	}
	var ne net.Error
	var oe *net.OpError
	why := clip(err.Error())
	switch {
	case errors.Is(err, context.DeadlineExceeded), errors.As(err, &ne) && ne.Timeout():
		why = "no answer in time"
	case errors.Is(err, context.Canceled):
		why = "called off"
	case errors.Is(err, io.EOF), errors.Is(err, io.ErrUnexpectedEOF):
		why = "connection closed before the answer ended"
	case errors.As(err, &oe):
		why = oe.Op + ": " + clip(innermost(oe.Err))
	}
	return fmt.Errorf("%w: POST %s: %s", ErrUnreachable, path, why)
}

func innermost(err error) string {
	for errors.Unwrap(err) != nil {
		err = errors.Unwrap(err)
	}
	return err.Error()
}
