package main

import (
	"context"
	"fmt"
	"io"
	"os/signal"
	"slices"
	"syscall"
	"time"

	"github.com/spf13/cobra"
)

// Main runs command lines. The zero value is not usable; see newMain.
type Main struct {
	// Now is the clock for relative times on the command line.
	Now func() time.Time
	// Location is the zone of the times people type and read.
	Location *time.Location

	stdin  io.Reader
	stdout io.Writer
	stderr io.Writer
}

func newMain() *Main {
	return &Main{Now: time.Now, Location: time.Local}
}

// Run runs one command line and returns the exit code. Whatever goes wrong is one line on stderr.
// It blocks until the command ends; SIGINT and SIGTERM end it early.
func (m *Main) Run(ctx context.Context, args []string, stdin io.Reader, stdout, stderr io.Writer) int {
	m.stdin, m.stdout, m.stderr = stdin, stdout, stderr
	root := newRootCommand(m)
	root.SetArgs(childArgs(args))
	root.SetIn(stdin)
	root.SetOut(stdout)
	root.SetErr(stderr)
	addCompletion(root)
	err := root.ExecuteContext(ctx)
	if err == nil {
		return exitOK
	}
	if line := errorLine(err); line != "" {
		fmt.Fprintln(stderr, "kvgate: "+line)
	}
	return exitCode(err)
}

// run marks the errors of a command's own code and ends it on SIGINT and SIGTERM.
func (m *Main) run(fn func(ctx context.Context, args []string) error) func(*cobra.Command, []string) error {
	return func(cmd *cobra.Command, args []string) error {
		ctx, stop := signal.NotifyContext(cmd.Context(), syscall.SIGINT, syscall.SIGTERM)
		defer stop()
		err := fn(ctx, args)
		if ctx.Err() != nil && canceled(err) {
			err = errInterrupted
		}
		return mark(err)
	}
}

// mark tells an error of a command's own code from one about the command line.
func mark(err error) error {
	if err == nil {
		return nil
	}
	return &runError{err}
}

// childArgs rewrites `acquire … --exec CMD ARGS` to `acquire … -- CMD ARGS`: the words after --exec
// belong to the child, whatever they look like.
func childArgs(args []string) []string {
	for i, arg := range args {
		switch {
		case arg == "--":
			return args
		case arg == "--exec" && slices.Contains(args[:i], "acquire"):
			rest := args[i+1:]
			if len(rest) > 0 && rest[0] == "--" {
				rest = rest[1:]
			}
			return slices.Concat(args[:i], []string{"--exec=true", "--"}, rest)
		}
	}
	return args
}
