package main

import (
	"bufio"
	"bytes"
	"encoding/csv"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"kvgate/ledger"
	kvgatev1 "kvgate/rpc/kvgate/v1"
)

// TestCSVHoldsNoFormula: ids are what callers like; a spreadsheet must not run them.
func TestCSVHoldsNoFormula(t *testing.T) {
	var out bytes.Buffer
	table := &eventTable{out: csv.NewWriter(&out)}
	page := []*kvgatev1.JournalEvent{{TicketId: `=cmd|' /C calc'!A0`, SessionId: "@SUM(A1)", HolderId: "-2+3", Detail: "+http://e:1", GroupId: "g=1", Tokens: -5}}
	for range 2 {
		if err := table.write(page); err != nil {
			t.Fatal(err)
		}
	}
	rows, err := csv.NewReader(&out).ReadAll()
	if err != nil || len(rows) != 3 {
		t.Fatalf("%d rows, want the header once and two events: %v", len(rows), err)
	}
	for i, name := range rows[0] {
		want, known := map[string]string{
			"ticket_id": `'=cmd|' /C calc'!A0`, "session_id": "'@SUM(A1)", "holder_id": "'-2+3", "detail": "'+http://e:1", "group_id": "g=1", "tokens": "-5",
		}[name]
		if known && rows[1][i] != want {
			t.Errorf("%s is %q, want %q", name, rows[1][i], want)
		}
	}
}

// TestTimesCountFromTheFile: who reads a file days later means the days in it.
func TestTimesCountFromTheFile(t *testing.T) {
	busyNode(t)
	path := filepath.Join(t.TempDir(), "a.kvgate")
	succeed(t, "snapshot", "save", path)
	for _, command := range [][]string{{"journal"}, {"journal", "explain", "t1"}} {
		var stdout, stderr lockedBuffer
		m := newMain()
		m.Now, m.Location = func() time.Time { return time.Now().Add(72 * time.Hour) }, time.UTC
		code := m.Run(t.Context(), append(command, "--from", path, "--since", "-10m"), strings.NewReader(""), &stdout, &stderr)
		if code != exitOK || !strings.Contains(stdout.String(), "t1") || !strings.Contains(stderr.String(), "times count back from") {
			t.Errorf("%v: exit %d\n%s%s", command, code, stdout.String(), stderr.String())
		}
	}
}

// TestReaderThatHasSeenEnough: `journal --from FILE | head -1` ends quietly and leaves nothing on disk.
func TestReaderThatHasSeenEnough(t *testing.T) {
	n := busyNode(t)
	for i := range 200 { // more than a pipe holds
		ticket := fmt.Sprint(strings.Repeat("x", 100), i)
		if _, err := n.replica.Acquire(t.Context(), ledger.Acquire{Pool: "default", Ticket: ticket, ReservationTokens: 1, Protected: true}); err != nil {
			t.Fatal(err)
		}
	}
	path, temp := filepath.Join(t.TempDir(), "a.kvgate"), t.TempDir()
	succeed(t, "snapshot", "save", path)
	t.Setenv("TMPDIR", temp)
	self, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	stderr := &lockedBuffer{}
	cmd := exec.CommandContext(t.Context(), self, "journal", "--from", path, "--limit", "0", "--output", "jsonl")
	cmd.Env, cmd.Stderr = append(os.Environ(), roleVariable+"=kvgate"), stderr
	stdout, err := cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	line(t, bufio.NewReader(stdout))
	if err := stdout.Close(); err != nil {
		t.Fatal(err)
	}
	if err := cmd.Wait(); cmd.ProcessState.ExitCode() != exitFailed {
		t.Errorf("ended with %v: %s", err, stderr.String())
	}
	if left, err := os.ReadDir(temp); err != nil || len(left) > 0 || strings.Contains(stderr.String(), "kvgate: write") {
		t.Errorf("left behind: %v, %v; said %q", left, err, stderr.String())
	}
}

// TestDiskThatIsFull: what failed was the writing, and that is what is said.
func TestDiskThatIsFull(t *testing.T) {
	archive, err := os.ReadFile(filepath.Join("..", "..", "fsm", "testdata", "snapshot_v1.kvgate"))
	if err != nil {
		t.Fatal(err)
	}
	full := errors.New("no space left on device")
	if _, err := copyArchive(failingWriter{full}, bytes.NewReader(archive)); !errors.Is(err, full) || strings.Contains(err.Error(), "damaged") {
		t.Errorf("a full disk: %v", err)
	}
	if _, err := copyArchive(io.Discard, bytes.NewReader(archive[:len(archive)-1])); err == nil || !strings.Contains(err.Error(), "arrived damaged") {
		t.Errorf("a cut answer: %v", err)
	}
	if _, err := copyArchive(io.Discard, bytes.NewReader(archive)); err != nil {
		t.Errorf("a whole archive: %v", err)
	}
}

type failingWriter struct{ err error }

func (w failingWriter) Write([]byte) (int, error) { return 0, w.err }
