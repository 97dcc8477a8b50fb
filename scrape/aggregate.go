package scrape

import (
	"fmt"
	"maps"
	"math"
	"slices"
	"strings"

	"kvgate/ledger"
)

// Sample is one reading of one engine.
type Sample struct {
	Capacity  ledger.Tokens
	Used      ledger.Tokens
	Evictable ledger.Tokens
	// Usage is Σ used ÷ Σ capacity and Pressure the worst usage of a DP rank, both in [0,1].
	Usage    float64
	Pressure float64
	DPRanks  int
	Running  int64
	Queued   int64
	// Evicted counts tokens since the engine started.
	Evicted    float64
	HasEvicted bool
	// Counters are sums that only grow while the engine lives.
	Counters [len(counters)]float64
	// Start is the process's start time in Unix seconds, 0 if unknown.
	Start float64
	Role  ledger.Role
	// Info is what had to be asked apart from the page.
	Info Info
}

// Info is the capacity as an engine's info endpoints tell it, for releases without the gauge.
type Info struct {
	// Ranks is the capacity by dp_rank, if told so.
	Ranks map[string]ledger.Tokens
	// PerRank is the capacity of each of DPSize ranks otherwise.
	PerRank ledger.Tokens
	DPSize  int
}

// of returns the capacity of one rank, or of the engine for "".
func (i Info) of(dp string) float64 {
	if dp != "" {
		if t, ok := i.Ranks[dp]; ok {
			return float64(t)
		}
		return float64(i.PerRank)
	}
	if len(i.Ranks) == 0 {
		return float64(i.PerRank) * float64(max(1, i.DPSize))
	}
	sum := 0.0
	for _, t := range i.Ranks {
		sum += float64(t)
	}
	return sum
}

// byRank is one family's value per dp_rank; "" stands for series without that label.
type byRank map[string]float64

// Read turns a /metrics body into the Sample of the engine at url. Errors: ErrMalformed, ErrNoMetrics,
// ErrMergedPage, ErrNoCapacity.
func Read(body []byte, url string, info Info) (Sample, error) {
	p, err := parse(body)
	if err != nil {
		return Sample{}, err
	}
	return p.sample(url, info)
}

func (p *page) sample(url string, info Info) (Sample, error) {
	addr, err := p.pick(url)
	if err != nil {
		return Sample{}, err
	}
	r := p.fold(addr)
	s := Sample{Info: info, Role: roleOf(p.engineType[addr]), Evicted: r[evicted].total(), HasEvicted: len(r[evicted]) > 0}
	s.Running, s.Queued = int64(tokens(r[running].total())), int64(tokens(r[queued].total()))
	for i, f := range counters {
		s.Counters[i] = p.sum(f, addr)
	}
	if addr == "" {
		s.Start = p.start
	}
	r.measure(&s, info)
	if s.Capacity <= 0 {
		return s, fmt.Errorf("%w: the page has no max_total_num_tokens", ErrNoCapacity)
	}
	return s, nil
}

// pick chooses which engine's series of the page to read: the only one's, or those of this address.
// Series of two engines are never mixed.
func (p *page) pick(url string) (string, error) {
	addrs := map[string]bool{}
	for _, f := range p.series {
		for _, s := range f {
			addrs[s.addr] = true
		}
	}
	if len(addrs) == 0 {
		return "", nil
	}
	names := slices.Sorted(maps.Keys(addrs))
	if len(names) == 1 {
		return names[0], nil
	}
	for _, a := range names {
		if hostOf(a) == hostOf(url) && a != "" {
			return a, nil
		}
	}
	return "", fmt.Errorf("%w: it holds %d engines and %s is not among them; give the engines' own URLs", ErrMergedPage, len(names), hostOf(url))
}

// hostOf is the host:port of an address with or without a scheme.
func hostOf(addr string) string {
	if _, rest, ok := strings.Cut(addr, "://"); ok {
		addr = rest
	}
	host, _, _ := strings.Cut(addr, "/")
	return strings.ToLower(host)
}

type readings [families]byRank

// fold reduces each family to one value per dp_rank. Within a dp_rank the tp, pp, ep and pid series
// repeat one pool, so the largest counts; tp_rank must not be a key, because with DP attention it equals
// dp_rank (aibrix 1614, miles 2023). Counters first add what differs by other labels.
func (p *page) fold(addr string) readings {
	var r readings
	for f := range families {
		type place struct {
			dp   string
			rank [4]string
		}
		sums := map[place]float64{}
		r[f] = byRank{}
		for _, s := range p.series[f] {
			if s.addr != addr {
				continue
			}
			v := max(s.value, 0)
			if f == evicted {
				at := place{s.dp, s.rank}
				sums[at] += v
				v = sums[at]
			}
			r[f][s.dp] = max(r[f][s.dp], v)
		}
	}
	return r
}

