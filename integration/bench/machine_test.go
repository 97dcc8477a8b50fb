package bench

import (
	"fmt"
	"os"
	"strings"
	"testing"
	"time"
)

// processors is the time that the machine's processors spent, in ticks of /proc/stat.
type processors struct{ idle, steal, all int64 }

func readProcessors(b *testing.B) (p processors) {
	raw, err := os.ReadFile("/proc/stat")
	if err != nil {
		b.Fatal(err)
	}
	line, _, _ := strings.Cut(string(raw), "\n")
	var t [8]int64
	if _, err := fmt.Sscanf(line, "cpu %d %d %d %d %d %d %d %d", &t[0], &t[1], &t[2], &t[3], &t[4], &t[5], &t[6], &t[7]); err != nil {
		b.Fatalf("/proc/stat says %q: %v", line, err)
	}
	for _, n := range t {
		p.all += n
	}
	p.idle, p.steal = t[3]+t[4], t[7]
	return p
}

// tick is the unit of processor time in /proc.
const tick = 10 * time.Millisecond

// spent returns the processor time that processes have taken so far.
func spent(b *testing.B, pids []int) (sum time.Duration) {
	for _, pid := range pids {
		raw, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", pid))
		if err != nil {
			b.Fatal(err)
		}
		// The name in parentheses may hold anything; user and system time are the 12th and 13th after it.
		fields := strings.Fields(string(raw[strings.LastIndexByte(string(raw), ')')+1:]))
		var user, system int64
		if _, err := fmt.Sscan(fields[11]+" "+fields[12], &user, &system); err != nil {
			b.Fatalf("/proc/%d/stat says %q: %v", pid, raw, err)
		}
		sum += time.Duration(user+system) * tick
	}
	return sum
}

// since returns the shares of all time since an earlier reading that the processors were busy, and that
// the host took from the machine.
func (p processors) since(before processors) (busy, steal float64) {
	all := float64(max(1, p.all-before.all))
	return 1 - float64(p.idle-before.idle)/all, float64(p.steal-before.steal) / all
}
