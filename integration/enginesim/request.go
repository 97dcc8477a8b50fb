package enginesim

import (
	"sync"
	"time"

	"kvgate/integration/enginesim/radix"
)

// finishReason is how a request ended, in the engine's words.
type finishReason struct {
	Type    string `json:"type"` // stop, length or abort
	Length  int    `json:"length,omitempty"`
	Matched int32  `json:"matched,omitempty"`
	Message string `json:"message,omitempty"`
}

// request is one generate call. The fields of the second group belong to the rank's goroutine, those
// of the third are shared with the HTTP handler under mu.
type request struct {
	rid       string
	session   string // top-level session_id: the radix tag
	slotID    string // session_params.id: an opened session
	input     []int32
	maxNew    int
	ignoreEOS bool
	stream    bool

	prompt  int     // tokens of the prompt in fill
	hash    uint64  // of the prompt; the answer depends on it
	limit   int     // output tokens after which it ends
	fill    []int32 // prompt and output so far
	node    *radix.Node
	prefix  int // leading tokens of fill held through a lock on node
	private int // tokens after those whose KV is its own
	slot    *slot

	mu          sync.Mutex
	output      []int32
	cached      int
	promptLen   int
	retractions int
	reason      *finishReason
	err         error
	arrived     time.Duration
	started     time.Duration
	first       time.Duration
	finished    time.Duration
	updated     chan struct{} // holds one signal: output or reason changed
	done        chan struct{} // closed once reason or err is set
}

func newRequest() *request {
	return &request{updated: make(chan struct{}, 1), done: make(chan struct{})}
}

// kv is the number of leading tokens of fill that have KV.
func (q *request) kv() int { return q.prefix + q.private }

// generated is the number of output tokens.
func (q *request) generated() int { return len(q.fill) - q.prompt }

// reserve is what admission expects the request to write yet at most, clipped as SGLang clips it.
func (q *request) reserve() int {
	const clip = 4096
	return min(max(q.maxNew-q.generated(), 0), clip)
}

// emit appends one output token at virtual time now and reports whether it was the last. The last
// one is told together with the end.
func (q *request) emit(seed uint64, now time.Duration) bool {
	q.mu.Lock()
	defer q.mu.Unlock()
	q.fill = append(q.fill, outputToken(seed, q.hash, q.generated()))
	q.output = q.fill[q.prompt:]
	if len(q.output) == 1 {
		q.first = now
	}
	if len(q.output) >= q.limit {
		return true
	}
	q.signal()
	return false
}

// end publishes the result. Only the first call counts.
func (q *request) end(reason *finishReason, err error, now time.Duration) {
	q.mu.Lock()
	defer q.mu.Unlock()
	if q.reason != nil || q.err != nil {
		return
	}
	q.reason, q.err, q.finished = reason, err, now
	q.signal()
	close(q.done)
}

func (q *request) signal() {
	select {
	case q.updated <- struct{}{}:
	default:
	}
}

// progress is a consistent copy of what the handler may see.
type progress struct {
	output                            []int32
	prompt, cached, retractions       int
	reason                            *finishReason
	err                               error
	arrived, started, first, finished time.Duration
}

func (q *request) progress() progress {
	q.mu.Lock()
	defer q.mu.Unlock()
	return progress{
		output: q.output, prompt: q.promptLen, cached: q.cached, retractions: q.retractions,
		reason: q.reason, err: q.err,
		arrived: q.arrived, started: q.started, first: q.first, finished: q.finished,
	}
}