func (p *page) sum(f family, addr string) float64 {
	total := 0.0
	for _, s := range p.series[f] {
		if s.addr == addr {
			total += max(s.value, 0)
		}
	}
	return total
}

// total adds the ranks up. A series without dp_rank beside ones that have it is their sum already.
func (m byRank) total() float64 {
	sum, labelled := 0.0, false
	for dp, v := range m {
		if dp != "" {
			sum, labelled = sum+v, true
		}
	}
	if !labelled {
		return m[""]
	}
	return sum
}

func (m byRank) worst() float64 {
	w := 0.0
	for _, v := range m {
		w = max(w, v)
	}
	return w
}

// count returns a token count of one rank; for the engine as a whole ("") that of all ranks.
func (m byRank) count(dp string) (float64, bool) {
	if v, ok := m[dp]; ok {
		return v, true
	}
	if dp != "" || len(m) == 0 {
		return 0, false
	}
	return m.total(), true
}

// ratio returns a usage of one rank. One usage without dp_rank speaks for every rank.
func (m byRank) ratio(dp string) (float64, bool) {
	if v, ok := m[dp]; ok {
		return min(v, 1), true
	}
	if v, ok := m[""]; ok {
		return min(v, 1), true
	}
	if dp != "" || len(m) == 0 {
		return 0, false
	}
	return min(m.worst(), 1), true
}

// ranks lists the dp_ranks to add up. If the capacity is told without them, the engine counts as one.
func (r *readings) ranks() []string {
	if _, whole := r[capacity][""]; whole && len(r[capacity]) == 1 {
		return []string{""}
	}
	set := map[string]bool{}
	for f := capacity; f <= kvEvictable; f++ {
		for dp := range r[f] {
			set[dp] = true
		}
	}
	if len(set) > 1 {
		delete(set, "")
	}
	return slices.Sorted(maps.Keys(set))
}

func (r *readings) measure(s *Sample, info Info) {
	var total, used, evictable float64
	names := r.ranks()
	for _, dp := range names {
		k := r.rank(dp, info)
		total, used = total+k.capacity, used+k.used
		evictable += k.evictable
		s.Pressure = max(s.Pressure, k.pressure)
	}
	s.Capacity, s.Used, s.Evictable = tokens(total), tokens(used), tokens(evictable)
	s.DPRanks = max(1, len(names))
	if len(names) == 1 && names[0] == "" {
		s.DPRanks = max(1, info.DPSize, len(info.Ranks))
	}
	if total > 0 {
		s.Usage = min(used/total, 1)
	}
}

// rankReading is one pool.
type rankReading struct{ capacity, used, evictable, pressure float64 }

// rank reads one pool. Usage is token_usage, else full_token_usage, else used ÷ capacity. Where one of
// usage and used reads 0 and the other does not, the gauges moved at different times: the other counts.
// With neither, the engine is starting up and its pool is empty.
func (r *readings) rank(dp string, info Info) rankReading {
	var k rankReading
	available, hasAvailable := r[kvAvailable].count(dp)
	evictable, hasEvictable := r[kvEvictable].count(dp)
	used, hasUsed := r[usedTokens].count(dp)
	if v, ok := r[kvUsed].count(dp); ok && !hasUsed {
		used, hasUsed = v, true
	}
	k.capacity, _ = r[capacity].count(dp)
	if k.capacity <= 0 && hasAvailable && hasEvictable && hasUsed {
		k.capacity = available + evictable + used
	}
	if k.capacity <= 0 {
		k.capacity = info.of(dp)
	}
	usage, hasUsage := r.usage(dp)
	switch {
	case k.capacity <= 0:
	case !hasUsage && !hasUsed && hasAvailable && hasEvictable:
		used = k.capacity - available - evictable
		usage = used / k.capacity
	case (!hasUsage || usage == 0) && used > 0:
		usage = used / k.capacity
	case used == 0:
		used = usage * k.capacity
	}
	k.used = min(max(used, 0), k.capacity)
	k.evictable = min(evictable, max(k.capacity-k.used, 0))
	k.pressure = min(max(usage, 0), 1)
	return k
}

// usage prefers token_usage, which is the worst of a hybrid model's pools already. Without it, the worst
// of the pools is taken here.
func (r *readings) usage(dp string) (float64, bool) {
	if v, ok := r[tokenUsage].ratio(dp); ok {
		return v, true
	}
	full, ok := r[fullTokenUsage].ratio(dp)
	if !ok {
		return 0, false
	}
	swa, _ := r[swaTokenUsage].ratio(dp)
	mamba, _ := r[mambaUsage].ratio(dp)
	return max(full, swa, mamba), true
}

// tokens rounds to whole tokens within [0, MaxTokens].
func tokens(v float64) ledger.Tokens {
	if !(v > 0) {
		return 0
	}
	return ledger.Tokens(math.Round(min(v, float64(ledger.MaxTokens))))
}
