package enginesim

// counters only grow while an incarnation of the engine lives, except retractedNow.
type counters struct {
	evicted, released, retracted, recomputed int
	completed, aborted                       int
	prefillComputed, prefillCached           int
	decoded, decodeSteps                     int
	retractedNow                             int // since the last gauge refresh
	shownPrefill, shownCached, shownDecoded  int // counters as of the last refresh
}

// Snapshot is the state of one DP rank's scheduler, or the sum over ranks. Tokens unless said otherwise.
type Snapshot struct {
	Capacity  int `json:"capacity"`
	Available int `json:"available"`
	Evictable int `json:"evictable"` // cached and free to evict
	Used      int `json:"used"`      // capacity - available - evictable
	Resident  int `json:"resident"`  // capacity - available
	Held      int `json:"held"`      // pinned by idle streaming sessions

	Running           int `json:"running"` // requests
	Queued            int `json:"queued"`  // requests
	StreamingSessions int `json:"streaming_sessions"`
	Tombstones        int `json:"tombstones"` // closed session ids remembered

	Evicted    int `json:"evicted"`
	Released   int `json:"released"`   // freed by closing sessions
	Recomputed int `json:"recomputed"` // prefilled again after having been computed before
	Retracted  int `json:"retracted"`  // times a request was sent back to the queue
	Completed  int `json:"completed"`  // requests
	Aborted    int `json:"aborted"`    // requests

	PrefillComputed int `json:"prefill_computed"`
	PrefillCached   int `json:"prefill_cached"`
	Decoded         int `json:"decoded"`

	retractedNow  int
	sumSeqLens    int
	hitRate       float64
	genThroughput float64
}

func (k *rank) snapshot() *Snapshot {
	sessions, held := k.held()
	c := &k.count
	s := &Snapshot{
		Capacity: k.cfg.PoolTokens, Available: k.available(), Evictable: k.tree.Evictable(),
		Resident: k.cfg.PoolTokens - k.available(), Held: held,
		Running: len(k.running), Queued: len(k.waiting),
		StreamingSessions: sessions, Tombstones: k.tree.Tombstones(),
		Evicted: c.evicted, Released: c.released, Recomputed: c.recomputed, Retracted: c.retracted,
		Completed: c.completed, Aborted: c.aborted,
		PrefillComputed: c.prefillComputed, PrefillCached: c.prefillCached, Decoded: c.decoded,
		retractedNow: c.retractedNow,
	}
	s.Used = s.Resident - s.Evictable
	if k.chunked != nil {
		s.Queued++
	}
	return s
}

// publish makes the state visible to Stats and to the live endpoints, and then tells those who wait
// for what led to it.
func (k *rank) publish() {
	k.live.Store(k.snapshot())
	told := k.after
	k.after = nil
	for _, f := range told {
		f()
	}
}

// refresh makes the state visible to the gauges of /metrics, as the real scheduler does when it
// logs: at a prefill, every 40 decode steps, and every 30 s when idle.
func (k *rank) refresh() {
	s, c := k.snapshot(), &k.count
	for _, q := range k.running {
		s.sumSeqLens += len(q.fill)
	}
	if elapsed := (k.now - k.shownAt).Seconds(); elapsed > 0 {
		s.genThroughput = float64(c.decoded-c.shownDecoded) / elapsed
	}
	computed, cached := c.prefillComputed-c.shownPrefill, c.prefillCached-c.shownCached
	if computed+cached > 0 {
		s.hitRate = float64(cached) / float64(computed+cached)
	}
	c.shownPrefill, c.shownCached, c.shownDecoded = c.prefillComputed, c.prefillCached, c.decoded
	c.retractedNow, k.shownAt = 0, k.now
	k.shown.Store(s)
}

// Stats is the state of the engine now, summed over its DP ranks.
func (e *Engine) Stats() Snapshot {
	var sum Snapshot
	for _, s := range e.StatsByRank() {
		sum.add(s)
	}
	return sum
}

// StatsByRank is the state of each DP rank now.
func (e *Engine) StatsByRank() []Snapshot {
	ranks := e.current().ranks
	out := make([]Snapshot, len(ranks))
	for i, k := range ranks {
		out[i] = *k.live.Load()
	}
	return out
}

func (s *Snapshot) add(o Snapshot) {
	s.Capacity += o.Capacity
	s.Available += o.Available
	s.Evictable += o.Evictable
	s.Used += o.Used
	s.Resident += o.Resident
	s.Held += o.Held
	s.Running += o.Running
	s.Queued += o.Queued
	s.StreamingSessions += o.StreamingSessions
	s.Tombstones += o.Tombstones
	s.Evicted += o.Evicted
	s.Released += o.Released
	s.Recomputed += o.Recomputed
	s.Retracted += o.Retracted
	s.Completed += o.Completed
	s.Aborted += o.Aborted
	s.PrefillComputed += o.PrefillComputed
	s.PrefillCached += o.PrefillCached
	s.Decoded += o.Decoded
}
