package main

import (
	"context"
	"errors"
	"io/fs"
	"os"
	"os/exec"
	"os/signal"
	"syscall"

	"golang.org/x/sys/unix"
)

// catchSignals takes the signals that would end the process, so that a ticket is never left behind,
// and those that a child may expect. SIGPIPE is taken and dropped: a reader that has gone away must
// not end the process before the lease is released.
func catchSignals() (signals <-chan os.Signal, stop func()) {
	caught := make(chan os.Signal, 16)
	dropped := make(chan os.Signal, 1)
	signal.Notify(caught, syscall.SIGINT, syscall.SIGTERM, syscall.SIGHUP, syscall.SIGQUIT, syscall.SIGUSR1, syscall.SIGUSR2)
	signal.Notify(dropped, syscall.SIGPIPE)
	return caught, func() {
		signal.Stop(caught)
		signal.Stop(dropped)
	}
}

// untilSignal returns a context that the next signal ends. settle stops the watch and reports
// whether a signal came; signals that come later stay in the channel.
func untilSignal(ctx context.Context, signals <-chan os.Signal) (_ context.Context, settle func() bool) {
	ctx, cancel := context.WithCancel(ctx)
	settled, done, caught := make(chan struct{}), make(chan struct{}), false
	go func() {
		defer close(done)
		select {
		case <-signals:
			caught = true
			cancel()
		case <-settled:
		}
	}()
	return ctx, func() bool {
		close(settled)
		<-done
		cancel()
		return caught
	}
}

// runChild runs argv with the process's own streams, forwards signals to it, and returns its exit
// code as an *exitError unless it is 0. When ctx ends the child gets SIGTERM.
func runChild(ctx context.Context, m *Main, argv []string, signals <-chan os.Signal) error {
	cmd := exec.CommandContext(ctx, argv[0], argv[1:]...)
	cmd.Stdin, cmd.Stdout, cmd.Stderr = m.stdin, m.stdout, m.stderr
	cmd.Cancel = func() error { return cmd.Process.Signal(syscall.SIGTERM) }
	if err := cmd.Start(); err != nil {
		return cannotRun(argv[0], err)
	}
	ended := make(chan error, 1)
	go func() { ended <- cmd.Wait() }()
	for {
		select {
		case s := <-signals:
			forward(cmd.Process, s)
		case err := <-ended:
			return childExit(cmd, err)
		}
	}
}

// forward passes a signal on. What the terminal sends to its whole foreground group has reached the
// child already; passing it on would make one Ctrl-C two.
func forward(child *os.Process, s os.Signal) {
	if (s == syscall.SIGINT || s == syscall.SIGQUIT) && inForeground() {
		return
	}
	_ = child.Signal(s) // fails only when the child has ended
}

// inForeground reports that the process belongs to the foreground group of its terminal.
func inForeground() bool {
	tty, err := os.Open("/dev/tty")
	if err != nil {
		return false
	}
	defer tty.Close()
	group, err := unix.IoctlGetInt(int(tty.Fd()), unix.TIOCGPGRP)
	return err == nil && group == unix.Getpgrp()
}

// childExit turns the end of a child into an exit code, 128 + n for signal n as shells do.
func childExit(cmd *exec.Cmd, err error) error {
	state := cmd.ProcessState
	if state == nil {
		return err
	}
	status, ok := state.Sys().(syscall.WaitStatus)
	switch {
	case ok && status.Signaled():
		return &exitError{code: 128 + int(status.Signal())}
	case state.ExitCode() != 0:
		return &exitError{code: state.ExitCode()}
	case err != nil && !errors.Is(err, context.Canceled) && !errors.Is(err, context.DeadlineExceeded):
		return err
	default:
		return nil
	}
}

// cannotRun words why a command did not start, with the exit codes of a shell.
func cannotRun(name string, err error) error {
	if errors.Is(err, fs.ErrPermission) {
		return &exitError{code: exitCannotRun, cause: usagef("exec: %q cannot be run: %s", name, err)}
	}
	return &exitError{code: exitNotFound, cause: usagef("exec: %q: use a command that exists: %s", name, err)}
}
