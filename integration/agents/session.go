package agents

import (
	"context"
	"errors"
	"fmt"
	"time"
)

// maxAttempts is how often a turn is tried before its session gives up.
const maxAttempts = 5

// retryPause is the time between two attempts, engine time.
const retryPause = 500 * time.Millisecond

// session is one agent at work. Its goroutine owns it.
type session struct {
	run     *Run
	name    string
	script  *script
	history []byte // encoded ids of the conversation so far
	tokens  int    // of the conversation so far
	phase   Phase
}

// outside is the phase of a session that has not begun or is over.
const outside Phase = -1

func (s *session) enter(p Phase) {
	s.run.rec.move(s.phase, p)
	s.phase = p
}

// play makes all turns. It ends early, with an error, when ctx ends or a turn fails for good.
func (s *session) play(ctx context.Context) error {
	s.add(s.run.plan.system)
	for turn, step := range s.script.turns {
		s.enter(Tool)
		if err := s.run.sleep(ctx, step.pause); err != nil {
			return err
		}
		s.add(step.tokens)
		if err := s.turn(ctx, turn); err != nil {
			return fmt.Errorf("%s turn %d: %w", s.name, turn, err)
		}
	}
	return nil
}

func (s *session) add(ids []int32) {
	s.history = appendIDs(s.history, ids)
	s.tokens += len(ids)
}

// turn generates once, trying again after a failure.
func (s *session) turn(ctx context.Context, turn int) error {
	began := time.Now()
	for attempt := 1; ; attempt++ {
		err := s.attempt(ctx, turn, attempt, began)
		if err == nil || !errors.Is(err, ErrGenerate) || attempt == maxAttempts {
			return err
		}
		s.run.rec.retry()
		if err := s.run.sleep(ctx, retryPause); err != nil {
			return err
		}
	}
}

// attempt asks for a permit and makes the call. Only a complete answer becomes part of the history.
func (s *session) attempt(ctx context.Context, turn, attempt int, began time.Time) error {
	call := Call{
		Ticket: fmt.Sprintf("%s:%d.%d", s.name, turn, attempt), Session: s.name,
		PromptTokens: s.tokens, MaxNewTokens: s.run.plan.Workload.MaxNewTokens,
	}
	s.enter(AtGate)
	asked := time.Now()
	permit, err := s.run.gate.Acquire(ctx, call)
	if err != nil {
		return err
	}
	s.enter(AtEngine)
	sent := time.Now()
	a, err := s.run.caller.generate(ctx, call, s.history)
	real := time.Since(sent)
	if err != nil {
		permit.Release(Usage{Outcome: "error"})
		return err
	}
	permit.Release(Usage{
		PromptTokens: a.Meta.Prompt, CompletionTokens: a.Meta.Completion, CachedTokens: a.Meta.Cached, Outcome: a.Meta.Finish.Type,
	})
	s.add(a.OutputIDs)
	s.run.rec.turn(turnRecord{
		latency: s.run.engineTime(time.Since(began)), call: s.run.engineTime(real), engine: a.engineTime(),
		queued: s.run.engineTime(permit.Waited()), asking: s.run.engineTime(max(0, sent.Sub(asked)-permit.Waited())),
		prompt: a.Meta.Prompt, completion: a.Meta.Completion, cached: a.Meta.Cached,
	})
	return nil
}
