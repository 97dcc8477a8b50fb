package whatif

import (
	"errors"
	"fmt"
	"math"

	"kvgate/ledger"
)

// ErrDiffers: the ledger, run over the recording once more, decided otherwise. Then the journal is not complete.
var ErrDiffers = errors.New("the replay decides otherwise than recorded")

// Verify replays a whole recording with its own settings and reports the first decision that differs as an
// ErrDiffers. It returns the tokens of the leases that are held at the end, by ticket.
func Verify(in Input) (held map[string]int64, err error) {
	in.Change = nil
	r, x, err := run(in, true)
	if err != nil {
		return nil, err
	}
	if err := compare(decisions(x.recorded), decisions(x.replayed)); err != nil {
		return nil, err
	}
	held = map[string]int64{}
	leases, _ := r.l.Leases(in.Pool, 0, math.MaxInt, ledger.LeaseFilter{})
	for _, l := range leases {
		held[l.Ticket] = int64(l.Tokens)
	}
	return held, nil
}

func compare(want, got []happening) error {
	for i := range want {
		switch {
		case i >= len(got):
			return fmt.Errorf("%w: recorded %+v, replayed nothing", ErrDiffers, want[i])
		case got[i] != want[i]:
			return fmt.Errorf("%w: decision %d of %d: recorded %+v, replayed %+v", ErrDiffers, i, len(want), want[i], got[i])
		}
	}
	if len(got) > len(want) {
		return fmt.Errorf("%w: replayed %+v, recorded nothing", ErrDiffers, got[len(want)])
	}
	return nil
}

// decisions are what a replay must repeat; samples of the engines and the like are no decisions.
func decisions(all []happening) (out []happening) {
	for _, h := range all {
		switch h.Kind {
		case "admitted", "waiting", "bypassed", "abandoned", "lease_expired", "unclaimed", "holder_expired", "cancelled", "released":
		default:
			continue
		}
		if h.Kind == "cancelled" && h.Reason == "unknown" {
			continue // a mark: what it leads to is taken from the recording
		}
		if h.Kind == "released" && h.Reason != "session_closing" {
			h.Reason = "" // reported usage, which changes nothing
		}
		h.budget = true
		out = append(out, h)
	}
	return out
}
