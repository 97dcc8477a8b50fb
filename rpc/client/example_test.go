package client_test

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"time"

	"kvgate/rpc/client"
)

// generate stands for the call to the router.
func generate(context.Context, string) (client.Usage, error) {
	return client.Usage{PromptTokens: 1200, CompletionTokens: 310, Outcome: "stop"}, nil
}

// A rollout: one lease per generate call.
func Example() {
	ctx := context.Background()
	c, err := client.New([]string{"http://127.0.0.1:7070", "http://127.0.0.1:7080"})
	if err != nil {
		slog.Error("kvgate client", "error", err)
		return
	}
	defer func() {
		flush, cancel := context.WithTimeout(ctx, 5*time.Second)
		defer cancel()
		if err := c.Close(flush); err != nil {
			slog.Warn("kvgate close", "error", err)
		}
	}()
	turn := func(ctx context.Context, n int) error {
		grant, err := c.Acquire(ctx, client.Request{
			Ticket: fmt.Sprintf("agent-7:%d", n), Session: "agent-7",
			PromptTokens: 1200, MaxNewTokens: 4096, MaxWait: 20 * time.Second,
		})
		if err != nil {
			return err
		}
		defer grant.Release() // for the ways out below that report no usage
		used, err := generate(ctx, "…")
		if err != nil {
			return err
		}
		grant.Release(used)
		return nil
	}
	for n := range 3 {
		if err := turn(ctx, n); err != nil {
			slog.Error("turn", "error", err)
			return
		}
	}
}

// A programming error names the field, whether or not a coordinator runs.
func ExampleClient_Acquire_invalid() {
	c, err := client.New([]string{"http://127.0.0.1:7070"})
	if err != nil {
		fmt.Println(err)
		return
	}
	defer func() { _ = c.Close(context.Background()) }()
	_, err = c.Acquire(context.Background(), client.Request{Ticket: "t", PromptTokens: -5})
	var invalid *client.Error
	if errors.As(err, &invalid) {
		fmt.Println(invalid.Field, errors.Is(err, client.ErrInvalid))
	}
	// Output: promptTokens true
}

// The step's metrics, once per training step.
func ExampleClient_DrainStep() {
	ctx := context.Background()
	c, err := client.New([]string{"http://127.0.0.1:7070"}, client.WithOnEvent(func(e client.Event) {
		if e.Kind == client.EventDegraded {
			slog.Debug("went ahead without a lease", "ticket", e.Ticket, "error", e.Err)
		}
	}))
	if err != nil {
		return
	}
	defer func() { _ = c.Close(ctx) }()
	metrics, err := c.DrainStep(ctx, "default", 42, "run-1")
	if err != nil {
		return
	}
	fmt.Println(metrics["agentic_kv/admission/defer_rate"])
}
