package main

import (
	"encoding/json"
	"fmt"
	"io"
	"time"

	"github.com/HdrHistogram/hdrhistogram-go"
)

// benchAnswer is the JSON form of what bench measured. Times are seconds.
type benchAnswer struct {
	Pairs          int64              `json:"pairs"`
	PairsPerSecond float64            `json:"pairsPerSecond"`
	Callers        int                `json:"callers"`
	Admitted       int64              `json:"admitted"`
	Waited         int64              `json:"waited"`
	Bypassed       map[string]int64   `json:"bypassed"`
	Acquire        map[string]float64 `json:"acquire"`
	Release        map[string]float64 `json:"release"`
}

func (l *benchRun) writeJSON(w io.Writer, elapsed time.Duration) error {
	stats := l.client.Stats()
	bypassed := map[string]int64{}
	for reason, n := range stats.Bypassed {
		bypassed[word(reason)] = n
	}
	encoder := json.NewEncoder(w)
	encoder.SetIndent("", "  ")
	return encoder.Encode(benchAnswer{
		Pairs: l.pairs.Load(), PairsPerSecond: float64(l.pairs.Load()) / elapsed.Seconds(), Callers: l.callers,
		Admitted: stats.Admitted, Waited: stats.Waited, Bypassed: bypassed,
		Acquire: quantileSeconds(l.acquire), Release: quantileSeconds(l.release),
	})
}

func quantileSeconds(h *hdrhistogram.Histogram) map[string]float64 {
	out := map[string]float64{"max": float64(h.Max()) / 1e6}
	for _, q := range benchQuantiles {
		out[fmt.Sprintf("p%v", q)] = float64(h.ValueAtPercentile(q)) / 1e6
	}
	return out
}
