package bench

import (
	"fmt"
	"os"
	"strings"
	"testing"
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

// since returns the shares of all time since an earlier reading that the processors were busy, and that
// the host took from the machine.
func (p processors) since(before processors) (busy, steal float64) {
	all := float64(max(1, p.all-before.all))
	return 1 - float64(p.idle-before.idle)/all, float64(p.steal-before.steal) / all
}
