package report_test

import (
	"testing"
	"time"

	"kvgate/integration/recording"
	"kvgate/rpc/report"
)

// TestMemoryDoesNotGrowWithTheJournal: of a ticket that is over, a report keeps how long it waited.
func TestMemoryDoesNotGrowWithTheJournal(t *testing.T) {
	const tickets, perTicket = 100_000, 60 // a ticket's events take more than 1,000 bytes
	journal := &recording.Endless{Tickets: tickets}
	page, err := report.Build(report.Input{Journal: journal.Each, Pool: "default", Zone: time.UTC})
	if err != nil {
		t.Fatal(err)
	}
	if len(page.Worst) != 10 || len(page.Lanes) != 10 || len(page.Lanes[0].Bars) < 400 {
		t.Errorf("%d worst waits, %d lanes with %d bars", len(page.Worst), len(page.Lanes), len(page.Lanes[0].Bars))
	}
	if page.Worst[0].Ticket != "ticket-0" || page.Lanes[0].Session != "session-0" || page.Lanes[0].Bars[0].Title != "ticket-0 waited 1ms" {
		t.Errorf("of tickets that are alike, the first ones are shown: %+v, %+v", page.Worst[0], page.Lanes[0].Bars[0])
	}
	t.Logf("at most %d bytes in use", journal.Peak)
	if journal.Peak > tickets*perTicket {
		t.Errorf("%d bytes in use for %d tickets", journal.Peak, tickets)
	}
}
