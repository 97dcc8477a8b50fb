package main

import (
	"bytes"
	"encoding/csv"
	"path/filepath"
	"strings"
	"testing"
	"time"

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
