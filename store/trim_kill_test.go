package store

import (
	"bufio"
	"fmt"
	"math/rand/v2"
	"os"
	"os/exec"
	"path/filepath"
	"testing"
	"time"
)

// trimChild is set for the process that TestKilledWhileTrimming kills.
const trimChild = "KVGATE_TEST_TRIM_DIR"

// TestTrimChild is no test but the process that is killed: it appends, seals and trims as fast as it can, one
// event for each index, and says so after each trim.
func TestTrimChild(t *testing.T) {
	path := os.Getenv(trimChild)
	if path == "" {
		return
	}
	dir, err := OpenDir(path, "n1")
	must(t, err)
	j, err := OpenJournal(dir, JournalOptions{})
	must(t, err)
	for index := j.Last() + 1; ; index++ {
		must(t, j.Append(JournalEntry{index, [][]byte{fmt.Appendf(nil, "event %d", index)}}))
		if index%5 == 0 {
			must(t, j.Seal())
		}
		if index%7 == 0 {
			must(t, j.TrimBefore(index-min(index, 20)))
			fmt.Printf("trimmed %d\n", index)
		}
	}
}

// TestKilledWhileTrimming: whenever a process is killed, the journal that is left has no hole, begins no later
// than the last trim said, and ends no earlier than what was appended by then.
func TestKilledWhileTrimming(t *testing.T) {
	path := filepath.Join(t.TempDir(), "n1")
	for range 12 {
		said := killTrimChild(t, path)
		dir, err := OpenDir(path, "n1")
		must(t, err)
		j, err := OpenJournal(dir, JournalOptions{})
		must(t, err)
		want := j.First()
		if j.Last() < said || want < said-min(said, 20) || want > max(1, j.Last()-min(j.Last(), 20)) {
			t.Errorf("journal reaches from %d to %d, %d was said to be trimmed", want, j.Last(), said)
		}
		must(t, j.Read(0, 0, 0, func(index uint64, _ uint32, data []byte) (bool, error) {
			if index != want || string(data) != fmt.Sprintf("event %d", index) {
				t.Errorf("event %d holds %q, want event %d", index, data, want)
			}
			want++
			return true, nil
		}))
		if want != j.Last()+1 {
			t.Errorf("events end before %d, the last is %d", want, j.Last())
		}
		must(t, j.Close())
		must(t, dir.Close())
	}
}

// killTrimChild runs the child, kills it a moment after it trimmed for the first time, and returns the last index
// that it named.
func killTrimChild(t *testing.T, path string) (said uint64) {
	t.Helper()
	cmd := exec.Command(os.Args[0], "-test.run=^TestTrimChild$")
	cmd.Env = append(os.Environ(), trimChild+"="+path)
	out, err := cmd.StdoutPipe()
	must(t, err)
	must(t, cmd.Start())
	lines := bufio.NewScanner(out)
	var kill *time.Timer
	for lines.Scan() {
		if _, err := fmt.Sscanf(lines.Text(), "trimmed %d", &said); err != nil {
			t.Errorf("child says %q", lines.Text())
		}
		if kill == nil {
			kill = time.AfterFunc(time.Duration(rand.IntN(30_000))*time.Microsecond, func() { _ = cmd.Process.Kill() })
		}
	}
	_ = cmd.Wait() // it was killed
	if said == 0 {
		t.Fatal("the child trimmed nothing")
	}
	return said
}
