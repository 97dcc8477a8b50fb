package ledger

// Engine is one engine as a round of polling saw it. URL is its identity: scheme://host:port, without
// a trailing slash or "@rank".
type Engine struct {
	URL     string
	Healthy bool
	// Error says why the engine is not healthy; empty when it is.
	Error string
	// Capacity is the sum over the engine's DP ranks.
	Capacity Tokens
	Used     Tokens
	// Evictable counts cached prefixes of idle sessions. They are not part of Used.
	Evictable Tokens
	// Usage is Σ used ÷ Σ capacity, in [0,1].
	Usage float64
	// Pressure is the worst usage over the DP ranks, in [0,1].
	Pressure float64
	DPRanks  int
	Role     Role
	// Incarnation changes when the engine process was restarted.
	Incarnation string
	// EvictionRate is in tokens per second since the previous poll.
	EvictionRate float64
	Running      int64
	Queued       int64
}

// Round is what one round of polling proposes.
type Round struct {
	// Fresh: the round is a capacity snapshot. A round in which nothing answered is not fresh: it
	// updates error texts only and leaves the snapshot to grow stale.
	Fresh bool
	// Degrade: the pool has no usable capacity from now on, whatever its snapshot's age (no engines
	// listed, or the discovery is older than the staleness bound).
	Degrade bool
	// Reason explains Degrade or a failed round, for people.
	Reason string
	// Discovery says where the list came from: "router /workers", "router /list_workers" or "static".
	Discovery string
	// Repeats counts the polls since the previous proposed round that read the same as that one.
	Repeats int64
	// Engines lists all known engines, healthy or not. An engine that is absent from a fresh round
	// has left the set.
	Engines []Engine
}
