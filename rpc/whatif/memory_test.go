package whatif

import (
	"testing"

	"kvgate/integration/recording"
)

// TestMemoryDoesNotGrowWithTheJournal: of a ticket that is over, a replay keeps how long it waited and was held, and where
// on disk its story is.
func TestMemoryDoesNotGrowWithTheJournal(t *testing.T) {
	const tickets, perTicket = 100_000, 150 // a ticket's events take more than 1,000 bytes
	journal := &recording.Endless{Tickets: tickets}
	x, err := Run(Input{Journal: journal.Each, Pool: "default"})
	if err != nil {
		t.Fatal(err)
	}
	if x.Recorded.Admitted != tickets || x.Replayed.Admitted != tickets {
		t.Errorf("admitted %d, in the replay %d, want %d", x.Recorded.Admitted, x.Replayed.Admitted, tickets)
	}
	t.Logf("at most %d bytes in use", journal.Peak)
	if journal.Peak > tickets*perTicket {
		t.Errorf("%d bytes in use for %d tickets", journal.Peak, tickets)
	}
}
