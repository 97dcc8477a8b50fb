package deploy

import "fmt"

// most returns the maximum over the nodes of a metric of the replicated state, with labels beside the pool.
func most(metric, by string) string {
	return fmt.Sprintf(`max by (%s) (agentic_kv_%s{job="$job", pool=~"$pool"})`, by, metric)
}

// pace returns the slope of such a counter. rate() would take a node that came back with a little less for a reset.
func pace(metric, by string) string {
	return fmt.Sprintf(`clamp_min(deriv(%s[$__rate_interval:]), 0)`, most(metric, by))
}

// own returns a metric that each node counts for itself.
func own(metric string) string { return fmt.Sprintf(`agentic_kv_%s{job="$job"}`, metric) }

// ownRate sums the rate of such a counter over the nodes.
func ownRate(metric, by string) string {
	return fmt.Sprintf(`sum by (%s) (rate(%s[$__rate_interval]))`, by, own(metric))
}

// quantile returns a quantile of a histogram that each node fills for itself.
func quantile(q float64, metric, by string) string {
	return fmt.Sprintf(`histogram_quantile(%g, %s)`, q, ownRate(metric+"_bucket", by))
}

var dashboardRows = []row{
	{"Cluster", []panel{
		{title: "Leader", unit: "short", stat: true, name: true,
			help:    "The node that decides. None: `kvgate status` on each node says what it misses.",
			queries: []query{{own("raft_is_leader") + " == 1", "{{instance}}"}}},
		{title: "May still fail", unit: "short", stat: true,
			help:    "Voters that may fail before the cluster stops deciding: 1 of three when all is well. At 0 bring the missing node back before you upgrade or drain another.",
			queries: []query{{"max(" + own("raft_failure_tolerance") + ")", ""}}},
		{title: "Nodes that answer", unit: "short", stat: true,
			help:    "Nodes that Prometheus can scrape.",
			queries: []query{{`sum(up{job="$job"})`, ""}}},
		{title: "Can write", unit: "short", stat: true,
			help:    "1 where the node can write to its disk. 0: the disk is full (below 64 MiB free), read-only or failing; /readyz says which.",
			queries: []query{{"min by (instance) (" + own("raft_writable") + ")", "{{instance}}"}}},
		{title: "Changes of term", unit: "short",
			help:    "Elections. One for each restart of a leader is normal; several without a restart point at stalls of network, disk or processor.",
			queries: []query{{"max(changes(" + own("raft_term") + "[$__rate_interval]))", "changes"}}},
		{title: "Log entries behind", unit: "short",
			help:    "How far each node is behind what is committed. Hundreds under load are normal; what grows is a node that cannot follow: look at its disk and network.",
			queries: []query{{"scalar(max(" + own("raft_commit_index") + ")) - " + own("raft_applied_index"), "{{instance}}"}}},
		{title: "Log entries per second", unit: "ops",
			help:    "Each carries up to 512 operations and costs a flush on a majority of the disks.",
			queries: []query{{"clamp_min(deriv(max(" + own("raft_commit_index") + ")[$__rate_interval:]), 0)", "entries"}}},
	}},
	{"Admission", []panel{
		{title: "Tokens", unit: "short",
			help: "Reserved by leases, against the ceiling (capacity of healthy engines × headroom, less pins). Reserved at the ceiling with a queue: the fleet is the limit. Far below with a queue: look at pressure.",
			queries: []query{
				{most("reserved_tokens", "pool"), "{{pool}} reserved"}, {most("ceiling_tokens", "pool"), "{{pool}} ceiling"},
				{most("pinned_tokens", "pool"), "{{pool}} pinned"},
			}},
		{title: "Pressure", unit: "percentunit", most: 1,
			help:    "Worst token usage of an engine. At and above the threshold nothing new is granted: wait, add engines, or raise pressure_threshold.",
			queries: []query{{most("pressure", "pool"), "{{pool}}"}, {most("pressure_threshold", "pool"), "{{pool}} threshold"}}},
		{title: "Leases and waiters", unit: "short",
			help:    "Attempts that hold tokens, and those in the queue. `kvgate leases` and `kvgate queue` name them.",
			queries: []query{{most("leases", "pool"), "{{pool}} leases"}, {most("waiting", "pool"), "{{pool}} waiting"}}},
		{title: "Oldest wait", unit: "s",
			help:    "How long the head of the queue has waited. At max_wait (30 s unless set) it goes ahead as bypass aged.",
			queries: []query{{most("oldest_wait_seconds", "pool"), "{{pool}}"}}},
		{title: "Admits per second", unit: "ops",
			help:    "Leases granted, and of them after waiting.",
			queries: []query{{pace("admit_total", "pool"), "{{pool}} admitted"}, {pace("waited_grants_total", "pool"), "{{pool}} after waiting"}}},
		{title: "Bypasses per second, by reason", unit: "ops",
			help:    "Attempts let go without a lease. aged: over-subscribed for longer than callers may wait. degraded: no fresh capacity, see `kvgate engines`. oversized: larger than the ceiling. disabled, out_of_scope and protected are asked for.",
			queries: []query{{pace("bypass_total", "pool, reason"), "{{pool}} {{reason}}"}}},
		{title: "Untracked bypasses per second", unit: "ops",
			help:    "Acquires let go because the coordinator could not decide; in no ledger. no_leader and timeout: elections and slow disks. read_only: a full disk. internal: a defect, see the log.",
			queries: []query{{ownRate("untracked_bypass_total", "cause"), "{{cause}}"}}},
		{title: "Lost and forgotten per second", unit: "ops",
			help: "Leases reclaimed at their deadline (a lost release), holders that went silent (a dead worker), grants and waiters that nobody came back for. All should be near 0.",
			queries: []query{
				{pace("lease_expired_total", "pool"), "{{pool}} leases expired"}, {pace("holder_expired_total", "pool"), "{{pool}} holders silent"},
				{pace("unclaimed_total", "pool"), "{{pool}} grants unclaimed"}, {pace("abandoned_total", "pool"), "{{pool}} waiters abandoned"},
			}},
		{title: "Reserved over used", unit: "short",
			help:    "Tokens reserved for each token that was used, of attempts that report usage. Far above 1: set expected_decode_cap, or admission is needlessly strict.",
			queries: []query{{pace("reported_reserved_tokens_total", "pool") + " / " + pace("reported_used_tokens_total", "pool"), "{{pool}}"}}},
	}},
	{"Engines", []panel{
		{title: "Token usage", unit: "percentunit", most: 1,
			help:    "Used over capacity of each engine's KV pool, cached prefixes included. The worst one is the pool's pressure.",
			queries: []query{{most("engine_usage", "pool, engine"), "{{engine}}"}}},
		{title: "Evicted tokens per second", unit: "short",
			help:    "Cached prefixes that made room. With much of it the next turns recompute: fewer sessions at once, lower headroom, or close sessions when they end.",
			queries: []query{{most("engine_eviction_rate", "pool, engine"), "{{engine}}"}}},
		{title: "Requests in the engines", unit: "short",
			help:    "Requests that decode, and those in the engine's own queue. A queue there means that admission lets too much through, or that not all callers ask.",
			queries: []query{{most("engine_running_requests", "pool, engine"), "{{engine}} running"}, {most("engine_queued_requests", "pool, engine"), "{{engine}} queued"}}},
		{title: "Healthy engines", unit: "short",
			help:    "Engines that count towards the ceiling. `kvgate engines` says why one does not.",
			queries: []query{{"sum by (pool) (" + most("engine_healthy", "pool, engine") + ")", "{{pool}}"}}},
		{title: "Age of the capacity snapshot", unit: "s",
			help:    "Polls come every 2 s unless set. From staleness (6 s) on the pool is degraded and everything bypasses.",
			queries: []query{{most("snapshot_age_seconds", "pool"), "{{pool}}"}}},
		{title: "Idle cache", unit: "short",
			help:    "Cached prefixes of idle sessions, in tokens. They make usage look full without work: closing sessions frees them.",
			queries: []query{{most("engine_evictable_tokens", "pool, engine"), "{{engine}}"}}},
	}},
	{"Sessions", []panel{
		{title: "Sessions", unit: "short",
			help:    "Open, and closing. What stays closing for long waits for tickets in flight, or is owed by an engine.",
			queries: []query{{most("sessions_open", "pool"), "{{pool}} open"}, {most("sessions_closing", "pool"), "{{pool}} closing"}}},
		{title: "Owed closes", unit: "short",
			help:    "Acknowledgements that engines owe. `kvgate session list --state closing` names the engines.",
			queries: []query{{most("session_owed_closes", "pool"), "{{pool}}"}}},
		{title: "Oldest owed close", unit: "s",
			help:    "At close_deadline (60 s unless set) it counts as failed, and that KV goes by eviction.",
			queries: []query{{most("session_oldest_owed_seconds", "pool"), "{{pool}}"}}},
		{title: "Closes per second", unit: "ops",
			help:    "Closes that are over, and of them those that an engine had not acknowledged in time.",
			queries: []query{{pace("session_close_total", "pool"), "{{pool}} closed"}, {pace("session_close_failure_total", "pool"), "{{pool}} with failures"}}},
		{title: "Close latency", unit: "s",
			help:    "From when an engine had to hear of a close until it acknowledged it.",
			queries: []query{{quantile(0.5, "session_close_seconds", "le"), "p50"}, {quantile(0.99, "session_close_seconds", "le"), "p99"}}},
		{title: "Calls to engines per second", unit: "ops",
			help:    "By call and outcome. key_refused: correct the key files. unreachable: restart the engine or take it out of the router. refused: it does not offer the call.",
			queries: []query{{ownRate("session_engine_calls_total", "call, outcome"), "{{call}} {{outcome}}"}}},
	}},
	{"Calls", []panel{
		{title: "Latency, p50", unit: "s",
			help:    "Unary calls by method. Acquire includes the time in the queue; Release shows what a decision costs.",
			queries: []query{{quantile(0.5, "rpc_seconds", "le, method"), "{{method}}"}}},
		{title: "Latency, p99", unit: "s",
			help:    "A Release of tens of milliseconds and more: the disks flush slowly, or the processor is short.",
			queries: []query{{quantile(0.99, "rpc_seconds", "le, method"), "{{method}}"}}},
		{title: "Calls per second", unit: "ops",
			help:    "Unary calls by method. Clients that multiplex use Exchange streams and appear under streams instead.",
			queries: []query{{ownRate("rpc_seconds_count", "method"), "{{method}}"}}},
		{title: "Errors per second", unit: "ops",
			help:    "By method and code. unavailable: no leader. unauthenticated and permission_denied: tokens. invalid_argument: a caller's mistake; the answer names the field.",
			queries: []query{{ownRate("rpc_errors_total", "method, code"), "{{method}} {{code}}"}}},
		{title: "Streams and batches", unit: "short",
			help:    "Open Exchange streams, and holders that use Submit, on each node.",
			queries: []query{{own("exchange_streams"), "{{instance}} streams"}, {own("submit_holders"), "{{instance}} holders"}}},
	}},
	{"Processes", []panel{
		{title: "Memory", unit: "bytes",
			help:    "Resident. It grows up to half of the machine's or the container's memory before Go collects garbage in earnest; GOMEMLIMIT changes that.",
			queries: []query{{`process_resident_memory_bytes{job="$job"}`, "{{instance}}"}}},
		{title: "Processor", unit: "short",
			help:    "Cores in use.",
			queries: []query{{`rate(process_cpu_seconds_total{job="$job"}[$__rate_interval])`, "{{instance}}"}}},
		{title: "File descriptors", unit: "short",
			help:    "Open, against the limit. At the limit new connections are refused and their callers fail open.",
			queries: []query{{`process_open_fds{job="$job"}`, "{{instance}}"}, {`process_max_fds{job="$job"}`, "{{instance}} limit"}}},
	}},
}
