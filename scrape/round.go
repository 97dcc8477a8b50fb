package scrape

import (
	"math"
	"slices"

	"kvgate/ledger"
)

// usageSteps is how finely two rounds' usages are compared, per unit.
const usageSteps = 1e4

// sameRound reports whether b tells nothing that a did not, Repeats aside.
func sameRound(a, b *ledger.Round) bool {
	return a.Fresh == b.Fresh && a.Degrade == b.Degrade && a.Reason == b.Reason && a.Discovery == b.Discovery &&
		slices.EqualFunc(a.Engines, b.Engines, func(x, y ledger.Engine) bool { return coarse(x) == coarse(y) })
}

func coarse(e ledger.Engine) ledger.Engine {
	e.Usage = math.Round(e.Usage*usageSteps) / usageSteps
	e.Pressure = math.Round(e.Pressure*usageSteps) / usageSteps
	e.EvictionRate = math.Round(e.EvictionRate)
	return e
}

// sameErrors reports whether two rounds say the same of each engine's trouble.
func sameErrors(a, b []ledger.Engine) bool {
	return slices.EqualFunc(a, b, func(x, y ledger.Engine) bool { return x.URL == y.URL && x.Error == y.Error })
}
