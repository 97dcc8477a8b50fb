package crash

import (
	"fmt"
	"math/rand/v2"
	"testing"
	"time"
)

const (
	rounds = 20
	// enough ends the test early on a slow machine, after minRounds.
	enough    = 60 * time.Second
	minRounds = 8
)

// TestKilledUnderLoad kills a node in the middle of its work again and again. Whatever a client was told
// before must be so afterwards.
func TestKilledUnderLoad(t *testing.T) {
	s := startSite(t, t.TempDir(), "--snapshot-threshold", "400")
	b := newBook(t)
	began := time.Now()
	for round := range rounds {
		if round >= minRounds && time.Since(began) > enough {
			t.Logf("the machine is slow: %d rounds only", round)
			break
		}
		enoughSaid := b.alarm(50 + rand.IntN(500))
		stop := startLoad(s, b, fmt.Sprint("r", round))
		<-enoughSaid
		s.Kill9()
		stop()
		s.restart()
		b.audit(s)
		b.settle(s)
		b.audit(s)
		if t.Failed() {
			t.Fatalf("round %d of %d, after %d answers", round+1, rounds, b.told)
		}
	}
	t.Logf("%d answers, %d grants, none lost and none given twice", b.told, len(b.grants))
	if b.told < 50*minRounds || len(b.grants) < minRounds {
		t.Errorf("only %d answers and %d grants: that proves little", b.told, len(b.grants))
	}
}
